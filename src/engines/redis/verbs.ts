import { tooManyGroups } from '../../engine/calls.ts';
import type { GroupLimit } from '../../engine/queue-policy.ts';
import {
  type GroupCounts,
  MAX_REASON_BYTES,
  type OnRepeat,
  type PurgeStep,
  type QueueCounts,
  type RequestKey,
  type ScannedDelivery,
  type ScanOptions,
  type ScanPage,
  SETTLED,
  type SettleItem,
  type SettleOutcome,
  type SettleResult,
  type TakeResult,
} from '../../engine/storage.ts';
import {
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementContent,
  type ElementId,
  type GroupName,
  type NewElement,
  NO_BODY,
  PLAIN_GROUP,
} from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import { LeaseTokens, TOKEN_BYTES } from '../../model/lease-token.ts';
import type { QueueKey } from '../../model/names.ts';
import { OWNER_BYTES, ownerNumber, readHolder } from '../../model/owner.ts';
import { truncateUtf8 } from '../../util/truncate-utf8.ts';
import { single, type Undecodable, UndecodableElements, type Verb } from './batcher.ts';
import type { Arg, EncodedArgs } from './client/connection.ts';
import {
  CUT,
  decodeContent,
  elementId,
  encodeContent,
  encodeContents,
  ID_BYTES,
  LEFT,
  writeId,
} from './encoding.ts';
import { queueText } from './keys.ts';
import { noNumberLeft, type Policies } from './policies.ts';
import type { Result } from './reply.ts';

// The verbs of the library that implement the Storage port: how calls are encoded as arguments, and results decoded.

/** The encoded elements of one call. */
interface InsertCall {
  readonly contents: EncodedArgs;
  /** What is sent for each element in addition to its content; null: nothing for any of them. */
  readonly extras: readonly Extras[] | null;
  readonly windowMs: number;
  readonly capacity: GroupCapacity;
  readonly onRepeat: OnRepeat | null;
  /** The key of the whole call with its fingerprint, as a {@link keyText}; '' for none. */
  readonly request: string;
}

/** An element's fields except its content; each may be empty. */
interface Extras {
  readonly timing: Buffer;
  readonly groups: string;
  readonly dedupKey: string;
}

function extrasOf(element: NewElement): Extras {
  const { dedupKey, fingerprint } = element;
  const timing = encodeTiming(element);
  const groups = groupsText(element.groups);
  if (timing === READY && groups === '' && dedupKey === null) return NO_EXTRAS;
  return { timing, groups, dedupKey: dedupKey === null ? '' : keyText(dedupKey, fingerprint) };
}

/** A key and its fingerprint, separated by a zero byte, which no key contains. */
function keyText(key: string, fingerprint: string | null | undefined): string {
  return fingerprint ? `${key}\0${fingerprint}` : key;
}

export function insertCall(
  elements: readonly NewElement[],
  {
    request,
    ...rest
  }: Pick<InsertCall, 'windowMs' | 'capacity' | 'onRepeat'> & { request: RequestKey | null },
): InsertCall {
  const extras = elements.map(extrasOf);
  return {
    ...rest,
    contents: encodeContents(elements),
    extras: extras.every((each) => each === NO_EXTRAS) ? null : extras,
    request: request === null ? '' : keyText(request.key, request.fingerprint),
  };
}

const COLUMNS = [
  { code: 't', field: 'timing' },
  { code: 'g', field: 'groups' },
  { code: 'd', field: 'dedupKey' },
] as const;

/** Names joined by commas, which no name contains; '' on a plain queue. */
function groupsText(groups: readonly string[]): string {
  return groups.length === 1 && groups[0] === PLAIN_GROUP ? '' : groups.join(',');
}

const READY = Buffer.alloc(0);
const NO_EXTRAS: Extras = { timing: READY, groups: '', dedupKey: '' };

