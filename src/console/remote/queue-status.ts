import type { PendingConsumer, QueueHistory, QueueRecord, SumHistory } from '../../model/records.ts';
import { call, get, path } from '../api.ts';
import type { QueueNamed } from './live.ts';

export function queueStatus({ ns, queue }: QueueNamed, signal: AbortSignal): Promise<QueueRecord> {
  return get<QueueRecord>(path('q', ns, queue, 'status'), { signal });
}

export function queueHistory({ ns, queue }: QueueNamed, signal: AbortSignal): Promise<QueueHistory> {
  return get<QueueHistory>(path('q', ns, queue, 'history'), { signal });
}

export function queueConsumers(
  { ns, queue }: QueueNamed,
  signal: AbortSignal,
): Promise<readonly PendingConsumer[]> {
  return get<readonly PendingConsumer[]>(path('q', ns, queue, 'consumers'), { signal });
}

/** Cancels the calls of a queue that wait under a tid. */
export async function cancelConsumer({ ns, queue }: QueueNamed, tid: string): Promise<void> {
  await call(path('q', ns, queue, 'consumer', tid), { method: 'DELETE' });
}

/** Reads the summed history of all queues that the user may read. */
export function sumHistory(signal: AbortSignal): Promise<SumHistory> {
  return get<SumHistory>('history', { signal });
}
