import { parseArgs } from 'node:util';

export const COMMANDS = ['serve', 'hash-password', 'reset-admin'] as const;

export interface CommandLine {
  readonly command: (typeof COMMANDS)[number] | 'help' | 'version' | 'print-config';
  /** As given; null: none. */
  readonly configFile: string | null;
}

/** A command line that says nothing we know. */
export class UsageError extends Error {}

const FLAGS = {
  config: { type: 'string' },
  'print-config': { type: 'boolean' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean' },
} as const;

/** @throws UsageError */
export function parseCommandLine(args: readonly string[]): CommandLine {
  const { values, positionals } = parse(args);
  const [word = 'serve', ...rest] = positionals;
  const command = COMMANDS.find((name) => name === word);
  if (command === undefined)
    throw new UsageError(`There is no command ${word}; there are ${COMMANDS.join(', ')}.`);
  // A password as an argument would be seen by everybody who lists the processes.
  if (rest.length > 0) throw new UsageError(`${command} takes no further argument.`);
  const configFile = values.config ?? null;
  if (values.help) return { command: 'help', configFile };
  if (values.version) return { command: 'version', configFile };
  return { command: values['print-config'] ? 'print-config' : command, configFile };
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: FLAGS, allowPositionals: true, strict: true });
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}
