import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { DurableTestEngine, TestEngine } from '../engines.ts';
import type { ModelDelivery } from './model.ts';

export const DEDUP_WINDOW_MS = 60_000;

export const MODEL_NAMESPACES: readonly NamespacePolicy[] = [
  {
    name: 'jobs',
    groups: null,
    deadLetter: { maxTries: 3, queue: 'dead' },
    retentionMs: null,
    retryDelay: { firstMs: 1000, factor: 3, maxMs: 5000, jitter: 0 },
    queues: [{ pattern: "b'%{*", options: { retryDelay: null, deadLetter: { maxTries: 2, queue: 'dead' } } }],
  },
  { name: 'stream', groups: ['g1', 'g2'], deadLetter: { maxTries: 2, queue: 'dead' }, retentionMs: null },
];

/** The queues of the histories: two plain queues and two streams. */
export const QUEUES: readonly QueueKey[] = [
  { ns: 'jobs', name: 'a' },
  { ns: 'jobs', name: "b'%{}" },
  { ns: 'stream', name: 'a' },
  { ns: 'stream', name: 'b' },
];
export const DEAD_LETTER_QUEUES: readonly QueueKey[] = [
  { ns: 'jobs', name: 'dead' },
  { ns: 'stream', name: 'dead' },
];

export const EVERY_QUEUE: readonly QueueKey[] = [...QUEUES, ...DEAD_LETTER_QUEUES];

export const STREAM_GROUPS: readonly string[] = ['g1', 'g2', 'g3'];

/** The groups that elements of a queue may have. */
export function groupsOf(queue: QueueKey): readonly string[] {
  return queue.ns === 'stream' ? STREAM_GROUPS : [''];
}

/** An id that the system returned, with the token if it was returned by a reservation. */
export interface KnownRef {
  readonly queue: QueueKey;
  readonly id: string;
  readonly group: string;
  readonly token: string | null;
}

/** The real system, and what a client of it has learned. */
export interface World {
  opened: TestEngine | DurableTestEngine;
  refs: KnownRef[];
  /** The tokens of all reservations, each prefixed with the delivery's id and group. */
  readonly tokens: Set<string>;
  popped: { queue: QueueKey; delivery: Delivery; model: ModelDelivery }[];
  /** Number of comparisons between the real system and the model in this history. */
  checks: number;
}
