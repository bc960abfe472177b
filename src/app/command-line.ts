import { describeOptions } from '../config/declared.ts';
import { ConfigError } from '../config/errors.ts';
import { isOutage } from '../model/errors.ts';
import { maskUrls } from '../util/mask.ts';
import { messageOf } from '../util/message-of.ts';

export const EXIT = { done: 0, failed: 1, configuration: 2 } as const;

/** A failed command. The message is shown to the user without a stack. */
export class CommandFailed extends Error {}

/** The message and exit code of a fatal error. Errors that the operator can fix are shown without a stack. */
export function describeExit(thrown: unknown): { readonly text: string; readonly code: number } {
  const errors: unknown[] = thrown instanceof AggregateError ? thrown.errors : [thrown];
  const texts = errors.flatMap((error) => {
    if (error instanceof ConfigError) return error.message.split('\n');
    if (error instanceof CommandFailed) return maskUrls(error.message);
    // An engine that was opened fails its first calls, such as a Redis whose user may not use the keys.
    if (isOutage(error)) return maskUrls(`an engine cannot be used: ${withCauses(error)}`);
    return maskUrls(error instanceof Error ? (error.stack ?? error.message) : String(error));
  });
  const isConfiguration = errors.every((error) => error instanceof ConfigError);
  return {
    text: texts.map((text) => `quayside: ${text}\n`).join(''),
    code: isConfiguration ? EXIT.configuration : EXIT.failed,
  };
}

/** The messages of an error and its causes. */
function withCauses(error: unknown): string {
  const { cause } = error as Error;
  return `${messageOf(error)}${cause === undefined ? '' : ` (${withCauses(cause)})`}`;
}

/** The help text of all configuration options. */
export function optionsText(): string {
  const options = describeOptions().map(({ path, type, default: usual, help, variable }) => {
    const value = usual === '' ? type : `${type}; default ${usual}`;
    return `  ${path}\n      ${plain(help)}\n      ${value}\n      ${variable}\n`;
  });
  return options.join('\n');
}

/** Removes the Markdown of the reference page; links are replaced by file names. */
function plain(help: string): string {
  return help.replaceAll('`', '').replace(/\[([^\]]+)\]\(\.\.\/([^)]+)\)/g, '$1 (docs/$2)');
}
