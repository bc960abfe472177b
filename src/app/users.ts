import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Account, readAccounts, type UserDefinition, UserDefinitionError } from '../access/account.ts';
import { hashPassword, looksLikeHash } from '../access/password.ts';
import { ConfigError, type ErrorAt, pathText } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import { replaceFile } from '../util/files.ts';
import { isRecord } from '../util/is-record.ts';
import { ownCommand } from '../util/own-command.ts';
import { parsedJson } from '../util/parsed-json.ts';
import { quote } from '../util/quote.ts';
import { fitsSchema, Type } from '../util/schema.ts';
import { NOT_UTF8, UTF8 } from '../util/utf8.ts';
import { DATA_FILES } from './checks.ts';
import { LOCAL_SIGNALS } from './namespaces.ts';

/** The accounts from the configuration or the users file. */
interface LoadedUsers {
  readonly accounts: ReadonlyMap<string, Account>;
  /** The new administrator if there were no users; the caller must save and show it. */
  readonly created: NewAdministrator | null;
  readonly warnings: readonly string[];
}

/** The file with the users that are not in the configuration. */
export function usersFileOf({ dataDir }: Config): UsersFile {
  return new UsersFile(join(dataDir, DATA_FILES.users));
}

/** Writes the users file. @throws ConfigError if `dataDir` is not writable */
export async function saveUsers(
  config: Config,
  users: readonly UserDefinition[],
  errorAt: ErrorAt,
): Promise<void> {
  const file = usersFileOf(config);
  try {
    await file.write(users);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw errorAt(
      ['dataDir'],
      `${file.path} cannot be written (${code})`,
      'Name a folder that this user may write to',
    );
  }
}

/** Whether the configuration defines users, in which case the users file is ignored. */
export function hasConfiguredUsers(config: Config): boolean {
  return Object.keys(config.http.users).length > 0;
}

/** The users that the configuration defines. */
export function configuredUsers({ http }: Config): UserDefinition[] {
  return Object.entries(http.users).map(([name, { password, rights = null, maskBodies = false }]) => ({
    name,
    password,
    rights,
    maskBodies,
  }));
}

/**
 * Loads the users of the configuration or else of the users file; if there are none, creates an administrator.
 * @throws ConfigError
 */
export async function loadUsers(config: Config, errorAt: ErrorAt): Promise<LoadedUsers> {
  const namespaces = Object.keys(config.namespaces);
  const file = usersFileOf(config);
  if (hasConfiguredUsers(config)) {
    const definitions = configuredUsers(config);
    return {
      accounts: accountsOf(definitions, namespaces, (path, problem, hint) =>
        errorAt(['http', 'users', ...path], problem, hint),
      ),
      created: null,
      warnings: [...plainPasswords(definitions), ...(await replacedUsers(file, config))],
    };
  }
  const stored = await file.read();
  if (stored !== null)
    return { accounts: accountsOf(stored, namespaces, file.errorAt), created: null, warnings: [] };
  const created = await newAdministrator();
  return { accounts: readAccounts([created.definition], namespaces), created, warnings: [] };
}

/** Warns if other nodes can share namespaces but not the users file. */
export function sharedUsersWarnings(config: Config): string[] {
  if (hasConfiguredUsers(config)) return [];
  const shared = Object.entries(config.namespaces)
    .filter(([, { url, signaller }]) => !url.startsWith('sqlite:') && signaller?.url !== LOCAL_SIGNALS)
    .map(([name]) => name);
  if (shared.length === 0) return [];
  return [
    `other nodes can share the engine of ${shared.join(', ')}, but http.users is empty: each node creates its own administrator; configure the same users on all nodes`,
  ];
}

function accountsOf(
  definitions: readonly UserDefinition[],
  namespaces: readonly string[],
  errorAt: ErrorAt,
): ReadonlyMap<string, Account> {
  try {
    return readAccounts(definitions, namespaces);
  } catch (error) {
    if (!(error instanceof UserDefinitionError)) throw error;
    throw errorAt([error.user, ...error.field], error.message, error.hint);
  }
}

function plainPasswords(definitions: readonly UserDefinition[]): string[] {
  const plain = definitions.filter(({ password }) => !looksLikeHash(password)).map(({ name }) => name);
  if (plain.length === 0) return [];
  return [
    `plain passwords of ${plain.join(', ')}: replace them with hashes by ${ownCommand('hash-password')}`,
  ];
}

