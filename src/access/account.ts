import { CONTROL } from '../model/names.ts';
import { RIGHTS, type Right } from '../model/rights.ts';
import { messageOf } from '../util/message-of.ts';
import { ownCommand } from '../util/own-command.ts';
import { PASSWORD_BYTES, readStoredPassword, type StoredPassword } from './password.ts';
import type { User } from './user.ts';

/** A user as configured. */
export interface UserDefinition {
  readonly name: string;
  /** A PHC string, or the password itself. */
  readonly password: string;
  /** Rights by namespace; `*` applies to every namespace that is not listed. Null: all rights everywhere. */
  readonly rights: Readonly<Record<string, readonly string[]>> | null;
  /** Hides bodies in namespaces that the user may browse but not read; defaults to false. */
  readonly maskBodies?: boolean;
}

/** A user and the password that authenticates them. */
export interface Account {
  readonly user: User;
  readonly password: StoredPassword;
}

/** An invalid user definition. `field` is the path within the definition, such as `['rights', 'N']`. */
export class UserDefinitionError extends Error {
  readonly user: string;
  readonly field: readonly string[];
  readonly hint: string;

  constructor(user: string, field: readonly string[], problem: string, hint: string) {
    super(problem);
    this.name = 'UserDefinitionError';
    this.user = user;
    this.field = field;
    this.hint = hint;
  }
}

const EVERY_NAMESPACE = '*';

/**
 * Validates user definitions against the configured namespaces. Returns the accounts by user name.
 * @throws UserDefinitionError
 */
export function readAccounts(
  definitions: readonly UserDefinition[],
  namespaces: readonly string[],
): Map<string, Account> {
  return new Map(
    definitions.map((definition) => [
      definition.name,
      { user: readUser(definition, namespaces), password: readPassword(definition) },
    ]),
  );
}

function readPassword({ name, password }: UserDefinition): StoredPassword {
  try {
    return readStoredPassword(password);
  } catch (error) {
    throw new UserDefinitionError(
      name,
      ['password'],
      messageOf(error),
      `Create a hash with ${ownCommand('hash-password')}`,
    );
  }
}

function readUser({ name, rights, maskBodies = false }: UserDefinition, namespaces: readonly string[]): User {
  if (!isBasicName(name)) {
    const hint = `Choose a name of 1 to ${PASSWORD_BYTES} bytes, without colons and control characters`;
    throw new UserDefinitionError(name, [], 'cannot be sent in Basic credentials', hint);
  }
  if (rights === null) {
    if (maskBodies) {
      const hint = 'Give the user rights, such as { N: [browse] }, or leave maskBodies out';
      throw new UserDefinitionError(
        name,
        ['maskBodies'],
        'a user without a list of rights may read all bodies',
        hint,
      );
    }
    const yes = () => true;
    return { name, isAdministrator: true, may: yes, maySee: yes, maySeeBodies: yes };
  }
  const rightsByNamespace: Record<string, readonly Right[]> = {};
  for (const [namespace, names] of Object.entries(rights)) {
    if (namespace !== EVERY_NAMESPACE && !namespaces.includes(namespace)) {
      const hint = `Name one of ${namespaces.join(', ')}, or *`;
      throw new UserDefinitionError(name, ['rights', namespace], 'there is no such namespace', hint);
    }
    rightsByNamespace[namespace] = names.map((right) => readRight(name, namespace, right));
  }
  return new LimitedUser(name, rightsByNamespace, maskBodies);
}

/** Whether the name can be sent in Basic credentials (RFC 7617); without that, no client could log in. */
function isBasicName(name: string): boolean {
  const isShort = name !== '' && Buffer.byteLength(name) <= PASSWORD_BYTES;
  return isShort && name.isWellFormed() && !name.includes(':') && !CONTROL.test(name);
}

function readRight(user: string, namespace: string, right: string): Right {
  const knownRight = RIGHTS.find((one) => one === right);
  if (knownRight !== undefined) return knownRight;
  const hint = `Choose among ${RIGHTS.join(', ')}`;
  throw new UserDefinitionError(user, ['rights', namespace], `there is no right "${right}"`, hint);
}

/** A user with only these rights, by namespace; `*` applies to every namespace that is not listed. */
export class LimitedUser implements User {
  readonly name: string;
  readonly isAdministrator = false;
  readonly #rights: ReadonlyMap<string, ReadonlySet<Right>>;
  readonly #maskBodies: boolean;

  constructor(name: string, rights: Readonly<Record<string, readonly Right[]>>, maskBodies: boolean) {
    this.name = name;
    this.#rights = new Map(Object.entries(rights).map(([namespace, list]) => [namespace, new Set(list)]));
    this.#maskBodies = maskBodies;
  }

  may(right: Right, namespace: string): boolean {
    const rights = this.#rightsIn(namespace);
    if (rights === undefined) return false;
    return rights.has(right) || (right === 'browse' && rights.has('read'));
  }

  maySeeBodies(namespace: string): boolean {
    return this.may(this.#maskBodies ? 'read' : 'browse', namespace);
  }

  maySee(namespace: string): boolean {
    return (this.#rightsIn(namespace)?.size ?? 0) > 0;
  }

  /** A namespace's own list replaces the `*` list; the two are not merged. */
  #rightsIn(namespace: string): ReadonlySet<Right> | undefined {
    return this.#rights.get(namespace) ?? this.#rights.get(EVERY_NAMESPACE);
  }
}
