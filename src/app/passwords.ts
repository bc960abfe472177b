import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { hashPassword } from '../access/password.ts';
import { newAdministrator, UsersFileError } from '../access/users-file.ts';
import type { LoadedConfig } from '../config/load.ts';
import { ConfigError } from '../config/problem.ts';
import { EXIT } from './command-line.ts';
import { hasConfiguredUsers, saveUsers, usersFileOf } from './users.ts';

/** From this length on a password is accepted without a remark (reliability, S5). */
const GOOD_LENGTH = 15;

/** A terminal or a pipe to read a password from, and where to ask. */
export interface PasswordSource {
  readonly input: NodeJS.ReadableStream & { readonly isTTY?: boolean };
  readonly ask: NodeJS.WritableStream;
}

/** `hash-password`: returns the exit code. The hash alone goes to `output`. */
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
    ask.write(`The password ${error instanceof Error ? error.message : error}.\n`);
    return EXIT.failed;
  }
  return EXIT.done;
}

/** Asks for a password that is to be, twice on a terminal. Null, with a message, if there is none. */
export async function readNewPassword(source: PasswordSource): Promise<string | null> {
  const { input, ask } = source;
  const password = await readPassword(source, 'Password: ');
  if (password === null) return null;
  if (input.isTTY && (await readPassword(source, 'Again: ')) !== password) {
    ask.write('The two differ; nothing was made.\n');
    return null;
  }
  if (password.length > 0 && password.length < GOOD_LENGTH) {
    ask.write(`${GOOD_LENGTH} characters or more would be better.\n`);
  }
  return password;
}

/**
 * `reset-admin`: creates the administrator again and returns the text to show.
 * @throws ConfigError if the configuration names the users itself, or `dataDir` takes no file
 */
export async function resetAdministrator({ config, errorAt }: LoadedConfig): Promise<string> {
  if (hasConfiguredUsers(config)) {
    const problem = 'names the users, so there is no administrator to reset';
    const hint = 'Change the password there; `npm start -- hash-password` makes its hash';
    throw new ConfigError([{ source: null, path: 'http.users', problem, hint }]);
  }
  const { definition, password } = await newAdministrator();
  // Users that are added by commands stay. A file that cannot be used is replaced: this command is what helps then.
  const stored = (await usersFileOf(config).read().catch(ignoreUnusable)) ?? [];
  await saveUsers(config, [definition, ...stored.filter(({ name }) => name !== definition.name)], errorAt);
  return `  user      ${definition.name}
  password  ${password}

Its hash is in ${usersFileOf(config).path}. A server that runs takes it on SIGHUP, or when it is started again.
`;
}

function ignoreUnusable(error: unknown): null {
  if (error instanceof UsersFileError) return null;
  throw error;
}

/**
 * Asks for a password without showing it, or takes the first line of a pipe. Null if the user gave up.
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
