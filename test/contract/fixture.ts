import { after, before } from 'node:test';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import type { Delivery } from '../../src/model/element.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { EngineUnderTest, TestEngine } from '../engines.ts';
import { sweepAffected } from '../support/sweep.ts';
import { until } from '../support/until.ts';

export const MAX_TRIES = 3;
export const DEAD_LETTERS = '__deadletter__';
export const MAX_GROUPS = 10;

/** A retry delay of a minute, whatever the tries. */
export const CONSTANT_DELAY = { firstMs: 60_000, factor: 1, maxMs: 60_000, jitter: 0 };
/** The same, up to half of it shorter. */
export const JITTERED_DELAY = { ...CONSTANT_DELAY, jitter: 0.5 };

/** One namespace for each kind of policy. */
export const NAMESPACES: readonly NamespacePolicy[] = [
  { name: 'plain', groups: null, deadLetter: null, retentionMs: null },
  { name: 'jobs', groups: null, deadLetter: { maxTries: MAX_TRIES, queue: DEAD_LETTERS }, retentionMs: null },
  { name: 'stream', groups: ['g1'], deadLetter: null, retentionMs: null },
  {
    name: 'strict',
    groups: ['g1', 'g2'],
    deadLetter: { maxTries: 2, queue: DEAD_LETTERS },
    retentionMs: null,
  },
  { name: 'kept', groups: ['g1'], deadLetter: null, retentionMs: 60_000 },
  {
    name: 'crowded',
    groups: ['g1', 'g2'],
    deadLetter: { maxTries: 3, queue: 'dead-letters' },
    retentionMs: null,
    maxGroups: MAX_GROUPS,
  },
  {
    name: 'patient',
    groups: null,
    deadLetter: { maxTries: 5, queue: DEAD_LETTERS },
    retentionMs: null,
    retryDelay: { firstMs: 1000, factor: 2, maxMs: 3000, jitter: 0 },
    queues: [
      { pattern: 'own *', options: { deadLetter: null, retryDelay: JITTERED_DELAY } },
      { pattern: 'own 100% a_b', options: { retryDelay: null } },
      { pattern: '*: few tries', options: { deadLetter: { maxTries: 1, queue: 'few' } } },
    ],
  },
  {
    name: 'kept by name',
    groups: ['g1'],
    deadLetter: null,
    retentionMs: null,
    queues: [{ pattern: 'kept*', options: { retentionMs: 60_000 } }],
  },
];

/**
 * One engine for the tests of a suite. Each test uses new queues from `queue`, so no test sees another's elements.
 * Operations on a whole engine, such as `sweep`, are tested with `alone`.
 */
export class Fixture {
  readonly #open: EngineUnderTest['open'];
  #opened: TestEngine | null = null;
  #queues = 0;

  constructor(open: EngineUnderTest['open']) {
    this.#open = open;
    before(async () => {
      this.#opened = await open({ namespaces: NAMESPACES });
    });
    after(async () => {
      await this.#opened?.close();
      this.#opened = null;
    });
  }

  get opened(): TestEngine {
    if (this.#opened === null) throw new Error('The engine is not open: use it in tests and hooks only.');
    return this.#opened;
  }

  get storage(): Storage {
    return this.opened.engine.storage;
  }

  queue(ns = 'plain'): QueueKey {
    return { ns, name: `queue ${++this.#queues}` };
  }

  /** Runs the test on an engine that no other test uses. */
  async alone(test: (opened: TestEngine) => Promise<void>): Promise<void> {
    const opened = await this.#open({ namespaces: NAMESPACES });
    try {
      await test(opened);
    } finally {
      await opened.close();
    }
  }

  async pop(queue: QueueKey, count = 100, group = PLAIN_GROUP): Promise<Delivery[]> {
    return (await this.storage.take(queue, { group, count, leaseMs: null })).deliveries;
  }

  /**
   * Sweeps until a sweep has returned the target and it has `count` ready elements: on a Redis cluster, a sweep sends
   * dead letters to another server and does not wait for their arrival. Returns the queues that the sweeps returned.
   */
  async sweepInto(target: QueueKey, count = 1): Promise<QueueKey[]> {
    const affected: QueueKey[] = [];
    await until(async () => {
      affected.push(...(await sweepAffected(this.storage)));
      const isNamed = affected.some(({ ns, name }) => ns === target.ns && name === target.name);
      return isNamed && (await this.storage.counts(target)).ready >= count;
    });
    return affected;
  }

  async reserve(queue: QueueKey, count = 100, group = PLAIN_GROUP, leaseMs = 60_000): Promise<Delivery[]> {
    return (await this.storage.take(queue, { group, count, leaseMs })).deliveries;
  }

  /**
   * Reserves one delivery.
   *
   * @throws Error if none is ready
   */
  async reserveOne(queue: QueueKey, group = PLAIN_GROUP, leaseMs = 60_000): Promise<Reserved> {
    const [delivery] = await this.reserve(queue, 1, group, leaseMs);
    if (delivery === undefined || delivery.lease === null)
      throw new Error('There is no ready delivery to reserve.');
    return { ...delivery, lease: delivery.lease };
  }
}

export type Reserved = Delivery & { readonly lease: NonNullable<Delivery['lease']> };

/** A reference to a reservation by its token. */
export function byToken({ id, group, lease }: Reserved): { id: string; group: string; token: string } {
  return { id, group, token: lease.token };
}

/** A reference to the current reservation. */
export function byId({ id, group }: { id: string; group: string }): {
  id: string;
  group: string;
  token: null;
} {
  return { id, group, token: null };
}
