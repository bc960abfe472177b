import { PLAIN_GROUP } from '../../../model/element.ts';
import { isSameContent } from '../../../model/fingerprint.ts';
import {
  bodyAt,
  ELEMENT_FIELDS,
  type ElementFields,
  type Fields,
  type PackedBodies,
  type QueueName,
  type RareFields,
  SIMILAR,
  SIMILAR_FIELDS,
  type SimilarFields,
} from '../protocol.ts';
import type { WorkerQueue } from './queues.ts';
import type { NewRow } from './rows.ts';
import type { Run, Store } from './store.ts';

/** A new element to store. */
export interface Incoming extends NewRow {
  /** Group names joined by commas, which no name contains; '' on a plain queue. */
  readonly groups: string;
  /** Its idempotency key, and the fingerprint of its content. */
  readonly key: string | null;
  readonly fingerprint: string | null;
}

/** Inserts the elements of a call. See {@link Operations} for the result. @throws QuaysideError `too-many-groups` */
export const insert: Run<'insert'> = (store, name, fields, request) => {
  const { ids, queues, records, received, now } = store;
  const elements = elementsOf(fields, received);
  const repeat = request === null ? null : repeatOf(store, name, elements, request);
  if (repeat !== null) return repeat;
  if (elements.length === 0) return [null, []];
  const mismatched = mismatchedOf(store, name, elements);
  if (mismatched !== null) return [[mismatched, 0], []];
  queues.enforceGroupLimit(name, elements);
  const queue = queues.use(name, now);
  let repeats: number[] | null = null;
  const numbers = insertAll(store, queue, elements, (index) => {
    repeats ??= [];
    repeats.push(index, 1);
  });
  const [first = 0] = numbers;
  if (request !== null) {
    const [key, fingerprint] = request;
    records.remember(queue, key, { seq: first, fingerprint }, now);
  }
  const areConsecutive = repeats === null && numbers.at(-1) === first + numbers.length - 1;
  return areConsecutive ? ids.format(first) : [repeats, numbers.map((seq) => ids.format(seq))];
};

/** Stores elements in their order, plain ones with shared statements. Returns their numbers. */
export function insertAll(
  store: Store,
  queue: WorkerQueue,
  elements: readonly Incoming[],
  onRepeat?: (index: number) => void,
): number[] {
  const { ids, queues, rows, now } = store;
  if (!elements.every(isPlain)) {
    return elements.map((element, index) => insertOne(store, queue, element, () => onRepeat?.(index)));
  }
  const first = ids.issue(elements.length);
  rows.addPlain(queues.subscription(queue, PLAIN_GROUP), first, elements, now);
  return elements.map((_, index) => first + index);
}

/** Whether an element has one delivery and no idempotency key, so that it can share a statement with others. */
function isPlain({ groups, key }: Incoming): boolean {
  return groups === '' && key === null;
}

/**
 * The result of a call whose key was seen before; null if it was not. One row is stored for all elements of a call:
 * they have consecutive numbers, and a repeat with the same content uses as many.
 */
function repeatOf(
  { ids, queues, records, now }: Store,
  name: QueueName,
  elements: readonly Incoming[],
  [key, fingerprint]: readonly [key: string, fingerprint: string],
): [repeats: number[], ids: string[]] | null {
  const queue = queues.find(name);
  const seen = queue === null ? null : records.seen(queue, key, now);
  if (seen === null) return null;
  const isSame = isSameContent(fingerprint, seen.fingerprint);
  if (elements.length === 0 || !isSame) return [[0, isSame ? 1 : 0], []];
  const repeats: number[] = [];
  const repeated: string[] = [];
  let { seq } = seen;
  for (const { groups } of elements) {
    repeats.push(repeated.length, 1);
    repeated.push(ids.format(seq));
    seq += numbersOf(groups);
  }
  return [repeats, repeated];
}

/** How many numbers an element uses: one for itself, and one for each of its groups on a stream. */
function numbersOf(groups: string): number {
  return groups === '' ? 1 : 1 + groups.split(',').length;
}

/** Index of the first element whose key was seen with other content, in this call or before; null if there is none. */
function mismatchedOf(
  { queues, records, now }: Store,
  name: QueueName,
  elements: readonly Incoming[],
): number | null {
  const queue = queues.find(name);
  /** The fingerprint with which each key was first seen; null: no element has a key. */
  let known: Map<string, string | null> | null = null;
  for (const [index, { key, fingerprint }] of elements.entries()) {
    if (key === null) continue;
    known ??= new Map();
    let first = known.get(key);
    if (first === undefined) {
      const seen = queue === null ? null : records.seen(queue, key, now);
      first = seen === null ? fingerprint : seen.fingerprint;
      known.set(key, first);
    }
    if (!isSameContent(fingerprint, first)) return index;
  }
  return null;
}

const NOTHING_RARE: RareFields = [null, null, null];

/** Reads the {@link ElementFields} and {@link SimilarFields} of a call. */
export function elementsOf(fields: Fields, bodies: PackedBodies): Incoming[] {
  const elements: Incoming[] = [];
  for (let at = 0; at < fields.length; ) {
    const before = elements.at(-1);
    if (fields[at] === SIMILAR && before !== undefined) {
      const offset = fields[at + 1] as SimilarFields[1];
      elements.push({ ...before, body: bodyAt(bodies, offset, fields[at + 2] as SimilarFields[2]) });
      at += SIMILAR_FIELDS;
    } else {
      elements.push(elementAt(fields, at, bodies));
      at += ELEMENT_FIELDS;
    }
  }
  return elements;
}

/** Reads the {@link ElementFields} at an index. Reading by index takes 2 % off an insert. */
export function elementAt(fields: Fields, at: number, bodies: PackedBodies): Incoming {
  const rare = fields[at + 7] as ElementFields[7];
  const [expiresAt, key, fingerprint] = rare === null ? NOTHING_RARE : (JSON.parse(rare) as RareFields);
  return {
    type: fields[at] as ElementFields[0],
    more: fields[at + 1] as ElementFields[1],
    body: bodyAt(bodies, fields[at + 2] as ElementFields[2], fields[at + 3] as ElementFields[3]),
    dueAt: fields[at + 4] as ElementFields[4],
    tries: fields[at + 5] as ElementFields[5],
    groups: fields[at + 6] as ElementFields[6],
    expiresAt,
    key,
    fingerprint,
    reason: null,
  };
}

/** Stores one element, or finds the one that was stored with its idempotency key. Returns its number. */
function insertOne(
  { ids, queues, rows, records, now }: Store,
  queue: WorkerQueue,
  element: Incoming,
  onRepeat: () => void,
): number {
  const { key, fingerprint } = element;
  const seen = key === null ? null : records.seen(queue, key, now);
  if (seen !== null) {
    onRepeat();
    return seen.seq;
  }
  const seq = ids.next();
  if (element.groups === '') {
    rows.addPlain(queues.subscription(queue, PLAIN_GROUP), seq, [element], now);
  } else {
    const groups = element.groups.split(',');
    rows.addElement(queue, seq, groups.length, element, now);
    // Each delivery has its own number, after that of the element, which defines its place in the order.
    for (const group of groups) {
      rows.addShared(queues.subscription(queue, group), ids.next(), seq, element, now);
    }
    queues.noteWaiting(queue, now);
  }
  if (key !== null) records.remember(queue, key, { seq, fingerprint }, now);
  return seq;
}
