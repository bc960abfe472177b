import { hashPassword } from '../access/password.ts';
import { type PasswordSource, readPassword } from './prompt.ts';

/** From here on a password is taken without a remark (reliability, S5). */
const GOOD_LENGTH = 15;

export interface HashPasswordIo extends PasswordSource {
  readonly output: NodeJS.WritableStream;
}

/** `hash-password`: answers the exit code. The hash alone goes to standard output. */
export async function hashPasswordCommand(io: HashPasswordIo): Promise<number> {
  const password = await readPassword(io, 'Password: ');
  if (password === null) return 1;
  if (io.input.isTTY && (await readPassword(io, 'Again: ')) !== password) {
    io.ask.write('The two differ; nothing was made.\n');
    return 1;
  }
  try {
    io.output.write(`${await hashPassword(password)}\n`);
  } catch (error) {
    io.ask.write(`The password ${error instanceof Error ? error.message : error}.\n`);
    return 1;
  }
  if (password.length < GOOD_LENGTH) io.ask.write(`${GOOD_LENGTH} characters or more would be better.\n`);
  return 0;
}
