import type { QueueSizes } from '../../engine/old-port.ts';
import type { DeliveryState } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Lanes } from './calls/lanes.ts';
import { PURGE, SIZES } from './calls/look.ts';

/** Deliveries that go in one call: a server that removes a million at once answers nobody meanwhile. */
const STEP = 2_000;

/**
 * Removes all deliveries of these states, step by step, before later calls of this engine. What other nodes
 * insert until it ends may go as well, but no more steps are made than the queue needed when it began.
 * @throws CarryError; after the first step only `outcome-unknown`, as part of the queue is gone
 */
export async function purge(
  lanes: Lanes,
  queue: QueueKey,
  states: readonly DeliveryState[],
): Promise<number> {
  const call = { states, limit: STEP };
  // Called together, so that what is called from now on comes after the first step.
  const [counted, first] = await Promise.allSettled([
    lanes.call(queue, SIZES, null, { kind: 'free' }),
    lanes.call(queue, PURGE, call),
  ]);
  if (first.status === 'rejected') throw first.reason;
  const most = counted.status === 'fulfilled' ? countDeliveries(counted.value) : 0;
  let { gone, more } = first.value;
  while (more && gone <= most) {
    try {
      const step = await lanes.callNext(queue, PURGE, call);
      gone += step.gone;
      more = step.more;
    } catch (error) {
      throw purgedInPart(gone, error);
    }
  }
  if (more && counted.status === 'rejected') throw purgedInPart(gone, counted.reason);
  return gone;
}

function purgedInPart(gone: number, cause: unknown): QuaysideError {
  return new QuaysideError('outcome-unknown', `The queue was purged of ${gone} deliveries only.`, { cause });
}

function countDeliveries(sizes: QueueSizes): number {
  const parts = [sizes, ...sizes.groups.values()];
  return parts.reduce((sum, { ready, scheduled, reserved }) => sum + ready + scheduled + reserved, 0);
}
