import type { Storage } from '../../src/engine/storage.ts';
import type { QueueKey } from '../../src/model/names.ts';

/** Sweeps once. Returns the queues that gained elements since they were last returned. */
export async function sweepAffected(storage: Storage): Promise<QueueKey[]> {
  await storage.sweep();
  return storage.takeAffected();
}
