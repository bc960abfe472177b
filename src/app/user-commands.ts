import { readAccounts, type UserDefinition, UserDefinitionError } from '../access/account.ts';
import { hashPassword, looksLikeHash } from '../access/password.ts';
import { editUser, type UserMembers, UsersNotEditable, usersInFile } from '../config/edit-users.ts';
import { ConfigError } from '../config/errors.ts';
import type { LoadedConfig } from '../config/load.ts';
import { FileLocked, whileLocked } from '../util/files.ts';
import { isRecord } from '../util/is-record.ts';
import { ownCommand } from '../util/own-command.ts';
import { quote } from '../util/quote.ts';
import { type PasswordSource, readNewPassword } from './ask-password.ts';
import { CommandFailed } from './command-line.ts';
import { serverProcess } from './pid-file.ts';
import { configuredUsers, hasConfiguredUsers, newAdministrator, saveUsers, usersFileOf } from './users.ts';

/** Rights by namespace; null: all rights everywhere. */
type Rights = UserDefinition['rights'];

/** The change requested by a command `quayside user …`. */
export type UserChange = { readonly name: string } & (
  | { readonly verb: 'add' | 'rights'; readonly rights: Rights; readonly maskBodies: boolean }
  | { readonly verb: 'passwd' }
  | { readonly verb: 'remove' }
);

/** The place where the users are stored: the configuration file or `users.json`. */
interface UserStore {
  /** Path of the file, for messages. */
  readonly path: string;
  readonly users: readonly UserDefinition[];
  /** @throws CommandFailed if the user cannot be changed there */
  check(name: string, verb: UserChange['verb']): void;
  /** Adds or changes a user, or removes it if `members` is null. */
  edit(name: string, members: UserMembers | null): Promise<void>;
}

const OUTCOMES = {
  add: 'was added to',
  passwd: 'has a new password in',
  rights: 'has new rights in',
  remove: 'was removed from',
} as const;

/**
 * `user add`, `passwd`, `rights`, `remove`: changes a user in the configuration file or in `users.json`. Returns the
 * text to print.
 * @param load reads the configuration
 * @throws CommandFailed, ConfigError
 */
export async function changeUser(
  change: UserChange,
  configFile: string | null,
  load: () => Promise<LoadedConfig>,
  passwords: PasswordSource,
): Promise<string> {
  const { name, verb } = change;
  try {
    const before = await load();
    const found = await findStore(before, configFile);
    const members = await membersOf(change, userToChange(found, change), before, passwords);
    return await whileLocked(found.path, async () => {
      // Load again: users may have changed while the password was typed.
      const loaded = await load();
      const store = await findStore(loaded, configFile);
      userToChange(store, change);
      await store.edit(name, members);
      return `User ${name} ${OUTCOMES[verb]} ${store.path}. ${reloadHint(loaded)}\n`;
    });
  } catch (error) {
    if (error instanceof UsersNotEditable || error instanceof FileLocked) {
      throw new CommandFailed(error.message);
    }
    const { code, message } = error as NodeJS.ErrnoException;
    throw code === undefined ? error : new CommandFailed(message);
  }
}

/** The user before the change; null if it is to be added. @throws CommandFailed if the change is not possible */
function userToChange(store: UserStore, { name, verb }: UserChange): UserDefinition | null {
  const user = store.users.find((one) => one.name === name) ?? null;
  if (verb === 'add' && user !== null) throw new CommandFailed(`There is a user ${quote(name)} already.`);
  if (verb !== 'add' && user === null) throw unknownUser(name, store);
  store.check(name, verb);
  return user;
}

/** `user list`: the users with their rights, one line each. */
export async function listUsers(
  configFile: string | null,
  loaded: LoadedConfig,
  isHuman: boolean,
): Promise<string> {
  const { users } = await findStore(loaded, configFile);
  const lines = users.map(({ name, password, rights, maskBodies = false }) => {
    if (!isHuman) return JSON.stringify({ name, rights, maskBodies, isHashed: looksLikeHash(password) });
    const lists = Object.entries(rights ?? {}).map(([namespace, list]) => `${namespace}=${list.join(',')}`);
    const rightsText = rights === null ? 'administrator' : lists.join(' ') || 'no rights';
    const remarks = [maskBodies ? 'sees no bodies' : '', looksLikeHash(password) ? '' : 'plain password'];
    return [name, rightsText, ...remarks.filter((remark) => remark !== '')].join('  ');
  });
  return lines.map((line) => `${line}\n`).join('');
}

async function membersOf(
  change: UserChange,
  user: UserDefinition | null,
  { config }: LoadedConfig,
  passwords: PasswordSource,
): Promise<UserMembers | null> {
  if (change.verb === 'remove') return null;
  const members: { -readonly [K in keyof UserMembers]: UserMembers[K] } = {};
  if (change.verb !== 'passwd') {
    const { name, rights, maskBodies } = change;
    checkDefinition({ name, password: user?.password ?? 'not chosen yet', rights, maskBodies }, config);
    members.rights = rights ?? undefined;
    members.maskBodies = maskBodies || undefined;
  }
  if (change.verb !== 'rights') {
    const password = await readNewPassword(passwords);
    if (password === null) throw new CommandFailed('Nothing was changed.');
    members.password = await hashPassword(password).catch((error: Error) => {
      throw new CommandFailed(`The password ${error.message}.`);
    });
  }
  return members;
}

