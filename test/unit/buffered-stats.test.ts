import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  BufferedStats,
  type CounterDeltas,
  type CounterStore,
  MAX_COUNTED_GROUPS,
  type OnStoredCounters,
  zeroCounters,
} from '../../src/engine/stats.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { SILENT_LOG } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';

const QUEUE = { ns: 'N', name: 'q' };

/** Stores counters in memory. A test can make writes fail, and run code before a read returns. */
class CountersInMemory implements CounterStore {
  readonly isOrdered: boolean;
  groupsPerWrite: number;
  readonly queuesPerRead: number;
  readonly writes: (readonly CounterDeltas[])[] = [];
  failure: ((batch: readonly CounterDeltas[]) => QuaysideError | null) | null = null;
  /** Queues whose counters cannot be read. */
  unreadable: readonly string[] = [];
  beforeReply: (() => Promise<void>) | null = null;
  /** The deadlines of the reads. */
  readonly deadlines: number[] = [];
  readonly #puts = new Map<string, number>();

  constructor(isOrdered = true) {
    this.isOrdered = isOrdered;
    this.groupsPerWrite = isOrdered ? 2_000 : 1;
    this.queuesPerRead = this.groupsPerWrite;
  }

  async write(batch: readonly CounterDeltas[]): Promise<void> {
    const failure = this.failure?.(batch) ?? null;
    if (failure !== null) throw failure;
    this.writes.push(batch);
    for (const { queue, groups } of batch) {
      for (const [group, { put }] of groups) {
        const key = `${queue.name} ${group}`;
        this.#puts.set(key, (this.#puts.get(key) ?? 0) + put);
      }
    }
  }

  async read(queues: readonly QueueKey[], found: OnStoredCounters, deadlineAt: number): Promise<void> {
    this.deadlines.push(deadlineAt);
    const before = this.beforeReply;
    this.beforeReply = null;
    await before?.();
    for (const [index, { name }] of queues.entries()) {
      if (this.unreadable.includes(name)) throw new QuaysideError('storage-unavailable', 'planted');
      const put = this.#puts.get(`${name} `);
      if (put !== undefined) found(index, '', { put });
    }
  }
}

function statsOn(store: CounterStore, clock = new FakeClock(0)): BufferedStats {
  return new BufferedStats(store, clock, SILENT_LOG);
}

