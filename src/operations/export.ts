import type { Queue } from '../broker/queue.ts';
import type { ScannedDelivery } from '../engine/storage.ts';
import { DELIVERY_STATES, type GroupName } from '../model/element.ts';
import { MAX_CHUNK } from './search.ts';

/** Front ends show it and know nothing of storage. */
export type { ScannedDelivery };

/**
 * All elements of a queue with their state, page by page, in delivery order within each state. It is no picture of one moment:
 * elements that change state while it runs may come twice, or not at all. Pause the queue, and let reservations end, for an exact one.
 * @param group on a stream: only its deliveries; null: those of each group that has any, one group after the other
 * @throws QuaysideError `invalid-parameter` for a group of a namespace that has none
 */
export async function* exportPages(
  queue: Queue,
  group: GroupName | null,
): AsyncGenerator<readonly ScannedDelivery[], void, undefined> {
  const groups = group === null && queue.namespace.isStream ? await queue.occupiedGroups() : [group];
  for (const one of groups) {
    let after: string | null = null;
    do {
      const page = await queue.scan({
        group: one,
        states: DELIVERY_STATES,
        after,
        limit: MAX_CHUNK,
        bodies: true,
      });
      if (page.deliveries.length > 0) yield page.deliveries;
      after = page.next;
    } while (after !== null);
  }
}
