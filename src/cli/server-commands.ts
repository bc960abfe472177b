import { type Command, InvalidArgumentError } from 'commander';
import { didYouMean } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';

type RightsByNamespace = Readonly<Record<string, readonly string[]>>;

/** A parsed command of the server itself. */
export type ServerCommand = { readonly configFile: string | null } & (
  | { readonly command: 'serve' | 'print-config' | 'hash-password' | 'reset-admin' }
  | {
      readonly command: 'backup';
      readonly folder: string;
      /** User who logs in to the server if it is running; the command prompts for the password. */
      readonly user: string;
      /** URL of the running server; null: as configured. */
      readonly url: string | null;
    }
  | {
      readonly command: 'restore';
      readonly folder: string;
      /** Whether existing files are moved aside. */
      readonly replace: boolean;
    }
  | ({ readonly command: 'user'; readonly name: string } & UserVerb)
  | { readonly command: 'user-list'; readonly json: boolean }
  | { readonly command: 'doctor'; readonly url: string | null; readonly json: boolean }
);

/** The change that a `user` command makes. */
type UserVerb =
  | {
      readonly verb: 'add' | 'rights';
      readonly rights: RightsByNamespace | null;
      readonly maskBodies: boolean;
    }
  | { readonly verb: 'passwd' }
  | { readonly verb: 'remove' };

/** The server's part of the command line. */
export interface ServerCommands {
  readonly version: string;
  /** The configuration options, for `--help`. */
  optionsText(): string;
  /** Returns the exit code. */
  run(command: ServerCommand): Promise<number>;
}

interface ConfigFlags {
  readonly config?: string;
  readonly printConfig?: boolean;
}

const CONFIG = [
  '--config <file>',
  'configuration file, YAML or JSON; environment variables override it',
] as const;
const PRINT_CONFIG = [
  '--print-config',
  'prints the effective configuration with masked secrets, and exits',
] as const;

/** Description of `help` commands. */
export const HELP = 'prints the help of a command';

/** Adds the commands of the server. Without a command, the program runs the server. */
export function addServerCommands(
  program: Command,
  server: Pick<ServerCommands, 'version' | 'optionsText'>,
  run: (command: ServerCommand) => Promise<void>,
): void {
  const fileOf = ({ config }: ConfigFlags): string | null =>
    config ?? program.opts<ConfigFlags>().config ?? null;
  const serve = (flags: ConfigFlags): Promise<void> => {
    const isPrinted = flags.printConfig ?? program.opts<ConfigFlags>().printConfig ?? false;
    return run({ command: isPrinted ? 'print-config' : 'serve', configFile: fileOf(flags) });
  };
  program
    .version(server.version, '--version', 'prints the version')
    .option(...CONFIG)
    .option(...PRINT_CONFIG)
    .addHelpText('after', () => `\nOptions of the configuration:\n\n${server.optionsText()}`)
    // Unknown words are accepted here and reported by `unknownWord`, which distinguishes commands from options.
    .allowExcessArguments()
    .allowUnknownOption()
    .action((flags: ConfigFlags, { args: [unknown] }: Command) =>
      unknown === undefined ? serve(flags) : program.error(unknownWord(program, unknown)),
    );

  const command = (usage: string, description: string): Command =>
    program
      .command(usage)
      .description(description)
      .option(...CONFIG);
  command('serve', 'runs the server; the default if no command is given')
    .option(...PRINT_CONFIG)
    .action(serve);
  command('doctor', 'checks the machine, the engines, the certificates and the running server')
    .option('--url <url>', 'address of the server; defaults to the configured one')
    .option('--json', 'prints JSON, also on a terminal')
    .action(({ url = null, json = false, ...flags }) =>
      run({ command: 'doctor', configFile: fileOf(flags), url, json }),
    );
  command('backup <folder>', 'copies all SQLite files to a new folder, also while the server runs')
    .option(
      '--user <name>',
      'an administrator; the command asks for the password if the server runs',
      'admin',
    )
    .option('--url <url>', 'address of the server; defaults to the configured one')
    .action((folder: string, { user, url = null, ...flags }) =>
      run({ command: 'backup', configFile: fileOf(flags), folder, user, url }),
    );
  command('restore <folder>', 'restores the SQLite files of a stopped server from a backup')
    .option('--replace', 'moves existing files aside')
    .action((folder: string, { replace = false, ...flags }) =>
      run({ command: 'restore', configFile: fileOf(flags), folder, replace }),
    );
  addUserCommands(program, fileOf, run);
  command(
    'hash-password',
    'asks for a password, or reads it from standard input, and prints its hash',
  ).action((flags) => run({ command: 'hash-password', configFile: fileOf(flags) }));
  command('reset-admin', 'generates a new password for the administrator in users.json').action((flags) =>
    run({ command: 'reset-admin', configFile: fileOf(flags) }),
  );
  program
    .command('help [command...]')
    .description(HELP)
    .action((words: readonly string[]) => {
      let described = program;
      for (const word of words) {
        const found = described.commands.find((one) => one.name() === word);
        if (found === undefined) program.error(unknownWord(described, word));
        described = found;
      }
      described.help();
    });
}

