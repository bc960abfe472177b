import { ConfigError, describeOptions } from '../config/load.ts';
import { maskText } from '../util/mask.ts';

export const EXIT = { done: 0, failed: 1, configuration: 2 } as const;

/** A command that could not do what it is for; the message is for the person who gave it. */
export class CommandFailed extends Error {}

/** The message for an error that ends the process, and its exit code. One that the operator can fix has no stack. */
export function describeExit(thrown: unknown): { readonly text: string; readonly code: number } {
  const errors: unknown[] = thrown instanceof AggregateError ? thrown.errors : [thrown];
  if (errors.every((error) => error instanceof ConfigError)) {
    const lines = errors.flatMap(({ message }) => message.split('\n'));
    return { text: `${lines.map((line) => `quayside: ${line}`).join('\n')}\n`, code: EXIT.configuration };
  }
  const messages = errors.map((error) => {
    if (error instanceof CommandFailed) return error.message;
    return error instanceof Error ? (error.stack ?? error.message) : String(error);
  });
  return { text: `quayside: ${maskText(messages.join('\n'))}\n`, code: EXIT.failed };
}

/** Every option of the configuration, from its declaration. */
export function optionsText(): string {
  const options = describeOptions().map(({ path, type, default: usual, help, variable }) => {
    const value = usual === '' ? type : `${type}; default ${usual}`;
    return `  ${path}\n      ${help.replaceAll('`', '')}\n      ${value}\n      ${variable}\n`;
  });
  return options.join('\n');
}
