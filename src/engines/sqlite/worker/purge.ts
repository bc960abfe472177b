import { DELIVERY_STATES } from '../../../model/element.ts';
import { deliveriesOf } from './queues.ts';
import type { Run } from './store.ts';

/** Deliveries that one step of a purge removes, at most: 10 ms. */
const MAX_PURGED_PER_STEP = 2000;
/** Pages that one step of a purge frees, about: 128 MiB, which also takes 10 ms. */
const MAX_PURGED_PAGES = 32_768;
/** Deliveries that a purge removes between two queries of the number of free pages, which take 16 µs each. */
const PURGED_PER_PAGE_CHECK = 128;

/**
 * Removes deliveries of all groups in one bounded step. It is the last step if it finds fewer than it may remove.
 * @param requested states of the deliveries to remove; null: all
 */
export const purge: Run<'purge'> = (store, name, requested) => {
  const { queues, rows, now } = store;
  const states = DELIVERY_STATES.filter((state) => requested === null || requested.includes(state));
  const maxFreePages = store.freePages() + MAX_PURGED_PAGES;
  let removed = 0;
  for (const subscription of queues.find(name)?.subscriptions.values() ?? []) {
    // A stream may have a thousand groups, of which earlier steps have emptied most.
    if (deliveriesOf(subscription) === 0) continue;
    for (const state of states) {
      const found = rows.inState(subscription, state, now, MAX_PURGED_PER_STEP - removed);
      for (let from = 0; from < found.length; from += PURGED_PER_PAGE_CHECK) {
        const chunk = found.slice(from, from + PURGED_PER_PAGE_CHECK);
        rows.remove(subscription, chunk);
        removed += chunk.length;
        const areSmall = chunk.every(({ element }) => element === null);
        if (!areSmall && store.freePages() >= maxFreePages) return { removed, isDone: false };
      }
      if (removed === MAX_PURGED_PER_STEP) return { removed, isDone: false };
    }
  }
  return { removed, isDone: true };
};
