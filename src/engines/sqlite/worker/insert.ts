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
): [repeats: number[] | null, ids: string[]] {
  if (store.names.isLimited(name)) {
    const groups: string[] = [];
    for (let at = 6; at < fields.length; at += ELEMENT_FIELDS) groups.push(fields[at] as string);
    store.names.makeRoom(name, groups);
  }
  const queue = store.names.use(name, store.now);
  let repeats: number[] | null = null;
  const ids: string[] = [];
  for (let at = 0; at < fields.length; at += ELEMENT_FIELDS) {
    const element = elementAt(fields, at, received);
    const key = element.extra?.key;
    const seen = key === undefined ? null : store.records.seen(queue, key, store.now);
    if (seen !== null) {
      repeats ??= [];
      repeats.push(ids.length, isSameContent(element.extra?.fingerprint ?? null, seen.fingerprint) ? 1 : 0);
    }
    ids.push(store.ids.text(seen?.seq ?? insertNew(store, queue, element)));
  }
  return [repeats, ids];
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
export function insertOne(store: Store, queue: Queue, element: Incoming): number {
  const key = element.extra?.key;
  const seen = key === undefined ? null : store.records.seen(queue, key, store.now);
  return seen?.seq ?? insertNew(store, queue, element);
}

function insertNew(
  { ids, names, rows, records, upkeep, now }: Store,
  queue: Queue,
  element: Incoming,
): number {
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
  if (element.extra?.key !== undefined) {
    const { key, fingerprint = null } = element.extra;
    records.remember(queue, key, { seq, fingerprint }, now);
  }
  return seq;
}
