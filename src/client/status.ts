import type { QueueRecord } from '../model/records.ts';
import { jsonIn } from './errors.ts';

/** Size and counters of a queue. */
export interface QueueStatus {
  /** `<engine>:<variant>`. */
  readonly type: string;
  readonly isPaused: boolean;
  readonly total: number;
  /** Elements that can be taken now. */
  readonly ready: number;
  readonly scheduled: number;
  readonly reserved: number;
  /** The earliest maturity of the waiting elements. */
  readonly nextMature: Date | null;
  /** For how long the oldest ready element has been ready. */
  readonly oldestReadyMs: number | null;
  /** Counters since the queue was created: `put`, `get`, `reserve`, `commit`, `rollback`, `deadletter`. */
  readonly stats: Readonly<Record<string, number>>;
}

export function readStatus(text: string): QueueStatus {
  const record = jsonIn<QueueRecord>(text, 'stats');
  const { type, next_mature_t: next, oldestReadyAge: age } = record;
  const counters = Object.entries(record.stats).filter(([, value]) => typeof value === 'number');
  return {
    type,
    isPaused: record.paused,
    total: record.totalSize,
    ready: record.size,
    scheduled: record.schedSize,
    reserved: record.resvSize,
    nextMature: next === null ? null : new Date(next),
    oldestReadyMs: age === null ? null : Math.round(age * 1000),
    stats: Object.fromEntries(counters) as Record<string, number>,
  };
}
