/** What the main side can ask of the worker, as the number that opens a call in a message. */
export const OPERATIONS = [
  'declare',
  'queues',
  'insert',
  'take',
  'commit',
  'rollback',
  'extend',
  'putBack',
  'remove',
  'transfer',
  'browse',
  'purge',
  'sizes',
  'nextDueAt',
  'usage',
  'sweep',
  'definitionGet',
  'definitionList',
  'definitionPut',
  'definitionDelete',
  'statsAdd',
  'statsRead',
  'tend',
  'ping',
] as const;

export type Operation = (typeof OPERATIONS)[number];

const NUMBERS = new Map<Operation, number>(OPERATIONS.map((operation, index) => [operation, index]));

export function operationNumber(operation: Operation): number {
  return NUMBERS.get(operation) ?? -1;
}

/** How each call's answer begins. */
export const ANSWERED = 0;
export const REFUSED = 1;

/** What an insert did with an element that has a dedup key. */
export const INSERTED = { stored: 0, repeated: 1, mismatched: 2 } as const;

/** Settle outcomes as they cross the border: their index here. */
export const OUTCOMES = [
  'done',
  'dead-lettered',
  'not-found',
  'not-reserved',
  'lease-lost',
  'reserved',
  'token-required',
] as const;
export const DONE = 0;
export const DEAD_LETTERED = 1;
export const NOT_FOUND = 2;
export const NOT_RESERVED = 3;
export const LEASE_LOST = 4;
export const RESERVED = 5;
export const TOKEN_REQUIRED = 6;
