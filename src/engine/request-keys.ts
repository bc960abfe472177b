import type { NewElement } from '../model/element.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import type { QueueKey } from '../model/names.ts';
import type { RequestKey, Storage } from './storage.ts';

/**
 * The elements of a call with a key, each with a key of its own, for engines that keep no key of a call. All have the
 * fingerprint of the call: other content is noticed at the first element.
 */
export function withRequestKeys(elements: readonly NewElement[], request: RequestKey): NewElement[] {
  const { fingerprint } = request;
  return elements.map((element, index) => ({ ...element, dedupKey: keyAt(request, index), fingerprint }));
}

/** Whether a queue has seen the key of a call, for the same engines. */
export function isRequestSeen(
  storage: Pick<Storage, 'insert'>,
  queue: QueueKey,
  request: RequestKey,
): Promise<boolean> {
  return isKeySeen(storage, queue, keyAt(request, 0));
}

/** No key has a control character. */
function keyAt({ key }: RequestKey, index: number): string {
  return `${key}\n${index}`;
}

/**
 * Whether a queue has seen the key of an element. The port has no operation for that, but promises to store nothing of
 * an insert whose elements contradict each other, and to name the first that contradicts: the first of two if the key
 * was seen, otherwise the second. A key that was seen without a fingerprint contradicts none, and both are repeats.
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

/** As long as those of contents: an engine may know them by their length. */
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
