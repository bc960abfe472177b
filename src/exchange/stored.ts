import type { JsonValue } from '../engine/definitions.ts';
import type { UserRights } from '../model/rights.ts';
import { quote } from '../util/quote.ts';
import { type Declaration, parseDeclaration, toDeclaration } from './declaration.ts';
import type { ExchangeState } from './record.ts';

/** The content of an exchange's definition. */
export interface StoredExchange extends ExchangeState {
  readonly declaration: Declaration;
  /**
   * The user on whose behalf it runs: who declared it, or started it last after its owner was lost. Empty for the node
   * itself, if the configuration file declares it, or if the definition is from before there were owners.
   */
  readonly owner: string;
}

export function toValue({ declaration, owner, stopped, lastError }: StoredExchange): JsonValue {
  return { declaration: toDeclaration(declaration), owner, stopped, lastError };
}

/** @throws QuaysideError `invalid-parameter` if the definition is not that of an exchange */
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

/** Returns the rights of a user; null: there is no such user. */
export type FindOwner = (name: string) => Pick<UserRights, 'may'> | null;

/** Why an exchange may not run on behalf of its owner any more; null: it may. Does not mention namespaces. */
export function lostOwner(
  { owner, declaration: { src, dst } }: Pick<StoredExchange, 'owner' | 'declaration'>,
  find: FindOwner,
): string | null {
  if (owner === '') return null;
  const rights = find(owner);
  if (rights === null) {
    return `User ${quote(owner)}, who declared this exchange, is no longer a user. A user who starts it becomes its owner.`;
  }
  const hasAll =
    rights.may('exchange', src.ns) &&
    rights.may('read', src.ns) &&
    dst.every(({ ns }) => rights.may('write', ns));
  if (hasAll) return null;
  return `User ${quote(owner)}, who declared this exchange, has lost a right that it needs.`;
}
