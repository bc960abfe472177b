import { isKeySeen } from '../engine/request-keys.ts';
import type { RequestKey, Storage } from '../engine/storage.ts';
import type { NewElement } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';

type Inserting = Pick<Storage, 'insert'>;

/** Keys that are looked up concurrently: enough to fill an engine's batch, few enough not to delay other calls. */
const LOOK_AT_ONCE = 100;

/** Whether a queue has seen the key of a request. Stores nothing. */
export async function isRequestSeen(
  storage: Inserting,
  queue: QueueKey,
  request: RequestKey,
): Promise<boolean> {
  let isSeen = false;
  const onRepeat = (): void => {
    isSeen = true;
  };
  await storage.insert(queue, [], { request, onRepeat });
  return isSeen;
}

/**
 * Whether a queue has seen the keys of all elements of an insert, so that the insert would store nothing. Stores
 * nothing itself.
 * @param request the key of the whole insert; null: the elements may have keys of their own
 */
export async function areAllSeen(
  storage: Inserting,
  queue: QueueKey,
  elements: readonly NewElement[],
  request: RequestKey | null,
): Promise<boolean> {
  if (request !== null) return isRequestSeen(storage, queue, request);
  const isSeen = async ({ dedupKey }: NewElement): Promise<boolean> =>
    dedupKey !== null && (await isKeySeen(storage, queue, dedupKey));
  // Look up the first key alone: unless the insert is a repeat, the queue has not seen it, and the search ends.
  for (let [from, to] = [0, 1]; from < elements.length; [from, to] = [to, to + LOOK_AT_ONCE]) {
    const seen = await Promise.all(elements.slice(from, to).map(isSeen));
    if (seen.includes(false)) return false;
  }
  return true;
}
