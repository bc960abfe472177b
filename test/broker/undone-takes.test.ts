import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { Delivery } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';

const POLICY = plain('N');

describe('popped elements that are given back while their engine is away', () => {
  let opened: TestEngine;
  let broker: Broker;
  let queue: Queue;
  /** What the next calls to put back fail with. */
  let failures: QuaysideError[] = [];
  /** What the replies of takes wait for. */
  let mayReply: Promise<void> = Promise.resolve();

  beforeEach(async () => {
    failures = [];
    mayReply = Promise.resolve();
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
        return real.undoTake(...args);
      },
    }));
    broker = brokerOn([{ policy: POLICY, engine }], opened.clock);
    await broker.start();
    queue = broker.namespace('N').queue('q');
    await queue.insert([newElement({ body: 'first' }), newElement({ body: 'second' })]);
  });
  afterEach(async () => {
    await broker.stop();
    await opened.close();
  });

  const get = (): Promise<Delivery> =>
    new Promise((deliver, end) => {
      queue.get({ group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null }, { deliver, end });
    });
  /** Once what was begun has had its answer. */
  const pass = async (ms: number): Promise<void> => {
    await opened.engine.ping();
    await opened.passTime(ms);
    await opened.engine.ping();
  };
  const size = async (): Promise<number> => (await broker.namespace('N').visit('q').status(null)).totalSize;

  it('are back in their place when it answers again, and wake who waits', async () => {
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

  it('are not put back twice where the first time may have worked', async () => {
    failures = [new QuaysideError('outcome-unknown', 'planted')];
    queue.returnUndelivered(await get());
    await pass(10_000);
    assert.equal(await size(), 1);
  });

  it('are back before a stop ends, also if the take has its reply during the stop', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    mayReply = promise;
    const ended = assert.rejects(get(), { code: 'shutting-down' });
    const stopped = broker.stop();
    await ended;
    resolve();
    await stopped;
    assert.equal((await opened.engine.storage.counts({ ns: 'N', name: 'q' })).ready, 2);
  });

  it('are tried for no longer than the node runs', async () => {
    failures = Array.from({ length: 10 }, () => new QuaysideError('storage-unavailable', 'planted'));
    queue.returnUndelivered(await get());
    await pass(1_000);
    await broker.stop();
    const left = failures.length;
    await pass(10_000);
    assert.equal(failures.length, left);
  });
});
