import { tooManyGroups } from '../../../engine/calls.ts';
import type { GroupLimit } from '../../../engine/queue-policy.ts';
import type { OnRepeat, RequestKey } from '../../../engine/storage.ts';
import { type ElementId, type NewElement, PLAIN_GROUP } from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import type { QueueKey } from '../../../model/names.ts';
import { single, type Verb } from '../batcher.ts';
import type { Arg, EncodedArgs } from '../client/connection.ts';
import { elementId, encodeContents } from '../encoding.ts';
import type { Policies } from '../policies.ts';

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

export function extrasOf(element: NewElement): Extras {
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
export function groupsText(groups: readonly string[]): string {
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
    const sizes = calls.map(({ contents }) => contents.count).join(',');
    const args: Arg[] = [count, codes, calls[0]?.windowMs ?? 0, calls[0]?.capacity.encoded ?? '', sizes];
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

// Groups: an insert creates those that its elements name.

/** The error if all group numbers of a queue are in use. */
export const noNumberLeft = (): QuaysideError =>
  new QuaysideError('too-many-groups', 'The queue has 65,535 consumer groups, which is the maximum.');

/** The result of a verb that stored nothing, because groups do not fit: see `library/queue.lua`. */
export const NO_CAPACITY = 0x21;

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
  const limit = policies.groupLimit(queue.ns);
  return { queue, limit, encoded: limit === null ? '' : `${limit.max},${[...limit.defaults].join(',')},` };
}

/** Creates groups; rejected if they do not all fit. */
export const CREATE_GROUPS = single<{ readonly capacity: GroupCapacity; readonly groups: string }, undefined>(
  'create-groups',
  ({ capacity, groups }) => [capacity.encoded, groups],
  ({ text }, { capacity }) => (text.length > 0 ? groupsRejected(capacity) : undefined),
);
