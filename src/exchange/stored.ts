import type { Definition, JsonValue } from '../engine/definitions.ts';
import type { Asker } from './asker.ts';
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

/** @throws QuaysideError `invalid-parameter` where the definition holds something else */
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

/** Whether the asker may know of a stored exchange; of one that cannot be read, too. */
export function mayKnow(asker: Asker, { value }: Pick<Definition, 'value'>): boolean {
  try {
    return asker.maySee(toStored(value).declaration.src.ns);
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
