import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { DurableTestEngine, TestEngine } from '../engines.ts';
import type { Model, ModelDelivery } from './model.ts';

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

/** Where the histories play: two plain queues, two streams, and where each sends what fails. */
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

/** The groups under which a queue's elements may wait. */
export function groupsOf(queue: QueueKey): readonly string[] {
  return queue.ns === 'stream' ? STREAM_GROUPS : [''];
}

/** An id that the system once gave out, with the token of the reservation if it came with one. */
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
  /** Every token that a reservation came with, after its delivery's id and group. */
  readonly tokens: Set<string>;
  popped: { queue: QueueKey; delivery: Delivery; model: ModelDelivery }[];
  /** How often the real system was compared with the model in this history. */
  checks: number;
}

/** The model that holds now; a crash may replace it. */
export interface Believed {
  current: Model;
}
