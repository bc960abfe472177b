import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { replaceFile } from '../util/files.ts';
import { isRecord } from '../util/is-record.ts';
import { ownCommand } from '../util/own-command.ts';
import { quote } from '../util/quote.ts';
import { NOT_UTF8, UTF8 } from '../util/utf8.ts';
import { isRightsByNamespace, type UserDefinition } from './account.ts';
import { hashPassword } from './password.ts';

/** A newly created administrator. The plain password exists only in memory, to be shown once. */
export interface NewAdministrator {
  readonly definition: UserDefinition;
  readonly password: string;
}

const ADMINISTRATOR = 'admin';
/** 144 bits; their base64url form needs no quoting in shells or URLs. */
const PASSWORD_RANDOM_BYTES = 18;

/** A users file that is unreadable or invalid. */
export class UsersFileError extends Error {
  readonly hint: string;
  /** Whether its users can probably be read after what the hint says, and so must not be replaced. */
  readonly isIntact: boolean;

  constructor(message: string, { hint, isIntact }: Pick<UsersFileError, 'hint' | 'isIntact'>) {
    super(message);
    this.hint = hint;
    this.isIntact = isIntact;
  }
}

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

  /** The users, or null if the file does not exist. @throws UsersFileError if it is unreadable or invalid */
  async read(): Promise<UserDefinition[] | null> {
    let text: string;
    try {
      text = UTF8.decode(await readFile(this.path));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') return null;
      if (code === NOT_UTF8) throw invalidFile('it is not in UTF-8', 'Save it in UTF-8');
      // A file of another system user is probably valid: suggest access.
      const isAccessDenied = code === 'EACCES' || code === 'EPERM';
      throw invalidFile(
        `${code}`,
        isAccessDenied ? 'Let the user that the server runs as read it' : undefined,
      );
    }
    return this.#parse(text);
  }

  /** Replaces the file. @throws the error of the file system */
  async write(users: readonly UserDefinition[]): Promise<void> {
    const entries = users.map(({ name, password, rights, maskBodies = false }) => [
      name,
      { password, ...(rights !== null && { rights }), ...(maskBodies && { maskBodies }) },
    ]);
    await replaceFile(this.path, `${JSON.stringify(Object.fromEntries(entries), null, 2)}\n`);
  }

  #parse(text: string): UserDefinition[] {
    let users: unknown;
    try {
      users = JSON.parse(text);
    } catch {
      throw invalidFile('it is not JSON');
    }
    if (typeof users !== 'object' || users === null || Object.keys(users).length === 0) {
      throw invalidFile('it contains no users');
    }
    return Object.entries(users).map(([name, user]: [string, unknown]) => {
      if (!isRecord(user) || typeof user.password !== 'string')
        throw invalidFile(`user ${name} has no password`);
      const { password, rights = null, maskBodies = false, ...unknown } = user;
      // An unknown member may be a misspelled `rights`; ignoring it would grant all rights.
      const [unknownName] = Object.keys(unknown);
      if (unknownName !== undefined)
        throw invalidFile(`user ${name} has an unknown member ${quote(unknownName)}`);
      if (rights !== null && !isRightsByNamespace(rights)) {
        throw invalidFile(`the rights of user ${name} are not lists of rights by namespace`);
      }
      if (typeof maskBodies !== 'boolean')
        throw invalidFile(`maskBodies of user ${name} is not true or false`);
      return { name, password, rights, ...(maskBodies && { maskBodies }) };
    });
  }
}

/** @param hint how to make an intact file usable; left out: the file is lost */
function invalidFile(why: string, hint?: string): UsersFileError {
  return new UsersFileError(`cannot be used: ${why}`, {
    hint: hint ?? `Create the administrator again with ${ownCommand('reset-admin')}`,
    isIntact: hint !== undefined,
  });
}
