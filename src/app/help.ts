import { describeOptions, type OptionDescription } from '../config/describe.ts';

const USAGE = `Quayside: queues and exchanges over HTTP, STOMP and AMQP 1.0.

  npm start -- [--config FILE]                 serves
  npm start -- [--config FILE] --print-config  shows what is in force, secrets masked
  npm start -- [--config FILE] reset-admin     makes a new password for the administrator
  npm start -- hash-password                   asks for a password and prints its hash
  npm run backup -- FOLDER [--user NAME] [--url URL]
                                               copies all SQLite files into a new folder; a server that runs
                                               does it, and the password of an administrator is asked for
  npm run restore -- FOLDER [--replace]        puts a backup in their place; the server must be stopped
  npm start -- --help | --version

FILE is YAML or JSON; an environment variable goes before it. Options:
`;

/** The text of `--help`: every option, from its declaration. */
export function helpText(): string {
  return [USAGE, ...describeOptions().map(optionText)].join('\n');
}

function optionText({ path, type, default: usual, help, variable }: OptionDescription): string {
  const shown = usual === '' ? type : `${type}; default ${usual}`;
  return `  ${path}\n      ${help.replaceAll('`', '')}\n      ${shown}\n      ${variable}\n`;
}
