import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Store } from '../store.ts';

/**
 * queue, count, then per delivery: id, group, tries, due, type, more, body -> nothing
 *
 * The element keeps its number, so it regains its place. Where another group still has it, only the delivery
 * is made again. Its age for `retention` begins anew where the row does: the pop forgot it.
 */
export function putBack(store: Store, call: MessageReader, _reply: MessageWriter): void {
  const queue = store.names.make(call.number());
  store.names.use(queue, store.now);
  for (let left = call.number(); left > 0; left--) {
    const id = call.text();
    const lane = store.names.makeLane(queue, call.text());
    const tries = call.number();
    const dueAt = call.number();
    const content = { type: call.textOrNull(), more: call.textOrNull(), body: call.body() };
    const seq = store.ids.parse(id);
    if (seq === null) throw new Error(`put back of an element that this engine never popped: ${id}`);
    if (store.deliveries.find(lane, seq) !== null) continue;
    if (!store.elements.exists(seq)) {
      store.elements.insert(seq, queue.id, lane.group === '' ? 0 : 1, store.now, content);
    } else {
      store.elements.markShared(seq);
    }
    store.deliveries.add(lane, seq, dueAt, tries, store.now);
    store.retention.releasedInto(queue);
  }
}
