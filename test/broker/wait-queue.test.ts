import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { QuaysideError } from '../../src/model/errors.ts';
import { Waiter, WaitQueueNode } from './wait-queue-node.ts';

describe('a wait queue', () => {
  it('delivers a ready element to a consumer that joins', async () => {
    const node = new WaitQueueNode();
    const id = node.insert();
    const waiter = node.join();
    await node.settle();
    assert.deepEqual(waiter.got, [id]);
    assert.equal(node.isIdle, true);
  });

  it('serves consumers in order of arrival', async () => {
    const node = new WaitQueueNode();
    const waiters = [node.join(), node.join({ leaseMs: 1000 }), node.join()];
    await node.settle();
    const ids = [node.insert(), node.insert(), node.insert()];
    await node.settle();
    assert.deepEqual(
      waiters.map(({ got }) => got),
      ids.map((id) => [id]),
    );
  });

  it('takes for one consumer per inserted element, however many wait', async () => {
    const node = new WaitQueueNode();
    for (let i = 0; i < 5000; i += 1) node.join();
    await node.settle();
    node.takes = 0;
    node.insert();
    await node.settle();
    assert.equal(node.takes, 1);
    assert.equal(node.queue.consumers().length, 4999);
  });

  it('a cancel makes records only of calls with its tid', async () => {
    const { queue } = new WaitQueueNode();
    let records = 0;
    for (const tid of ['x', 'y', null]) {
      const from = {
        protocol: 'http',
        get address() {
          records += 1;
          return '';
        },
      } as const;
      const request = { group: null, leaseMs: null, timeoutMs: null, tid, owner: 'a', from };
      queue.get(request, { deliver: () => {}, end: () => {} });
    }
    assert.equal(await queue.mayBlockOthers('x', 'b'), true);
    assert.equal(records, 1);
  });

  it('does not visit the consumers of a user who waits for a permit to take large elements', async () => {
    const node = new WaitQueueNode();
    const { permits } = node.queue.namespace;
    const endReads = await permits.reads.enter('flood', { size: 5 * 1_048_576 });
    node.insert(0, 100_000);
    let visits = 0;
    const outcomes: string[] = [];
    const get = (owner: () => string, name: string): void => {
      const request = {
        group: null,
        leaseMs: null,
        timeoutMs: null,
        tid: null,
        get owner() {
          return owner();
        },
      };
      node.queue.get(request, { deliver: ({ id }) => outcomes.push(`${name} ${id}`), end: () => {} });
    };
    const flood = (): string => {
      visits += 1;
      return 'flood';
    };
    for (let i = 0; i < 3_000; i += 1) get(flood, 'flood');
    visits = 0;
    get(() => 'honest', 'honest');
    await node.settle();
    assert.deepEqual(outcomes, ['honest e1'], 'the other user is served first');
    for (let i = 0; i < 10; i += 1) node.insert(0, 100_000);
    await node.settle();
    assert.ok(visits < 100, `${visits} visits`);
    endReads();
    await node.settle();
    assert.equal(outcomes.length, 11);
    assert.equal(node.queue.consumers().length, 2_990);
    visits = 0;
    node.insert(0, 100_000);
    await node.settle();
    assert.equal(outcomes.length, 12);
    assert.ok(visits < 100, `${visits} visits of consumers that were parked before`);
    assert.notEqual(permits.reads.tryEnter('flood'), null, 'all permits are back');
  });

  it('serves consumers in the order of arrival when few elements need no permit, although their user waits for one', async () => {
    const node = new WaitQueueNode();
    await node.queue.namespace.permits.reads.enter('flood', { size: 5 * 1_048_576 });
    const outcomes: string[] = [];
    const get = (name: string): void => {
      const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: 'flood' };
      node.queue.get(request, { deliver: ({ id }) => outcomes.push(`${name} ${id}`), end: () => {} });
    };
    for (let i = 0; i < 10; i += 1) node.insert(0, 10_000);
    for (let i = 1; i <= 8; i += 1) get(`${i}`);
    await node.settle();
    assert.deepEqual(outcomes, ['1 e1'], 'the others joined during its take: together they need a permit');
    get('late');
    await node.settle();
    node.insert(0, 10_000);
    await node.settle();
    assert.deepEqual(outcomes, ['1 e1', '2 e2', '3 e3']);
  });

  it('takes in the event-loop turn of the insert, so that both share a round trip', async () => {
    const node = new WaitQueueNode();
    node.join();
    await node.settle();
    node.takes = 0;
    node.insert();
    assert.equal(node.takes, 1);
    await node.settle();
  });

  it('delivers an element that was inserted while a take was in flight', async () => {
    const node = new WaitQueueNode();
    const waiter = node.join();
    const id = node.insert();
    await node.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  it('delivers without delay an element that matures while a take is in flight', async () => {
    const node = new WaitQueueNode();
    const early = node.insert(1000);
    const waiter = node.join();
    node.clock.advance(1000);
    await node.settle();
    assert.deepEqual(waiter.got, [early]);
    const next = node.join();
    const late = node.insert(1000);
    node.clock.advance(1000);
    await node.settle();
    assert.deepEqual(next.got, [late]);
  });

  it('wakes at the earliest maturity, and earlier if an earlier element is inserted', async () => {
    const node = new WaitQueueNode();
    const [first, second] = [node.join(), node.join()];
    await node.settle();
    const late = node.insert(10_000);
    const early = node.insert(1_000);
    node.clock.advance(999);
    await node.settle();
    assert.deepEqual(first.got, []);
    node.clock.advance(1);
    await node.settle();
    assert.deepEqual(first.got, [early]);
    node.clock.advance(9_000);
    await node.settle();
    assert.deepEqual(second.got, [late]);
  });

  it('wakes at a maturity that was stored while a take was in flight', async () => {
    const node = new WaitQueueNode();
    const waiter = node.join();
    const id = node.insert(500);
    await node.settle();
    node.clock.advance(500);
    await node.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  for (const [isShared, withinMs, where] of [
    [false, 45_000, 'in this process'],
    [true, 4_500, 'from other nodes'],
  ] as const) {
    it(`finds elements without a signal by its slow poll, with inserts ${where}`, async () => {
      const node = new WaitQueueNode({ isShared });
      const waiter = node.join();
      await node.settle();
      node.insertSilently();
      node.clock.advance(withinMs);
      await node.settle();
      assert.equal(waiter.got.length, 1);
    });
  }

  it('aligns its slow polls with those of other queues, so that they share a batch of the engine', async () => {
    const node = new WaitQueueNode({ isShared: true });
    node.join();
    await node.settle();
    node.clock.advance(100);
    new Waiter(node.queue.namespace.queue('other'), {});
    await node.settle();
    node.takes = 0;
    const polls: number[] = [];
    for (let ms = 0; ms < 4_500; ms += 1) {
      node.clock.advance(1);
      if (node.takes > 0) polls.push(node.takes);
      node.takes = 0;
    }
    assert.deepEqual(polls, [2]);
  });

  it('answers a call with timeout 0 without waiting: with an element if one is ready, else with pop-timeout', async () => {
    const node = new WaitQueueNode();
    const empty = node.join({ timeoutMs: 0 });
    await node.settle();
    assert.equal(empty.ended?.code, 'pop-timeout');
    const id = node.insert();
    const served = node.join({ timeoutMs: 0 });
    await node.settle();
    assert.deepEqual(served.got, [id]);
    assert.equal(node.clock.pending, 0);
  });

  it('answers a call with timeout 0 that is behind waiting consumers', async () => {
    const node = new WaitQueueNode();
    node.join();
    await node.settle();
    const impatient = node.join({ timeoutMs: 0 });
    await node.settle();
    assert.equal(impatient.ended?.code, 'pop-timeout');
  });

  it('ends a call exactly at its timeout', async () => {
    const node = new WaitQueueNode();
    const waiter = node.join({ timeoutMs: 100 });
    await node.settle();
    node.clock.advance(99);
    assert.equal(waiter.ended?.code, undefined);
    node.clock.advance(1);
    assert.equal(waiter.ended?.code, 'pop-timeout');
    assert.equal(node.isIdle, true);
    assert.equal(node.clock.pending, 0);
  });

  it('delivers an element of a take in flight to a call that times out', async () => {
    const node = new WaitQueueNode();
    const id = node.insert();
    const waiter = node.join({ timeoutMs: 5 });
    node.clock.advance(10);
    await node.settle();
    assert.deepEqual(waiter.got, [id]);
    assert.equal(waiter.ended, null);
  });

  it('delivers an element whose consumer disconnected to the next waiter, or returns it to the queue', async () => {
    const node = new WaitQueueNode();
    const id = node.insert();
    const [gone, next] = [node.join(), node.join()];
    gone.leave();
    await node.settle();
    assert.deepEqual(gone.got, []);
    assert.deepEqual(next.got, [id]);

    const alone = node.join();
    const other = node.insert();
    alone.leave();
    await node.settle();
    assert.deepEqual(
      node.eligible.map((element) => element.id),
      [other],
    );
  });

  it('reserves for consumers with different tids in one take, each with its own tid', async () => {
    const node = new WaitQueueNode();
    const waiters = [{ tid: 'a' }, {}, { tid: 'b', count: 2 }].map((options) =>
      node.join({ leaseMs: 1000, ...options }),
    );
    await node.settle();
    node.takes = 0;
    node.setPaused(true);
    const ids = [node.insert(), node.insert(), node.insert(), node.insert()];
    node.setPaused(false);
    await node.settle();
    assert.equal(node.takes, 1);
    assert.deepEqual(node.lastTids, ['a', null, 'b', 'b']);
    assert.deepEqual(
      waiters.map(({ got }) => got),
      [[ids[0]], [ids[1]], [ids[2], ids[3]]],
    );
  });

  it('returns an element reserved under the tid of a consumer that left, instead of passing it on', async () => {
    const node = new WaitQueueNode();
    const [gone, other] = [node.join({ leaseMs: 1000, tid: 'a' }), node.join({ leaseMs: 1000, tid: 'b' })];
    await node.settle();
    node.setPaused(true);
    const [first, second] = [node.insert(), node.insert()];
    node.setPaused(false);
    gone.leave();
    const late = node.join({ leaseMs: 1000, tid: 'c' });
    await node.settle();
    assert.deepEqual([gone.got, other.got, late.got], [[], [second], [first]]);
    assert.deepEqual(node.undone, [first]);
  });

  it('does not pass a popped element to a consumer that reserves', async () => {
    const node = new WaitQueueNode();
    node.insert();
    const gone = node.join();
    const reserver = node.join({ leaseMs: 1000 });
    gone.leave();
    await node.settle();
    assert.equal(node.undone.length, 1);
    assert.deepEqual(reserver.got, node.undone);
  });

  it('delivers nothing while paused, and continues after resume', async () => {
    const node = new WaitQueueNode();
    const waiter = node.join();
    await node.settle();
    node.setPaused(true);
    const id = node.insert();
    await node.settle();
    assert.deepEqual(waiter.got, []);
    assert.equal(node.clock.pending, 0);
    node.setPaused(false);
    await node.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  it('ends calls that time out on a paused queue', async () => {
    const node = new WaitQueueNode();
    node.setPaused(true);
    const now = node.join({ timeoutMs: 0 });
    const later = node.join({ timeoutMs: 50 });
    assert.equal(now.ended?.code, 'pop-timeout');
    node.clock.advance(50);
    assert.equal(later.ended?.code, 'pop-timeout');
  });

  it('keeps consumers waiting while the engine is unavailable, and ends those with timeout 0 with its error', async () => {
    const node = new WaitQueueNode();
    node.failure = new QuaysideError('storage-unavailable', 'unavailable');
    const patient = node.join();
    const impatient = node.join({ timeoutMs: 0 });
    await node.settle();
    assert.equal(impatient.ended?.code, 'storage-unavailable');
    assert.equal(patient.ended, null);
    node.failure = null;
    node.insertSilently();
    node.clock.advance(5_000);
    await node.settle();
    assert.equal(patient.got.length, 1);
  });

  it('ends consumers whose take may have succeeded although its reply was lost, and keeps the others', async () => {
    const node = new WaitQueueNode();
    const first = node.join();
    const second = node.join({ leaseMs: 1000 });
    const third = node.join();
    await node.settle();
    node.failure = new QuaysideError('outcome-unknown', 'the reply was lost');
    node.insert();
    node.insert();
    await node.settle();
    assert.deepEqual([first.ended?.code, second.ended, third.ended], ['outcome-unknown', null, null]);
    node.failure = null;
    node.clock.advance(5_000);
    await node.settle();
    assert.deepEqual([second.got, third.got, first.got], [['e1'], ['e2'], []]);
  });

  it('keeps them too if the engine undoes a take whose reply was lost', async () => {
    const node = new WaitQueueNode({ undoesLostTakes: true });
    const waiter = node.join();
    node.failure = new QuaysideError('outcome-unknown', 'the reply was lost');
    const id = node.insert();
    await node.settle();
    assert.equal(waiter.ended, null);
    node.failure = null;
    node.clock.advance(5_000);
    await node.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  it('delivers as many elements as are ready, up to the number requested', async () => {
    const node = new WaitQueueNode();
    for (let i = 0; i < 5; i += 1) node.insert();
    const three = node.join({ count: 3 });
    const ten = node.join({ count: 10 });
    await node.settle();
    assert.deepEqual(three.got, ['e1', 'e2', 'e3']);
    assert.deepEqual(ten.got, ['e4', 'e5']);
  });

  it('takes for each of several consumers that request several elements and join while a take is in flight', async () => {
    const node = new WaitQueueNode();
    for (let i = 0; i < 20; i += 1) node.insert();
    const waiters = Array.from({ length: 5 }, () => node.join({ count: 4 }));
    await node.settle();
    assert.deepEqual(
      waiters.map(({ got }) => got.length),
      [4, 4, 4, 4, 4],
    );
  });

  it('survives a sink that throws: its elements go to the next consumer, and the others are ended', async () => {
    const node = new WaitQueueNode();
    const broken = node.join({ count: 2 });
    broken.failure = new Error('broken');
    await node.settle();
    const next = node.join({ count: 2 });
    await node.settle();
    const ids = [node.insert(), node.insert()];
    await node.settle();
    assert.deepEqual([node.undone, next.got.toSorted()], [ids.slice(0, 1), ids]);
    const [brokenEnd, end] = [node.join({ timeoutMs: 5 }), node.join({ timeoutMs: 5 })];
    brokenEnd.failure = broken.failure;
    await node.settle();
    node.clock.advance(5);
    assert.equal(end.ended?.code, 'pop-timeout');
    assert.deepEqual(node.sinkErrors, [broken.failure, broken.failure]);
  });

  it('leaves no eligible element with a waiting consumer when idle, in any interleaving', async () => {
    await fc.assert(
      fc.asyncProperty(fc.scheduler(), fc.array(step, { maxLength: 40 }), async (scheduler, steps) => {
        const node = new WaitQueueNode({ scheduler });
        const waiters: Waiter[] = [];
        for (const run of steps) {
          run(node, waiters);
          if (scheduler.count() > 0 && waiters.length % 2 === 0) await scheduler.waitOne();
        }
        await scheduler.waitIdle();
        await new Promise(setImmediate);
        while (scheduler.count() > 0) await scheduler.waitIdle();

        const waiting = waiters.filter((waiter) => waiter.consumer.state === 'waiting');
        assert.ok(waiting.length === 0 || node.eligible.length === 0, 'a wake-up was lost');
        const got = waiters.flatMap((waiter) => waiter.got);
        assert.equal(new Set(got).size, got.length, 'an element was delivered twice');
        assert.equal(waiters.filter((waiter) => waiter.consumer.state === 'taking').length, 0);
        for (const { consumer, count, got: own, ended } of waiters) {
          if (consumer.state === 'gone')
            assert.ok(own.length <= count && (own.length === 0 || ended === null));
        }
      }),
      { numRuns: Number(process.env.MODEL_RUNS ?? 300) },
    );
  });
});

type Step = (host: WaitQueueNode, waiters: Waiter[]) => void;

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.constant<Step>((node) => {
    node.insert();
  }),
  fc
    .record({ leaseMs: fc.constantFrom(undefined, 1000), count: fc.constantFrom(1, 1, 3) })
    .map<Step>(({ leaseMs, count }) => (node, waiters) => {
      waiters.push(node.join({ count, ...(leaseMs !== undefined && { leaseMs }) }));
    }),
  fc.constant<Step>((node, waiters) => {
    waiters.push(node.join({ timeoutMs: 0 }));
  }),
  fc.nat(20).map<Step>((i) => (_, waiters) => {
    const waiter = waiters[i];
    if (waiter !== undefined) waiter.leave();
  }),
);
