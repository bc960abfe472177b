import type { Definitions, JsonValue } from '../engine/definitions.ts';
import { canonical, type Declaration, parseDeclaration } from './declaration.ts';
import { notFound } from './known.ts';
import type { ExchangeState } from './record.ts';

/** An exchange as its definition holds it. */
export interface StoredExchange extends ExchangeState {
  readonly declaration: Declaration;
}

export function toValue({ declaration, stopped, lastError }: StoredExchange): JsonValue {
  return { declaration: canonical(declaration), stopped, lastError };
}

/** @throws QuaysideError `invalid-parameter` where the definition holds something else */
export function toStored(value: JsonValue): StoredExchange {
  const { declaration, stopped, lastError } = value as {
    declaration?: unknown;
    stopped?: unknown;
    lastError?: unknown;
  };
  return {
    declaration: parseDeclaration(declaration),
    stopped: typeof stopped === 'boolean' ? stopped : null,
    lastError: typeof lastError === 'string' ? lastError : null,
  };
}

/** The declaration of an exchange, and the first of the stores that defines it. */
export interface FoundExchange {
  readonly declaration: Declaration;
  readonly definitions: Definitions;
}

/**
 * Looks for an exchange in all stores side by side; the first that defines it counts.
 * @throws QuaysideError `exchange-not-found`; `storage-unavailable`, `outcome-unknown` where a store that did not
 * answer may define it
 */
export async function findStored(id: string, stores: readonly Definitions[]): Promise<FoundExchange> {
  const answers = await Promise.allSettled(stores.map((definitions) => definitions.get('exchange', id)));
  for (const [i, definitions] of stores.entries()) {
    const answer = answers[i];
    if (answer?.status !== 'fulfilled' || answer.value === null) continue;
    return { declaration: toStored(answer.value.value).declaration, definitions };
  }
  for (const answer of answers) if (answer.status === 'rejected') throw answer.reason;
  throw notFound(id);
}
