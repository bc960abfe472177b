import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import type { RequestHead } from './head.ts';

/** Characters of an idempotency key. */
export const MAX_KEY_LENGTH = 255;

/** The idempotency key of an insert, as its user gave it; null: none. @throws QuaysideError `invalid-header` */
export function idempotencyKeyOf({ idempotencyKey: key }: RequestHead): string | null {
  if (key === null || (key !== '' && key.length <= MAX_KEY_LENGTH)) return key;
  throw new QuaysideError(
    'invalid-header',
    `Idempotency-Key ${quote(key)} has ${key.length} characters. Allowed: 1 to ${MAX_KEY_LENGTH}.`,
    { parameter: 'idempotency-key' },
  );
}
