import type { DeliveryRef, SettleOutcome } from '../engine/storage.ts';
import { bytesOfText } from '../model/byte-text.ts';
import type { Delivery, ElementHeaders } from '../model/element.ts';
import type { Namespace } from './namespace.ts';
import type { Queue } from './queue.ts';

const PAGE = 1000;
const LETTER_HEADERS = new Set(['x-dl-from-queue', 'x-dl-at', 'x-dl-tries']);

/**
 * Moves a reserved element to the namespace's dead-letter queue now, whatever its tries: its consumer says that it
 * is hopeless. As the engine does it after the last try: same content, three more headers, the namespace's
 * default groups, no tries. Looks the content up, since nobody keeps that of what is handed out: dear, and rare.
 * @param tries what the letter says of the failed tries
 */
export async function deadLetter(
  namespace: Namespace,
  queue: Queue,
  ref: DeliveryRef,
  tries: number,
): Promise<SettleOutcome> {
  const { storage, stats, clock, defaultGroups, deadLetterQueue } = namespace;
  if (deadLetterQueue === null) throw new Error(`Namespace ${namespace.name} has no dead letter.`);
  const found = await find(namespace, queue, ref);
  if (found === null) return 'not-found';
  const { key } = queue;
  const { body, contentType, contentEncoding } = found;
  const headers = letterHeaders(found.headers, key.name, clock.now(), tries);
  const element = { body, contentType, contentEncoding, headers, tries: 0, groups: defaultGroups };
  const letter = { ...element, matureAt: null, delayMs: 0, dedupKey: null };
  const inserts = [{ queue: namespace.queue(deadLetterQueue).key, element: letter }];
  const [outcome = 'not-found'] = await storage.transfer([{ from: key, finish: ref, inserts }]);
  if (outcome !== 'done') return outcome;
  stats.add(key, ref.group, { rollback: 1, deadletter: 1 });
  namespace.elementDied();
  return 'dead-lettered';
}

async function find(
  { storage }: Namespace,
  { key }: Queue,
  { id, group }: DeliveryRef,
): Promise<Delivery | null> {
  let after: string | null = null;
  do {
    const page = await storage.browse(key, { group, state: 'reserved', after, limit: PAGE });
    const found = page.deliveries.find((delivery) => delivery.id === id);
    if (found !== undefined) return found;
    after = page.next;
  } while (after !== null);
  return null;
}

function letterHeaders(headers: ElementHeaders, from: string, at: number, tries: number): ElementHeaders {
  const kept: string[] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const name = headers[i] as string;
    if (!LETTER_HEADERS.has(name)) kept.push(name, headers[i + 1] as string);
  }
  const moved = new Date(at).toISOString();
  return [...kept, 'x-dl-from-queue', bytesOfText(from), 'x-dl-at', moved, 'x-dl-tries', String(tries)];
}