/** Warns about users of the users file who cannot log in because the configuration defines the users. */
async function replacedUsers(file: UsersFile, config: Config): Promise<string[]> {
  // An unreadable file is ignored: it is not used in any case.
  const stored = await file.read().catch(() => null);
  const lost = (stored ?? [])
    .map(({ name }) => name)
    .filter((name) => !Object.hasOwn(config.http.users, name));
  if (lost.length === 0) return [];
  return [
    `http.users names the users, so ${file.path} is not used: ${lost.join(', ')} cannot log in. Name them there, or remove the file`,
  ];
}

/** A newly created administrator. The plain password exists only in memory, to be shown once. */
export interface NewAdministrator {
  readonly definition: UserDefinition;
  readonly password: string;
}

const ADMINISTRATOR = 'admin';
/** 144 bits; their base64url form needs no quoting in shells or URLs. */
const PASSWORD_RANDOM_BYTES = 18;

export async function newAdministrator(): Promise<NewAdministrator> {
  const password = randomBytes(PASSWORD_RANDOM_BYTES).toString('base64url');
  const definition = { name: ADMINISTRATOR, password: await hashPassword(password), rights: null };
  return { definition, password };
}

/**
 * The users that the server and `quayside user` created, in the data folder: `{"admin": {"password": "$argon2id$…"}}`,
 * with `rights` and `maskBodies` as in the configuration. Used only if the configuration defines no users.
 */
export class UsersFile {
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }

  /**
   * The users, or null if the file does not exist.
   * @param ignoresLost whether a file that cannot be made usable counts as none
   * @throws ConfigError if it is unreadable or invalid
   */
  async read(ignoresLost = false): Promise<UserDefinition[] | null> {
    let text: string;
    try {
      text = UTF8.decode(await readFile(this.path));
    } catch (error) {
      const { code = '' } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') return null;
      const hint = REPAIRS[code];
      const problem = code === NOT_UTF8 ? 'it is not in UTF-8' : code;
      if (hint !== undefined) throw this.errorAt([], `cannot be used: ${problem}`, hint);
      return this.#lost(problem, ignoresLost);
    }
    const users = parseUsers(text);
    return typeof users === 'string' ? this.#lost(users, ignoresLost) : users;
  }

  /** Creates the error for an invalid value in the file. */
  readonly errorAt: ErrorAt = (path, problem, hint) =>
    new ConfigError([{ source: this.path, path: pathText(path), problem, hint }]);

  #lost(why: string, isIgnored: boolean): null {
    if (isIgnored) return null;
    const hint = `Create the administrator again with ${ownCommand('reset-admin')}`;
    throw this.errorAt([], `cannot be used: ${why}`, hint);
  }

  /** Replaces the file. @throws the error of the file system */
  async write(users: readonly UserDefinition[]): Promise<void> {
    const entries = users.map(({ name, password, rights, maskBodies = false }) => [
      name,
      { password, ...(rights !== null && { rights }), ...(maskBodies && { maskBodies }) },
    ]);
    await replaceFile(this.path, `${JSON.stringify(Object.fromEntries(entries), null, 2)}\n`);
  }
}

/** How to make a file usable whose users are probably intact, and must not be replaced, by error code. */
const REPAIRS: Readonly<Record<string, string>> = {
  [NOT_UTF8]: 'Save it in UTF-8',
  EACCES: 'Let the user that the server runs as read it',
  EPERM: 'Let the user that the server runs as read it',
};

/** The users in the text of a file, or what is wrong with it. */
function parseUsers(text: string): UserDefinition[] | string {
  const users = parsedJson(text);
  if (users === undefined) return 'it is not JSON';
  if (typeof users !== 'object' || users === null || Object.keys(users).length === 0)
    return 'it contains no users';
  const definitions: UserDefinition[] = [];
  for (const [name, user] of Object.entries(users)) {
    if (!isRecord(user) || typeof user.password !== 'string') return `user ${name} has no password`;
    const { password, rights = null, maskBodies = false, ...unknown } = user;
    // An unknown member may be a misspelled `rights`; ignoring it would grant all rights.
    const [unknownName] = Object.keys(unknown);
    if (unknownName !== undefined) return `user ${name} has an unknown member ${quote(unknownName)}`;
    if (rights !== null && !fitsSchema(RightsByNamespace, rights))
      return `the rights of user ${name} are not lists of rights by namespace`;
    if (typeof maskBodies !== 'boolean') return `maskBodies of user ${name} is not true or false`;
    const isRestricted = maskBodies && { maskBodies };
    definitions.push({ name, password, rights: rights as UserDefinition['rights'], ...isRestricted });
  }
  return definitions;
}

/** Whether the strings are known rights is checked with the definition. */
const RightsByNamespace = Type.Record(Type.Array(Type.String()));
