import type { Store } from './store.ts';

/**
 * Takes an element whose checksum does not fit out of its queue, for all groups, and keeps it in the table
 * `damaged`. It is never handed out as good, does not block what stands behind it, and is not lost to a
 * person who can still make sense of it. The operator is told its id and queue.
 */
export function setAsideDamaged(store: Store, seq: number): void {
  store.elements.setAside(seq, store.now);
  let queue = { ns: '', name: '' };
  for (const delivery of store.deliveries.ofElement(seq)) {
    const lane = store.names.laneById(delivery.lane);
    if (lane === null) continue;
    queue = lane.queue.key;
    if (delivery.leaseUntil === null) store.deliveries.removeWaiting(lane, seq, delivery.dueAt);
    else store.deliveries.removeReserved(lane, seq);
  }
  store.elements.remove(seq);
  store.warn(
    { element: store.ids.text(seq), namespace: queue.ns, queue: queue.name },
    'an element fails its checksum; it was taken out of its queue and kept in the table "damaged"',
  );
}
