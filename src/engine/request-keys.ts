import type { ElementId, NewElement } from '../model/element.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import type { QueueKey } from '../model/names.ts';
import type { InsertOptions, RequestKey, Storage } from './storage.ts';

// Lookups of the keys that make elements and whole calls idempotent, and keys of calls for engines that store none.

type Inserting = Pick<Storage, 'insert'>;

/** Keys that are looked up concurrently: enough to fill an engine's batch, few enough not to delay other calls. */
const LOOK_AT_ONCE = 100;

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

/** Whether a queue has seen the key of a call. Stores nothing. */
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
 * Whether a queue has seen the key of an element. The port has no operation for that, so this inserts two elements with
 * the key and different fingerprints. The port promises to store neither, and to report the first that contradicts:
 * element 0 if the key was seen, otherwise element 1. If the key was seen without a fingerprint, neither contradicts
 * it, and both are reported as repeats.
 */
export async function isKeySeen(storage: Inserting, queue: QueueKey, dedupKey: string): Promise<boolean> {
  const probes = FINGERPRINTS.map((fingerprint) => ({ ...PROBE, dedupKey, fingerprint }));
  let isSeen = false;
  await storage.insert(queue, probes, {
    onRepeat: (index) => {
      isSeen ||= index === 0;
    },
  });
  return isSeen;
}

/** As long as real fingerprints, since an engine may recognize them by their length. */
const FINGERPRINTS = ['probe 1', 'probe 2'].map(textFingerprint);

/** Never stored. */
const PROBE: Omit<NewElement, 'dedupKey'> = {
  body: new Uint8Array(0),
  contentType: null,
  contentEncoding: null,
  headers: [],
  matureAt: null,
  delayMs: 0,
  tries: 0,
  groups: [],
};

type InsertElements = (
  elements: readonly NewElement[],
  options: Omit<InsertOptions, 'request'>,
) => Promise<ElementId[]>;

/**
 * The `insert` of engines that store no keys of calls: each element of a call with a key has its own one, derived from
 * that of the call. All of them have the call's fingerprint, so that other content is detected at the first one.
 */
export async function insertByElementKeys(
  queue: QueueKey,
  elements: readonly NewElement[],
  { request = null, ...options }: InsertOptions,
  insert: InsertElements,
): Promise<ElementId[]> {
  if (request === null) return insert(elements, options);
  // A control character, which keys of clients do not contain.
  const keyAt = (index: number): string => `${request.key}\n${index}`;
  if (elements.length > 0) {
    const { fingerprint } = request;
    const keyed = elements.map((element, index) => ({ ...element, dedupKey: keyAt(index), fingerprint }));
    return insert(keyed, options);
  }
  const lookup: Inserting = {
    insert: (_, probes, given) => insert(probes, { ...options, ...given }),
  };
  if (await isKeySeen(lookup, queue, keyAt(0))) options.onRepeat?.(0, true);
  return [];
}
