import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { hashPassword } from '../access/password.ts';
import { messageOf } from '../util/message-of.ts';
import { UTF8 } from '../util/utf8.ts';
import { CommandFailed, EXIT } from './command-line.ts';

/** Shorter passwords are accepted with a warning. */
const GOOD_LENGTH = 15;

/** A terminal or pipe to read a password from, and a stream for prompts. */
export interface PasswordSource {
  readonly input: NodeJS.ReadableStream & { readonly isTTY?: boolean };
  readonly ask: NodeJS.WritableStream;
}

/** `hash-password`: returns the exit code. Only the hash is written to `output`. */
export async function hashPasswordCommand(
  source: PasswordSource,
  output: NodeJS.WritableStream,
): Promise<number> {
  const { ask } = source;
  const password = await readNewPassword(source);
  if (password === null) return EXIT.failed;
  try {
    output.write(`${await hashPassword(password)}\n`);
  } catch (error) {
    ask.write(`The password ${messageOf(error)}.\n`);
    return EXIT.failed;
  }
  return EXIT.done;
}

/** Prompts for a new password, twice on a terminal. If there is none or they differ, returns null. */
export async function readNewPassword(source: PasswordSource): Promise<string | null> {
  const { input, ask } = source;
  const password = await readPassword(source, 'Password: ');
  if (password === null) return null;
  if (input.isTTY && (await readPassword(source, 'Again: ')) !== password) {
    ask.write('The passwords differ; nothing was created.\n');
    return null;
  }
  if (password.length > 0 && password.length < GOOD_LENGTH) {
    ask.write(`${GOOD_LENGTH} characters or more would be better.\n`);
  }
  return password;
}

/**
 * Prompts for a password without echo, or reads the first line of a pipe. Null if the user aborted. Passwords are never
 * arguments, because every system user can list the arguments of processes.
 * @throws CommandFailed
 */
export async function readPassword(source: PasswordSource, question: string): Promise<string | null> {
  if (source.input.isTTY === true) return askHidden(source, question);
  const bytes = await buffer(source.input);
  try {
    return UTF8.decode(bytes).split(/\r?\n/, 1)[0] ?? '';
  } catch {
    throw new CommandFailed('The password is not in UTF-8, in which clients send it.');
  }
}

function askHidden({ input, ask }: PasswordSource, question: string): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  // Raw mode disables the terminal's echo; discard what readline would write instead.
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
