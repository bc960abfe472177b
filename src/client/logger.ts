/** Where a worker logs errors that no listener receives. */
export interface Logger {
  error(message: string, error: unknown): void;
}

export const CONSOLE: Logger = {
  // biome-ignore lint/suspicious/noConsole: a library has no log of its own, and an error must not vanish.
  error: (message, error) => console.error(message, error),
};
