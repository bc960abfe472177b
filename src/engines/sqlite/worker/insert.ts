import { isSameContent } from '../../../model/fingerprint.ts';
import {
  bodyAt,
  ELEMENT_FIELDS,
  type Extra,
  type Fields,
  type PackedBodies,
  type QueueName,
} from '../protocol.ts';
import type { Queue } from './names.ts';
import type { Bodies } from './operations.ts';
import type { Seen } from './records.ts';
import type { NewDelivery, StoredContent } from './rows.ts';
import type { Store } from './store.ts';

/** A new element. */
export interface Incoming extends StoredContent, NewDelivery {
  /** Group names joined by commas, which no name has; '' on a plain queue. */
  readonly groups: string;
  readonly extra: Extra | null;
}

/** @throws Rejected */
export function insert(
  store: Store,
  { received }: Bodies,
  name: QueueName,
  fields: Fields,
  request: readonly [key: string, fingerprint: string] | null,
): [repeats: number[] | null, ids: string[]] {
  const repeat = request === null ? null : repeatOf(store, name, fields, request);
  if (repeat !== null) return repeat;
  if (request !== null && fields.length === 0) return [null, []];
  if (store.names.isLimited(name)) {
    const groups: string[] = [];
    for (let at = 6; at < fields.length; at += ELEMENT_FIELDS) groups.push(fields[at] as string);
    store.names.makeRoom(name, groups);
  }
  const queue = store.names.use(name, store.now);
  // What the key of a single element holds shows when it is stored.
  const mismatched = fields.length > ELEMENT_FIELDS ? mismatchedOf(store, queue, fields) : null;
  if (mismatched !== null) return [[mismatched, 0], []];
  let repeats: number[] | null = null;
  let isMismatched = false;
  const ids: string[] = [];
  const onRepeat = ({ extra }: Incoming, { fingerprint }: Seen): void => {
    repeats ??= [];
    const isSame = isSameContent(extra?.fingerprint ?? null, fingerprint);
    repeats.push(ids.length, isSame ? 1 : 0);
    isMismatched ||= !isSame;
  };
  const elements: Incoming[] = [];
  for (let at = 0; at < fields.length; at += ELEMENT_FIELDS) elements.push(elementAt(fields, at, received));
  let first: number | null = null;
  if (elements.length > 1 && elements.every(isUsual)) {
    first = store.ids.draw(elements.length);
    store.rows.addManyPlain(store.names.subscription(queue, ''), first, elements, store.now);
    for (let index = 0; index < elements.length; index += 1) ids.push(store.ids.text(first + index));
  } else {
    for (const element of elements) {
      const seq = insertOne(store, queue, element, onRepeat);
      first ??= seq;
      ids.push(store.ids.text(seq));
    }
  }
  if (request !== null && first !== null) {
    const [key, fingerprint] = request;
    store.records.remember(queue, key, { seq: first, fingerprint }, store.now);
  }
  return [repeats, isMismatched ? [] : ids];
}

/** Whether an element has one delivery and no key of its own, so that it can share a statement with others. */
function isUsual({ groups, extra }: Incoming): boolean {
  return groups === '' && extra?.key === undefined;
}

/**
 * The result of a call whose key was seen before; null: it was not. One row is stored for all elements of a call: they got
 * consecutive numbers, and the same content draws as many again.
 */
function repeatOf(
  { ids, names, records, now }: Store,
  name: QueueName,
  fields: Fields,
  [key, fingerprint]: readonly [key: string, fingerprint: string],
): [repeats: number[], ids: string[]] | null {
  const queue = names.find(name);
  const seen = queue === null ? null : records.seen(queue, key, now);
  if (seen === null) return null;
  const isSame = isSameContent(fingerprint, seen.fingerprint);
  if (fields.length === 0 || !isSame) return [[0, isSame ? 1 : 0], []];
  const repeats: number[] = [];
  const repeated: string[] = [];
  let { seq } = seen;
  for (let at = 0; at < fields.length; at += ELEMENT_FIELDS) {
    repeats.push(repeated.length, 1);
    repeated.push(ids.text(seq));
    seq += numbersOf(fields[at + 6] as string);
  }
  return [repeats, repeated];
}

/** How many numbers an element draws: one for itself, and one for each of its groups if it has some. */
function numbersOf(groups: string): number {
  return groups === '' ? 1 : 1 + groups.split(',').length;
}

/** The first element whose key was seen with other content, in this call or before; null: none. */
function mismatchedOf({ records, now }: Store, queue: Queue, fields: Fields): number | null {
  /** By key, the fingerprint with which it came first. */
  let known: Map<string, string | null> | null = null;
  for (let at = 0; at < fields.length; at += ELEMENT_FIELDS) {
    const extra = fields[at + 7] as string | null;
    const { key, fingerprint = null } = extra === null ? {} : (JSON.parse(extra) as Extra);
    if (key === undefined) continue;
    known ??= new Map();
    let first = known.get(key);
    if (first === undefined) {
      const seen = records.seen(queue, key, now);
      first = seen === null ? fingerprint : seen.fingerprint;
      known.set(key, first);
    }
    if (!isSameContent(fingerprint, first)) return at / ELEMENT_FIELDS;
  }
  return null;
}

export function elementAt(fields: Fields, at: number, bodies: PackedBodies): Incoming {
  const extra = fields[at + 7] as string | null;
  const parsed = extra === null ? null : (JSON.parse(extra) as Extra);
  return {
    type: fields[at] as string | null,
    more: fields[at + 1] as string | null,
    body: bodyAt(bodies, fields[at + 2] as number, fields[at + 3] as number),
    dueAt: fields[at + 4] as number,
    tries: fields[at + 5] as number,
    groups: fields[at + 6] as string,
    extra: parsed,
    expiresAt: parsed?.expiresAt ?? null,
    reason: null,
  };
}

/** Stores one element, or finds the one that its dedup key already stored. Returns its number. */
export function insertOne(
  { ids, names, rows, records, upkeep, now }: Store,
  queue: Queue,
  element: Incoming,
  onRepeat?: (element: Incoming, seen: Seen) => void,
): number {
  const { key, fingerprint = null } = element.extra ?? {};
  const seen = key === undefined ? null : records.seen(queue, key, now);
  if (seen !== null) {
    onRepeat?.(element, seen);
    return seen.seq;
  }
  const seq = ids.next();
  if (element.groups === '') {
    rows.addPlain(names.subscription(queue, ''), seq, element, element, now);
  } else {
    const groups = element.groups.split(',');
    rows.addElement(queue, seq, groups.length, element, now);
    // Each delivery has a number of its own behind the element's, and so the element's place among all.
    for (const group of groups) {
      rows.addShared(names.subscription(queue, group), ids.next(), seq, element, now);
    }
    upkeep.added(queue, now);
  }
  if (key !== undefined) records.remember(queue, key, { seq, fingerprint }, now);
  return seq;
}
