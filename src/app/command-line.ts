import { parseArgs } from 'node:util';

export const COMMANDS = ['serve', 'hash-password', 'reset-admin', 'backup', 'restore'] as const;

/** These name a folder. */
const WITH_FOLDER: readonly string[] = ['backup', 'restore'];

export interface CommandLine {
  readonly command: (typeof COMMANDS)[number] | 'help' | 'version' | 'print-config';
  /** As given; null: none. */
  readonly configFile: string | null;
  /** Of a backup; '' for other commands. */
  readonly folder: string;
  readonly user: string;
  readonly url: string | null;
  readonly replace: boolean;
}

/** A command that could not do what it is for; the message is for the person who gave it. */
export class CommandFailed extends Error {}

/** A command line that says nothing we know. */
export class UsageError extends Error {}

const FLAGS = {
  config: { type: 'string' },
  'print-config': { type: 'boolean' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean' },
  user: { type: 'string' },
  url: { type: 'string' },
  replace: { type: 'boolean' },
} as const;

/** @throws UsageError */
export function parseCommandLine(args: readonly string[]): CommandLine {
  const { values, positionals } = parse(args);
  const [word = 'serve', ...rest] = positionals;
  const command = COMMANDS.find((name) => name === word);
  if (command === undefined)
    throw new UsageError(`There is no command ${word}; there are ${COMMANDS.join(', ')}.`);
  const { user = 'admin', url = null, replace = false } = values;
  const line = { configFile: values.config ?? null, folder: '', user, url, replace };
  if (values.help) return { ...line, command: 'help' };
  if (values.version) return { ...line, command: 'version' };
  if (WITH_FOLDER.includes(command)) return { ...line, command, folder: folderOf(command, rest) };
  // A password as an argument would be seen by everybody who lists the processes.
  if (rest.length > 0) throw new UsageError(`${command} takes no further argument.`);
  return { ...line, command: values['print-config'] ? 'print-config' : command };
}

function folderOf(command: string, rest: readonly string[]): string {
  const [folder = ''] = rest;
  if (rest.length === 1 && folder !== '') return folder;
  throw new UsageError(`${command} takes one folder, as in npm run ${command} -- backups/monday.`);
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: FLAGS, allowPositionals: true, strict: true });
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}
