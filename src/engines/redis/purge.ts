import type { DeliveryState } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import { Hold } from './calls/hold.ts';
import type { Lane } from './calls/lane.ts';
import type { Lanes } from './calls/lanes.ts';
import { PURGE, SIZES } from './calls/look.ts';
import { DEADLINE_MS } from './client/commands.ts';

/** Deliveries that go in one call: a server that removes a million at once answers nobody meanwhile. */
const STEP = 2_000;

/**
 * Removes all deliveries of these states, step by step, while later calls of this engine wait. What other nodes
 * insert meanwhile may go as well, but no more steps are made than the queue needed when it began.
 * @throws CarryError; after the first step only `outcome-unknown`, as part of the queue is gone
 */
export function purge(lanes: Lanes, queue: QueueKey, states: readonly DeliveryState[]): Promise<number> {
  const lane = lanes.get(queue);
  return new Promise((resolve, reject) => {
    const refusal = lanes.refusal(lane);
    if (refusal !== null) return reject(refusal);
    const job = (): Promise<void> => purgeHeld(lanes, lane, states).then(resolve, reject);
    const giveUp = (): void =>
      reject(new QuaysideError('storage-unavailable', 'The calls before this one took too long.'));
    new Hold([lane], lanes.clock.monotonic() + DEADLINE_MS, job, giveUp);
  });
}

async function purgeHeld(lanes: Lanes, lane: Lane, states: readonly DeliveryState[]): Promise<number> {
  const most = await countDeliveries(lanes, lane);
  const call = { states, limit: STEP };
  let gone = 0;
  for (let more = true; more && gone <= most; ) {
    try {
      const step = await lanes.flyHeld(lane, PURGE, call);
      gone += step.gone;
      more = step.more;
    } catch (error) {
      if (gone === 0) throw error;
      throw new QuaysideError('outcome-unknown', `The queue was purged of ${gone} deliveries only.`, {
        cause: error,
      });
    }
  }
  return gone;
}

async function countDeliveries(lanes: Lanes, lane: Lane): Promise<number> {
  const whole = await lanes.flyHeld(lane, SIZES, null, { kind: 'free' });
  const parts = [whole, ...whole.groups.values()];
  return parts.reduce((sum, { ready, scheduled, reserved }) => sum + ready + scheduled + reserved, 0);
}
