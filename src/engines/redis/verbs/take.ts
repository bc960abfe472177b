import type { TakeResult } from '../../../engine/storage.ts';
import type { Delivery, GroupName } from '../../../model/element.ts';
import { LeaseTokens, TOKEN_BYTES } from '../../../model/lease-token.ts';
import { OWNER_BYTES } from '../../../model/owner.ts';
import { type Undecodable, UndecodableElements, type Verb } from '../batcher.ts';
import type { Arg } from '../client/connection.ts';
import {
  CUT,
  decodeContent,
  ELEMENT_HEAD,
  elementId,
  encodeContent,
  encodeIds,
  ID_BYTES,
  LEFT,
  writeId,
} from '../encoding.ts';
import type { Result } from '../reply.ts';
import { NO_CAPACITY, noNumberLeft } from './insert.ts';

/**
 * The token of the delivery with this index in a take. The first four bytes are counted up from delivery to delivery,
 * so a take needs only one draw of random bytes; all its reservations belong to one user.
 */
function tokenText(first: Buffer, index: number): string {
  if (index === 0) return first.toString('base64url');
  const token = Buffer.from(first);
  token.writeUInt32BE((token.readUInt32BE(0) + index) % 2 ** 32, 0);
  return token.toString('base64url');
}

interface TakeCall {
  readonly group: GroupName;
  readonly count: number;
  readonly leaseMs: number | null;
  readonly owner: number;
  /** See `holderStrings`. */
  readonly holders: string | readonly string[];
  readonly maxBytes: number | null;
}

const NOTHING = Buffer.alloc(0);
const TAKE_HEAD = 16;
const RESERVED = 0x52;
/** A delivery: `d` or `e`, seq(6). */
const DELIVERY_BYTES = 7;
const TOUCHED = 0x64;
/** The maturity(6) and tries(4) of a delivery, in its element or, if it is touched, with the reason behind. */
const MOMENT_BYTES = 10;
const NEXT_KNOWN = 1;

const tokens = new LeaseTokens();

/** The first token(16) and the owner(6) of reservations, and their holders. */
function holderOf(calls: readonly TakeCall[]): Buffer {
  const [{ owner, holders } = { owner: 0, holders: '' }] = calls;
  const isOne = typeof holders === 'string' && calls.every((call) => call.holders === holders);
  const texts = isOne ? `1${holders}` : '2';
  const head = TOKEN_BYTES + OWNER_BYTES;
  const holder = Buffer.allocUnsafe(head + Buffer.byteLength(texts));
  holder.set(tokens.bytes());
  holder.writeUIntBE(owner, TOKEN_BYTES, OWNER_BYTES);
  holder.write(texts, head);
  return isOne ? holder : Buffer.concat([holder, ...calls.flatMap(encodeHolders)]);
}

/** The holders of one call, each with its length(2) before it. */
function encodeHolders({ holders, count }: TakeCall): Buffer[] {
  return Array.from({ length: count }, (_, place) => {
    const text = typeof holders === 'string' ? holders : (holders[place] ?? '');
    const bytes = Buffer.from(`\0\0${text}`);
    bytes.writeUInt16BE(bytes.length - 2);
    return bytes;
  });
}

/**
 * Calls with the same group, lease and owner are joined: the first call gets the first elements. Calls with `maxBytes`
 * are not joined.
 */
export const TAKE: Verb<TakeCall, TakeResult> = {
  name: 'take',
  encode(calls) {
    const [first] = calls;
    const count = calls.reduce((sum, call) => sum + call.count, 0);
    const leaseMs = first?.leaseMs ?? 0;
    const holder = leaseMs === 0 ? '' : holderOf(calls);
    return [first?.group ?? '', count, leaseMs, holder, first?.maxBytes ?? ''];
  },
  decode(result, calls) {
    const { deliveries, isIncomplete } = readTaken(result, calls[0]?.group ?? '');
    const { text } = result;
    const flags = text.readUInt8(9);
    const nextDueAt = (flags & NEXT_KNOWN) !== 0 ? text.readUIntBE(10, 6) : null;
    const next = isIncomplete ? 0 : nextDueAt;
    let from = 0;
    return calls.map(({ count }) => {
      const share = deliveries.slice(from, from + count);
      from += share.length;
      return {
        deliveries: share,
        nextDueAt: share.length < count ? next : null,
        isCut: (flags & CUT) !== 0,
        isLeft: (flags & LEFT) !== 0,
      };
    });
  },
  numbersOf({ deliveries }) {
    const ids = encodeIds(deliveries.map(({ id }) => id));
    return deliveries.map((_, i) => ids.subarray((i + 1) * ID_BYTES - 6, (i + 1) * ID_BYTES));
  },
};

