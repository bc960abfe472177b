import type { DeliveryState } from '../../../../model/element.ts';
import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Lane } from '../names.ts';
import type { Store } from '../store.ts';

/** queue, states joined by commas or null -> how many deliveries went */
export function purge(store: Store, call: MessageReader, reply: MessageWriter): void {
  const queue = store.names.find(call.number());
  const states = call.textOrNull()?.split(',') ?? ['ready', 'scheduled', 'reserved'];
  let gone = 0;
  for (const lane of queue?.lanes.values() ?? []) {
    for (const state of states) gone += purgeLane(store, lane, state as DeliveryState);
  }
  reply.value(gone);
}

const AT_ONCE = 1000;

function purgeLane(store: Store, lane: Lane, state: DeliveryState): number {
  let gone = 0;
  for (;;) {
    const rows = store.deliveries.inState(lane, state, store.now, AT_ONCE);
    for (const { seq, dueAt } of rows) {
      if (state === 'reserved') store.deliveries.removeReserved(lane, seq);
      else store.deliveries.removeWaiting(lane, seq, dueAt);
      store.elements.removeIfFinished(seq, lane.group !== '');
    }
    gone += rows.length;
    if (rows.length < AT_ONCE) return gone;
  }
}
