import type {
  GroupCounts,
  QueueCounts,
  ScannedDelivery,
  ScanOptions,
  ScanPage,
} from '../../../engine/storage.ts';
import {
  DELIVERY_STATES,
  type DeliveryState,
  type ElementContent,
  type GroupName,
  NO_BODY,
} from '../../../model/element.ts';
import { readHolder } from '../../../model/owner.ts';
import { single, type Verb } from '../batcher.ts';
import { decodeContent, ELEMENT_HEAD, elementId, encodeIds } from '../encoding.ts';
import type { Result } from '../reply.ts';

/** The states of deliveries in arguments and results of the library. */
export const STATE_CODES: Readonly<Record<DeliveryState, string>> = {
  ready: 'w',
  scheduled: 's',
  reserved: 'r',
};

const COUNTS_BYTES = 25;

/** A group, or null for the whole queue. Calls for the same are joined: all get the same counts. */
export const COUNTS: Verb<GroupName | null, QueueCounts> = {
  name: 'counts',
  isRead: true,
  encode: ([group = null]) => [group === null ? '*' : `=${group}`],
  decode({ text }, calls) {
    const counts = readQueueCounts(text);
    return calls.map(() => counts);
  },
};

/** The counts of a whole queue: see `library/read.lua`. */
export function readQueueCounts(text: Buffer): QueueCounts {
  const groups = new Map<GroupName, GroupCounts>();
  for (let at = COUNTS_BYTES; at < text.length; ) {
    const nameAt = at + 2;
    const countsAt = nameAt + text.readUInt16BE(at);
    groups.set(text.toString('utf8', nameAt, countsAt), readCounts(text, countsAt));
    at = countsAt + COUNTS_BYTES;
  }
  return { ...readCounts(text, 0), groups };
}

function readCounts(text: Buffer, at: number): GroupCounts {
  return {
    ready: text.readUIntBE(at, 6),
    scheduled: text.readUIntBE(at + 6, 6),
    reserved: text.readUIntBE(at + 12, 6),
    nextMatureAt: text.readUInt8(at + 18) === 1 ? text.readUIntBE(at + 19, 6) : null,
  };
}

const STATES: Readonly<Record<string, DeliveryState>> = Object.fromEntries(
  DELIVERY_STATES.map((state) => [STATE_CODES[state], state]),
);
/**
 * A state(1) maturity(6) tries(4) lease end(6) seq(6) body length(6) reserved at(6) length of the reason(2) length of
 * the holder(2).
 */
const SCANNED_BYTES = 39;
const GID_BYTES = 2;

/** One page: see `library/read.lua`. */
export const SCAN = single<ScanOptions, ScanPage>(
  'scan',
  ({ group, states, after, limit, bodies, ids }) => {
    const codes = DELIVERY_STATES.filter((state) => states.includes(state)).map(
      (state) => STATE_CODES[state],
    );
    const cursor = Buffer.from(after ?? '', 'base64url');
    return [group, codes.join(''), cursor, limit, bodies ? '1' : '', ids === undefined ? '' : encodeIds(ids)];
  },
  (result, options) => {
    const { text } = result;
    const cursorEnd = 1 + text.readUInt8(0);
    const deliveries: ScannedDelivery[] = [];
    let at = cursorEnd + GID_BYTES;
    const gid = text.subarray(cursorEnd, at);
    for (const value of result.elements) {
      const delivery = readScanned(result, at, value, gid, options);
      if (delivery !== null) deliveries.push(delivery);
      at +=
        SCANNED_BYTES + text.readUInt16BE(at + SCANNED_BYTES - 4) + text.readUInt16BE(at + SCANNED_BYTES - 2);
    }
    return { deliveries, next: cursorEnd === 1 ? null : text.toString('base64url', 1, cursorEnd) };
  },
  { isRead: true },
);

/** Null if the element cannot be decoded: a scan skips it, and a take logs it. */
function readScanned(
  { tag, text }: Result,
  at: number,
  value: Buffer | null,
  gid: Buffer,
  { group, bodies, ids }: ScanOptions,
): ScannedDelivery | null {
  const content = value === null ? null : tryDecode(value);
  if (value === null || content === null) return null;
  const state = STATES[String.fromCharCode(text.readUInt8(at))] ?? 'ready';
  const reasonAt = at + SCANNED_BYTES;
  const holderAt = reasonAt + text.readUInt16BE(reasonAt - 4);
  const reason = text.toString('utf8', reasonAt, holderAt);
  const expiresAt = value.readUIntBE(16, 6);
  return {
    ...content,
    body: bodies ? content.body : NO_BODY,
    id: elementId(tag, text.readUIntBE(at + 17, 6)),
    group,
    tries: text.readUInt32BE(at + 7),
    matureAt: text.readUIntBE(at + 1, 6),
    lease: state === 'reserved' ? { token: '', until: text.readUIntBE(at + 11, 6) } : null,
    state,
    insertedAt: value.readUIntBE(10, 6),
    expiresAt: expiresAt === 0 ? null : expiresAt,
    reason: reason === '' ? null : reason,
    bytes: text.readUIntBE(at + 23, 6),
    holder:
      state === 'reserved'
        ? {
            ...readHolder(text.toString('utf8', holderAt, holderAt + text.readUInt16BE(reasonAt - 2))),
            since: text.readUIntBE(at + 29, 6),
          }
        : null,
    cursor: ids === undefined ? cursorAt(text, at, gid) : null,
  };
}

/** The largest tries that a member of z can have, so that a cursor is behind all members of its element. */
const ANY_TRIES = Buffer.alloc(4, 0xff);

/** The cursor of a delivery in a page: its state and its member of z, derived from the page. */
function cursorAt(text: Buffer, at: number, gid: Buffer): string {
  const seq = text.subarray(at + 17, at + 23);
  const isReserved = STATES[String.fromCharCode(text.readUInt8(at))] === 'reserved';
  const [kind, moment] = isReserved ? ['l', at + 11] : ['w', at + 1];
  const parts = [text.subarray(at, at + 1), Buffer.from(kind), gid, text.subarray(moment, moment + 6), seq];
  if (!isReserved) parts.push(ANY_TRIES);
  return Buffer.concat(parts).toString('base64url');
}

function tryDecode(value: Buffer): ElementContent | null {
  try {
    return decodeContent(value, ELEMENT_HEAD);
  } catch {
    return null;
  }
}
