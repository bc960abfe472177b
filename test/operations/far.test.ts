import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Engine } from '../../src/engine/engine.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { until } from '../support/until.ts';
import { OPERATOR, OperationNode } from './node.ts';

const COUNT = 300;
const MORTAL = plain('mortal', { deadLetter: { maxTries: 3, queue: 'dead' } });
const BODIES = Array.from({ length: COUNT }, (_, i) => String(i)).sort();

describe('A bulk move to another engine', () => {
  const sandbox = sharedSandbox();
  let near: TestEngine;
  let far: TestEngine;
  let node: OperationNode;
  /** Whether inserts into the far engine fail. */
  let isUnavailable: boolean;
  /** Whether inserts into it take effect, but their replies are lost. */
  let losesReplies: boolean;
  /** How many inserts failed because it was away. */
  let failures: number;

  const passTime = async (ms: number): Promise<void> => {
    await far.passTime(ms);
    await near.passTime(ms);
  };
  const both = { passTime };
  const request = {
    action: 'move',
    source: { ns: 'N', queue: 'from' },
    to: { ns: 'far', queue: 'to' },
  };

  function unreliable(engine: Engine): Engine {
    const storage = new Proxy(engine.storage, {
      get: (target, name) => {
        const member: unknown = Reflect.get(target, name, target);
        if (typeof member !== 'function') return member;
        if (name !== 'insert') return member.bind(target);
        return async (...args: unknown[]) => {
          if (isUnavailable) {
            failures += 1;
            throw new QuaysideError('storage-unavailable', 'The far engine is away.');
          }
          const result: unknown = await member.apply(target, args);
          if (losesReplies) throw new QuaysideError('outcome-unknown', 'The reply was lost.');
          return result;
        };
      },
    });
    return Object.create(engine, { storage: { value: storage } });
  }

  async function startNode(maxElements?: number): Promise<void> {
    const namespaces = [
      { policy: plain('N'), engine: near.engine },
      {
        policy: plain('far'),
        engine: unreliable(far.engine),
        ...(maxElements !== undefined && { maxElements }),
      },
      { policy: plain('small'), engine: near.engine, maxElements: 100 },
      { policy: MORTAL, engine: near.engine },
    ];
    node = await new OperationNode(namespaces, near.clock, sandbox).start();
  }

  beforeEach(async () => {
    isUnavailable = false;
    losesReplies = false;
    failures = 0;
    near = await MEMORY_SQLITE.open({ namespaces: [plain('N'), plain('small'), MORTAL] });
    far = await MEMORY_SQLITE.open({ namespaces: [plain('far')] });
  });
  afterEach(async () => {
    await node.stop();
    await sandbox.stop();
    await far.close();
    await near.close();
  });

  /** The number of elements in the transit queues of a namespace. */
  async function countInTransit(ns = 'N'): Promise<number> {
    const names = await node.broker.namespace(ns).queueNames();
    const held = names
      .filter((name) => name.startsWith('__operation__'))
      .map(async (name) => (await node.elements(ns, name)).length);
    return (await Promise.all(held)).reduce((sum, count) => sum + count, 0);
  }

  it('waits while that engine is unavailable, and then moves each element once', async () => {
    await startNode();
    await node.insertMany('N', 'from', COUNT);
    isUnavailable = true;
    const id = await node.create(request);
    await until(async () => (await countInTransit()) !== 0);
    assert.deepEqual(await node.bodies('far', 'to'), []);
    await passTime(10_000);
    assert.equal((await node.get(id)).state, 'running');
    isUnavailable = false;
    const record = await node.ended(id, both);
    assert.deepEqual([record.state, record.changed, record.failed], ['done', COUNT, 0]);
    assert.deepEqual((await node.bodies('far', 'to')).sort(), BODIES);
    assert.equal((await node.elements('N', 'from')).length + (await countInTransit()), 0);
  });

  it('leaves no transit queue behind, whether it succeeds or fails', async () => {
    await startNode(200);
    const namespace = node.broker.namespace('N');
    for (const [count, state] of [
      [150, 'done'],
      [100, 'failed'],
    ] as const) {
      await node.insertMany('N', 'from', count);
      assert.equal((await node.run(request, both)).state, state);
      assert.deepEqual(await namespace.queueNames(), ['from']);
    }
  });

  it('returns elements in transit if it is cancelled while that engine is unavailable', async () => {
    await startNode();
    await node.insertMany('N', 'from', COUNT);
    isUnavailable = true;
    const id = await node.create(request);
    await until(async () => (await countInTransit()) !== 0);
    const cancelling = node.operations.cancel(id, OPERATOR);
    const record = await node.ended(id, both);
    await cancelling;
    assert.deepEqual([record.state, record.changed], ['cancelled', 0]);
    assert.deepEqual((await node.bodies('N', 'from')).sort(), BODIES);
    assert.equal(await countInTransit(), 0);
  });

  it('keeps running after a cancel until that engine says which elements in transit have arrived', async () => {
    await startNode();
    await node.insertMany('N', 'from', COUNT);
    losesReplies = true;
    const id = await node.create(request);
    await until(async () => (await node.bodies('far', 'to')).length !== 0);
    const arrived = (await node.bodies('far', 'to')).length;
    losesReplies = false;
    isUnavailable = true;
    const cancelling = node.operations.cancel(id, OPERATOR);
    for (const count of [1, 2]) {
      while (failures < count && (await node.get(id)).state === 'running') {
        await passTime(100);
        await turn();
      }
      assert.equal((await node.get(id)).state, 'running');
    }
    isUnavailable = false;
    const record = await node.ended(id, both);
    await cancelling;
    assert.deepEqual([record.state, record.changed], ['cancelled', arrived]);
    const [left, moved] = [await node.bodies('N', 'from'), await node.bodies('far', 'to')];
    assert.deepEqual([...left, ...moved].sort(), BODIES);
    assert.equal(await countInTransit(), 0);
  });

  it('does not return elements that arrived although the reply was lost, even if the target has become full', async () => {
    await startNode(200);
    await node.insertMany('N', 'from', COUNT);
    losesReplies = true;
    const id = await node.create(request);
    await until(async () => (await node.bodies('far', 'to')).length !== 0);
    losesReplies = false;
    const record = await node.ended(id, both);
    assert.equal(record.state, 'failed');
    const [left, moved] = [await node.bodies('N', 'from'), await node.bodies('far', 'to')];
    assert.deepEqual([...left, ...moved].sort(), BODIES);
    assert.equal(record.changed, moved.length);
    assert.equal(await countInTransit(), 0);
  });

  it('makes dead letters of elements that expire in transit, and a redrive returns them to the source', async () => {
    await startNode();
    const expiresAt = near.clock.now() + 20_000;
    const headers = ['x-a', 'b'];
    await node.insert('mortal', 'from/ä', { body: 'a', headers, expiresAt }, { body: 'b', headers });
    isUnavailable = true;
    const move = { ...request, source: { ns: 'mortal', queue: 'from/ä' } };
    const id = await node.create(move);
    await until(async () => (await countInTransit('mortal')) !== 0);
    await passTime(20_000);
    while ((await node.bodies('mortal', 'dead')).length === 0) await passTime(1_000);
    isUnavailable = false;
    const moved = await node.ended(id, both);
    assert.equal(moved.state, 'done');
    assert.deepEqual(await node.bodies('far', 'to'), ['b']);
    assert.deepEqual((await node.elements('far', 'to'))[0]?.headers, headers);
    const redriven = await node.run({ action: 'redrive', source: { ns: 'mortal', queue: 'dead' } }, both);
    assert.deepEqual([redriven.changed, redriven.failed], [1, 0]);
    const [back, ...others] = await node.elements('mortal', 'from/ä');
    assert.deepEqual([Buffer.from(back?.body ?? '').toString(), others.length], ['a', 0]);
    assert.deepEqual(back?.headers.slice(0, 3), [...headers, 'x-ks-origin-id']);
    assert.equal(back?.headers.length, 4);
  });

  it('fails if its target is full, reports that, and returns elements in transit', async () => {
    await startNode(100);
    await node.insertMany('N', 'from', COUNT);
    const record = await node.run(request, both);
    assert.equal(record.state, 'failed');
    assert.match(record.error ?? '', /is full/);
    const [left, moved] = [await node.bodies('N', 'from'), await node.bodies('far', 'to')];
    assert.deepEqual([...left, ...moved].sort(), BODIES);
    assert.equal(record.changed, moved.length);
    assert.equal(await countInTransit(), 0);
  });

  it('fails within one engine, too, if the namespace of its target is full, and leaves the remaining elements in the source', async () => {
    await startNode();
    await node.insertMany('N', 'from', COUNT);
    const record = await node.run({ ...request, to: { ns: 'small', queue: 'to' } }, both);
    assert.equal(record.state, 'failed');
    assert.match(record.error ?? '', /is full/);
    const [left, moved] = [await node.bodies('N', 'from'), await node.bodies('small', 'to')];
    assert.deepEqual([...left, ...moved].sort(), BODIES);
    assert.ok(moved.length <= 100, `${moved.length} moved`);
    assert.equal(record.changed, moved.length);
  });

  it('keeps ready elements ready, and delays others as requested, after the clock was set back', async () => {
    await startNode();
    for (const { clock } of [near, far]) {
      assert.ok(clock instanceof FakeClock);
      clock.setWallTime(clock.now() - 3_600_000);
    }
    await node.insertMany('N', 'from', 30);
    const moved = await node.run(request, both);
    assert.deepEqual([moved.state, moved.changed], ['done', 30]);
    assert.equal((await node.bodies('far', 'to', ['ready'])).length, 30);
    const source = { ns: 'far', queue: 'to' };
    const delayed = await node.run({ action: 'delay', source, delay: 60_000 }, both);
    assert.deepEqual([delayed.state, delayed.changed], ['done', 30]);
    await passTime(59_000);
    assert.equal((await node.bodies('far', 'to', ['scheduled'])).length, 30);
    await passTime(2_000);
    assert.equal((await node.bodies('far', 'to', ['ready'])).length, 30);
  });

  it('keeps scheduled elements scheduled, with their tries and expiry', async () => {
    await startNode();
    const expiresAt = near.now() + 7_200_000;
    await node.insert('N', 'from', { body: 'late', delayMs: 3_600_000, expiresAt, tries: 2 });
    assert.equal((await node.run(request, both)).changed, 1);
    const [moved] = await node.elements('far', 'to');
    assert.deepEqual([moved?.state, moved?.tries, moved?.expiresAt], ['scheduled', 2, expiresAt]);
  });

  it('gives elements that do not expire no time to live of their new queue, like a move in one engine', async () => {
    await startNode();
    await node.broker.namespace('far').queue('to').storeOptions({ ttlMs: 60_000 });
    await node.insertMany('N', 'from', 1);
    for (const action of ['copy', 'move'])
      assert.equal((await node.run({ ...request, action }, both)).changed, 1);
    const stored = await node.elements('far', 'to');
    assert.deepEqual(
      stored.map(({ expiresAt }) => expiresAt),
      [null, null],
    );
  });
});
