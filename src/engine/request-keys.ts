import type { NewElement } from '../model/element.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import type { QueueKey } from '../model/names.ts';
import type { RequestKey, Storage } from './storage.ts';

/**
 * For engines that store no keys of calls: gives each element of a call its own key, derived from the key of the call.
 * All elements have the call's fingerprint, so that other content is detected at the first one.
 */
export function withRequestKeys(elements: readonly NewElement[], request: RequestKey): NewElement[] {
  const { fingerprint } = request;
  return elements.map((element, index) => ({ ...element, dedupKey: keyAt(request, index), fingerprint }));
}

/** For engines that store no keys of calls: whether a queue has seen the key of a call. */
export function isRequestSeen(
  storage: Pick<Storage, 'insert'>,
  queue: QueueKey,
  request: RequestKey,
): Promise<boolean> {
  return isKeySeen(storage, queue, keyAt(request, 0));
}

/** Derived keys cannot collide with keys of clients, which contain no control characters. */
function keyAt({ key }: RequestKey, index: number): string {
  return `${key}\n${index}`;
}

/**
 * Whether a queue has seen the key of an element. The port has no operation for that, so this inserts two elements with
 * the key and different fingerprints. The port promises to store neither, and to report the first that contradicts:
 * element 0 if the key was seen, otherwise element 1. If the key was seen without a fingerprint, neither contradicts
 * it, and both are reported as repeats.
 */
export async function isKeySeen(
  storage: Pick<Storage, 'insert'>,
  queue: QueueKey,
  dedupKey: string,
): Promise<boolean> {
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
