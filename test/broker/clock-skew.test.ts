import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Delivery } from '../../src/model/element.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { FakeClock, skewed } from '../support/clock.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { until } from '../support/until.ts';

const POLICY = plain('N');

for (const [how, skewMs] of [
  ['an hour ahead of', 3_600_000],
  ['half a second ahead of', 500],
  ['ten seconds behind', -10_000],
] as const) {
  describe(`a node whose clock is ${how} its engine's`, () => {
    let opened: TestEngine;
    let broker: Broker;
    let queue: Queue;
    let asked: Record<'take' | 'sweep', number>;

    beforeEach(async () => {
      asked = { take: 0, sweep: 0 };
      opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
      broker = brokerOn([{ policy: POLICY, engine: counted(opened.engine) }], skewed(opened.clock, skewMs));
      await broker.start();
      queue = broker.namespace('N').queue('q');
    });

    afterEach(async () => {
      await broker.stop();
      await opened.close();
    });

    const counted = (engine: Engine): Engine =>
      engineWith(engine, (real) => ({
        take: (queue, options) => {
          asked.take += 1;
          return real.take(queue, options);
        },
        sweep: () => {
          asked.sweep += 1;
          return real.sweep();
        },
      }));

    const get = (leaseMs: number | null): Promise<Delivery> =>
      new Promise((deliver, end) => {
        queue.get({ group: null, leaseMs, timeoutMs: null, tid: null, owner: null }, { deliver, end });
      });

    /** Advances in small steps, so that repeated polling would show. */
    async function pass(ms: number): Promise<void> {
      for (let passed = 0; passed < ms; passed += 20) {
        await opened.passTime(20);
        await opened.engine.ping();
      }
    }

    it('delivers an element when its delay or moment has passed by the engine’s clock', async () => {
      for (const timing of [() => ({ delayMs: 2_000 }), () => ({ matureAt: opened.now() + 2_000 })]) {
        await queue.insert([newElement({ body: 'e', ...timing() })]);
        const answer = get(null);
        let got = false;
        void answer.then(() => {
          got = true;
        });
        await pass(1_980);
        assert.equal(got, false);
        asked.take = 0;
        await pass(40);
        assert.equal(bodyText(await answer), 'e');
        assert.ok(asked.take <= 2, `${asked.take} takes`);
      }
    });

    it('sweeps when a lease expires by the engine’s clock, and rarely before', async () => {
      await queue.insert([newElement({ body: 'e' })]);
      await get(2_000);
      const answer = get(null);
      asked.sweep = 0;
      await pass(1_980);
      assert.ok(asked.sweep <= 1, `${asked.sweep} sweeps`);
      await pass(40);
      assert.equal((await answer).tries, 1);
    });
  });
}

describe('a node on SQLite whose clock is set back by an hour', () => {
  it('serves blocked gets after a delay, expires leases, and makes a bounded number of engine calls', async () => {
    const opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    const { clock } = opened;
    assert.ok(clock instanceof FakeClock);
    let takes = 0;
    const engine = engineWith(opened.engine, (real) => ({
      take: (queue, options) => {
        takes += 1;
        return real.take(queue, options);
      },
    }));
    const broker = brokerOn([{ policy: POLICY, engine }], opened.clock);
    await broker.start();
    const queue = broker.namespace('N').queue('q');
    const get = (leaseMs: number | null): Promise<string> =>
      new Promise((deliver, end) => {
        const options = { group: null, leaseMs, timeoutMs: null, tid: null, owner: null };
        queue.get(options, { deliver: (delivery) => deliver(bodyText(delivery)), end });
      });
    const pass = async (ms: number): Promise<void> => {
      for (let passed = 0; passed < ms; passed += 20) {
        await opened.passTime(20);
        await opened.engine.ping();
      }
    };
    try {
      await queue.insert([newElement({ body: 'reserved' })]);
      assert.equal(await get(3_000), 'reserved');
      await queue.insert([newElement({ body: 'delayed', delayMs: 2_000 })]);
      const answers: string[] = [];
      const first = get(null).then((body) => answers.push(body));
      const second = get(null).then((body) => answers.push(body));
      clock.setWallTime(clock.now() - 3_600_000);
      await queue.insert([newElement({ body: 'ready' })]);
      await first;
      takes = 0;
      await pass(1_980);
      assert.deepEqual(answers, ['ready']);
      await pass(80);
      await second;
      assert.deepEqual(answers, ['ready', 'delayed']);
      const third = get(null);
      await pass(1_100);
      assert.equal(await third, 'reserved');
      assert.ok(takes <= 20, `${takes} takes`);
    } finally {
      await broker.stop();
      await opened.close();
    }
  });

  it('delivers a delayed element in time although another was taken in between', async () => {
    const opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    const { clock } = opened;
    assert.ok(clock instanceof FakeClock);
    const broker = brokerOn([{ policy: POLICY, engine: opened.engine }], clock);
    await broker.start();
    try {
      const queue = broker.namespace('N').queue('q');
      const answers: string[] = [];
      const get = (): Promise<void> =>
        new Promise((resolve, reject) => {
          const deliver = (delivery: Delivery): void => {
            answers.push(bodyText(delivery));
            resolve();
          };
          const options = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
          queue.get(options, { deliver, end: reject });
        });
      await queue.insert([newElement({ body: 'delayed', delayMs: 2_000 })]);
      const gets = [get(), get()];
      await until(() => queue.consumers().every(({ wakeup_timeout }) => wakeup_timeout === 'set'));
      clock.setWallTime(clock.now() - 3_600_000);
      await queue.insert([newElement({ body: 'ready' })]);
      await gets[0];
      for (let passed = 0; passed < 2_060; passed += 20) {
        await opened.passTime(20);
        await opened.engine.ping();
      }
      assert.deepEqual(answers, ['ready', 'delayed']);
    } finally {
      await broker.stop();
      await opened.close();
    }
  });

  it('does not extend the time to live of elements', async () => {
    const policy = plain('N', { queues: [{ pattern: '*', options: { ttlMs: 10_000 } }] });
    const opened = await MEMORY_SQLITE.open({ namespaces: [policy] });
    const { clock } = opened;
    assert.ok(clock instanceof FakeClock);
    const broker = brokerOn([{ policy, engine: opened.engine }], clock);
    await broker.start();
    try {
      const queue = broker.namespace('N').queue('q');
      clock.setWallTime(clock.now() - 3_600_000);
      await queue.insert([newElement({ body: 'e' })]);
      await opened.passTime(9_990);
      await opened.engine.storage.sweep();
      assert.equal((await queue.counts()).ready, 1);
      await opened.passTime(120);
      await opened.engine.storage.sweep();
      assert.equal((await queue.counts()).ready, 0);
    } finally {
      await broker.stop();
      await opened.close();
    }
  });
});
