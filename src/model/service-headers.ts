import { DEAD_LETTER_HEADERS } from './dead-letter.ts';

// Headers that exchanges write on what they forward.
export const HOP_COUNT = 'x-hop-count';
export const EXCHANGE_NAME = 'x-exchange-name';
/** Why an element went to `__no_route__` although no selector rejected it. */
export const EXCHANGE_ERROR = 'x-exchange-error';
/** How many copies an element's original has become, counting those that can come back; absent for one. */
export const COPY_COUNT = 'x-copy-count';

/** What the service itself writes, in addition to what clients set. The limits of an element's headers exempt these. */
export const SERVICE_HEADERS: ReadonlySet<string> = new Set([
  HOP_COUNT,
  COPY_COUNT,
  EXCHANGE_NAME,
  EXCHANGE_ERROR,
  ...DEAD_LETTER_HEADERS,
]);
