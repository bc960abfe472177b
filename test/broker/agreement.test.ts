import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import type { Broker } from '../../src/broker/broker.ts';
import type { Configured } from '../../src/broker/cluster.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Signaller } from '../../src/engine/signaller.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { until } from '../support/until.ts';

const POLICY = plain('N');

describe('Nodes of a namespace', () => {
  let opened: TestEngine;
  let signaller: Signaller;
  let engine: Engine;
  const brokers: Broker[] = [];

  /** A node on the shared engine, with signals as between processes. */
  const node = (configured: Configured): Broker => {
    const broker = brokerOn([{ policy: POLICY, engine, configured }], opened.clock, brokers.length + 1);
    brokers.push(broker);
    return broker;
  };
  const passUntil = async (condition: () => boolean, stepMs = 1_000): Promise<void> => {
    // The engine replies from its own thread, in real time.
    await until(async () => {
      await opened.passTime(stepMs);
      return condition();
    });
  };
  const conflictsAt = (broker: Broker): object[] => broker.nodes().flatMap(({ conflicts }) => [...conflicts]);

  beforeEach(async () => {
    opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    engine = betweenProcesses(opened.engine);
    ({ signaller } = engine);
  });

  afterEach(async () => {
    for (const broker of brokers.splice(0)) await broker.stop();
    await opened.close();
  });

  it('list configuration conflicts until one of them stops', async () => {
    const [a, b] = [node({ variant: 'simple', lease: '60' }), node({ variant: 'simple', lease: '90' })];
    await a.start();
    await b.start();
    await opened.passTime(0);
    assert.deepEqual(conflictsAt(a), [{ namespace: 'N', option: 'lease', here: '60', there: '90' }]);
    assert.deepEqual(conflictsAt(b), [{ namespace: 'N', option: 'lease', here: '90', there: '60' }]);
    await b.stop();
    await opened.passTime(0);
    assert.deepEqual(conflictsAt(a), []);
  });

  it('treat a node of a version that sends no configuration as agreeing', async () => {
    const a = node({ variant: 'simple' });
    await a.start();
    const old = { id: 'old', host: 'h', pid: 1, version: '0.0.1', startedAt: 0 };
    signaller.publish('N', { kind: 'node', node: old, first: false, ns: 'N', from: 'old' });
    await opened.passTime(0);
    assert.equal(a.nodes().length, 2);
    assert.deepEqual(conflictsAt(a), []);
  });

  it('warn of each version of another node whose MINOR differs, and again of one that comes after that node has gone', async () => {
    const warned: object[] = [];
    const log = { info: () => {}, warn: (fields: object) => void warned.push(fields) };
    const own = brokerOn([{ policy: POLICY, engine }], opened.clock, 1, log, '1.2.3');
    brokers.push(own);
    await own.start();
    const appear = (id: string, version: string): void => {
      const there = { id, host: 'h', pid: 1, version, startedAt: 0 };
      signaller.publish('N', { kind: 'node', node: there, first: false, ns: 'N', from: id });
    };
    for (const [id, version] of Object.entries({ a: '1.2.9', b: '1.1.3', c: '1.1.3', d: '2.2.3' }))
      appear(id, version);
    await opened.passTime(0);
    const seen = (id: string, there: string): object => {
      return { event: 'versions-differ', here: '1.2.3', there, node: { id, host: 'h', pid: 1 } };
    };
    assert.deepEqual(warned.splice(0), [seen('b', '1.1.3'), seen('d', '2.2.3')]);
    signaller.publish('N', { kind: 'gone', ns: 'N', from: 'b' });
    await opened.passTime(0);
    appear('e', '1.1.3');
    appear('d', '2.2.3');
    await opened.passTime(0);
    assert.deepEqual(warned, [seen('e', '1.1.3')]);
  });

  it('warn if the engine has lost the data of a namespace, whichever node notices it first', async () => {
    const warned = new Map<Broker, string[]>();
    const start = async (seed: number): Promise<Broker> => {
      const events: string[] = [];
      const log = {
        info: () => {},
        warn: (fields: { event?: string }) => void events.push(`${fields.event}`),
      };
      const namespace = { policy: POLICY, engine, configured: { variant: 'simple' } };
      const broker = brokerOn([namespace], opened.clock, seed, log);
      brokers.push(broker);
      await broker.start();
      warned.set(broker, events);
      return broker;
    };
    const [a, b] = [await start(1), await start(2)];
    const lossesOf = (broker: Broker): number => broker.namespace('N').cluster.dataLosses;
    const total = (): number => lossesOf(a) + lossesOf(b);
    assert.equal(await engine.definitions.delete('namespace', 'N', 'any'), true);
    await passUntil(() => total() === 2);
    assert.deepEqual([...warned.values()], [['data-lost'], ['data-lost']]);
    const end = opened.clock.now() + 180_000;
    await passUntil(() => opened.clock.now() >= end);
    assert.deepEqual([lossesOf(a), lossesOf(b)], [1, 1]);
  });

  it('do not report a loss if others changed the variant and back while one was suspended', async () => {
    const own = {
      policy: POLICY,
      engine: betweenProcesses(opened.engine),
      configured: { variant: 'simple' },
    };
    const suspended = brokerOn([own], opened.clock, 99);
    brokers.push(suspended);
    await suspended.start();
    for (const variant of ['stream', 'simple']) {
      const other = node({ variant });
      let isStarted = false;
      const starting = other.start().then(() => {
        isStarted = true;
      });
      await passUntil(() => isStarted, 500);
      await starting;
      await other.stop();
    }
    const { cluster } = suspended.namespace('N');
    const end = opened.clock.now() + 180_000;
    await passUntil(() => opened.clock.now() >= end);
    assert.equal(cluster.dataLosses, 0);
    await engine.definitions.delete('namespace', 'N', 'any');
    await passUntil(() => cluster.dataLosses === 1);
  });

  it('start with another variant only after other nodes had time to announce themselves', async () => {
    const a = node({ variant: 'simple' });
    await a.start();
    const refused = node({ variant: 'stream' });
    await assert.rejects(refused.start(), {
      message: /^Node \w+ \(process 0 on \) serves namespace N with variant simple, this one with stream\.$/,
    });
    await refused.stop();
    await a.stop();
    const alone = node({ variant: 'stream' });
    let isStarted = false;
    const starting = alone.start().then(() => {
      isStarted = true;
    });
    let passed = 0;
    while (!isStarted) {
      // The engine replies from its own thread, in real time.
      await setImmediate();
      await opened.passTime(500);
      passed += 500;
    }
    assert.ok(passed >= 4_500, `${passed}`);
    await starting;
    const again = node({ variant: 'stream' });
    await again.start();
    assert.deepEqual(conflictsAt(again), []);
  });
});