/** Adds the commands that change users in the configuration file or in `users.json`. */
function addUserCommands(
  program: Command,
  fileOf: (flags: ConfigFlags) => string | null,
  run: (command: ServerCommand) => Promise<void>,
): void {
  const user = program
    .command('user')
    .description('adds, changes, removes and lists users')
    .helpCommand('help [command]', HELP);
  const command = (usage: string, description: string): Command =>
    user
      .command(usage)
      .description(description)
      .option(...CONFIG);
  for (const [verb, description] of [
    ['add', 'adds a user; asks for the password, or reads it from standard input'],
    ['rights', 'replaces the rights of a user'],
  ] as const) {
    command(`${verb} <name>`, description)
      .option('--rights <namespace=rights>', RIGHTS_HELP, addRights)
      .option('--administrator', 'all rights, everywhere')
      .option('--mask-bodies', 'hides bodies if the user may browse but not read')
      .action((name: string, flags: RightsFlags, command: Command) => {
        const { rights, administrator = false, maskBodies = false } = flags;
        if ((rights !== undefined) === administrator) {
          command.error('error: Give either --rights or --administrator.');
        }
        return run({
          command: 'user',
          configFile: fileOf(flags),
          verb,
          name,
          rights: rights ?? null,
          maskBodies,
        });
      });
  }
  for (const [verb, description] of [
    ['passwd', 'changes the password of a user; asks for the new one, or reads it from standard input'],
    ['remove', 'removes a user'],
  ] as const) {
    command(`${verb} <name>`, description).action((name: string, flags: ConfigFlags) =>
      run({ command: 'user', configFile: fileOf(flags), verb, name }),
    );
  }
  command('list', 'lists the users with their rights')
    .option('--json', 'prints JSON, also on a terminal')
    .action(({ json = false, ...flags }: ConfigFlags & { readonly json?: boolean }) =>
      run({ command: 'user-list', configFile: fileOf(flags), json }),
    );
}

interface RightsFlags extends ConfigFlags {
  readonly rights?: RightsByNamespace;
  readonly administrator?: boolean;
  readonly maskBodies?: boolean;
}

export const RIGHTS_HELP =
  'rights in a namespace, of read, write, manage, browse and exchange, such as N=read,write; * stands for namespaces that are not named; may be repeated';

/** Adds the value of one `--rights` option to those of the previous ones. */
export function addRights(text: string, before: RightsByNamespace = {}): RightsByNamespace {
  const [, namespace, list] = /^([^=]+)=([a-z,]*)$/.exec(text) ?? [];
  if (namespace === undefined || list === undefined) {
    throw new InvalidArgumentError('Allowed: a namespace or *, =, and rights with commas between them.');
  }
  if (Object.hasOwn(before, namespace)) {
    throw new InvalidArgumentError(
      `Namespace ${namespace} has rights already; give all of them at once, as in ${namespace}=read,write.`,
    );
  }
  return { ...before, [namespace]: list.split(',').filter((right) => right !== '') };
}

function unknownWord(program: Command, word: string): string {
  const isOption = word.startsWith('-');
  const known = isOption
    ? program.options.flatMap(({ long }) => (long == null ? [] : [long]))
    : program.commands.map((command) => command.name());
  const hint = didYouMean(word, known) || ' `quayside --help` lists all commands and options.';
  return `error: Unknown ${isOption ? 'option' : 'command'} ${quote(word)}.${hint}`;
}
