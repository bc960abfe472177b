import type { Queue } from '../broker/queue.ts';
import type { ScannedDelivery } from '../engine/storage.ts';
import { type GroupName, WAITING_STATES } from '../model/element.ts';

/** Bodies that are read at once, about; a larger one alone. */
const MAX_BODY_BYTES = 4 * 1_048_576;

/** The same elements with their bodies, without those that are gone or reserved now. */
export async function withBodies(
  queue: Queue,
  group: GroupName,
  deliveries: readonly ScannedDelivery[],
): Promise<ScannedDelivery[]> {
  const page = await queue.namespace.storage.scan(queue.key, {
    group,
    states: WAITING_STATES,
    ids: deliveries.map(({ id }) => id),
    after: null,
    limit: deliveries.length,
    bodies: true,
  });
  return page.deliveries;
}

/** Elements in parts whose bodies may be in memory together. */
export function chunksOf(deliveries: readonly ScannedDelivery[]): ScannedDelivery[][] {
  const chunks: ScannedDelivery[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const delivery of deliveries) {
    if (bytes + delivery.bytes > MAX_BODY_BYTES) {
      chunks.push([]);
      bytes = 0;
    }
    chunks.at(-1)?.push(delivery);
    bytes += delivery.bytes;
  }
  return chunks;
}
