import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Store } from '../store.ts';

/** count, queues -> nothing */
export function declare(store: Store, call: MessageReader, _reply: MessageWriter): void {
  for (let left = call.number(); left > 0; left--) {
    store.names.use(store.names.make(call.number()), store.now);
  }
}

/** namespace -> count, names */
export function queues(store: Store, call: MessageReader, reply: MessageWriter): void {
  const names = store.names.list(call.text());
  reply.value(names.length);
  for (const name of names) reply.value(name);
}

/** namespace -> elements, bytes that the file's pages in use have */
export function usage(store: Store, call: MessageReader, reply: MessageWriter): void {
  reply.value(store.names.heldIn(call.text()));
  reply.value(store.freePages.bytesInUse());
}

/** queue, group -> moment or null */
export function nextDueAt(store: Store, call: MessageReader, reply: MessageWriter): void {
  const lane = store.names.find(call.number())?.lanes.get(call.text());
  reply.value(lane === undefined ? null : store.counts.firstDueAt(lane));
}
