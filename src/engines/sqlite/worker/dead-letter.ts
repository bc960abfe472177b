import { bytesOfText } from '../../../model/byte-text.ts';
import { type LetterFacts, letterHeaders } from '../../../model/dead-letter.ts';
import { PLAIN_GROUP } from '../../../model/element.ts';
import { fromMore, toMore } from '../content.ts';
import { DEAD_LETTERED, NOT_FOUND } from '../operations.ts';
import { elementChecksum } from './checksums.ts';
import { setAsideDamaged } from './damage.ts';
import type { Lane } from './names.ts';
import type { Store } from './store.ts';
import { insertOne } from './verbs/insert.ts';

/**
 * Moves a reserved delivery's element to the namespace's dead-letter queue: a new element with the same
 * content and three more headers, for the namespace's default groups, with no tries. In a stream only this
 * group's delivery is finished; the others go on with the original. Answers the outcome: an element whose
 * checksum does not fit is set aside instead and `not-found` from then on.
 */
export function deadLetter(store: Store, lane: Lane, seq: number, tries: number, to: string): number {
  const element = store.elements.find(seq);
  if (element === null) throw new Error(`element ${seq} has a delivery but no row`);
  const { type, more, body, crc } = element;
  if (elementChecksum(seq, type, more, body) !== crc) {
    setAsideDamaged(store, seq);
    return NOT_FOUND;
  }
  const { ns, name } = lane.queue.key;
  const target = store.names.makeByKey({ ns, name: to });
  store.names.use(target, store.now);
  insertOne(store, target, {
    type,
    more: withLetterHeaders(more, {
      from: bytesOfText(name),
      at: store.now,
      tries,
      id: store.ids.text(seq),
    }),
    body,
    dueAt: store.now,
    tries: 0,
    groups: lane.queue.policy?.groups?.join(',') ?? '',
    dedupKey: null,
    fingerprint: null,
  });
  store.deliveries.removeReserved(lane, seq);
  store.elements.removeIfFinished(seq, lane.group !== '');
  store.stats.addOne(lane.queue, lane.group, 'deadletter');
  store.stats.addOne(target, PLAIN_GROUP, 'put');
  for (const group of lane.queue.policy?.groups ?? []) store.stats.addOne(target, group, 'put');
  store.touched.add(target);
  return DEAD_LETTERED;
}

function withLetterHeaders(more: string | null, facts: LetterFacts): string {
  const { contentEncoding, headers } = fromMore(more);
  return toMore(contentEncoding, letterHeaders(headers, facts)) ?? '';
}
