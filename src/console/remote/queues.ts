import type {
  DeadLetters,
  OptionsRecord,
  PendingConsumer,
  QueueHistory,
  QueueRecord,
  ShownOptions,
  SumHistory,
} from '../../model/records.ts';
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

function optionsPath({ ns, queue }: QueueNamed): string {
  return path('q', ns, queue, 'options');
}

export function readOptions(of: QueueNamed, signal: AbortSignal): Promise<OptionsRecord> {
  return get<OptionsRecord>(optionsPath(of), { signal });
}

/**
 * Replaces the stored options of a queue. Empty options delete them, so that the configuration's apply.
 * @param version of the options that the user saw
 * @throws ApiError `precondition-failed` if they have changed since
 */
export async function storeOptions(of: QueueNamed, options: ShownOptions, version: string): Promise<void> {
  const headers = { 'if-match': `"${version}"` };
  if (Object.keys(options).length === 0) await call(optionsPath(of), { method: 'DELETE', headers });
  else await call(optionsPath(of), { method: 'PUT', headers, json: options });
}

/** The dead-letter queues of all namespaces in which the user may browse. */
export function deadLetters(signal: AbortSignal): Promise<DeadLetters> {
  return get<DeadLetters>('dead-letters', { signal });
}
