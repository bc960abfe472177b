import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import { FINISH } from '../../src/broker/queue.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { commit, purge } from '../support/settle.ts';

const MAX = 3;
const FULL = { code: 'namespace-full' };

describe('a namespace at its limit', () => {
  let opened: TestEngine;
  let broker: Broker;
  const queue = (name: string, ns = 'N'): Queue => broker.namespace(ns).queue(name);
  const insert = (name: string, ns = 'N', body = 'x'): Promise<string[]> =>
    queue(name, ns).insert([newElement({ body })]);
  const reserve = async (
    name: string,
    ns = 'N',
  ): Promise<{ id: string; group: string; token: string | null }> => {
    const options = { group: '', count: 1, leaseMs: 60_000 };
    const [delivery] = (await opened.engine.storage.take({ ns, name }, options)).deliveries;
    return { id: delivery?.id ?? '', group: '', token: delivery?.lease?.token ?? null };
  };

  beforeEach(async () => {
    const policies = [plain('N', { deadLetter: { maxTries: 1, queue: 'dead' } }), plain('B'), plain('free')];
    const stream = plain('S', { groups: ['a', 'b'] });
    opened = await MEMORY_SQLITE.open({ namespaces: [...policies, stream] });
    const [n, b, free] = policies.map((policy) => ({ policy, engine: opened.engine }));
    if (n === undefined || b === undefined || free === undefined) throw new Error('three were given');
    const s = { policy: stream, engine: opened.engine, maxElements: MAX };
    broker = brokerOn([{ ...n, maxElements: MAX }, { ...b, maxBytes: 2_000_000 }, free, s], opened.clock);
    await broker.start();
  });
  afterEach(async () => {
    await broker.stop();
    await opened.close();
  });

  it('rejects inserts, however many are concurrent, and accepts them again after elements were consumed', async () => {
    const outcomes = await Promise.allSettled(Array.from({ length: 10 }, (_, i) => insert(`q${i}`)));
    assert.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, MAX);
    await assert.rejects(insert('q'), FULL);
    await assert.rejects(queue('q').insert([newElement(), newElement()]), FULL);
    assert.equal((await opened.engine.storage.usage('N')).elements, MAX);
    await queue('q0').settle({ ...(await reserve('q0')), group: null }, FINISH);
    await opened.passTime(1_001);
    await insert('q');
    assert.equal((await opened.engine.storage.usage('N')).elements, MAX);
    await insert('q', 'free');
  });

  it('counts an element of a stream once per group, even if an exchange copies it', async () => {
    const groups = ['a', 'b'];
    const two = newElement({ groups });
    const stream = queue('q', 'S');
    await stream.insert([two]);
    await assert.rejects(stream.insert([newElement({ groups })]), FULL);
    await stream.insert([newElement({ groups: ['a', 'a'] })]);
    assert.equal((await opened.engine.storage.usage('S')).elements, MAX);
    const options = { group: 'a', count: 1, leaseMs: 60_000 };
    const [delivery] = (await opened.engine.storage.take({ ns: 'S', name: 'q' }, options)).deliveries;
    const finish = { id: delivery?.id ?? '', group: 'a', token: delivery?.lease?.token ?? null };
    const move = { finish, inserts: [{ queue: queue('to', 'S'), element: two }] };
    await assert.rejects(stream.transfer([move]), FULL);
  });

  it('accepts the first insert after it was emptied, however long ago the last reading was', async () => {
    for (let i = 0; i < MAX; i += 1) await insert('q');
    await assert.rejects(insert('q'), FULL);
    await purge(opened.engine.storage, { ns: 'N', name: 'q' });
    await opened.passTime(60_000);
    await queue('q').insert([newElement(), newElement(), newElement()]);
    await assert.rejects(insert('q'), FULL);
  });

  it('reads its usage again a second after a reading failed, however long that took', async () => {
    let isAway = false;
    const engine = engineWith(opened.engine, (real) => ({
      usage: async (name, withBytes) => {
        if (!isAway) return real.usage(name, withBytes);
        await opened.passTime(4_500);
        throw new QuaysideError('storage-unavailable', 'No reply.');
      },
    }));
    const again = brokerOn([{ policy: plain('N'), engine, maxElements: MAX }], opened.clock, 2);
    try {
      await again.start();
      const insertAgain = (): Promise<string[]> => again.namespace('N').queue('q').insert([newElement()]);
      for (let i = 0; i < MAX; i += 1) await insertAgain();
      await opened.passTime(1_001);
      isAway = true;
      await assert.rejects(insertAgain(), FULL);
      isAway = false;
      await purge(opened.engine.storage, { ns: 'N', name: 'q' });
      await opened.passTime(1_001);
      await insertAgain();
    } finally {
      await again.stop();
    }
  });

  it('reads its usage again once after removals, for all inserts that wait, and never for rejected ones', async () => {
    let reads = 0;
    const engine = engineWith(opened.engine, (real) => ({
      usage: (name, withBytes) => {
        reads += 1;
        return real.usage(name, withBytes);
      },
    }));
    const again = brokerOn([{ policy: plain('N'), engine, maxElements: MAX }], opened.clock, 2);
    try {
      await again.start();
      const full = again.namespace('N').queue('q');
      const insertAgain = (): Promise<string[]> => full.insert([newElement()]);
      for (let i = 0; i < MAX; i += 1) await insertAgain();
      reads = 0;
      for (let i = 0; i < 5; i += 1) await assert.rejects(insertAgain(), FULL);
      assert.equal(reads, 0);
      for (const removed of [1, 2]) {
        for (let i = 0; i < removed; i += 1) {
          await full.settle({ ...(await reserve('q')), group: null }, FINISH);
        }
        const outcomes = await Promise.allSettled(Array.from({ length: 5 }, insertAgain));
        assert.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, removed);
        for (let i = 0; i < 5; i += 1) await assert.rejects(insertAgain(), FULL);
        assert.equal(reads, removed);
      }
    } finally {
      await again.stop();
    }
  });

  it('accepts an insert into a full queue or namespace after a removal even if the last reading was slow', async () => {
    let isSlow = false;
    const engine = engineWith(opened.engine, (real) => ({
      usage: async (name, withBytes) => {
        if (isSlow) await opened.passTime(400);
        return real.usage(name, withBytes);
      },
      counts: async (key, group) => {
        if (isSlow) await opened.passTime(400);
        return real.counts(key, group);
      },
    }));
    const bounded = plain('N', { queues: [{ pattern: 'full', options: { maxElements: 1 } }] });
    const again = brokerOn([{ policy: bounded, engine, maxElements: 1 }], opened.clock, 2);
    try {
      await again.start();
      const [full, other] = ['full', 'q'].map((name) => again.namespace('N').queue(name)) as [Queue, Queue];
      await full.insert([newElement()]);
      await opened.passTime(1_001);
      isSlow = true;
      await assert.rejects(full.insert([newElement()]), { code: 'queue-full' });
      await assert.rejects(other.insert([newElement()]), FULL);
      isSlow = false;
      await full.settle({ ...(await reserve('full')), group: null }, FINISH);
      await full.insert([newElement()]);
      await full.settle({ ...(await reserve('full')), group: null }, FINISH);
      await other.insert([newElement()]);
    } finally {
      await again.stop();
    }
  });

  it('rejects immediately while a long reading is in progress', async () => {
    let reading: PromiseWithResolvers<void> | null = null;
    const engine = engineWith(opened.engine, (real) => ({
      usage: async (name, withBytes) => {
        await opened.passTime(2_000);
        await reading?.promise;
        return real.usage(name, withBytes);
      },
    }));
    const again = brokerOn([{ policy: plain('N'), engine, maxElements: 0 }], opened.clock, 2);
    try {
      await again.start();
      reading = Promise.withResolvers();
      await opened.passTime(60_000);
      await assert.rejects(again.namespace('N').queue('q').insert([newElement()]), FULL);
    } finally {
      reading?.resolve();
      await again.stop();
    }
  });

  it('does not count inserts that a full queue rejected: a producer that retries takes no capacity from other queues', async () => {
    const bounded = plain('N', { queues: [{ pattern: 'full', options: { maxElements: 1 } }] });
    const again = brokerOn([{ policy: bounded, engine: opened.engine, maxElements: MAX }], opened.clock, 2);
    await again.start();
    const to = (name: string): Promise<string[]> => again.namespace('N').queue(name).insert([newElement()]);
    await to('full');
    for (let i = 0; i < MAX; i += 1) {
      // The queue reads its size again after this time, before it rejects.
      await opened.passTime(50);
      await assert.rejects(to('full'), { code: 'queue-full' });
    }
    await to('other');
    await again.stop();
  });

  it('counts the elements that already exist at its start', async () => {
    for (let i = 0; i < MAX; i += 1) await insert('q');
    const policy = plain('N');
    const again = brokerOn([{ policy, engine: opened.engine, maxElements: MAX }], opened.clock, 2);
    await again.start();
    await assert.rejects(again.namespace('N').queue('q').insert([newElement()]), FULL);
    await again.stop();
  });

  it('still moves dead letters, and accepts transfers that free as much as they add', async () => {
    for (let i = 0; i < MAX; i += 1) await insert('q');
    const release = { kind: 'release', delayMs: 0, countTry: true } as const;
    const died = await queue('q').settle({ ...(await reserve('q')), group: null }, release);
    assert.equal(died.outcome, 'dead-lettered');
    const copy = { queue: queue('to'), element: newElement() };
    const one = await queue('q').transfer([{ finish: await reserve('q'), inserts: [copy] }]);
    assert.equal(one[0]?.outcome, 'done');
    const finish = await reserve('q');
    await assert.rejects(queue('q').transfer([{ finish, inserts: [copy, copy] }]), FULL);
    assert.deepEqual(await commit(opened.engine.storage, { ns: 'N', name: 'q' }, [finish]), ['done']);
  });

  it('rejects by bytes as well, and accepts what fits after bytes were freed', async () => {
    const body = 'x'.repeat(900_000);
    await insert('q', 'B', body);
    await assert.rejects(async () => {
      await insert('q', 'B', body);
      await insert('q', 'B', body);
    }, FULL);
    await purge(opened.engine.storage, { ns: 'B', name: 'q' });
    for (let i = 0; i < 20; i += 1) {
      await opened.passTime(6_000);
      await opened.engine.ping();
    }
    await insert('q', 'B').catch(() => {});
    await opened.engine.ping();
    await new Promise(setImmediate);
    await insert('q', 'B', body);
  });
});
