import { parseArgs } from 'node:util';
import { ConfigError } from '../config/problem.ts';
import { describeOptions } from '../config/schema.ts';
import { maskText } from '../util/mask.ts';

const COMMANDS = ['serve', 'hash-password', 'reset-admin', 'backup', 'restore', 'doctor'] as const;
const COMMANDS_WITH_FOLDER: readonly string[] = ['backup', 'restore'];

export const EXIT = { done: 0, failed: 1, configuration: 2 } as const;

export interface CommandLine {
  readonly command: (typeof COMMANDS)[number] | 'help' | 'version' | 'print-config';
  /** As given; null: none. */
  readonly configFile: string | null;
  /** Where a backup goes, or comes from; '' for other commands. */
  readonly folder: string;
  /** Whose password a backup asks for if the server runs. */
  readonly user: string;
  /** Of the server that runs; null: as configured. */
  readonly url: string | null;
  /** Whether a restore moves files away that are in its place. */
  readonly replace: boolean;
  /** Whether the output is JSON also on a terminal. */
  readonly json: boolean;
}

/** A command that could not do what it is for; the message is for the person who gave it. */
export class CommandFailed extends Error {}

/** A command line that has no meaning. */
class UsageError extends Error {}

const FLAGS = {
  config: { type: 'string' },
  'print-config': { type: 'boolean' },
  help: { type: 'boolean', short: 'h' },
  version: { type: 'boolean' },
  user: { type: 'string' },
  url: { type: 'string' },
  replace: { type: 'boolean' },
  json: { type: 'boolean' },
} as const;

/** @throws UsageError */
export function parseCommandLine(args: readonly string[]): CommandLine {
  const { values, positionals } = parse(args);
  const [word = 'serve', ...rest] = positionals;
  const command = COMMANDS.find((name) => name === word);
  if (command === undefined)
    throw new UsageError(`There is no command ${word}; there are ${COMMANDS.join(', ')}.`);
  const { user = 'admin', url = null, replace = false, json = false } = values;
  const line = { configFile: values.config ?? null, folder: '', user, url, replace, json };
  if (values.help) return { ...line, command: 'help' };
  if (values.version) return { ...line, command: 'version' };
  if (COMMANDS_WITH_FOLDER.includes(command)) return { ...line, command, folder: folderOf(command, rest) };
  // A password as an argument would be visible to all who list the processes.
  if (rest.length > 0) throw new UsageError(`${command} takes no further argument.`);
  return { ...line, command: values['print-config'] ? 'print-config' : command };
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: FLAGS, allowPositionals: true, strict: true });
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}

function folderOf(command: string, rest: readonly string[]): string {
  const [folder = ''] = rest;
  if (rest.length === 1 && folder !== '') return folder;
  throw new UsageError(`${command} takes one folder, as in npm run ${command} -- backups/monday.`);
}

/** The message for an error that ends the process, and its exit code. One that the operator can fix has no stack. */
export function describeExit(thrown: unknown): { readonly text: string; readonly code: number } {
  const errors: unknown[] = thrown instanceof AggregateError ? thrown.errors : [thrown];
  if (errors.every((error) => error instanceof ConfigError || error instanceof UsageError)) {
    const lines = errors.flatMap(({ message }) => message.split('\n'));
    return { text: `${lines.map((line) => `quayside: ${line}`).join('\n')}\n`, code: EXIT.configuration };
  }
  const messages = errors.map((error) => {
    if (error instanceof CommandFailed) return error.message;
    return error instanceof Error ? (error.stack ?? error.message) : String(error);
  });
  return { text: `quayside: ${maskText(messages.join('\n'))}\n`, code: EXIT.failed };
}

const USAGE = `Quayside: queues and exchanges over HTTP, STOMP and AMQP 1.0.

  npm start -- [--config FILE]                 serves
  npm start -- [--config FILE] --print-config  shows what is in force, secrets masked
  npm start -- [--config FILE] reset-admin     makes a new password for the administrator
  npm start -- hash-password                   asks for a password and prints its hash
  npm run backup -- FOLDER [--user NAME] [--url URL]
                                               copies all SQLite files into a new folder; a server that runs
                                               does it, and the password of an administrator is asked for
  npm run restore -- FOLDER [--replace]        puts a backup in their place; the server must be stopped
  npm start -- [--config FILE] doctor [--json] [--url URL]
                                               checks the machine, the engines' servers, the certificates and the
                                               server that runs, and says what to do
  npm start -- --help | --version
  npx quayside COMMAND --help                  commands for queues: put, get, status, …; docs/cli.md

FILE is YAML or JSON; an environment variable goes before it. Options:
`;

/** The text of `--help`: every option, from its declaration. */
export function helpText(): string {
  const options = describeOptions().map(({ path, type, default: usual, help, variable }) => {
    const value = usual === '' ? type : `${type}; default ${usual}`;
    return `  ${path}\n      ${help.replaceAll('`', '')}\n      ${value}\n      ${variable}\n`;
  });
  return [USAGE, ...options].join('\n');
}
