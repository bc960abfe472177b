import { Command, CommanderError, InvalidArgumentError } from 'commander';
import { quote } from '../util/quote.ts';
import type { CommandContext, CommandIo, ConnectionFlags } from './context.ts';
import { EXIT_CODES, isReaderGone, printAll } from './output.ts';
import { addRights, addServerCommands, HELP, RIGHTS_HELP, type ServerCommands } from './server-commands.ts';

type CommandAction = (context: CommandContext) => Promise<number>;

/**
 * Runs one command. Returns the exit code. Errors of client commands are printed to standard error.
 * @throws the errors of server commands
 */
export async function runProgram(
  args: readonly string[],
  io: CommandIo,
  server: ServerCommands,
): Promise<number> {
  let code: number = EXIT_CODES.done;
  const program = newProgram(io);
  addServerCommands(program, server, async (command) => {
    code = await server.run(command);
  });
  addClientCommands(
    program,
    async (flags, run) => {
      code = await runClientCommand(flags, io, run);
    },
    async (text) => {
      code = await printAll(io, text);
    },
  );
  describeArguments(program);
  try {
    await program.parseAsync([...args], { from: 'user' });
    return code;
  } catch (error) {
    // Commander has already printed its message or the requested help.
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT_CODES.done : EXIT_CODES.usage;
    throw error;
  }
}

/** The tree of commands for documentation. Its actions do nothing. */
export function commandTree(io: CommandIo): Command {
  const program = newProgram(io);
  addServerCommands(program, { version: '', optionsText: () => '' }, async () => {});
  addClientCommands(
    program,
    async () => {},
    async () => {},
  );
  describeArguments(program);
  return program;
}

async function runClientCommand(flags: ConnectionFlags, io: CommandIo, run: CommandAction): Promise<number> {
  // Imported only here: starting the server needs no client.
  const { CommandContext, exitCodeOf, printable } = await import('./context.ts');
  let context: CommandContext | null = null;
  try {
    context = new CommandContext(flags, io);
    return await run(context);
  } catch (error) {
    // A disconnected reader is an error only if it may have missed a change that the command made.
    const isSilent = isReaderGone(error) && context?.hasChanged !== true;
    const cause = (error instanceof Error ? error.message : String(error)).replace(OPENSSL_ERROR, '$1');
    const message = isReaderGone(error)
      ? `The reader of the output disconnected (${cause}). What the command had changed by then stays changed.`
      : cause;
    const hint = context?.hintFor(error) ?? '';
    if (!isSilent) io.stderr.write(`quayside: ${printable(message)}${hint}\n`);
    return exitCodeOf(error, context?.hasChanged === true);
  } finally {
    await context?.client.close();
  }
}

/** An error of OpenSSL as Node passes it on. The group is the reason; the rest names its functions and files. */
const OPENSSL_ERROR = /\b[0-9A-F]+:error:[0-9A-F]+:[^:]*:[^:]*:([^:]*):.*$/s;

function newProgram(io: CommandIo): Command {
  return new Command('quayside')
    .description('Queues and exchanges over HTTP, STOMP and AMQP 1.0.')
    .exitOverride()
    .enablePositionalOptions()
    .helpOption('-h, --help', 'prints this help')
    .hook('preAction', (_program, command) => rejectFurtherArguments(command))
    .configureOutput({
      writeOut: (text) => void io.stdout.write(text),
      writeErr: (text) => void io.stderr.write(text),
      outputError: (text, write) =>
        write(text.replace(/^error: (.)/, (_, first: string) => `quayside: ${first.toUpperCase()}`)),
    });
}

/**
 * Rejects excess arguments without quoting them, as Commander does: one may be a password. Those of the program itself
 * are unknown commands, which its action reports.
 */
function rejectFurtherArguments(command: Command): void {
  const { parent, args, registeredArguments } = command;
  if (parent === null || registeredArguments.at(-1)?.variadic) return;
  if (args.length > registeredArguments.length) {
    command.error(`error: The command ${command.name()} takes no further argument.`);
  }
}

