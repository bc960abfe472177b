import { setImmediate as turn } from 'node:timers/promises';
import type { Queue } from '../broker/queue.ts';
import { inTime, partlyMade, unknownOutcome } from '../engine/calls.ts';
import type { ExchangeOverview } from '../exchange/record.ts';
import { DELIVERY_STATES, type DeliveryState } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';

/**
 * Removes the deliveries in these states, of all groups, and returns their number. Stops when it has removed as many as
 * there were at its start: it ends even if producers insert all the time.
 * @throws QuaysideError `storage-unavailable`; `outcome-unknown`, also if some deliveries were removed before
 */
export async function purgeQueue(queue: Queue, states: readonly DeliveryState[]): Promise<number> {
  const { storage } = queue.namespace;
  const { groups, ...whole } = await storage.counts(queue.key);
  const counts = groups.size === 0 ? [whole] : [...groups.values()];
  const max = counts.reduce((sum, of) => states.reduce((all, state) => all + of[state], sum), 0);
  let removed = 0;
  for (;;) {
    const step = await storage.purge(queue.key, states).catch((error: unknown) => {
      throw removed > 0 ? partlyMade(error) : error;
    });
    removed += step.removed;
    // Names come from clients: a name without a queue must not use memory.
    if (step.removed > 0) {
      queue.namespace.activity.note(queue.key.name);
      queue.namespace.noteRemoved(queue.key);
    }
    if (step.isDone || removed >= max) return removed;
    // Lets calls of other users run between two steps.
    await turn();
  }
}

interface DeleteOptions {
  /** Removes the queue's elements and ends its waiting calls, instead of rejecting the request. */
  readonly force: boolean;
  /** The exchanges, which are the same on all nodes. */
  readonly exchanges: { overview(): ExchangeOverview[] };
}

/** Attempts of a forced deletion while elements are being inserted. */
const MAX_ROUNDS = 10;

/**
 * Deletes a queue with its pause flag, options and statistics. Returns how many deliveries it held.
 * @throws QuaysideError `queue-in-use` if it holds elements, calls wait for it on any node, or an exchange names it;
 * with `force`, only if elements are inserted faster than they are removed
 */
export async function deleteQueue(queue: Queue, { force, exchanges }: DeleteOptions): Promise<number> {
  const { namespace } = queue;
  const late = (): Error => unknownOutcome(new Error('The engines of the queue took too long.'));
  if (!force) return inTime(namespace.clock, deleteUnused(queue, exchanges), late);
  let removed = 0;
  try {
    for (let round = 0; round < MAX_ROUNDS; round += 1) {
      await endWaiting(queue);
      removed += await purgeQueue(queue, DELIVERY_STATES);
      if (await inTime(namespace.clock, namespace.drop(queue.key), late)) return removed;
    }
  } catch (error) {
    throw removed > 0 ? partlyMade(error) : error;
  }
  throw inUse(queue, 'holds elements');
}

async function deleteUnused(queue: Queue, exchanges: DeleteOptions['exchanges']): Promise<0> {
  await mustBeUnused(queue, exchanges);
  if (await queue.namespace.drop(queue.key)) return 0;
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

/** Ends the queue's waiting calls on all nodes, with `pop-cancelled`. */
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
