import type { Definition, JsonValue } from '../engine/definitions.ts';
import { canonical, type Declaration, parseDeclaration, sameDeclaration } from './declaration.ts';
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

/** Whether a definition holds this declaration. */
export function declares({ value }: Pick<Definition, 'value'>, declaration: Declaration): boolean {
  try {
    return sameDeclaration(toStored(value).declaration, declaration);
  } catch {
    return false;
  }
}
