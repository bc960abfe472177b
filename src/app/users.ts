import { join } from 'node:path';
import { type Account, readAccounts, type UserDefinition, UserDefinitionError } from '../access/account.ts';
import { looksLikeHash } from '../access/password.ts';
import type { ErrorAt } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import { ownCommand } from '../util/own-command.ts';
import { DATA_FILES } from './checks.ts';
import { LOCAL_SIGNALS } from './namespaces.ts';
import { type NewAdministrator, newAdministrator, UsersFile } from './users-file.ts';

/** The accounts from the configuration or the users file. */
export interface LoadedUsers {
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