/** Adds the commands that call a server. Their code is imported when they run: help and completion do not need it. */
function addClientCommands(
  program: Command,
  runWith: (flags: ConnectionFlags, run: CommandAction) => Promise<void>,
  print: (text: string) => Promise<void>,
): void {
  /** Adds a command with the common options. A queue argument is `namespace/queue`. */
  const command = (usage: string, description: string, parent = program): Command =>
    parent
      .command(usage)
      .description(description)
      .option(
        '--url <url>',
        'address of the server; defaults to QUAYSIDE_URL, client.json or http://127.0.0.1:3444',
      )
      .option(
        '--user <name>',
        'name of the user; defaults to QUAYSIDE_USER or client.json. Give the password in QUAYSIDE_PASSWORD, or a token in QUAYSIDE_TOKEN',
      )
      .option('--json', 'prints JSON, also on a terminal');

  /** The action of a command: a function that is imported when the command runs. It gets its arguments and flags. */
  const runs =
    (load: () => Promise<(context: CommandContext, ...args: never[]) => Promise<number>>) =>
    async (...given: unknown[]): Promise<void> => {
      // The last one is Commander's object of the command.
      const args = given.slice(0, -1);
      const run: CommandAction = async (context) => (await load())(context, ...(args as never[]));
      await runWith(args.at(-1) as ConnectionFlags, run);
    };

  command('put <queue> [data...]', 'inserts an element for each argument, or one from standard input')
    .option(
      '--type <type>',
      'content type. An argument or a line that is JSON defaults to application/json, any other to text/plain; standard input as one element defaults to application/octet-stream',
    )
    .option('--delay <seconds>', 'time before the element may be delivered', secondsFrom(0))
    .option('--ttl <seconds>', 'time after which the element expires', secondsFrom(0.001))
    .option('--header <name=value>', 'element header; may be repeated', collect)
    .option('--key <key>', 'idempotency key: if it is repeated, nothing more is stored')
    .option(
      '--groups <groups>',
      "on a stream: the groups that consume the element, with commas between them; defaults to the namespace's",
    )
    .option('--lines', 'inserts each line of standard input as an element')
    .action(runs(async () => (await import('./elements.ts')).put));
  const takeCommand = (usage: string, description: string): Command =>
    command(usage, description)
      .option(
        '--wait <seconds>',
        'how long to wait if there is no element; if not given, not at all',
        secondsFrom(0),
      )
      .option('--group <group>', "on a stream: the group to read as; defaults to the namespace's first");
  takeCommand('get <queue>', 'takes the next element and removes it').action(
    runs(async () => (await import('./elements.ts')).get),
  );
  takeCommand('reserve <queue>', 'takes the next element under a lease')
    .option('--lease <seconds>', 'length of the lease; defaults to that of the queue', secondsFrom(0.001))
    .action(runs(async () => (await import('./elements.ts')).reserve));
  command('commit <queue> <id>', 'finishes a reserved element')
    .option(
      '--token <token>',
      'the token that the reserve printed; needed if another user reserved the element',
    )
    .option('--group <group>', 'on a stream: the group of the reserve')
    .action(runs(async () => (await import('./elements.ts')).commit));
  command('browse <queue>', 'shows elements without taking them')
    .option('--state <state>', 'ready, scheduled or reserved; defaults to all')
    .option('--where <selector>', 'only elements that the selector accepts, such as "env.msg.tries > 3"')
    .option('--group <group>', 'on a stream: the group of the deliveries')
    .option('--limit <count>', 'maximum number of elements; defaults to 50', count)
    .action(runs(async () => (await import('./elements.ts')).browse));
  command(
    'status [name]',
    'shows the status of a queue, of the queues of a namespace, or of the namespaces',
  ).action(runs(async () => (await import('./queues.ts')).status));
  command('top', 'shows a live table of the queues of all namespaces; keys sort and filter it')
    .option('--sort <field>', 'depth, ready, scheduled, reserved, age, in, out or name', 'depth')
    .option('--filter <words>', 'filter as in the console: part of a name, ns:N, "depth:>1000"')
    .option('--limit <count>', 'maximum number of queues', count, 100)
    .option('--interval <seconds>', 'time between updates of the table', secondsFrom(0.1, 3600), 2)
    .action(runs(async () => (await import('./top.ts')).top));
  command('dead [namespace]', 'summarizes dead letters').action(
    runs(async () => (await import('./queues.ts')).dead),
  );
  const bulkCommand = (usage: string, description: string): Command =>
    command(usage, description)
      .option('--where <selector>', 'only elements that the selector accepts')
      .option('--group <group>', 'on a stream: the group of the deliveries')
      .option('--limit <count>', 'maximum number of elements', count)
      .option('--dry-run', 'counts the elements, and changes nothing')
      .option('--background', 'returns at once; see "operations"');
  bulkCommand('redrive <queue>', 'moves dead letters back to the queues that they left').action(
    runs(async () => (await import('./queues.ts')).redrive),
  );
  bulkCommand('move <from> <to>', 'moves elements to another queue')
    .option('--state <state>', 'ready or scheduled; defaults to both')
    .action(runs(async () => (await import('./queues.ts')).move));
  command('purge <queue>', 'removes the elements of a queue permanently')
    .option('--state <state>', 'ready, scheduled, reserved or all; defaults to ready and scheduled')
    .option('--yes', 'needed: without it the command only says how many elements there are')
    .action(runs(async () => (await import('./queues.ts')).purge));
  command('export <queue>', 'writes all elements with their state to standard output')
    .option('--group <group>', 'on a stream: only the deliveries of this group')
    .action(runs(async () => (await import('./transfer.ts')).exportQueue));
  command('import <queue>', 'stores the lines of an export from standard input').action(
    runs(async () => (await import('./transfer.ts')).importQueue),
  );
  command(
    'exchange <verb> [id]',
    'lists, shows, creates (from standard input), starts, stops or deletes exchanges',
  ).action(runs(async () => (await import('./exchanges.ts')).exchange));
  command('operations [id]', 'lists bulk operations, or shows the progress of one')
    .option('--cancel', 'cancels the operation of that id')
    .action(runs(async () => (await import('./queues.ts')).operations));
  const token = program
    .command('token')
    .description('creates, lists and revokes API tokens')
    .helpCommand('help [command]', HELP);
  command('add <name>', 'creates a token for your user; it is printed only this once', token)
    .option('--rights <namespace=rights>', `${RIGHTS_HELP}; defaults to all rights of your user`, addRights)
    .option('--expires <time>', 'when the token expires, such as 2030-01-31T00:00:00Z; defaults to never')
    .action(runs(async () => (await import('./tokens.ts')).addToken));
  command('list', 'lists your tokens; for administrators, those of all users', token).action(
    runs(async () => (await import('./tokens.ts')).listTokens),
  );
  command('revoke <id>', 'revokes a token', token).action(
    runs(async () => (await import('./tokens.ts')).revokeToken),
  );
  command('nodes', 'lists the nodes of a cluster').action(
    runs(async () => (await import('./queues.ts')).nodes),
  );
  command('bench <queue>', 'measures inserts, and reserves with their commits')
    .option('--count <count>', 'number of elements', count, 10_000)
    .option('--callers <count>', 'concurrent calls', count, 64)
    .action(runs(async () => (await import('./bench.ts')).bench));
  program
    .command('completion <shell>')
    .description('prints a completion script for bash, zsh or fish')
    .action(async (shell: string) => {
      const { completionScript } = await import('./completion.ts');
      const script = completionScript(shell, program);
      if (script === null) {
        program.error(`error: There is no completion for ${quote(shell)}. Allowed: bash, zsh, fish.`);
      }
      await print(script);
    });
  program
    .command('man')
    .description('prints a man page: quayside man | man -l -')
    .action(async () => {
      const { manPage } = await import('./man.ts');
      await print(manPage(program));
    });
}

/** By default up to the server's limit of ten years. */
function secondsFrom(min: number, max = 315_360_000): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (text !== '' && value >= min && value <= max) return value;
    throw new InvalidArgumentError(`Allowed: seconds, a number from ${min} to ${max}.`);
  };
}

function count(text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1) return value;
  throw new InvalidArgumentError('Allowed: a whole number from 1.');
}

function collect(text: string, before: readonly string[] = []): readonly string[] {
  return [...before, text];
}

const QUEUE = 'namespace and name of the queue, such as N/orders';

/** Descriptions of arguments by name, or by command and name for those of one command only. */
const ARGUMENTS: Readonly<Record<string, string>> = {
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
function describeArguments(program: Command): void {
  for (const command of program.commands) {
    for (const argument of command.registeredArguments) {
      const name = argument.name();
      argument.description =
        ARGUMENTS[`${program.name()} ${name}`] ??
        ARGUMENTS[`${command.name()} ${name}`] ??
        ARGUMENTS[name] ??
        '';
    }
    describeArguments(command);
  }
}
