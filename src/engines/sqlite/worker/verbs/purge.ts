import { DELIVERY_STATES, type DeliveryState } from '../../../../model/element.ts';
import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Lane } from '../names.ts';
import type { Store } from '../store.ts';

/** queue, states joined by commas or null -> how many deliveries went */
export function purge(store: Store, call: MessageReader, reply: MessageWriter): void {
  const queue = store.names.find(call.number());
  const given = call.textOrNull();
  const states = DELIVERY_STATES.filter((state) => given === null || given.split(',').includes(state));
  let gone = 0;
  for (const lane of [...(queue?.lanes.values() ?? [])]) {
    if (states.length === DELIVERY_STATES.length) gone += detach(store, lane);
    else for (const state of states) gone += removeAll(store, lane, state);
  }
  reply.value(gone);
}

/** Everything goes at once: to delete ten million rows here would hold all other calls up. */
function detach(store: Store, lane: Lane): number {
  const { ready, scheduled, reserved } = store.counts.read(lane, store.now);
  store.names.detachLane(lane);
  store.leases.forget(lane);
  store.garbage.detach(lane.id);
  return ready + scheduled + reserved;
}

const ROWS_AT_ONCE = 1000;

function removeAll(store: Store, lane: Lane, state: DeliveryState): number {
  let gone = 0;
  for (;;) {
    const rows = store.deliveries.inState(lane, state, store.now, ROWS_AT_ONCE);
    for (const { seq, dueAt } of rows) {
      if (state === 'reserved') store.deliveries.removeReserved(lane, seq);
      else store.deliveries.removeWaiting(lane, seq, dueAt);
      store.elements.removeIfFinished(seq, lane.group !== '');
    }
    gone += rows.length;
    if (rows.length < ROWS_AT_ONCE) return gone;
  }
}