interface Taken {
  readonly deliveries: Delivery[];
  /**
   * A repeated reply omits elements. They may wait again, and elements behind them may not have been looked up, so a
   * caller that has too few must call again.
   */
  readonly isIncomplete: boolean;
}

/** Stored data of a popped element that its delivery does not contain. */
interface UndoData {
  /** When it was inserted, and when it expires. */
  readonly times: Buffer;
  /** The reason of the last failed try. */
  readonly reason: Buffer;
}

/** Only for popped elements with data that `undo` could not derive. */
const undoData = new WeakMap<Delivery, UndoData>();

/** See `library/take.lua`. @throws UndecodableElements */
function readTaken({ tag, text, elements }: Result, group: GroupName): Taken {
  const isReserved = text[0] === RESERVED;
  const until = text.readUIntBE(3, 6);
  const end = text.length - (isReserved ? TOKEN_BYTES : 0);
  const token = text.subarray(end);
  const count = (end - TAKE_HEAD) / DELIVERY_BYTES;
  const deliveries: Delivery[] = [];
  const undecodable: Undecodable[] = [];
  let isIncomplete = false;
  let touchedAt = count;
  for (let i = 0; i < count; i++) {
    const at = TAKE_HEAD + DELIVERY_BYTES * i;
    const value = elements[i] ?? null;
    const touched = text[at] === TOUCHED ? (elements[touchedAt++] ?? NOTHING) : NOTHING;
    if (value === null) {
      isIncomplete = true;
      continue;
    }
    const id = elementId(tag, text.readUIntBE(at + 1, 6));
    try {
      const { body, contentType, contentEncoding, headers } = decodeContent(value, ELEMENT_HEAD);
      const lease = isReserved ? { token: tokenText(token, i), until } : null;
      const moment = touched.length < MOMENT_BYTES ? value : touched;
      const matureAt = moment.readUIntBE(0, 6);
      const tries = moment.readUInt32BE(6);
      const delivery = { id, group, tries, matureAt, lease, body, contentType, contentEncoding, headers };
      deliveries.push(delivery);
      const reason = touched === NOTHING ? NOTHING : touched.subarray(MOMENT_BYTES);
      if (!isReserved && (reason.length > 0 || !hasDefaultTimes(value, moment))) {
        undoData.set(delivery, { times: value.subarray(MOMENT_BYTES, ELEMENT_HEAD), reason });
      }
    } catch (cause) {
      const seq = text.subarray(at + 1, at + DELIVERY_BYTES);
      undecodable.push({ id, delivery: Buffer.concat([text.subarray(1, 3), seq]), cause });
    }
  }
  const [first] = undecodable;
  if (first !== undefined) throw new UndecodableElements(first, undecodable);
  return { deliveries, isIncomplete };
}

/** Whether a stored element does not expire and was inserted at its maturity, with which `moment` begins. */
function hasDefaultTimes(value: Buffer, moment: Buffer): boolean {
  for (let i = 0; i < 6; i++) if (value[i + 10] !== moment[i] || value[i + 16] !== 0) return false;
  return true;
}

/** The arguments for deliveries that this process popped. */
export function undoArgs(deliveries: readonly Delivery[]): Arg[] {
  return deliveries.flatMap((delivery) => {
    const head = Buffer.alloc(ID_BYTES + ELEMENT_HEAD);
    writeId(delivery.id, head, 0);
    head.writeUIntBE(delivery.matureAt, ID_BYTES, 6);
    head.writeUInt32BE(delivery.tries, ID_BYTES + 6);
    head.writeUIntBE(delivery.matureAt, ID_BYTES + 10, 6);
    const { times, reason = NOTHING } = undoData.get(delivery) ?? {};
    if (times !== undefined) head.set(times, ID_BYTES + 10);
    return [delivery.group, head, encodeContent(delivery), reason];
  });
}

export const UNDO: Verb<readonly Arg[], undefined> = {
  name: 'undo',
  encode: (calls) => [calls.flat().length / 4, ...calls.flat()],
  decode: ({ text }, calls) => calls.map(() => (text[0] === NO_CAPACITY ? noNumberLeft() : undefined)),
};
