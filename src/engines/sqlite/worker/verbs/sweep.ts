import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Store } from '../store.ts';

const FORGET_AT_ONCE = 1000;

/** nothing -> when to call again or null, count, then namespace and name of each touched queue */
export function sweep(store: Store, _call: MessageReader, reply: MessageWriter): void {
  // Leases that ran out were ended before the batch began, as before every batch.
  store.dedup.forget(store.now, FORGET_AT_ONCE);
  reply.value(store.leases.nextEnd());
  const touched = [...store.touched];
  store.touched.clear();
  store.undo.add(() => {
    for (const queue of touched) store.touched.add(queue);
  });
  reply.value(touched.length);
  for (const { key } of touched) {
    reply.value(key.ns);
    reply.value(key.name);
  }
}
