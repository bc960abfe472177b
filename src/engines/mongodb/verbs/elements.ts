import type { ClientSession } from 'mongodb';
import type { ElementId, NewElement } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import { blank, contentFields, type ElementDocument, keyId } from '../documents.ts';
import type { Parts } from '../parts.ts';
import { MAX_TIME_MS } from '../settings.ts';

/** An element that is to be stored under this id, unless its dedup key was seen. */
export interface Wanted {
  readonly queue: QueueKey;
  readonly element: NewElement;
  readonly id: ElementId;
}

type Host = Pick<Parts, 'store' | 'policies' | 'ops' | 'dedupWindowMs'>;

/** The documents of an element, one for each group. @param now the server's time, ms */
export function documentsOf(
  { policies, ops, dedupWindowMs }: Pick<Host, 'policies' | 'ops' | 'dedupWindowMs'>,
  wanted: Wanted,
  now: number,
): ElementDocument[] {
  const { queue, element, id } = wanted;
  const { matureAt, delayMs, tries, groups } = element;
  const op = ops.next();
  const shared = {
    ...contentFields(element),
    at: new Date(Math.ceil(matureAt ?? now + delayMs)),
    tries,
    ...(policies.retentionMs(queue.ns) !== null && { born: new Date(now) }),
  };
  const key = keyOf(wanted);
  const remembered = key === null ? {} : { key, deleteAfter: new Date(now + dedupWindowMs) };
  return [...new Set(groups)].map((group, index) => ({
    ...blank(id, queue, group, op),
    ...shared,
    ...(index === 0 && remembered),
  }));
}

/**
 * Stores elements within a transaction. Answers the id of each, which is an earlier one's where the dedup key was
 * seen. @throws what the driver throws
 */
export async function storeWithin(
  session: ClientSession,
  host: Host,
  wanted: readonly Wanted[],
  now: number,
): Promise<ElementId[]> {
  const byKey = await seenKeys(host, wanted, now, session);
  const documents: ElementDocument[] = [];
  const ids = wanted.map((one) => {
    const key = keyOf(one);
    const first = key === null ? undefined : byKey.get(key);
    if (first !== undefined) return first;
    documents.push(...documentsOf(host, one, now));
    if (key !== null) byKey.set(key, one.id);
    return one.id;
  });
  if (documents.length > 0) {
    await host.store.collections.elements.insertMany(documents, { session, maxTimeMS: MAX_TIME_MS });
  }
  return ids;
}

/**
 * Which elements the dedup keys of some have made before. Keys that need not be remembered any more are forgotten, so that
 * they can be given anew. @throws what the driver throws
 */
export async function seenKeys(
  { store }: Pick<Host, 'store'>,
  wanted: readonly Wanted[],
  now: number,
  session?: ClientSession,
): Promise<Map<string, ElementId>> {
  const asked = wanted.map(keyOf).filter((key) => key !== null);
  if (asked.length === 0) return new Map();
  const { elements } = store.collections;
  const options = { maxTimeMS: MAX_TIME_MS, ...(session !== undefined && { session }) };
  const found = await elements
    .find({ key: { $in: asked } }, { ...options, projection: { key: 1, id: 1, deleteAfter: 1 } })
    .toArray();
  const isOver = ({ deleteAfter }: Pick<ElementDocument, 'deleteAfter'>): boolean =>
    (deleteAfter?.getTime() ?? 0) <= now;
  const over = found.filter(isOver).map(({ _id }) => _id);
  if (over.length > 0) {
    const filter = { _id: { $in: over }, deleteAfter: { $lte: new Date(now) } };
    await elements.updateMany(filter, { $unset: { key: '' } }, options);
  }
  const kept = found.filter((document) => !isOver(document));
  return new Map(kept.flatMap(({ key, id }) => (key === undefined ? [] : [[key, id] as const])));
}

export function keyOf({ queue, element: { dedupKey } }: Wanted): string | null {
  return dedupKey === null ? null : keyId(queue, dedupKey);
}