/** See `library/insert.lua`. Fractions of a millisecond are rounded up, so that nothing happens early. */
function encodeTiming({ matureAt, delayMs, tries, expiresAt = null }: NewElement): Buffer {
  if (matureAt === null && delayMs <= 0 && tries === 0 && expiresAt === null) return READY;
  const timing = Buffer.allocUnsafe(22);
  timing.writeUIntBE(matureAt === null ? 0 : Math.max(0, Math.ceil(matureAt)) + 1, 0, 6);
  timing.writeUIntBE(Math.max(0, Math.ceil(delayMs)), 6, 6);
  timing.writeUInt32BE(tries, 12);
  // 0 means never, so an expiry of 0 becomes 1, which is past as well.
  timing.writeUIntBE(expiresAt === null ? 0 : Math.max(1, Math.ceil(expiresAt)), 16, 6);
  return timing;
}

/** What the library did with an element, or with the elements of a call with a request key. */
interface InsertRecord {
  /** The number of the element, or of the first one; 0: nothing of its call is stored. */
  readonly number: number;
  /** One of the outcomes below. */
  readonly outcome: number;
}

const SEQ_BYTES = 6;
/** The outcomes of an element in `library/insert.lua`. */
const STORED = 0x30;
const REPEATED = 0x31;
const MISMATCHED = 0x32;

export const INSERT: Verb<InsertCall, ElementId[]> = {
  name: 'insert',
  encode(calls) {
    const count = calls.reduce((sum, { contents }) => sum + contents.count, 0);
    // The columns that are sent with the contents: those with a value for any element.
    const columns = COLUMNS.filter(({ field }) =>
      calls.some(({ extras }) => extras?.some((each) => each[field].length > 0)),
    );
    const hasRequests = calls.some(({ request }) => request !== '');
    const codes = `${columns.map(({ code }) => code).join('')}${hasRequests ? 'r' : ''}`;
    const args: Arg[] = [count, codes, calls[0]?.windowMs ?? 0];
    if (columns.some(({ field }) => field === 'groups')) args.push(calls[0]?.capacity.encoded ?? '');
    if (hasRequests || columns.some(({ field }) => field !== 'timing')) {
      args.push(calls.map(({ contents }) => contents.count).join(','));
    }
    if (hasRequests) for (const { request } of calls) args.push(request);
    for (const { contents } of calls) args.push(contents);
    for (const { field } of columns) {
      for (const { contents, extras } of calls) {
        for (let i = 0; i < contents.count; i++) args.push((extras?.[i] ?? NO_EXTRAS)[field]);
      }
    }
    return args;
  },
  decode({ tag, text }, calls) {
    let at = SEQ_BYTES;
    // Without groups and keys there are no records.
    if (text.length === at) {
      let next = text.readUIntBE(0, SEQ_BYTES);
      return calls.map(({ contents: { count } }) => {
        next += count;
        return consecutiveIds(tag, next - count, count);
      });
    }
    const nextRecord = (): InsertRecord => {
      const record = { number: text.readUIntBE(at, SEQ_BYTES), outcome: text.readUInt8(at + SEQ_BYTES) };
      at += SEQ_BYTES + 1;
      return record;
    };
    return calls.map((call) => {
      if (call.request !== '') return idsOfRequest(tag, nextRecord(), call);
      return idsOfElements(tag, Array.from({ length: call.contents.count }, nextRecord), call);
    });
  },
};

/** The ids of a call with one record for each element. */
function idsOfElements(
  tag: string,
  records: readonly InsertRecord[],
  { capacity, onRepeat }: InsertCall,
): ElementId[] | QuaysideError {
  for (const [place, { outcome }] of records.entries()) {
    if (outcome !== STORED) onRepeat?.(place, outcome === REPEATED);
  }
  if (records.some(({ outcome }) => outcome === MISMATCHED)) return [];
  if (records.some(({ number }) => number === 0)) return groupsRejected(capacity);
  return records.map(({ number }) => elementId(tag, number));
}

