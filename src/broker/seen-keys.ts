import { isKeySeen } from '../engine/request-keys.ts';
import type { RequestKey, Storage } from '../engine/storage.ts';
import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';

type Inserting = Pick<Storage, 'insert'>;

/**
 * Keys that are looked for at once: enough to fill an engine's batch, few enough that other calls are not delayed by
 * it.
 */
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
 * Whether a queue has seen the keys of all elements of an insert, so that it stores none of them. Stores nothing.
 * @param request the key of all elements, in place of keys of their own; null: they have their own, or none
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
  // Alone: of an insert that is no repeat the first one is not seen.
  for (let [from, to] = [0, 1]; from < elements.length; [from, to] = [to, to + LOOK_AT_ONCE]) {
    const seen = await Promise.all(elements.slice(from, to).map(isSeen));
    if (seen.includes(false)) return false;
  }
  return true;
}

/** Whether an insert was rejected since the queue, or its namespace, holds as much as it may. */
export function isFull(error: unknown): boolean {
  return error instanceof QuaysideError && (error.code === 'queue-full' || error.code === 'namespace-full');
}
