import type { ElementContent, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';

/** What one line or one part of an insert of many says of its element. Null: it does not say. */
export interface GivenElement extends ElementContent {
  /** A moment, in ms since 1970. */
  readonly matureAt: number | null;
  readonly delayMs: number | null;
  readonly ttlMs: number | null;
  readonly tries: number | null;
  readonly groups: readonly GroupName[] | null;
  /** The idempotency key, as the user gave it. */
  readonly key: string | null;
}

/** How the elements of a body stand in it. */
export type Place = 'line' | 'part';

/** The same error, which says where it was. */
export function errorIn(place: Place, number: number, thrown: unknown): unknown {
  if (!(thrown instanceof QuaysideError)) return thrown;
  const where = place === 'line' ? 'Line' : 'Part';
  const extra = { ...thrown.details.extra, [place]: number };
  return thrown.with({ message: `${where} ${number}: ${thrown.message}`, extra });
}

/** The error of a request of many that has one more than it may. @param what they are, in the plural */
export function tooMany(what: string, limit: number): QuaysideError {
  return new QuaysideError(
    'body-too-large',
    `There are more than ${limit} ${what}, the limit (http.batchCount).`,
    {
      extra: { limit },
    },
  );
}