/** The ids of a call with a request key, which has only one record. */
function idsOfRequest(
  tag: string,
  { number, outcome }: InsertRecord,
  { contents: { count }, capacity, onRepeat }: InsertCall,
): ElementId[] | QuaysideError {
  if (count === 0 || outcome === MISMATCHED) {
    if (outcome !== STORED) onRepeat?.(0, outcome === REPEATED);
    return [];
  }
  if (number === 0) return groupsRejected(capacity);
  if (outcome === REPEATED) for (let place = 0; place < count; place++) onRepeat?.(place, true);
  // The numbers of a call's elements are consecutive.
  return consecutiveIds(tag, number, count);
}

function consecutiveIds(tag: string, first: number, count: number): ElementId[] {
  const ids: ElementId[] = [];
  for (let number = first; number < first + count; number++) ids.push(elementId(tag, number));
  return ids;
}

/** The limit of a queue's groups. */
export interface GroupCapacity {
  readonly queue: QueueKey;
  readonly limit: GroupLimit | null;
  /** The limit as `library/groups.lua` reads it. */
  readonly encoded: string;
}

/** The error if groups do not fit. */
export function groupsRejected({ queue, limit }: GroupCapacity): QuaysideError {
  return limit === null ? noNumberLeft() : tooManyGroups(queue.name, limit.max);
}

export function capacityOf(policies: Policies, queue: QueueKey): GroupCapacity {
  const limit = policies.groupLimit(queue);
  return { queue, limit, encoded: limit === null ? '' : `${limit.max},${[...limit.defaults].join(',')},` };
}

/** Creates groups; rejected if they do not all fit. */
export const CREATE_GROUPS = single<{ readonly capacity: GroupCapacity; readonly groups: string }, undefined>(
  'create-groups',
  ({ capacity, groups }) => [capacity.encoded, groups],
  ({ text }, { capacity }) => (text.length > 0 ? groupsRejected(capacity) : undefined),
);

/** Items of one queue. */
interface SettleCall {
  readonly items: readonly SettleItem[];
  readonly windowMs: number;
  /** By the policy of the queue's namespace; 0: none. */
  readonly retentionMs: (queue: QueueKey) => number;
}

/** The outcomes by the digits that `library/queue.lua` gives them. */
const OUTCOMES: readonly SettleOutcome[] = [
  'done',
  'dead-lettered',
  'not-found',
  'not-reserved',
  'lease-lost',
  'reserved',
  'token-required',
];
const NO_CAPACITY = 0x21;
const LATER = 0x37;

const ITEM_BYTES = ID_BYTES + 1 + TOKEN_BYTES + OWNER_BYTES + 2 + 1 + 6;
const [HAS_TOKEN, FROM_WAITING, COUNTS_TRY, IS_MOMENT, HAS_REASON, IS_DEFAULT] = [1, 2, 4, 8, 16, 32];
const ACTIONS = { finish: 'f', release: 'r', extend: 'e', 'dead-letter': 'd', move: 'm' } as const;
const WITH_INSERTS = 't';