function checkDefinition(definition: UserDefinition, { namespaces }: LoadedConfig['config']): void {
  try {
    readAccounts([definition], Object.keys(namespaces));
  } catch (error) {
    if (!(error instanceof UserDefinitionError)) throw error;
    const place = ['User', quote(error.user), ...error.field.map((part) => quote(part))].join(' ');
    throw new CommandFailed(`${place}: ${error.message}. ${error.hint}.`);
  }
}

async function findStore(loaded: LoadedConfig, configFile: string | null): Promise<UserStore> {
  const { config } = loaded;
  const stored = hasConfiguredUsers(config) ? null : await usersFileOf(config).read();
  if (stored !== null) return usersFileStore(loaded, stored);
  if (configFile === null) {
    throw new CommandFailed(
      hasConfiguredUsers(config)
        ? 'The users are defined by environment variables. Change them there, or name the configuration file with --config.'
        : 'There are no users yet. Start the server once, which creates an administrator, or name a configuration file with --config.',
    );
  }
  const inFile = await usersInFile(configFile);
  return {
    path: configFile,
    users: configuredUsers(config),
    check(name, verb) {
      // The configuration loader rejects this name.
      if (name === '__proto__') {
        throw new CommandFailed(
          `A user of ${configFile} cannot be called ${quote(name)}. Choose another name.`,
        );
      }
      const entry = inFile[name];
      if (verb !== 'add' && entry === undefined) {
        throw new CommandFailed(
          `User ${quote(name)} is defined by an environment variable; change it there.`,
        );
      }
      if (verb === 'passwd' && isRecord(entry) && typeof entry.passwordFile === 'string') {
        throw new CommandFailed(
          `The password of ${quote(name)} is in the file ${entry.passwordFile}; write what ${ownCommand('hash-password')} prints there.`,
        );
      }
      if (verb === 'remove') checkRemoval(name, configuredUsers(config), loaded);
    },
    edit: (name, members) => editUser(configFile, name, members),
  };
}

function usersFileStore(loaded: LoadedConfig, users: readonly UserDefinition[]): UserStore {
  const file = usersFileOf(loaded.config);
  return {
    path: file.path,
    users,
    check(name, verb) {
      if (verb === 'remove') checkRemoval(name, users, loaded);
    },
    async edit(name, members) {
      const at = users.findIndex((one) => one.name === name);
      if (members === null) return file.write(users.filter((one) => one.name !== name));
      const before = users[at] ?? { name, password: '', rights: null };
      const { password = before.password } = members;
      const hasRights = Object.hasOwn(members, 'rights');
      const after = {
        name,
        password: String(password),
        rights: hasRights ? ((members.rights ?? null) as Rights) : before.rights,
        maskBodies: hasRights ? members.maskBodies === true : (before.maskBodies ?? false),
      };
      return file.write(at < 0 ? [...users, after] : users.with(at, after));
    },
  };
}

/** @throws CommandFailed if, without the user, the server could not start or would create an administrator */
function checkRemoval(name: string, users: readonly UserDefinition[], { config }: LoadedConfig): void {
  if (users.length === 1) {
    throw new CommandFailed(`${quote(name)} is the only user; add another one before you remove it.`);
  }
  if (config.amqp.anonymousUser === name) {
    throw new CommandFailed(`${quote(name)} is amqp.anonymousUser; change that option before you remove it.`);
  }
}

function unknownUser(name: string, { path, users }: UserStore): CommandFailed {
  const names = users.map((user) => user.name).join(', ');
  return new CommandFailed(`There is no user ${quote(name)} in ${path}. Allowed: ${names}.`);
}

function reloadHint({ config }: LoadedConfig): string {
  const pid = serverProcess(config);
  return pid === null
    ? 'A server applies it when it starts.'
    : `The server applies it on SIGHUP: kill -HUP ${pid}`;
}

/**
 * `reset-admin`: recreates the administrator and returns the text to print.
 * @throws ConfigError if the configuration defines the users, `users.json` is intact but cannot be read, or `dataDir`
 * is not writable
 */
export async function resetAdministrator({ config, errorAt }: LoadedConfig): Promise<string> {
  if (hasConfiguredUsers(config)) {
    const problem = 'names the users, so there is no administrator to reset';
    const hint = `Change the password there; ${ownCommand('hash-password')} makes its hash`;
    throw new ConfigError([{ source: null, path: 'http.users', problem, hint }]);
  }
  const { definition, password } = await newAdministrator();
  // Keep users added by commands. Replace a file that is lost: this command is the way to repair it.
  const stored = (await usersFileOf(config).read(true)) ?? [];
  await saveUsers(config, [definition, ...stored.filter(({ name }) => name !== definition.name)], errorAt);
  return `  user      ${definition.name}
  password  ${password}

Its hash is in ${usersFileOf(config).path}. A server that runs applies it on SIGHUP, or when it is restarted.
`;
}
