import { hash } from 'node:crypto';

/** Bytes of a number that stands for a user. */
export const OWNER_BYTES = 6;

const MAX_REMEMBERED = 10_000;
const numbers = new Map<string, number>();

/**
 * The number that an engine stores with a reservation for the user who made it: 48 bits of a hash of the name, so
 * that it has the same small size for every name and on every node. 0 stands for no user.
 */
export function ownerNumber(user: string | null | undefined): number {
  if (user === null || user === undefined) return 0;
  let number = numbers.get(user);
  if (number === undefined) {
    if (numbers.size >= MAX_REMEMBERED) numbers.clear();
    number = Math.max(1, hash('sha256', user, 'buffer').readUIntBE(0, OWNER_BYTES));
    numbers.set(user, number);
  }
  return number;
}