/** Settles of one batch, in their order: see `library/settle.lua`. Null for items that must be sent again. */
export const SETTLE: Verb<SettleCall, (SettleResult | null)[]> = {
  name: 'settle',
  encode(calls) {
    const count = calls.reduce((sum, { items }) => sum + items.length, 0);
    const target = Buffer.allocUnsafe(count * ITEM_BYTES);
    const groups = new Map<string, number>();
    const details: Arg[] = [];
    let endsLeases = false;
    let at = 0;
    for (const call of calls) {
      for (const item of call.items) {
        endsLeases ||= item.from === 'waiting' || item.action.kind !== 'finish';
        writeItem(item, groups, target, at);
        writeDetails(item, call, details);
        at += ITEM_BYTES;
      }
    }
    const names = [...groups.keys()].map((group) => `${group},`).join('');
    return [names, target, endsLeases ? '1' : '', ...details];
  },
  decode({ text }, calls) {
    let index = 0;
    let momentAt = calls.reduce((sum, { items }) => sum + items.length, 0);
    return calls.map(({ items }) => {
      let isRejected = false;
      let isChanged = false;
      const results = items.map(({ action }): SettleResult | null => {
        const digit = text[index++] ?? 0;
        if (digit === LATER) return null;
        const outcome = OUTCOMES[digit - 0x30] ?? 'not-found';
        isRejected ||= digit === NO_CAPACITY;
        isChanged ||= outcome === 'done' || outcome === 'dead-lettered';
        if (outcome !== 'done' || action.kind !== 'extend') return SETTLED[outcome];
        momentAt += 6;
        return { outcome, until: text.readUIntBE(momentAt - 6, 6) };
      });
      if (!isRejected) return results;
      if (!isChanged) return noNumberLeft();
      const message =
        'Some items were settled; others were not, because their queues have no number left for a consumer group.';
      return new QuaysideError('outcome-unknown', message);
    });
  },
};

function writeItem(item: SettleItem, groups: Map<string, number>, target: Buffer, from: number): void {
  const { action, group, token } = item;
  let number = 0;
  if (group !== null) {
    number = groups.get(group) ?? groups.size + 1;
    groups.set(group, number);
  }
  let flags = token === null ? 0 : HAS_TOKEN;
  let value = 0;
  if (item.from === 'waiting') flags |= FROM_WAITING;
  if (action.kind === 'extend') value = action.leaseMs;
  if (action.kind === 'release') {
    if (action.dueAt == null) value = action.delayMs;
    else [value, flags] = [action.dueAt, flags | IS_MOMENT];
    if (action.isDefaultDelay) flags |= IS_DEFAULT;
  }
  if (action.kind === 'release' || action.kind === 'dead-letter') {
    if (action.countTry) flags |= COUNTS_TRY;
    if (action.reason != null) flags |= HAS_REASON;
  }
  const hasInserts = action.kind === 'finish' && action.inserts !== undefined;
  let at = from;
  writeId(item.id, target, at);
  at += ID_BYTES;
  target[at] = flags;
  writeToken(token, target, at + 1);
  at += 1 + TOKEN_BYTES;
  target.writeUIntBE(token === null ? ownerNumber(item.owner) : 0, at, OWNER_BYTES);
  at += OWNER_BYTES;
  target.writeUInt16BE(number, at);
  target.write(hasInserts ? WITH_INSERTS : ACTIONS[action.kind], at + 2, 'latin1');
  target.writeUIntBE(Math.max(0, Math.ceil(value)), at + 3, 6);
}

/** Adds the arguments that some items need in addition. */
function writeDetails({ action }: SettleItem, { windowMs, retentionMs }: SettleCall, details: Arg[]): void {
  if (action.kind === 'finish' && action.inserts !== undefined) {
    details.push(windowMs, action.inserts.length);
    for (const { queue, element } of action.inserts) {
      const { timing, groups, dedupKey } = extrasOf(element);
      details.push(queueText(queue), retentionMs(queue), timing, encodeContent(element), groups, dedupKey);
    }
  } else if (action.kind === 'release' || action.kind === 'dead-letter') {
    if (action.reason != null) details.push(truncateUtf8(action.reason, MAX_REASON_BYTES));
  } else if (action.kind === 'move') {
    const { to, groups, tries, headers } = action;
    details.push(queueText(to), retentionMs(to), groupsText(groups), tries ?? '', JSON.stringify(headers));
  }
}

const STATE_CODES: Readonly<Record<DeliveryState, string>> = {
  ready: 'w',
  scheduled: 's',
  reserved: 'r',
};

/** Deliveries removed per step. Redis serves nobody else while a function runs. */
const PURGE_STEP = 2_000;

