import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import type { Broker } from '../../src/broker/broker.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { SettleItem } from '../../src/engine/storage.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';

const POLICY = plain('N');

describe('a node', () => {
  let opened: TestEngine;
  let engine: Engine;
  const brokers: Broker[] = [];
  const settled: SettleItem[] = [];
  let signals = 0;
  /** Inserts wait for this before they call the engine. */
  let mayStore: Promise<void>;

  beforeEach(async () => {
    opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    mayStore = Promise.resolve();
    engine = engineWith(betweenProcesses(opened.engine), (real) => ({
      insert: (queue, elements, options) => mayStore.then(() => real.insert(queue, elements, options)),
      settle: (items) => {
        settled.push(...items);
        return real.settle(items);
      },
    }));
    signals = 0;
    engine.signaller.subscribe('N', (message) => {
      if ((message as { kind: string }).kind === 'ready') signals += 1;
    });
  });
  afterEach(async () => {
    for (const broker of brokers.splice(0)) await broker.stop();
    await opened.close();
  });

  async function start(): Promise<Broker> {
    const broker = brokerOn([{ policy: POLICY, engine }], opened.clock, brokers.length + 1);
    brokers.push(broker);
    await broker.start();
    return broker;
  }

  async function insert(broker: Broker): Promise<number> {
    const before = signals;
    await broker.namespace('N').queue('q').insert([newElement()]);
    await setImmediate();
    return signals - before;
  }

  it('publishes its inserts while other nodes may exist, and not while it is alone', async () => {
    const broker = await start();
    assert.equal(await insert(broker), 1, 'other nodes may not have announced themselves yet');
    for (let i = 0; i < 3; i += 1) await opened.passTime(2_000);
    assert.equal(await insert(broker), 0);
    const other = await start();
    await setImmediate();
    assert.deepEqual([await insert(broker), await insert(other)], [1, 1]);
    await other.stop();
    for (let i = 0; i < 2; i += 1) await opened.passTime(2_000);
    assert.equal(await insert(broker), 0);
  });

  it('assumes that a tid may be of a call on another node while it may not have seen all nodes', async () => {
    const queue = (await start()).namespace('N').queue('q');
    assert.equal(await queue.mayBlockOthers('t', 'ann'), true);
    for (let i = 0; i < 3; i += 1) await opened.passTime(2_000);
    assert.equal(await queue.mayBlockOthers('t', 'ann'), false);
  });

  it('publishes an insert that started while it was alone if another node appears before it is stored', async () => {
    const broker = await start();
    for (let i = 0; i < 3; i += 1) await opened.passTime(2_000);
    assert.equal(await insert(broker), 0);
    const { promise, resolve } = Promise.withResolvers<void>();
    mayStore = promise;
    const signalled = insert(broker);
    await start();
    await setImmediate();
    resolve();
    assert.equal(await signalled, 1);
  });

  it('finishes an element without copies by a plain commit', async () => {
    const queue = (await start()).namespace('N').queue('q');
    await queue.insert([newElement()]);
    const [delivery] = (await engine.storage.take(queue.key, { group: '', count: 1, leaseMs: 60_000 }))
      .deliveries;
    assert.ok(delivery?.lease);
    const finish = { id: delivery.id, group: '', token: delivery.lease.token };
    assert.deepEqual(await queue.transfer([{ finish, inserts: [] }]), [{ outcome: 'done', until: null }]);
    assert.deepEqual(settled.at(-1)?.action, { kind: 'finish' });
  });
});
