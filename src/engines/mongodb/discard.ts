import type { BulkWriteOptions, Filter } from 'mongodb';
import { type ElementDocument, finishing } from './documents.ts';
import type { Parts } from './parts.ts';

/** Documents that nobody is to get any more. */
export interface Discarded {
  readonly ids: readonly string[];
  /** Whether some of them have a dedup key, or may have one. */
  readonly mayHaveKeys: boolean;
  /** What still has to hold of each of them. */
  readonly filter?: Filter<ElementDocument>;
  readonly now: Date;
}

/**
 * Takes documents away: deletes them, but for those whose dedup keys are still to be remembered, which are finished.
 * @returns how many there were @throws what the driver throws
 */
export async function discard(
  { store, ops }: Pick<Parts, 'store' | 'ops'>,
  { ids, mayHaveKeys, filter = {}, now }: Discarded,
  options: BulkWriteOptions,
): Promise<number> {
  const { elements } = store.collections;
  const byId = { ...options, hint: '_id_' };
  const named = { ...filter, _id: { $in: [...ids] } };
  const { deletedCount } = await elements.deleteMany({ ...named, key: { $exists: false } }, byId);
  if (!mayHaveKeys || deletedCount === ids.length) return deletedCount;
  const keyed = { ...named, key: { $exists: true } };
  const { modifiedCount } = await elements.updateMany(keyed, finishing(ops.next(), now), byId);
  return deletedCount + modifiedCount;
}
