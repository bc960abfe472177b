import { get, path } from '../api.ts';
import type { QueueNamed } from './live.ts';

interface SizesRecord {
  readonly size: number;
  readonly schedSize: number;
  readonly resvSize: number;
  readonly totalSize: number;
}

export interface QueueStatus extends SizesRecord {
  readonly type: string;
  readonly paused: boolean;
  readonly capabilities: Readonly<Record<'sched' | 'reserve' | 'pipeline' | 'tape' | 'remove', boolean>>;
  readonly groups?: Readonly<Record<string, SizesRecord>>;
  readonly stats: Readonly<Record<string, unknown>> & { readonly put: number };
}

export interface HistoryRecord {
  readonly from: string;
  readonly intervalMs: number;
  readonly size: readonly (number | null)[];
  readonly schedSize: readonly (number | null)[];
  readonly resvSize: readonly (number | null)[];
  /** Only in the history of a single queue. */
  readonly oldestReadyAge?: readonly (number | null)[];
  readonly insert: readonly (number | null)[];
  readonly take: readonly (number | null)[];
}

export interface WaitingConsumer {
  readonly tid: string;
  readonly since: string;
  readonly user: string | null;
  readonly protocol: string;
  readonly address: string | null;
  readonly group: string | null;
}

export function queueStatus({ ns, queue }: QueueNamed, signal: AbortSignal): Promise<QueueStatus> {
  return get<QueueStatus>(path('q', ns, queue, 'status'), { signal });
}

export function queueHistory({ ns, queue }: QueueNamed, signal: AbortSignal): Promise<HistoryRecord> {
  return get<HistoryRecord>(path('q', ns, queue, 'history'), { signal });
}

export function queueConsumers(
  { ns, queue }: QueueNamed,
  signal: AbortSignal,
): Promise<readonly WaitingConsumer[]> {
  return get<readonly WaitingConsumer[]>(path('q', ns, queue, 'consumers'), { signal });
}

/** Reads the summed history of all queues that the user may read. */
export function sumHistory(signal: AbortSignal): Promise<HistoryRecord> {
  return get<HistoryRecord>('history', { signal });
}
