import type { TakeResult } from '../../../engine/storage.ts';
import type { Delivery, ElementId, GroupName } from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import { LeaseTokens, TOKEN_BYTES } from '../../../model/lease-token.ts';
import { OWNER_BYTES } from '../../../model/owner.ts';
import type { Arg } from '../client/connection.ts';
import {
  decodeContent,
  ELEMENT_HEAD,
  elementId,
  encodeContent,
  encodeIds,
  ID_BYTES,
  tokenText,
  writeId,
} from '../encoding.ts';
import { noNumberLeft } from '../policies.ts';
import type { Result, Verb } from './verb.ts';

interface TakeCall {
  readonly group: GroupName;
  readonly count: number;
  readonly leaseMs: number | null;
  readonly owner: number;
  /** See `holderTexts`. */
  readonly holders: string | readonly string[];
  readonly ids: readonly ElementId[] | null;
  readonly maxBytes: number | null;
}

const NO_REASON = Buffer.alloc(0);
const TAKE_HEAD = 16;
/** The members that the deliveries had: `w`, gid(2), maturity(6), seq(6), tries and touched(4). */
const TAKE_STEP = 19;
const RESERVED = 0x52;
const NEXT_KNOWN = 1;
const CUT = 2;

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
  return isOne ? holder : Buffer.concat([holder, ...calls.flatMap(eachHolder)]);
}

/** Each text of a call, its length before it. */
function eachHolder({ holders, count }: TakeCall): Buffer[] {
  return Array.from({ length: count }, (_, place) => {
    const text = typeof holders === 'string' ? holders : (holders[place] ?? '');
    const bytes = Buffer.from(`\0\0${text}`);
    bytes.writeUInt16BE(bytes.length - 2);
    return bytes;
  });
}

/** Calls of the same group, lease and owner, one after the other: the first gets the first. Those with ids or `maxBytes` are alone. */
export const TAKE: Verb<TakeCall, TakeResult> = {
  name: 'take',
  encode(calls) {
    const [first] = calls;
    const count = calls.reduce((sum, call) => sum + call.count, 0);
    const leaseMs = first?.leaseMs ?? 0;
    const ids = first?.ids ?? null;
    const holder = leaseMs === 0 ? '' : holderOf(calls);
    return [
      first?.group ?? '',
      count,
      leaseMs,
      holder,
      ids === null ? '' : encodeIds(ids),
      first?.maxBytes ?? '',
    ];
  },
  decode(result, calls) {
    const { deliveries, goneFrom } = readTaken(result, calls[0]?.group ?? '');
    const { text } = result;
    const flags = text.readUInt8(9);
    const next = goneFrom ?? ((flags & NEXT_KNOWN) !== 0 ? text.readUIntBE(10, 6) : null);
    if (calls.length === 1) {
      const isEnough = deliveries.length >= (calls[0]?.count ?? 0) || calls[0]?.ids != null;
      return [{ deliveries, nextDueAt: isEnough ? null : next, isCut: (flags & CUT) !== 0 }];
    }
    let from = 0;
    return calls.map(({ count }) => {
      const own = deliveries.slice(from, from + count);
      from += own.length;
      return { deliveries: own, nextDueAt: own.length < count ? next : null };
    });
  },
};

/** A delivery of a take whose content cannot be decoded. */
interface Undecodable {
  readonly id: ElementId;
  /** The member of the sorted set that it had. */
  readonly member: Buffer;
  readonly cause: unknown;
}

const POSTPONE_MS = 60_000;

/** Why a take failed that contains elements which this version cannot decode. */
export class UndecodableElements extends QuaysideError {
  readonly elements: readonly Undecodable[];

  constructor(first: Undecodable, elements: readonly Undecodable[]) {
    const message = `The content of element ${first.id} cannot be decoded; it was returned to its queue and is ready again in ${POSTPONE_MS / 1_000} s.`;
    super('storage-unavailable', message, { retryAfterMs: 1_000, cause: first.cause });
    this.elements = elements;
  }
}

/** Delays waiting deliveries, so that those behind them can be taken. */
export const POSTPONE: Verb<readonly Buffer[], undefined> = {
  name: 'postpone',
  encode: (calls) => [POSTPONE_MS, Buffer.concat(calls.flat())],
  decode: (_, calls) => calls.map(() => undefined),
};

