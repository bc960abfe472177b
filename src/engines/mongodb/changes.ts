import type { AnyBulkWriteOperation, UpdateFilter } from 'mongodb';
import type { ElementDocument } from './documents.ts';
import { fromDriver, Lost, Refused } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

/** A change of one document that was decided by what was read of it. */
export interface Change {
  readonly _id: string;
  /** The document's last change, as it was read: if it has another one now, nothing is changed. */
  readonly readOp: string;
  readonly set: Partial<ElementDocument>;
  readonly unset?: readonly (keyof ElementDocument)[];
  readonly max?: { readonly deleteAfter: Date };
}

/** What has become of some changes. */
export interface Changed {
  readonly ids: ReadonlySet<string>;
  /** Why others were not made, if not because somebody else was first. */
  readonly refused: Refused | null;
}

/**
 * Makes changes, each by itself, all or none of it. The name of the change is written with it, so that after a lost
 * answer it can be sent again and takes effect once, and the documents say afterwards which of them it has reached.
 * @param op a name that was never used
 * @throws Lost where nobody can say what has happened
 */
export async function applyChanges(store: Store, op: string, changes: readonly Change[]): Promise<Changed> {
  if (changes.length === 0) return { ids: new Set(), refused: null };
  const statements = statementsOf(op, changes);
  const outcome = await sendTwice(() => send(store, statements));
  if (outcome === changes.length) {
    return { ids: new Set(changes.map(({ _id }) => _id)), refused: null };
  }
  const wanted = changes.map(({ _id }) => _id);
  const found = await store.collections.elements
    .find({ _id: { $in: wanted }, op }, { projection: { _id: 1 }, maxTimeMS: MAX_TIME_MS })
    .toArray();
  const refused = outcome instanceof Refused ? outcome : null;
  return { ids: new Set(found.map(({ _id }) => _id)), refused };
}

/** Stands for a number that is not known. */
export const REPEATED = -1;

/**
 * Sends something that takes effect once however often it is sent; again where the answer was lost.
 * @returns how many documents it has matched, `REPEATED` where it was sent twice, or why the server refused
 * @throws Lost
 */
export async function sendTwice(run: () => Promise<number>): Promise<number | Refused> {
  for (let attempt = 1; ; attempt++) {
    try {
      const matched = await run();
      // After a first attempt that may have taken effect the number says nothing.
      return attempt === 1 ? matched : REPEATED;
    } catch (error) {
      const fault = fromDriver(error);
      if (fault instanceof Refused) return fault;
      if (attempt === 2) throw fault;
    }
  }
}

/** One unordered batch of updates. @throws what the driver throws, or Lost where there is no primary */
export async function send(
  store: Store,
  statements: AnyBulkWriteOperation<ElementDocument>[],
): Promise<number> {
  if (!store.isUp) throw new Lost('There is no primary now.');
  const { matchedCount } = await store.collections.elements.bulkWrite(statements, {
    ordered: false,
    writeConcern: store.settings.writeConcern,
    maxTimeMS: MAX_TIME_MS,
  });
  return matchedCount;
}

/** Documents that were last changed together, and change alike, are one statement. */
function statementsOf(op: string, changes: readonly Change[]): AnyBulkWriteOperation<ElementDocument>[] {
  const alike = new Map<string, { readonly ids: string[]; readonly change: Change }>();
  for (const change of changes) {
    const name = JSON.stringify([change.readOp, change.set, change.unset, change.max]);
    const known = alike.get(name);
    if (known === undefined) alike.set(name, { ids: [change._id], change });
    else known.ids.push(change._id);
  }
  return [...alike.values()].map(({ ids, change: { readOp, set, unset = [], max } }) => {
    const update: UpdateFilter<ElementDocument> = { $set: { ...set, op } };
    if (max !== undefined) update.$max = max;
    if (unset.length > 0) update.$unset = Object.fromEntries(unset.map((field) => [field, '' as const]));
    const [only] = ids;
    return ids.length === 1 && only !== undefined
      ? { updateOne: { filter: { _id: only, op: readOp }, update } }
      : { updateMany: { filter: { _id: { $in: ids }, op: readOp }, update } };
  });
}