describe('Buffered statistics', () => {
  for (const [code, kept] of [
    ['storage-unavailable', 2],
    ['outcome-unknown', 1],
  ] as const) {
    it(`are ${kept === 2 ? 'written by the next flush' : 'not written twice'} after ${code}`, async () => {
      const store = new CountersInMemory();
      const clock = new FakeClock(0);
      const stats = statsOn(store, clock);
      stats.add(QUEUE, '', { put: 1 });
      store.failure = () => new QuaysideError(code, 'planted');
      await assert.rejects(stats.flush(), { code });
      store.failure = null;
      stats.add(QUEUE, '', { put: 1 });
      await stats.flush();
      assert.deepEqual(store.writes.at(-1)?.[0]?.groups.get(''), { ...zeroCounters(), put: kept });
      assert.equal(clock.pending, 0);
    });
  }

  it('are written for several queues together if the store takes them, with a bounded number of groups', async () => {
    const store = new CountersInMemory(false);
    store.groupsPerWrite = 3;
    const stats = statsOn(store);
    for (const [name, groups] of Object.entries({ a: 1, b: 1, c: 1, d: 5, e: 1 })) {
      for (let i = 0; i < groups; i += 1) stats.add({ ns: 'N', name }, `g${i}`, { put: 1 });
    }
    await stats.flush();
    const written = store.writes.map((batch) => batch.map(({ queue }) => queue.name).join());
    assert.deepEqual(written, ['a,b,c', 'd', 'e']);
  });

  it('are written for each queue separately if the store has several servers', async () => {
    const store = new CountersInMemory(false);
    const stats = statsOn(store);
    for (const name of ['a', 'b']) stats.add({ ns: 'N', name }, '', { put: 1 });
    store.failure = ([first]) =>
      first?.queue.name === 'a' ? new QuaysideError('storage-unavailable', 'planted') : null;
    await assert.rejects(stats.flush());
    store.failure = null;
    await stats.flush();
    assert.deepEqual(
      store.writes.map((batch) => batch.map(({ queue }) => queue.name)),
      [['b'], ['a']],
    );
  });

  it('are written in several steps if there are very many queues, and only those of a failed step again', async () => {
    const store = new CountersInMemory();
    const stats = statsOn(store);
    for (let i = 0; i < 5_000; i += 1) stats.add({ ns: 'N', name: `q${i}` }, '', { put: 1 });
    store.failure = ([first]) =>
      first?.queue.name === 'q2000' ? new QuaysideError('storage-unavailable', 'planted') : null;
    await assert.rejects(stats.flush());
    store.failure = null;
    await stats.flush();
    assert.deepEqual(
      store.writes.map((batch) => batch.length),
      [2_000, 1_000, 2_000],
    );
    assert.equal((await stats.read({ ns: 'N', name: 'q2000' })).get('')?.put, 1);
  });

  it('are read for each queue separately if the store has several servers', async () => {
    const store = new CountersInMemory(false);
    const stats = statsOn(store);
    for (const name of ['a', 'b', 'c']) stats.add({ ns: 'N', name }, '', { put: 1 });
    await stats.flush();
    store.unreadable = ['b'];
    const read = await Promise.allSettled(['a', 'b', 'c'].map((name) => stats.read({ ns: 'N', name })));
    assert.deepEqual(
      read.map((each) => (each.status === 'fulfilled' ? each.value.get('')?.put : each.reason.code)),
      [1, 'storage-unavailable', 1],
    );
  });

  it('are counted once by a read during which they are flushed to a store with several servers', async () => {
    const store = new CountersInMemory(false);
    const stats = statsOn(store);
    stats.add(QUEUE, '', { put: 3 });
    store.beforeReply = () => stats.flush();
    assert.equal((await stats.read(QUEUE)).get('')?.put, 3);
  });

  it('are read again by the deadline of the first read if a flush overlaps it', async () => {
    const [store, clock] = [new CountersInMemory(false), new FakeClock(0)];
    const stats = statsOn(store, clock);
    store.beforeReply = async () => {
      clock.advance(1_000);
      stats.add(QUEUE, '', { put: 1 });
      await stats.flush();
    };
    assert.equal((await stats.read(QUEUE)).get('')?.put, 1);
    const [first = 0, second] = store.deadlines;
    assert.ok(first < clock.monotonic() + 4_000);
    assert.equal(second, first);
  });

  it('are written within a second', async () => {
    const store = new CountersInMemory();
    const clock = new FakeClock(0);
    const stats = statsOn(store, clock);
    stats.add(QUEUE, '', { put: 1 });
    clock.advance(1000);
    await new Promise(setImmediate);
    assert.equal(store.writes.length, 1);
  });

  it('are flushed when they are stopped, and start no timer afterwards', async () => {
    const store = new CountersInMemory();
    const clock = new FakeClock(0);
    const stats = statsOn(store, clock);
    stats.add(QUEUE, '', { put: 1 });
    await stats.stop();
    assert.equal(store.writes.length, 1);
    stats.add(QUEUE, '', { put: 1 });
    assert.equal(clock.pending, 0);
  });

  it('bound the number of groups per queue and in total, but always count the queue itself', async () => {
    const store = new CountersInMemory();
    const stats = statsOn(store);
    const queues = Array.from({ length: 60 }, (_, i) => ({ ns: 'N', name: `q${i}` }));
    for (const queue of queues) {
      for (let i = 0; i < MAX_COUNTED_GROUPS + 100; i++) stats.add(queue, `g${i}`, { put: 1 });
    }
    for (const queue of queues) stats.add(queue, '', { put: 1 });
    await stats.flush();
    const groups = store.writes.flat().map((each) => each.groups.size);
    assert.equal(groups[0], MAX_COUNTED_GROUPS + 2);
    assert.equal(
      groups.reduce((sum, size) => sum + size, 0),
      50_000 + queues.length,
    );
    assert.equal(groups.at(-1), 1);
  });
});
