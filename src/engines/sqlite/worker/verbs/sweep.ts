import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Store } from '../store.ts';

/** Elements past their retention, and dedup keys past their window, that one call removes. */
const ROWS_A_CALL = 1000;

/** nothing -> when to call again or null, count, then namespace and name of each touched queue */
export function sweep(store: Store, _call: MessageReader, reply: MessageWriter): void {
  // Leases that ran out were ended before the batch began, as before every batch.
  for (const seq of store.retention.overdue(store.now, ROWS_A_CALL)) dropWaiting(store, seq);
  store.dedup.forget(store.now, ROWS_A_CALL);
  store.unused.forget(store);
  reply.value(earliest(store.leases.nextEnd(), store.retention.nextAt()));
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

/** Reserved deliveries of the element stay until they are settled, and the element with them. */
function dropWaiting(store: Store, seq: number): void {
  for (const delivery of store.deliveries.ofElement(seq)) {
    const lane = store.names.laneById(delivery.lane);
    if (delivery.leaseUntil === null && lane !== null) {
      store.deliveries.removeWaiting(lane, seq, delivery.dueAt);
    }
  }
  store.elements.removeIfFinished(seq, true);
}

function earliest(a: number | null, b: number | null): number | null {
  return a === null || (b !== null && b < a) ? b : a;
}
