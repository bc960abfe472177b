import type { Definition, JsonValue } from '../engine/definitions.ts';
import type { Caller } from './caller.ts';
import { canonical, type Declaration, parseDeclaration, sameDeclaration } from './declaration.ts';
import type { ExchangeState } from './record.ts';

/** An exchange as its definition holds it. */
export interface StoredExchange extends ExchangeState {
  readonly declaration: Declaration;
  /**
   * Who declared it, in whose name it runs. Empty: the node, since the configuration file declares it. Definitions
   * of before there were owners have none, and count as the node's.
   */
  readonly owner: string;
}

export function toValue({ declaration, owner, stopped, lastError }: StoredExchange): JsonValue {
  return { declaration: canonical(declaration), owner, stopped, lastError };
}

/** @throws QuaysideError `invalid-parameter` if the definition holds something else */
export function toStored(value: JsonValue): StoredExchange {
  const { declaration, owner, stopped, lastError } = value as {
    declaration?: unknown;
    owner?: unknown;
    stopped?: unknown;
    lastError?: unknown;
  };
  return {
    declaration: parseDeclaration(declaration),
    owner: typeof owner === 'string' ? owner : '',
    stopped: typeof stopped === 'boolean' ? stopped : null,
    lastError: typeof lastError === 'string' ? lastError : null,
  };
}

/** Whether the caller may know of a stored exchange; of one that cannot be read, too. */
export function mayKnow(caller: Caller, { value }: Pick<Definition, 'value'>): boolean {
  try {
    return caller.maySee(toStored(value).declaration.src.ns);
  } catch {
    return true;
  }
}

/** Whether a definition holds this declaration. */
export function declares({ value }: Pick<Definition, 'value'>, declaration: Declaration): boolean {
  try {
    return sameDeclaration(toStored(value).declaration, declaration);
  } catch {
    return false;
  }
}

/** In no name that a client may send. */
const MARK = '\u001f';

/**
 * Ids of exchanges are unique on the whole server, and one whose source namespace a user may not see must not show by
 * being taken. So if a user creates an exchange with such an id, it is stored under a key of its own, made of the id and the
 * namespace of its source. For most exchanges id and key are the same.
 */
export function scopedKey(id: string, namespace: string): string {
  return id + MARK + namespace;
}

/** The id that the creator of an exchange gave. */
export function idOf(key: string): string {
  const end = key.indexOf(MARK);
  return end < 0 ? key : key.slice(0, end);
}

/**
 * The keys by the ids under which a caller who sees all of them knows them: the given ids and, for the second exchange of
 * an id, `<id>@<namespace of its source>`.
 * @param keys sorted
 */
export function idsOf(keys: readonly string[]): Map<string, string> {
  const byId = new Map<string, string>();
  for (const key of keys) {
    let id = idOf(key);
    if (byId.has(id)) id = `${id}@${key.slice(id.length + MARK.length)}`;
    while (byId.has(id)) id += '@';
    byId.set(id, key);
  }
  return byId;
}
