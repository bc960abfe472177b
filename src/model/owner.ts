import { hash } from 'node:crypto';

/** Bytes of an {@link ownerNumber}. */
export const OWNER_BYTES = 6;

const MAX_REMEMBERED = 10_000;
const numbers = new Map<string, number>();

/**
 * The number that an engine stores with a reservation to identify its user: 48 bits of a hash of the name, so that it
 * has the same small size for every name and is the same on every node. 0 stands for no user.
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

/** The holder of a reservation. */
export interface Holder {
  /** Null if the user is unknown, or if the node itself holds it, as for an exchange. */
  readonly user: string | null;
  /** The tid of the consumer that received the element; null if it has none. */
  readonly tid: string | null;
}

/** The tids of reservations made together: one for all, or one for each. */
export type Tids = string | null | readonly (string | null)[];

/**
 * The strings by which an engine stores the holders of reservations that are made together: one for all, or one for
 * each. An empty string stands for no holder.
 */
export function holderStrings(
  user: string | null | undefined,
  tids: Tids | undefined,
): string | readonly string[] {
  if (tids === undefined || tids === null || typeof tids === 'string') return holderString(user, tids);
  return tids.map((tid) => holderString(user, tid));
}

// Tids have no control characters, so the last line feed separates the two.
function holderString(user: string | null | undefined, tid: string | null | undefined): string {
  if (tid == null) return user == null ? '' : `${user}\n`;
  return `${user ?? ''}\n${tid}`;
}

export function readHolder(text: string | null): Holder {
  const at = text?.lastIndexOf('\n') ?? -1;
  if (text === null || at < 0) return { user: null, tid: null };
  return { user: text.slice(0, at) || null, tid: text.slice(at + 1) || null };
}
