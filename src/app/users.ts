import { join } from 'node:path';
import { type Account, readAccounts, type UserDefinition, UserDefinitionError } from '../access/account.ts';
import { looksLikeHash } from '../access/phc.ts';
import { type NewAdministrator, newAdministrator, UsersFile, UsersFileError } from '../access/users-file.ts';
import type { Config } from '../config/options.ts';
import { ConfigError, pathText } from '../config/problem.ts';
import { DATA_FILES } from './data-dir.ts';

export interface Users {
  readonly accounts: ReadonlyMap<string, Account>;
  /** Set where nobody was there before; still to be saved and shown. */
  readonly created: NewAdministrator | null;
  readonly warnings: readonly string[];
}

export type SourceOf = (path: readonly string[]) => string | null;

/** Where the server keeps the users that it made itself. */
export function usersFileOf(config: Config): UsersFile {
  return new UsersFile(join(config.dataDir, DATA_FILES.users));
}

/** Saves users that were made here. @throws ConfigError where `dataDir` takes no file */
export async function saveUsers(
  config: Config,
  users: readonly UserDefinition[],
  sourceOf: SourceOf,
): Promise<void> {
  const file = usersFileOf(config);
  try {
    await file.write(users);
  } catch (fault) {
    const problem = `${file.path} cannot be written (${(fault as NodeJS.ErrnoException).code})`;
    const remedy = 'Name a folder that this user may write to';
    throw new ConfigError([{ source: sourceOf(['dataDir']), path: 'dataDir', problem, remedy }]);
  }
}

export function hasConfiguredUsers(config: Config): boolean {
  return Object.keys(config.http.users).length > 0;
}

/**
 * The users of the configuration, or those of the users file, or a new administrator.
 * @throws ConfigError
 */
export async function loadUsers(config: Config, sourceOf: SourceOf): Promise<Users> {
  const namespaces = Object.keys(config.namespaces);
  const file = usersFileOf(config);
  if (hasConfiguredUsers(config)) {
    const { warnings, ...users } = configuredUsers(config, namespaces, sourceOf);
    return { ...users, warnings: [...warnings, ...(await replacedUsers(file, config))] };
  }
  const kept = await readKept(file);
  if (kept !== null) {
    return { accounts: accountsOf(kept, namespaces, () => file.path, []), created: null, warnings: [] };
  }
  const created = await newAdministrator();
  return { accounts: readAccounts([created.definition], namespaces), created, warnings: [] };
}

function configuredUsers(config: Config, namespaces: readonly string[], sourceOf: SourceOf): Users {
  const definitions = Object.entries(config.http.users).map(
    ([name, { password, rights = null }]): UserDefinition => ({ name, password, rights }),
  );
  const plain = definitions.filter(({ password }) => !looksLikeHash(password)).map(({ name }) => name);
  return {
    accounts: accountsOf(definitions, namespaces, sourceOf, ['http', 'users']),
    created: null,
    warnings:
      plain.length === 0
        ? []
        : [`plain passwords of ${plain.join(', ')}: make hashes of them with \`npm start -- hash-password\``],
  };
}

function accountsOf(
  definitions: readonly UserDefinition[],
  namespaces: readonly string[],
  sourceOf: SourceOf,
  base: readonly string[],
): ReadonlyMap<string, Account> {
  try {
    return readAccounts(definitions, namespaces);
  } catch (fault) {
    if (!(fault instanceof UserDefinitionError)) throw fault;
    const path = [...base, fault.user, ...fault.field];
    const { message: problem, remedy } = fault;
    throw new ConfigError([{ source: sourceOf(path), path: pathText(path), problem, remedy }]);
  }
}

/** Who could log in by the users file, and cannot now that the configuration names the users. */
async function replacedUsers(file: UsersFile, config: Config): Promise<string[]> {
  // A file that cannot be read is not used either.
  const kept = await file.read().catch(() => null);
  const lost = (kept ?? []).map(({ name }) => name).filter((name) => !Object.hasOwn(config.http.users, name));
  if (lost.length === 0) return [];
  return [
    `http.users names the users, so ${file.path} is not used: ${lost.join(', ')} cannot log in. Name them there, or remove the file`,
  ];
}

async function readKept(file: UsersFile): Promise<UserDefinition[] | null> {
  try {
    return await file.read();
  } catch (fault) {
    if (!(fault instanceof UsersFileError)) throw fault;
    throw new ConfigError([{ source: file.path, path: '', problem: fault.message, remedy: fault.remedy }]);
  }
}
