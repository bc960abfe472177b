import { ConfigError, describeOptions } from '../config/load.ts';
import { maskText } from '../util/mask.ts';

export const EXIT = { done: 0, failed: 1, configuration: 2 } as const;

/** A command that could not do what it is for; the message is for the person who gave it. */
export class CommandFailed extends Error {}

/** The message for an error that ends the process, and its exit code. One that the operator can fix has no stack. */
export function describeExit(thrown: unknown): { readonly text: string; readonly code: number } {
  const errors: unknown[] = thrown instanceof AggregateError ? thrown.errors : [thrown];
  const texts = errors.flatMap((error) => {
    if (error instanceof ConfigError) return error.message.split('\n');
    if (error instanceof CommandFailed) return maskText(error.message);
    return maskText(error instanceof Error ? (error.stack ?? error.message) : String(error));
  });
  const isConfiguration = errors.every((error) => error instanceof ConfigError);
  return {
    text: texts.map((text) => `quayside: ${text}\n`).join(''),
    code: isConfiguration ? EXIT.configuration : EXIT.failed,
  };
}

/** Every option of the configuration, from its declaration. */
export function optionsText(): string {
  const options = describeOptions().map(({ path, type, default: usual, help, variable }) => {
    const value = usual === '' ? type : `${type}; default ${usual}`;
    return `  ${path}\n      ${plain(help)}\n      ${value}\n      ${variable}\n`;
  });
  return options.join('\n');
}

/** Help without the marks of the documentation. A link to another page names its file. */
function plain(help: string): string {
  return help.replaceAll('`', '').replace(/\[([^\]]+)\]\(\.\.\/([^)]+)\)/g, '$1 (docs/$2)');
}
