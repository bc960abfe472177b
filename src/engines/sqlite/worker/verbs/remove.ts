import type { MessageReader, MessageWriter } from '../../message.ts';
import { DONE, NOT_FOUND, RESERVED } from '../../operations.ts';
import type { Queue } from '../names.ts';
import type { Store } from '../store.ts';

/** queue, count, ids -> outcomes */
export function remove(store: Store, call: MessageReader, reply: MessageWriter): void {
  const queue = store.names.find(call.number());
  for (let left = call.number(); left > 0; left--) {
    const seq = store.ids.parse(call.text());
    reply.value(queue === null || seq === null ? NOT_FOUND : removeOne(store, queue, seq));
  }
}

function removeOne(store: Store, queue: Queue, seq: number): number {
  const deliveries = store.deliveries.ofElement(seq);
  const lanes = deliveries.map((delivery) => store.names.laneById(delivery.lane));
  if (deliveries.length === 0 || lanes[0]?.queue !== queue) return NOT_FOUND;
  if (deliveries.some((delivery) => delivery.leaseUntil !== null)) return RESERVED;
  for (const [index, delivery] of deliveries.entries()) {
    const lane = lanes[index];
    if (lane) store.deliveries.removeWaiting(lane, seq, delivery.dueAt);
  }
  store.elements.remove(seq);
  return DONE;
}
