import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { Delivery } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { MAIN_ENGINES_AND_CLUSTER, type TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { until } from '../support/until.ts';

const POLICY = plain('N', { deadLetter: { maxTries: 2, queue: 'dead' } });
const STREAM = plain('S', { groups: ['default'] });
const LEASE_MS = 10_000;

const release = (delayMs: number) => ({ kind: 'release', delayMs, countTry: true }) as const;

interface OneQueue {
  readonly opened: TestEngine;
  readonly broker: Broker;
  readonly queue: Queue;
  close(): Promise<void>;
}

/** A broker with one namespace on an engine of its own, and its queue `q`. */
async function oneQueue(policy: NamespacePolicy): Promise<OneQueue> {
  const opened = await MEMORY_SQLITE.open({ namespaces: [policy] });
  const broker = brokerOn([{ policy, engine: opened.engine }], opened.clock);
  await broker.start();
  const close = async (): Promise<void> => {
    await broker.stop();
    await opened.close();
  };
  return { opened, broker, queue: broker.namespace(policy.name).queue('q'), close };
}

/** Every way in which an element becomes eligible ends a blocked get; nothing polls for it. */
describe('a blocked get is woken', () => {
  let opened: TestEngine;
  let broker: Broker;
  let queue: Queue;

  let close: () => Promise<void>;

  beforeEach(async () => {
    ({ opened, broker, queue, close } = await oneQueue(POLICY));
  });
  afterEach(() => close());

  const get = (from: Queue, leaseMs: number | null = null): Promise<Delivery> =>
    new Promise((deliver, end) => {
      from.get({ group: null, leaseMs, timeoutMs: null, tid: null, owner: null }, { deliver, end });
    });

  /** A get that is blocked: its take has returned nothing. */
  async function blocked(from = queue): Promise<{ answer: Promise<Delivery> }> {
    const answer = get(from);
    await opened.engine.ping();
    await new Promise(setImmediate);
    return { answer };
  }

  async function reserved(): Promise<{ id: string; group: null; token: string }> {
    await queue.insert([newElement({ body: 'e' })]);
    const { id, lease } = await get(queue, LEASE_MS);
    assert.ok(lease !== null);
    return { id, group: null, token: lease.token };
  }

  it('by an insert', async () => {
    const { answer } = await blocked();
    await queue.insert([newElement({ body: 'e' })]);
    assert.equal(bodyText(await answer), 'e');
  });

  it('when an element matures', async () => {
    await queue.insert([newElement({ body: 'e', delayMs: 5_000 })]);
    const { answer } = await blocked();
    await opened.passTime(5_000);
    assert.equal(bodyText(await answer), 'e');
  });

  it('by a rollback', async () => {
    const ref = await reserved();
    const { answer } = await blocked();
    await queue.settle(ref, release(0));
    assert.equal((await answer).tries, 1);
  });

  it('by a rollback with a delay, after the delay', async () => {
    const ref = await reserved();
    const { answer } = await blocked();
    await queue.settle(ref, release(3_000));
    await opened.passTime(3_000);
    assert.equal((await answer).tries, 1);
  });

  it('by an expired lease', async () => {
    await reserved();
    const { answer } = await blocked();
    await opened.passTime(LEASE_MS);
    assert.equal((await answer).tries, 1);
  });

  it('by an element that is returned undelivered', async () => {
    await queue.insert([newElement({ body: 'e' })]);
    const unseen = await get(queue);
    const { answer } = await blocked();
    queue.returnAllUndelivered([unseen]);
    assert.equal((await answer).tries, 0);
  });

  it('by a reservation that is returned undelivered, even if the reply of the engine is lost', async () => {
    const node = brokerOn(
      [
        {
          policy: POLICY,
          engine: engineWith(opened.engine, (real) => ({
            settle: async (...args) => {
              await real.settle(...args);
              throw new QuaysideError('outcome-unknown', 'planted');
            },
          })),
        },
      ],
      opened.clock,
      2,
    );
    await node.start();
    const own = node.namespace('N').queue('q');
    await own.insert([newElement({ body: 'e' })]);
    const unseen = await get(own, LEASE_MS);
    const { answer } = await blocked(own);
    own.returnAllUndelivered([unseen]);
    assert.equal((await answer).tries, 0);
    await node.stop();
  });

  it('by a dead letter that arrives in its dead-letter queue', async () => {
    const ref = await reserved();
    await queue.settle(ref, release(0));
    const { answer } = await blocked(broker.namespace('N').queue('dead'));
    const again = await get(queue, LEASE_MS);
    await queue.settle({ id: again.id, group: null, token: null }, release(0));
    assert.equal(bodyText(await answer), 'e');
  });

  it('by a bury without a dead-letter queue, which returns the element', async () => {
    await queue.storeOptions({ deadLetter: null });
    const ref = await reserved();
    const { answer } = await blocked();
    const { outcome } = await queue.settle(ref, { kind: 'dead-letter', countTry: true, reason: null });
    assert.equal(outcome, 'done');
    assert.equal((await answer).tries, 1);
  });

  it('by a resume', async () => {
    await queue.pause();
    await queue.insert([newElement({ body: 'e' })]);
    const { answer } = await blocked();
    await queue.resume();
    assert.equal(bodyText(await answer), 'e');
  });
});

describe('blocked gets on a bounded queue', () => {
  it('are woken by one take per insert, whether or not the size of the queue was known', async () => {
    const policy = plain('N', { queues: [{ pattern: 'q', options: { maxElements: 5 } }] });
    const opened = await MEMORY_SQLITE.open({ namespaces: [policy] });
    let takes = 0;
    const engine = engineWith(opened.engine, (real) => ({
      take: (key, options) => {
        takes += 1;
        return real.take(key, options);
      },
    }));
    const broker = brokerOn([{ policy, engine }], opened.clock);
    try {
      await broker.start();
      const queue = broker.namespace('N').queue('q');
      const answers: string[] = [];
      const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
      const deliver = (delivery: Delivery): unknown => answers.push(bodyText(delivery));
      /** Time enough for a take that finds nothing to return. */
      const settle = async (): Promise<void> => {
        await opened.engine.ping();
        await new Promise(setImmediate);
        await opened.engine.ping();
        await new Promise(setImmediate);
      };
      for (let i = 0; i < 3; i += 1) queue.get(request, { deliver, end: () => {} });
      await settle();
      for (const body of ['first', 'second']) {
        takes = 0;
        await queue.insert([newElement({ body })]);
        await settle();
        assert.equal(takes, 1, `takes for the ${body} insert`);
      }
      assert.deepEqual(answers, ['first', 'second']);
    } finally {
      await broker.stop();
      await opened.close();
    }
  });
});

describe('a blocked get of a group that was requested from within the end of another get', () => {
  it('is listed, served and counted like any other', async () => {
    const { opened, broker, queue, close } = await oneQueue(STREAM);
    const ask = (timeoutMs: number | null): Promise<Delivery> =>
      new Promise((deliver, end) => {
        const request = { group: 'g', leaseMs: null, timeoutMs, tid: null, owner: null };
        queue.get(request, {
          deliver,
          end: (reason) => (timeoutMs === 0 ? deliver(ask(null)) : end(reason)),
        });
      });
    const answer = ask(0);
    await until(() => queue.consumers().length > 0 && broker.waiting <= 1);
    await opened.engine.ping();
    await new Promise(setImmediate);
    assert.equal(queue.consumers().length, 1);
    await queue.insert([newElement({ body: 'e', groups: ['g'] })]);
    assert.equal(bodyText(await answer), 'e');
    assert.equal(broker.waiting, 0);
    await close();
  });
});

/** The engine's clock does not advance, so no poll helps: a get is woken, or the test times out. */
for (const kind of MAIN_ENGINES_AND_CLUSTER) {
  describe(`an element of a stream that becomes eligible on another node, on ${kind.name}`, () => {
    let opened: TestEngine;
    let brokers: readonly Broker[];
    /** The groups in which the nodes took since the last `blocked`. */
    const taken: string[] = [];

    beforeEach(async () => {
      opened = await kind.open({ namespaces: [STREAM] });
      const { engine } = opened;
      const shared = engineWith(
        engine.signaller.type === 'local' ? betweenProcesses(engine) : engine,
        (real) => ({
          take: (queue, options) => {
            taken.push(options.group);
            return real.take(queue, options);
          },
        }),
      );
      brokers = [1, 2].map((seed) => brokerOn([{ policy: STREAM, engine: shared }], opened.clock, seed));
      for (const broker of brokers) await broker.start();
    });
    afterEach(async () => {
      for (const broker of brokers) await broker.stop();
      await opened.close();
    });

    const queueOn = (node: number): Queue => (brokers[node] as Broker).namespace('S').queue('q');

    /** A consumer that waits on the second node: its first take has returned nothing, since this later one does. */
    async function blocked(group: string): Promise<{ delivered: Promise<Delivery> }> {
      const delivered = new Promise<Delivery>((deliver) => {
        const request = { group, leaseMs: LEASE_MS, timeoutMs: null, tid: null, owner: null };
        queueOn(1).get(request, { deliver, end: () => {} });
      });
      const pop = { group, count: 1, leaseMs: null };
      assert.deepEqual((await opened.engine.storage.take(queueOn(1).key, pop)).deliveries, []);
      taken.length = 0;
      return { delivered };
    }

    it('wakes the consumers of its groups alone', async () => {
      await blocked('other');
      const first = await blocked('mine');
      await queueOn(0).insert([newElement({ groups: ['mine', 'third'] })]);
      const { id, lease } = await first.delivered;
      assert.deepEqual(taken, ['mine']);
      const again = await blocked('mine');
      await queueOn(0).settle({ id, group: 'mine', token: lease?.token ?? null }, release(0));
      assert.equal((await again.delivered).tries, 1);
      assert.deepEqual(taken, ['mine']);
    });

    it('wakes the consumers of each of its groups, however many there are', async () => {
      const groups = Array.from({ length: 64 }, (_, i) => `group ${i}`);
      const waiting = await Promise.all(groups.map(blocked));
      await queueOn(0).insert([newElement({ groups })]);
      const delivered = await Promise.all(waiting.map((each) => each.delivered));
      assert.deepEqual(
        delivered.map(({ group }) => group),
        groups,
      );
    });
  });
}

describe('a consumer that leaves while its take is in flight', () => {
  for (const leaseMs of [null, LEASE_MS]) {
    it(`is counted in no statistic: ${leaseMs === null ? 'get' : 'reserve'}`, async () => {
      const { broker, queue, close } = await oneQueue(POLICY);
      await queue.insert([newElement({ body: 'e' })]);
      const request = { group: null, leaseMs, timeoutMs: null, tid: null, owner: null };
      const unexpected = (): void => assert.fail('the consumer has left');
      queue.leave(queue.get(request, { deliver: unexpected, end: unexpected }));
      const record = () => broker.namespace('N').visit('q').status(null);
      await until(async () => (await record()).size === 1);
      const { get, reserve } = (await record()).stats;
      assert.deepEqual([get, reserve], [0, 0]);
      await close();
    });
  }
});

describe('the consumers of a queue', () => {
  it('are listed in order of arrival, across groups and within the same millisecond', async () => {
    const { queue, close } = await oneQueue(STREAM);
    const tids = ['g3', 'g1', 'g3', 'g2', 'g1'].map((group, i) => {
      const request = { group, leaseMs: null, timeoutMs: null, tid: `t${i}`, owner: null };
      queue.get(request, { deliver: () => {}, end: () => {} });
      return request.tid;
    });
    assert.deepEqual(
      queue.consumers().map(({ tid }) => tid),
      tids,
    );
    await close();
  });
});
