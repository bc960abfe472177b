import { setImmediate as turn } from 'node:timers/promises';
import type { Queue } from '../broker/queue.ts';
import type { ExchangeOverview } from '../exchange/record.ts';
import { DELIVERY_STATES, type DeliveryState } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';

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

interface DeleteOptions {
  /** Removes what it holds and ends the calls that wait for it, in place of a rejection. */
  readonly force: boolean;
  /** The exchanges of this node, and so of all. */
  readonly exchanges: { overview(): ExchangeOverview[] };
}

/** Elements that come while a queue is deleted by force are removed so often. */
const MAX_ROUNDS = 10;

/**
 * Deletes a queue with its pause flag, options and statistics. Returns how many deliveries it held.
 * @throws QuaysideError `queue-in-use` if it holds elements, calls wait for it on any node, or an exchange names it; by force,
 * only if elements come faster than they are removed
 */
export async function deleteQueue(queue: Queue, { force, exchanges }: DeleteOptions): Promise<number> {
  if (!force) await mustBeUnused(queue, exchanges);
  let removed = 0;
  for (let round = 0; round < MAX_ROUNDS; round += 1) {
    if (force) {
      await endWaiting(queue);
      removed += await purgeQueue(queue, DELIVERY_STATES);
    }
    if (await queue.namespace.drop(queue.key)) return removed;
    if (!force) break;
  }
  throw inUse(queue, 'holds elements');
}

async function mustBeUnused(queue: Queue, exchanges: DeleteOptions['exchanges']): Promise<void> {
  const { ns, name } = queue.key;
  const isNamed = exchanges.overview().some(({ declaration: { src, dst } }) => {
    return [src, ...dst].some((one) => one.ns === ns && one.queue === name);
  });
  if (isNamed) throw inUse(queue, 'is named by an exchange');
  if ((await queue.allConsumers()).length > 0) throw inUse(queue, 'has calls that wait for its elements');
}

/** On all nodes, with `pop-cancelled`. */
async function endWaiting(queue: Queue): Promise<void> {
  const tids = new Set((await queue.allConsumers()).map(({ tid }) => tid));
  for (const tid of tids) queue.cancel(tid, null);
}

function inUse({ key: { name } }: Queue, why: string): QuaysideError {
  return new QuaysideError(
    'queue-in-use',
    `Queue ${quote(name)} ${why}. Wait until it is unused, or delete it with force=1.`,
  );
}
