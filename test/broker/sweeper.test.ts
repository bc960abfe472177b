import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Delivery } from '../../src/model/element.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { until } from '../support/until.ts';

const POLICY = plain('N');
const LEASE_MS = 1_000;

/** Two nodes on one engine. The test can delay the results of the first node's sweeps. */
describe('expired leases', () => {
  let opened: TestEngine;
  let brokers: Broker[];
  let queue: Queue;
  let elsewhere: Queue;
  /** Results of sweeps wait for this. */
  let held: Promise<void>;
  let sweeps: number;

  beforeEach(async () => {
    held = Promise.resolve();
    sweeps = 0;
    opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    const { clock } = opened;
    const engine = betweenProcesses(opened.engine);
    const first = brokerOn([{ policy: POLICY, engine: withSlowSweeps(engine) }], clock);
    const second = brokerOn([{ policy: POLICY, engine }], clock, 2);
    brokers = [first, second];
    for (const broker of brokers) await broker.start();
    queue = first.namespace('N').queue('q');
    elsewhere = second.namespace('N').queue('q');
  });

  afterEach(async () => {
    for (const broker of brokers) await broker.stop();
    await opened.close();
  });

  const withSlowSweeps = (engine: Engine): Engine =>
    engineWith(engine, (real) => ({
      sweep: async () => {
        const result = await real.sweep();
        sweeps += 1;
        await held;
        return result;
      },
    }));

  const get = (from: Queue, count: number, leaseMs: number | null): Promise<Delivery[]> =>
    new Promise((resolve, end) => {
      const deliver = (delivery: Delivery, more: readonly Delivery[]): void => resolve([delivery, ...more]);
      from.get({ group: null, leaseMs, count, timeoutMs: null, tid: null, owner: null }, { deliver, end });
    });

  const insert = (count: number): Promise<unknown> =>
    queue.insert(Array.from({ length: count }, (_, i) => newElement({ body: `${i}` })));

  async function swept(count: number): Promise<void> {
    await until(() => sweeps >= count);
  }

  it('are found if a lease starts and ends during a sweep, and afterwards', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    await insert(2);
    await get(queue, 1, LEASE_MS);
    held = promise;
    await opened.passTime(LEASE_MS);
    await swept(sweeps + 1);
    // A sweep is in progress that started before this lease.
    const begun = sweeps;
    await get(queue, 1, LEASE_MS / 2);
    await opened.passTime(LEASE_MS / 2);
    resolve();
    await new Promise(setImmediate);
    await opened.passTime(1);
    await swept(begun + 1);
    // Both elements are ready again, and the next lease expires on time as well.
    assert.equal((await get(queue, 2, LEASE_MS)).length, 2);
    const again = sweeps;
    await opened.passTime(LEASE_MS);
    await swept(again + 1);
  });

  it('wake all consumers that wait on another node', async () => {
    await insert(20);
    assert.equal((await get(queue, 20, LEASE_MS)).length, 20);
    const waiting = Array.from({ length: 20 }, () => get(elsewhere, 1, null));
    await opened.engine.ping();
    await new Promise(setImmediate);
    await opened.passTime(LEASE_MS);
    assert.equal((await Promise.all(waiting)).flat().length, 20);
  });
});
