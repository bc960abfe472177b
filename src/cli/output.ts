import type { Writable } from 'node:stream';
import { EXIT_CODES } from './exit-codes.ts';

/** Resolves when the reader has room for more. @throws Error the text cannot be written */
export function write(output: Writable, chunk: string | Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    output.write(chunk, (error) => (error ? reject(error) : resolve()));
  });
}

/** Whether a reader such as `head` has left, which has what it wanted. */
export function isReaderGone(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'EPIPE';
}

/** Prints all that a command has to say. Returns the exit code. */
export async function printAll(
  { stdout, stderr }: { readonly stdout: Writable; readonly stderr: Writable },
  text: string,
): Promise<number> {
  try {
    await write(stdout, text);
    return EXIT_CODES.done;
  } catch (error) {
    if (!isReaderGone(error)) stderr.write(`quayside: ${(error as Error).message}\n`);
    return EXIT_CODES.failed;
  }
}