/** One step of a purge: how many deliveries were removed, and whether there may be more. */
export const PURGE = single<readonly DeliveryState[], PurgeStep>(
  'purge',
  (states) => [states.map((state) => STATE_CODES[state]).join(''), PURGE_STEP],
  ({ text }) => ({ removed: text.readUIntBE(0, 6), isDone: text.readUInt8(6) === 0 }),
);

/** The last digit has only two bits of the token: any other digit would make a second string for the same token. */
const TOKEN = /^[A-Za-z0-9_-]{21}[AQgw]$/;

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

/** Writes a token(16). A malformed one is written as zeros, which match no reservation (`library/settle.lua`). */
function writeToken(token: string | null, target: Buffer, at: number): void {
  if (token !== null && TOKEN.test(token)) target.write(token, at, TOKEN_BYTES, 'base64url');
  else target.fill(0, at, at + TOKEN_BYTES);
}

interface TakeCall {
  readonly group: GroupName;
  readonly count: number;
  readonly leaseMs: number | null;
  readonly owner: number;
  /** See `holderStrings`. */
  readonly holders: string | readonly string[];
  readonly ids: readonly ElementId[] | null;
  readonly maxBytes: number | null;
}

const NO_REASON = Buffer.alloc(0);
/** Bytes before the content in a stored element: see `library/queue.lua`. */
const ELEMENT_HEAD = 22;
const TAKE_HEAD = 16;
/** The members that the deliveries had: `w`, gid(2), maturity(6), seq(6), tries and touched(4). */
const TAKE_STEP = 19;
const RESERVED = 0x52;
/** Pops whose result has the elements' fields instead of members: `e`, seq(6). */
const UNTOUCHED_POPS = 0x70;
const FIELD_BYTES = 7;
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
 * Calls with the same group, lease and owner are joined: the first call gets the first elements. Calls with ids or
 * `maxBytes` are not joined.
 */
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
    const { deliveries, firstMissingAt } = readTaken(result, calls[0]?.group ?? '');
    const { text } = result;
    const flags = text.readUInt8(9);
    const isLeft = (flags & LEFT) !== 0;
    const next = firstMissingAt ?? ((flags & NEXT_KNOWN) !== 0 ? text.readUIntBE(10, 6) : null);
    if (calls.length === 1) {
      const isEnough = deliveries.length >= (calls[0]?.count ?? 0) || calls[0]?.ids != null;
      return [{ deliveries, nextDueAt: isEnough ? null : next, isCut: (flags & CUT) !== 0, isLeft }];
    }
    let from = 0;
    return calls.map(({ count }) => {
      const share = deliveries.slice(from, from + count);
      from += share.length;
      return { deliveries: share, nextDueAt: share.length < count ? next : null, isLeft };
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
   * The maturity of the first element that a repeated reply omits; null: none. It may wait again, and elements behind
   * it may not have been looked up, so a caller that has too few must call again.
   */
  readonly firstMissingAt: number | null;
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
  const token = text.subarray(text.length - TOKEN_BYTES);
  const deliveries: Delivery[] = [];
  const undecodable: Undecodable[] = [];
  let firstMissingAt: number | null = null;
  const hasMembers = text[0] !== UNTOUCHED_POPS;
  const [step, seqAt] = hasMembers ? [TAKE_STEP, 9] : [FIELD_BYTES, 1];
  const count = Math.floor((text.length - TAKE_HEAD) / step);
  let reasonAt = count;
  for (let i = 0; i < count; i++) {
    const value = elements[i] ?? null;
    const at = TAKE_HEAD + step * i;
    const isTouched = elements.length > count && ((text[at + step - 1] ?? 0) & 1) === 1;
    const reason = (isTouched ? elements[reasonAt++] : null) ?? NO_REASON;
    if (value === null) {
      firstMissingAt ??= hasMembers ? text.readUIntBE(at + 3, 6) : 0;
      continue;
    }
    // An untouched element has the maturity and the tries that are stored with it.
    const [moments, momentAt] = hasMembers ? [text, at + 3] : [value, 0];
    const id = elementId(tag, text.readUIntBE(at + seqAt, 6));
    try {
      const { body, contentType, contentEncoding, headers } = decodeContent(value, ELEMENT_HEAD);
      const lease = isReserved ? { token: tokenText(token, i), until } : null;
      const matureAt = moments.readUIntBE(momentAt, 6);
      const tries = hasMembers ? text.readUInt32BE(at + 15) >>> 1 : value.readUInt32BE(6);
      const delivery = { id, group, tries, matureAt, lease, body, contentType, contentEncoding, headers };
      deliveries.push(delivery);
      if (!isReserved && (reason.length > 0 || !hasDefaultTimes(value, moments, momentAt))) {
        undoData.set(delivery, { times: value.subarray(10, 22), reason });
      }
    } catch (cause) {
      const seq = text.subarray(at + seqAt, at + seqAt + 6);
      undecodable.push({ id, delivery: Buffer.concat([text.subarray(1, 3), seq]), cause });
    }
  }
  const [first] = undecodable;
  if (first !== undefined) throw new UndecodableElements(first, undecodable);
  return { deliveries, firstMissingAt };
}

/**
 * Whether a stored element does not expire and was inserted at its maturity, which is the moment(6) at `at` in
 * `moments`.
 */
function hasDefaultTimes(value: Buffer, moments: Buffer, at: number): boolean {
  for (let i = 0; i < 6; i++) if (value[i + 10] !== moments[at + i] || value[i + 16] !== 0) return false;
  return true;
}

/** When a popped delivery expires; null if it does not. */
export function expiryOf(delivery: Delivery): number | null {
  return undoData.get(delivery)?.times.readUIntBE(6, 6) || null;
}

/** The arguments for deliveries that this process popped. */
export function undoArgs(deliveries: readonly Delivery[]): Arg[] {
  return deliveries.flatMap((delivery) => {
    const head = Buffer.alloc(ID_BYTES + ELEMENT_HEAD);
    writeId(delivery.id, head, 0);
    head.writeUIntBE(delivery.matureAt, ID_BYTES, 6);
    head.writeUInt32BE(delivery.tries, ID_BYTES + 6);
    head.writeUIntBE(delivery.matureAt, ID_BYTES + 10, 6);
    const { times, reason = NO_REASON } = undoData.get(delivery) ?? {};
    if (times !== undefined) head.set(times, ID_BYTES + 10);
    return [delivery.group, head, encodeContent(delivery), reason];
  });
}

export const UNDO: Verb<readonly Arg[], undefined> = {
  name: 'undo',
  encode: (calls) => [calls.flat().length / 4, ...calls.flat()],
  decode: ({ text }, calls) => calls.map(() => (text[0] === NO_CAPACITY ? noNumberLeft() : undefined)),
};

function encodeIds(ids: readonly ElementId[]): Buffer {
  const target = Buffer.allocUnsafe(ids.length * ID_BYTES);
  for (const [i, id] of ids.entries()) writeId(id, target, i * ID_BYTES);
  return target;
}

const COUNTS_BYTES = 25;

/** A group, or null for the whole queue. */
export const COUNTS = single<GroupName | null, QueueCounts>(
  'counts',
  (group) => [group === null ? '*' : `=${group}`],
  ({ text }) => {
    const groups = new Map<GroupName, GroupCounts>();
    for (let at = COUNTS_BYTES; at < text.length; ) {
      const nameAt = at + 2;
      const countsAt = nameAt + text.readUInt16BE(at);
      groups.set(text.toString('utf8', nameAt, countsAt), readCounts(text, countsAt));
      at = countsAt + COUNTS_BYTES;
    }
    return { ...readCounts(text, 0), groups };
  },
);

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

/** Stores the declared options of a queue. */
export const OPTIONS = single<string, undefined>(
  'options',
  (text) => [text],
  () => undefined,
);
