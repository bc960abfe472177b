import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import { NODE } from '../../src/exchange/declaration.ts';
import type { Delivery } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';

const POLICY = plain('N');

describe('popped elements that are returned while their engine is unavailable', () => {
  let opened: TestEngine;
  let broker: Broker;
  let queue: Queue;
  /** The errors of the next calls of `undoTake`. */
  let failures: QuaysideError[] = [];
  /** Number of calls of `undoTake` that reached the engine, and what they wait for. */
  let undone = 0;
  let mayUndo: Promise<void> = Promise.resolve();
  /** The error with which `undoTake` rejects after it has taken effect; null: none. */
  let lateFailure: QuaysideError | null = null;
  /** Messages of the log, and the namespaces that their lines name. */
  let logged: string[] = [];
  let loggedOf = new Set<unknown>();
  /** Replies of takes wait for this. */
  let mayReply: Promise<void> = Promise.resolve();

  beforeEach(async () => {
    failures = [];
    lateFailure = null;
    logged = [];
    loggedOf = new Set();
    mayReply = Promise.resolve();
    mayUndo = Promise.resolve();
    opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    const engine = engineWith(opened.engine, (real) => ({
      take: async (...args) => {
        const result = await real.take(...args);
        await mayReply;
        return result;
      },
      undoTake: async (...args) => {
        const failure = failures.shift();
        if (failure !== undefined) throw failure;
        undone += 1;
        await mayUndo;
        await real.undoTake(...args);
        if (lateFailure !== null) throw lateFailure;
      },
    }));
    const note = (fields: object, message: string): void => {
      loggedOf.add('ns' in fields ? fields.ns : null);
      logged.push(message);
    };
    const log = { debug: () => {}, info: note, warn: note };
    broker = brokerOn([{ policy: POLICY, engine }], opened.clock, undefined, log);
    await broker.start();
    queue = broker.namespace('N').queue('q');
    await queue.insert([newElement({ body: 'first' }), newElement({ body: 'second' })]);
  });
  afterEach(async () => {
    await broker.stop();
    await opened.close();
  });

  const get = (from = queue): Promise<Delivery> =>
    new Promise((deliver, end) => {
      from.get({ group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null }, { deliver, end });
    });
  /** Advances the clock; calls to the engine that were pending before and after are completed. */
  const pass = async (ms: number): Promise<void> => {
    await opened.engine.ping();
    await opened.passTime(ms);
    await opened.engine.ping();
  };
  const size = async (): Promise<number> => (await broker.namespace('N').visit('q').status(null)).totalSize;

  it('return to their place when the engine recovers, and wake waiting consumers', async () => {
    const unavailable = new QuaysideError('storage-unavailable', 'planted');
    failures = [unavailable, unavailable];
    const [first, second] = [await get(), await get()];
    queue.returnAllUndelivered([first, second]);
    const waiting = get();
    await pass(1_000);
    assert.equal(await size(), 0);
    await pass(1_000);
    assert.equal(bodyText(await waiting), 'first');
    assert.equal(bodyText(await get()), 'second');
  });

  it('are logged once, however many calls fail, and once when they are stored', async () => {
    failures = Array.from({ length: 4 }, () => new QuaysideError('storage-unavailable', 'planted'));
    for (const delivery of [await get(), await get()]) queue.returnAllUndelivered([delivery]);
    await pass(1_000);
    await pass(1_000);
    assert.equal(await size(), 2);
    assert.deepEqual(logged, [
      'popped elements could not be returned to their queue yet; the node retries until they are',
      'popped elements are returned to their queue again',
    ]);
    assert.deepEqual([...loggedOf], ['N'], 'the lines name the namespace');
  });

  it('are not logged as stored while others are still retried', async () => {
    const [first, second] = [await get(), await get()];
    failures = [new QuaysideError('storage-unavailable', 'planted')];
    for (const delivery of [first, second]) queue.returnAllUndelivered([delivery]);
    await pass(0);
    assert.equal(await size(), 1);
    assert.equal(logged.length, 1);
    await pass(1_000);
    assert.equal(await size(), 2);
    assert.equal(logged.at(-1), 'popped elements are returned to their queue again');
  });

  it('wake waiting consumers if they returned although the engine reported an unknown outcome', async () => {
    failures = [new QuaysideError('storage-unavailable', 'planted')];
    lateFailure = new QuaysideError('outcome-unknown', 'planted');
    const [first] = [await get(), await get()];
    queue.returnAllUndelivered([first]);
    const served: string[] = [];
    void get().then((delivery) => served.push(bodyText(delivery)));
    // The consumer's take finds nothing before the second attempt.
    await pass(1_000);
    await pass(0);
    assert.deepEqual(served, ['first']);
  });

  it('are not returned again if the first attempt may have succeeded', async () => {
    failures = [new QuaysideError('outcome-unknown', 'planted')];
    queue.returnAllUndelivered([await get()]);
    await pass(10_000);
    assert.equal(await size(), 1);
  });

  describe('that are large and many', () => {
    const COUNT = 20;
    /** 4 MiB; the last element may exceed that. */
    const AT_ONCE = 5;
    let large: Queue;
    let popped: Delivery[];
    beforeEach(async () => {
      large = broker.namespace('N').queue('large');
      await large.insert(Array.from({ length: COUNT }, () => newElement({ body: 'x'.repeat(1_000_000) })));
      popped = [];
      for (let i = 0; i < COUNT; i += 1) popped.push(await get(large));
      undone = 0;
    });

    it('are returned in steps, between which other inserts run, and wake waiting consumers', async () => {
      const held = Promise.withResolvers<void>();
      mayUndo = held.promise;
      for (const delivery of popped) large.returnAllUndelivered([delivery]);
      const waiting = get(large);
      assert.equal(undone, AT_ONCE);
      await queue.insert([newElement({ body: 'another' })], { user: 'other' });
      await queue.insert([newElement({ body: 'from an exchange of the configuration' })], {
        user: NODE.name,
      });
      assert.equal(undone, AT_ONCE);
      held.resolve();
      assert.equal((await waiting).body.length, 1_000_000);
      for (let i = 1; i < COUNT; i += 1) await get(large);
      assert.equal(undone, COUNT);
    });

    it('are returned nevertheless if their step has to wait too long', async () => {
      const held = Promise.withResolvers<void>();
      mayUndo = held.promise;
      for (const delivery of popped) large.returnAllUndelivered([delivery]);
      await pass(3_500);
      assert.equal(undone, COUNT);
      held.resolve();
      for (let i = 0; i < COUNT; i += 1) await get(large);
    });
  });

  it('are returned before a stop ends, even if their take gets its reply during the stop', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    mayReply = promise;
    const ended = assert.rejects(get(), { code: 'shutting-down' });
    const stopped = broker.stop();
    await ended;
    resolve();
    await stopped;
    assert.equal((await opened.engine.storage.counts({ ns: 'N', name: 'q' })).ready, 2);
  });

  it('are retried only while the node runs', async () => {
    failures = Array.from({ length: 10 }, () => new QuaysideError('storage-unavailable', 'planted'));
    queue.returnAllUndelivered([await get()]);
    await pass(1_000);
    await broker.stop();
    const left = failures.length;
    await pass(10_000);
    assert.equal(failures.length, left);
    assert.equal(logged.at(-1), 'popped elements may be lost: their engine is unavailable');
    assert.deepEqual([...loggedOf], ['N'], 'the lines name the namespace');
  });
});
