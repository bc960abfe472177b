import { countLetters } from '../engine/stats.ts';
import type { DeliveryRef, SettleOutcome } from '../engine/storage.ts';
import { bytesOfText } from '../model/byte-text.ts';
import { letterHeaders } from '../model/dead-letter.ts';
import type { Delivery } from '../model/element.ts';
import { engineNow } from './engine-time.ts';
import type { Namespace } from './namespace.ts';
import type { Queue } from './queue.ts';

const PAGE = 1000;

/**
 * Moves a reserved element to the namespace's dead-letter queue now, whatever its tries: its consumer says that it
 * is hopeless. As the engine does it after the last try: same content, four more headers, the namespace's
 * default groups, no tries. Looks the content up, since nobody keeps that of what is handed out: dear, and rare.
 * @param tries what the letter says of the failed tries
 */
export async function deadLetter(
  namespace: Namespace,
  queue: Queue,
  ref: DeliveryRef,
  tries: number,
): Promise<SettleOutcome> {
  const { storage, stats, defaultGroups, deadLetterQueue } = namespace;
  if (deadLetterQueue === null) throw new Error(`Namespace ${namespace.name} has no dead letter.`);
  const found = await find(namespace, queue, ref);
  if (found === null) return 'not-found';
  const { key } = queue;
  const { body, contentType, contentEncoding } = found;
  const at = engineNow(namespace, key);
  const headers = letterHeaders(found.headers, { from: bytesOfText(key.name), at, tries, id: ref.id });
  const element = { body, contentType, contentEncoding, headers, tries: 0, groups: defaultGroups };
  const letter = { ...element, matureAt: null, delayMs: 0, dedupKey: null };
  // Not by `namespace.queue`: a namespace that has all the queues it may have has this one beside them.
  const target = { ns: key.ns, name: deadLetterQueue };
  const inserts = [{ queue: target, element: letter }];
  const [outcome = 'not-found'] = await storage.transfer([{ from: key, finish: ref, inserts }]);
  if (outcome !== 'done') return outcome;
  namespace.noteStored(target);
  stats.add(key, ref.group, { rollback: 1 });
  countLetters(stats, { queue: key, group: ref.group }, { queue: target, groups: defaultGroups }, 1);
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
