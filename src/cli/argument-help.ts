import type { Command, Option } from 'commander';

const QUEUE = 'namespace and name of the queue, such as N/orders';

/** Descriptions by argument name, or by command and argument name for arguments of one command only. */
const HELP: Readonly<Record<string, string>> = {
  queue: QUEUE,
  from: QUEUE,
  to: 'the other queue',
  folder: 'folder of the backup',
  shell: 'bash, zsh or fish',
  'put data': 'body of an element; if there is none, standard input is the body',
  'commit id': 'id of the element, as the reserve printed it',
  'help command': 'one of the commands; if not given, all are listed',
  'status name': 'a queue such as N/orders, or a namespace; if not given, the namespaces are listed',
  'dead namespace': 'only this namespace; if not given, all',
  'redrive queue': 'the dead-letter queue, such as N/__deadletter__',
  'exchange verb': 'list, show, create, start, stop or delete',
  'exchange id': 'id of the exchange; all verbs but list need it',
  'operations id': 'id of the operation; if not given, all are listed',
  'add name': 'any name, by which lists show it',
  'revoke id': 'id of the token, as the list shows it',
  'user name': 'name of the user',
};

/** Sets the descriptions of the arguments of all commands, for help, man page and documentation. */
export function describeArguments(program: Command): void {
  for (const command of program.commands) {
    for (const argument of command.registeredArguments) {
      const name = argument.name();
      argument.description =
        HELP[`${program.name()} ${name}`] ?? HELP[`${command.name()} ${name}`] ?? HELP[name] ?? '';
    }
    describeArguments(command);
  }
}

/** What an option does, with its default, for the man page and documentation. */
export function optionText({ description, defaultValue }: Option): string {
  return defaultValue === undefined ? description : `${description}; defaults to ${defaultValue}`;
}