interface Taken {
  readonly deliveries: Delivery[];
  /**
   * The maturity of the first that was gone when the reply was repeated; null: none was. It may wait again, and
   * what waited behind it was perhaps not looked up: a caller that has too few calls again.
   */
  readonly goneFrom: number | null;
}

/** What is stored with a popped element and not in its delivery. */
interface Unseen {
  /** When it was inserted, and when it expires. */
  readonly times: Buffer;
  /** Of the last failed try. */
  readonly reason: Buffer;
}

/** For those popped elements that have something which `undo` could not tell. */
const unseen = new WeakMap<Delivery, Unseen>();

/** See `library/take.lua`. @throws UndecodableElements */
function readTaken({ tag, text, elements }: Result, group: GroupName): Taken {
  const isReserved = text[0] === RESERVED;
  const until = text.readUIntBE(3, 6);
  const token = text.subarray(text.length - TOKEN_BYTES);
  const deliveries: Delivery[] = [];
  const undecodable: Undecodable[] = [];
  let goneFrom: number | null = null;
  const count = Math.floor((text.length - TAKE_HEAD) / TAKE_STEP);
  let reasonAt = count;
  for (let i = 0; i < count; i++) {
    const value = elements[i] ?? null;
    const at = TAKE_HEAD + TAKE_STEP * i + 3;
    const matureAt = text.readUIntBE(at, 6);
    const isTouched = elements.length > count && ((text[at + TAKE_STEP - 4] ?? 0) & 1) === 1;
    const reason = (isTouched ? elements[reasonAt++] : null) ?? NO_REASON;
    if (value === null) {
      goneFrom ??= matureAt;
      continue;
    }
    const id = elementId(tag, text.readUIntBE(at + 6, 6));
    try {
      const { body, contentType, contentEncoding, headers } = decodeContent(value, ELEMENT_HEAD);
      const lease = isReserved ? { token: tokenText(token, i), until } : null;
      const tries = text.readUInt32BE(at + 12) >>> 1;
      const delivery = { id, group, tries, matureAt, lease, body, contentType, contentEncoding, headers };
      deliveries.push(delivery);
      if (!isReserved && (reason.length > 0 || !isUsual(value, text, at))) {
        unseen.set(delivery, { times: value.subarray(10, 22), reason });
      }
    } catch (cause) {
      undecodable.push({ id, member: text.subarray(at - 3, at - 3 + TAKE_STEP), cause });
    }
  }
  const [first] = undecodable;
  if (first !== undefined) throw new UndecodableElements(first, undecodable);
  return { deliveries, goneFrom };
}

/** Whether a stored element does not expire, and was inserted at the moment(6) at `at` of `text`. */
function isUsual(value: Buffer, text: Buffer, at: number): boolean {
  for (let i = 0; i < 6; i++) if (value[i + 10] !== text[at + i] || value[i + 16] !== 0) return false;
  return true;
}

/** When a popped delivery expires; null if it does not. */
export function expiryOf(delivery: Delivery): number | null {
  return unseen.get(delivery)?.times.readUIntBE(6, 6) || null;
}

/** Deliveries that this process popped, as arguments. */
export function undoArgs(deliveries: readonly Delivery[]): Arg[] {
  return deliveries.flatMap((delivery) => {
    const named = Buffer.alloc(ID_BYTES + ELEMENT_HEAD);
    writeId(delivery.id, named, 0);
    named.writeUIntBE(delivery.matureAt, ID_BYTES, 6);
    named.writeUInt32BE(delivery.tries, ID_BYTES + 6);
    named.writeUIntBE(delivery.matureAt, ID_BYTES + 10, 6);
    const { times, reason = NO_REASON } = unseen.get(delivery) ?? {};
    if (times !== undefined) named.set(times, ID_BYTES + 10);
    return [delivery.group, named, encodeContent(delivery), reason];
  });
}

export const UNDO: Verb<readonly Arg[], undefined> = {
  name: 'undo',
  encode: (calls) => [calls.flat().length / 4, ...calls.flat()],
  decode: ({ text }, calls) => calls.map(() => (text[0] === 0x21 ? noNumberLeft() : undefined)),
};
