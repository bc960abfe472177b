import type { Queue } from './names.ts';
import type { Store } from './store.ts';

/**
 * Takes an element whose checksum, or that of one of its deliveries, does not fit out of its queue, for all groups, and
 * keeps its content in the table `damaged`. It is never handed out as good, does not block what is behind it, and is
 * not lost to a person who can still make sense of it. A warning names its id and queue.
 */
export function setAsideDamaged(store: Store, seq: number): void {
  store.elements.setAside(seq, store.now);
  const queues = new Set<Queue>();
  for (const delivery of store.deliveries.ofElement(seq)) {
    const lane = store.names.laneById(delivery.lane);
    if (lane === null) continue;
    queues.add(lane.queue);
    if (delivery.leaseUntil === null) store.deliveries.removeWaiting(lane, seq, delivery.dueAt);
    else store.deliveries.removeReserved(lane, seq);
  }
  // A damaged maturity, or group, was counted as the one that it had before.
  for (const { lanes } of queues) for (const lane of lanes.values()) store.counts.recount(lane, store.now);
  store.elements.remove(seq);
  const [queue] = queues;
  store.warn(
    { element: store.ids.text(seq), namespace: queue?.key.ns ?? '', queue: queue?.key.name ?? '' },
    'an element fails its checksum; it was taken out of its queue and kept in the table "damaged"',
  );
}
