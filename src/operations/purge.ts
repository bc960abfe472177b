import { setImmediate as turn } from 'node:timers/promises';
import type { Queue } from '../broker/queue.ts';
import type { DeliveryState } from '../model/element.ts';

/**
 * Removes the deliveries of these states, of all groups, and returns how many they were. No more than there were when it began:
 * a queue into which producers insert all the while is not emptied for ever.
 * @throws QuaysideError `storage-unavailable`, `outcome-unknown`; then a part of them may be removed
 */
export async function purgeQueue(queue: Queue, states: readonly DeliveryState[]): Promise<number> {
  const { storage } = queue.namespace;
  const { groups, ...whole } = await storage.counts(queue.key);
  const counts = groups.size === 0 ? [whole] : [...groups.values()];
  const max = counts.reduce((sum, of) => states.reduce((all, state) => all + of[state], sum), 0);
  let removed = 0;
  for (;;) {
    const step = await storage.purge(queue.key, states);
    removed += step.removed;
    queue.namespace.activity.note(queue.key.name);
    if (step.isDone || removed >= max) return removed;
    // Each step is a call like any other; those of other users come in between.
    await turn();
  }
}
