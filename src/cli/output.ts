import type { Writable } from 'node:stream';

/** Documented in `docs/cli.md`. */
export const EXIT_CODES = {
  done: 0,
  failed: 1,
  usage: 2,
  nothing: 3,
  notAllowed: 4,
  unavailable: 5,
  outcomeUnknown: 6,
} as const;

/** Resolves when the chunk is written. @throws Error if it cannot be written */
export function write(output: Writable, chunk: string | Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    output.write(chunk, (error) => (error ? reject(error) : resolve()));
  });
}

/** Whether the reader of the output, such as `head`, has disconnected. */
export function isReaderGone(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'EPIPE';
}

/** Prints the whole output of a command. Returns the exit code. */
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
