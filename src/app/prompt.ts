import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { text } from 'node:stream/consumers';

/** A terminal or a pipe to read a password from, and where to ask. */
export interface PasswordSource {
  readonly input: NodeJS.ReadableStream & { readonly isTTY?: boolean };
  readonly ask: NodeJS.WritableStream;
}

/**
 * Asks for a password without showing it, or takes the first line of a pipe. Null where the user gave up.
 * Never from the command line: everybody may list the arguments of a process.
 */
export async function readPassword(source: PasswordSource, question: string): Promise<string | null> {
  if (source.input.isTTY !== true) return (await text(source.input)).split(/\r?\n/, 1)[0] ?? '';
  return askHidden(source, question);
}

function askHidden({ input, ask }: PasswordSource, question: string): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  // The terminal's own echo is off in raw mode; what readline would write instead goes nowhere.
  const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
  const reader = createInterface({ input, output: nowhere, terminal: true });
  ask.write(question);
  reader.once('line', (line) => {
    resolve(line);
    reader.close();
  });
  reader.once('SIGINT', () => reader.close());
  reader.once('close', () => {
    ask.write('\n');
    resolve(null);
  });
  return promise;
}
