import { COUNTER_NAMES } from '../../../../engine/stats.ts';
import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Queue } from '../names.ts';
import type { Store } from '../store.ts';

/** count, then per entry: queue, group, one number per counter -> nothing */
export function statsAdd(store: Store, call: MessageReader, _reply: MessageWriter): void {
  const streams = new Set<Queue>();
  for (let left = call.number(); left > 0; left--) {
    const queue = store.names.make(call.number());
    // Statistics of a namespace that is stored elsewhere, or of another collection, are all that is known of its queues.
    store.names.use(queue, store.now);
    const group = call.text();
    if (group !== '') streams.add(queue);
    store.stats.add(
      queue,
      group,
      COUNTER_NAMES.map(() => call.number()),
    );
  }
  for (const queue of streams) store.stats.forgetLeast(queue);
}

/** queue -> count, then per group: name, one number per counter */
export function statsRead(store: Store, call: MessageReader, reply: MessageWriter): void {
  const queue = store.names.find(call.number());
  const rows = queue === null ? [] : store.stats.read(queue);
  reply.value(rows.length);
  for (const row of rows) for (const value of row) reply.value(value);
}
