import type { AnyBulkWriteOperation, ClientSession } from 'mongodb';
import type { ElementId, NewElement } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import { blank } from '../dead-letters.ts';
import { contentFields, type ElementDocument, type KeyDocument, keyId } from '../documents.ts';
import type { Parts } from '../parts.ts';
import { MAX_TIME_MS } from '../settings.ts';

/** An element that is to be stored under this id, unless its dedup key was seen. */
export interface Wanted {
  readonly queue: QueueKey;
  readonly element: NewElement;
  readonly id: ElementId;
}

/** The documents of an element, one for each group. @param now the server's time, ms */
export function documentsOf(
  { policies, ops }: Pick<Parts, 'policies' | 'ops'>,
  { queue, element, id }: Wanted,
  now: number,
): ElementDocument[] {
  const { matureAt, delayMs, tries, groups } = element;
  const op = ops.next();
  const shared = {
    ...contentFields(element),
    at: new Date(Math.ceil(matureAt ?? now + delayMs)),
    tries,
    ...(policies.retentionMs(queue.ns) !== null && { born: new Date(now) }),
  };
  return [...new Set(groups)].map((group) => ({ ...blank(id, queue, group, op), ...shared }));
}

/**
 * Stores elements within a transaction. Answers the id of each, which is an earlier one's where the dedup key was
 * seen. @throws what the driver throws
 */
export async function storeWithin(
  session: ClientSession,
  parts: Pick<Parts, 'store' | 'policies' | 'ops' | 'dedupWindowMs'>,
  wanted: readonly Wanted[],
  now: number,
): Promise<ElementId[]> {
  const { elements, keys } = parts.store.collections;
  const options = { session, maxTimeMS: MAX_TIME_MS };
  const byKey = await seenKeys(session, parts, wanted, now);
  const fresh: AnyBulkWriteOperation<KeyDocument>[] = [];
  const documents: ElementDocument[] = [];
  const ids = wanted.map((one) => {
    const key = keyOf(one);
    const first = key === null ? undefined : byKey.get(key);
    if (first !== undefined) return first;
    documents.push(...documentsOf(parts, one, now));
    if (key !== null) {
      byKey.set(key, one.id);
      const replacement = { id: one.id, expires: new Date(now + parts.dedupWindowMs) };
      fresh.push({ replaceOne: { filter: { _id: key }, replacement, upsert: true } });
    }
    return one.id;
  });
  if (fresh.length > 0) await keys.bulkWrite(fresh, options);
  if (documents.length > 0) await elements.insertMany(documents, options);
  return ids;
}

async function seenKeys(
  session: ClientSession,
  { store }: Pick<Parts, 'store'>,
  wanted: readonly Wanted[],
  now: number,
): Promise<Map<string, ElementId>> {
  const asked = wanted.map(keyOf).filter((key) => key !== null);
  if (asked.length === 0) return new Map();
  const found = await store.collections.keys
    .find({ _id: { $in: asked }, expires: { $gt: new Date(now) } }, { session, maxTimeMS: MAX_TIME_MS })
    .toArray();
  return new Map(found.map(({ _id, id }) => [_id, id]));
}

function keyOf({ queue, element: { dedupKey } }: Wanted): string | null {
  return dedupKey === null ? null : keyId(queue, dedupKey);
}
