import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { QuaysideError } from '../../src/model/errors.ts';
import { seededRandom } from '../support/random.ts';
import { JointTakeNode, type JointWaiter } from './joint-take-node.ts';

const UNAVAILABLE = new QuaysideError('storage-unavailable', 'unavailable');

describe('a joint take from several queues', () => {
  it('fills up in the order of its queues, and leaves elements beyond `count`', async () => {
    const node = new JointTakeNode();
    for (const path of ['A/p', 'A/q', 'B/r']) for (let i = 0; i < 3; i++) node.insert(path);
    const waiter = node.join({ from: ['B/r', 'A/p', 'A/q'], count: 5 });
    await node.settle();
    assert.deepEqual(waiter.got, [
      ['B/r', ['e7', 'e8', 'e9']],
      ['A/p', ['e1', 'e2']],
    ]);
    assert.equal(node.left().length, 4);
    assert.deepEqual([node.engines.A?.returned, node.engines.B?.returned], [[], []]);
    assert.deepEqual([node.broker.waiting, node.clock.pending], [0, 0]);
  });

  it('takes from only one of several queues that get elements at the same moment', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p', 'A/q', 'B/r'], count: 10 });
    await node.settle();
    for (const engine of Object.values(node.engines)) engine.takes = 0;
    for (const path of ['B/r', 'A/q', 'A/p']) node.insert(path);
    await node.settle();
    assert.deepEqual(waiter.got, [['B/r', ['e1']]]);
    assert.equal((node.engines.A?.takes ?? 0) + (node.engines.B?.takes ?? 0), 1);
    assert.equal(node.left().length, 2);
  });

  it('is a consumer of each queue, and does not block those behind it', async () => {
    const node = new JointTakeNode();
    const joint = node.join({ from: ['A/p', 'A/q'] });
    await node.settle();
    const got: string[] = [];
    const sink = { deliver: ({ id }: { id: string }) => void got.push(id), end: () => {} };
    node.queue('A/q').get({ group: null, leaseMs: null, timeoutMs: null, tid: null, owner: 'u' }, sink);
    await node.settle();
    // The joint take is busy in A/p when A/q gets an element, so the consumer behind it takes that element.
    node.insertSilently('A/q');
    node.insert('A/p');
    node.queue('A/q').match(1);
    await node.settle();
    assert.deepEqual([joint.ids, got], [['e2'], ['e1']]);
  });

  it('looks again in a queue that got elements while its take from another one was in flight', async () => {
    const node = new JointTakeNode();
    const joint = node.join({ from: ['A/p', 'A/q'] });
    await node.settle();
    node.queue('A/p').match(1);
    node.insert('A/q');
    await node.settle();
    assert.deepEqual(joint.ids, ['e1']);
  });

  it('looks in the first of many queues, counts the others concurrently, and looks only in those with elements', async () => {
    const node = new JointTakeNode();
    const many = Array.from({ length: 50 }, (_, i) => `${i % 2 === 0 ? 'A' : 'B'}/q${i}`);
    node.insert('B/q7');
    node.insert('A/q40');
    const waiter = node.join({ from: many, count: 3, timeoutMs: 0 });
    await node.settle();
    assert.deepEqual(waiter.ids, ['e1', 'e2']);
    assert.equal((node.engines.A?.takes ?? 0) + (node.engines.B?.takes ?? 0), 3);
    const none = node.join({ from: many, timeoutMs: 0 });
    await node.settle();
    assert.equal(none.ended?.code, 'pop-timeout');
    node.insert('A/q0');
    const counted = (node.engines.A?.counted ?? 0) + (node.engines.B?.counted ?? 0);
    const first = node.join({ from: many, timeoutMs: 0 });
    await node.settle();
    assert.deepEqual(first.ids, ['e3']);
    assert.equal(
      (node.engines.A?.counted ?? 0) + (node.engines.B?.counted ?? 0),
      counted,
      'nothing is counted',
    );
  });

  it('misses no element inserted during its first look through the queues', async () => {
    for (const path of ['A/p', 'A/q', 'B/r']) {
      const node = new JointTakeNode();
      const joint = node.join({ from: ['A/p', 'A/q', 'B/r'] });
      node.pending.shift()?.();
      await new Promise(setImmediate);
      node.insert(path);
      await node.settle();
      assert.deepEqual(joint.ids, ['e1'], path);
    }
  });

  it('misses no element inserted while a count for a call that has left is in flight', async () => {
    const node = new JointTakeNode();
    const from = ['B/r', 'A/q', 'B/s'];
    const other = node.join({ from: ['A/p', 'A/q'] });
    await node.settle();
    node.insert('A/p');
    const takeForOther = node.pending.shift();
    const gone = node.join({ from });
    node.pending.shift()?.();
    await new Promise(setImmediate);
    // It waits for counts of the second and third queue.
    gone.leave();
    node.insert('A/q');
    const waiter = node.join({ from });
    // Its take from the first queue returns before those counts.
    node.pending.pop()?.();
    await new Promise(setImmediate);
    takeForOther?.();
    await node.settle();
    assert.deepEqual([other.ids, waiter.ids], [['e1'], ['e2']]);
  });

  it('gets an element that was scheduled before it joined when the element matures, in whichever queue', async () => {
    const from = ['A/p', 'A/q', 'B/r'];
    for (const path of from) {
      const node = new JointTakeNode();
      node.insert(path, { delayMs: 1000 });
      const waiter = node.join({ from });
      await node.settle();
      node.clock.advance(999);
      await node.settle();
      assert.deepEqual(waiter.ids, [], path);
      node.clock.advance(1);
      await node.settle();
      assert.deepEqual(waiter.ids, ['e1'], path);
    }
  });

  it('ends at its timeout, but still gets elements of a take in flight', async () => {
    const node = new JointTakeNode();
    const late = node.join({ from: ['A/p', 'B/q'], timeoutMs: 100 });
    await node.settle();
    node.clock.advance(100);
    assert.equal(late.ended?.code, 'pop-timeout');
    const lucky = node.join({ from: ['A/p', 'B/q'], timeoutMs: 100 });
    await node.settle();
    node.insert('B/q');
    node.clock.advance(100);
    await node.settle();
    assert.deepEqual([lucky.ids, lucky.answers], [['e1'], 1]);
    const unlucky = node.join({ from: ['A/p', 'B/q'], timeoutMs: 100 });
    await node.settle();
    node.queue('A/p').match(1);
    node.clock.advance(100);
    assert.equal(unlucky.answers, 0);
    await node.settle();
    assert.deepEqual([unlucky.ended?.code, unlucky.answers], ['pop-timeout', 1]);
    assert.deepEqual([node.broker.waiting, node.clock.pending], [0, 0]);
  });

  it('takes from the other queues while an engine is unavailable, and reports the error only if it does not wait', async () => {
    const node = new JointTakeNode();
    if (node.engines.A !== undefined) node.engines.A.failure = UNAVAILABLE;
    const at0 = node.join({ from: ['A/p', 'A/q', 'B/r'], timeoutMs: 0 });
    await node.settle();
    assert.equal(at0.ended?.code, 'storage-unavailable');
    assert.equal(node.engines.A?.takes, 1, 'the second queue of the failed engine is not queried');
    const waiter = node.join({ from: ['A/p', 'A/q', 'B/r'] });
    await node.settle();
    node.insert('B/r');
    await node.settle();
    assert.deepEqual(waiter.ids, ['e1']);
    const later = node.join({ from: ['A/p', 'B/r'] });
    await node.settle();
    if (node.engines.A !== undefined) node.engines.A.failure = null;
    node.insertSilently('A/p');
    await node.pass(6_000, 100);
    assert.deepEqual(later.ids, ['e2']);
  });

  it('finds elements without a signal by its slow poll', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p', 'B/q'] });
    await node.settle();
    node.insertSilently('B/q');
    await node.pass(45_000, 1_000);
    assert.deepEqual(waiter.ids, ['e1']);
  });

  it('returns everything it took if its client leaves or it is cancelled during its look', async () => {
    for (const end of ['leave', 'cancel', 'drain'] as const) {
      for (const leaseMs of [null, 1000]) {
        const node = new JointTakeNode();
        for (const path of ['A/p', 'A/p', 'B/q', 'A/r']) node.insert(path);
        const waiter = node.join({ from: ['A/p', 'B/q', 'A/r'], count: 4, leaseMs, tid: 't' });
        for (let i = 0; i < 2; i++) {
          node.pending.shift()?.();
          for (let turn = 0; turn < 3; turn++) await new Promise(setImmediate);
        }
        if (end === 'leave') waiter.leave();
        else if (end === 'cancel') node.queue('A/r').cancel('t', null);
        else node.broker.drain();
        await node.settle();
        assert.equal(node.left().length, 4, `${end} ${leaseMs}`);
        assert.deepEqual(waiter.ids, []);
        const code = { leave: undefined, cancel: 'pop-cancelled', drain: 'shutting-down' }[end];
        assert.equal(waiter.ended?.code, code);
        assert.equal(node.broker.waiting, 0);
        // Reservations leave a timer of the sweeper, which knows when they would have expired.
        if (leaseMs === null) assert.equal(node.clock.pending, 0);
      }
    }
  });

  it('stops before its byte limit is exceeded, but takes a first element of any size', async () => {
    const node = new JointTakeNode();
    node.insert('A/p', { bytes: 600 });
    node.insert('B/q', { bytes: 600 });
    node.insert('B/q', { bytes: 10 });
    const waiter = node.join({ from: ['A/p', 'B/q'], count: 9, maxBytes: 1000 });
    await node.settle();
    assert.deepEqual([waiter.ids, node.left()], [['e1'], ['e2', 'e3']]);
    const large = node.join({ from: ['A/p', 'B/q'], count: 9, maxBytes: 5 });
    await node.settle();
    assert.deepEqual([large.ids, node.left()], [['e2'], ['e3']]);
  });

  it('in fair order starts with a queue chosen by chance and weight', async () => {
    const node = new JointTakeNode();
    for (let i = 0; i < 4; i++) for (const path of ['A/p', 'A/q']) node.insert(path);
    const first = async (randoms: number[], weights: number[]): Promise<string | undefined> => {
      node.randoms = randoms;
      const waiter = node.join({ from: ['A/p', 'A/q'], order: 'fair', weights, tid: 't', timeoutMs: 0 });
      await node.settle();
      return waiter.got[0]?.[0];
    };
    assert.equal(await first([0.2, 0.8], [1, 1]), 'A/q');
    assert.equal(await first([0.8, 0.2], [1, 1]), 'A/p');
    assert.equal(await first([0.8, 0.2], [1, 10]), 'A/q');
  });

  it('counts once per queue towards the limit of waiting consumers, and is rejected as a whole', async () => {
    const node = new JointTakeNode(null, 5);
    node.join({ from: ['A/p', 'A/q', 'B/r'] });
    assert.throws(() => node.join({ from: ['A/p', 'A/q', 'B/r'] }), { code: 'too-many-consumers' });
    assert.equal(node.queue('A/p').namespace.meter.operations().get('get')?.get('too-many-consumers'), 1);
    assert.equal(node.broker.waiting, 3);
    const waiter = node.join({ from: ['A/p', 'A/q'] });
    assert.equal(node.broker.waiting, 5);
    // Its looks do not count.
    node.insert('A/q');
    await node.settle();
    assert.equal(node.left().length, 0);
    waiter.leave();
  });

  it('is listed once in each of its queues, with the same tid', async () => {
    const node = new JointTakeNode();
    node.join({ from: ['A/p', 'B/q'], timeoutMs: 1000 });
    for (const isLooking of [true, false]) {
      const [[p, ...more], [q]] = [node.queue('A/p').consumers(), node.queue('B/q').consumers()];
      assert.deepEqual([more, p?.tid === q?.tid, p?.cleanup_timeout], [[], true, 'set'], `${isLooking}`);
      await node.settle();
    }
  });

  it('returns the elements if its sink throws', async () => {
    const node = new JointTakeNode();
    node.insert('A/p');
    const waiter = node.join({ from: ['A/p', 'B/q'] });
    waiter.failure = new Error('broken');
    await node.settle();
    assert.deepEqual(node.left(), ['e1']);
    assert.equal(node.broker.waiting, 0);
  });
});

describe('a joint take with a minimum', () => {
  it('takes nothing until the minimum is ready, then everything in one take', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p'], count: 10, min: 3 });
    for (let i = 0; i < 2; i++) node.insert('A/p');
    await node.pass(100);
    assert.deepEqual([waiter.isOver, node.engines.A?.takes], [false, 0]);
    node.insert('A/p');
    await node.pass(100);
    assert.deepEqual([waiter.ids, node.engines.A?.takes], [['e1', 'e2', 'e3'], 1]);
    assert.deepEqual([node.broker.waiting, node.clock.pending], [0, 0]);
  });

  it('counts only when the minimum may be reached, not for each element', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p'], count: 500, min: 500 });
    await node.settle();
    for (let i = 0; i < 499; i++) node.insert('A/p');
    await node.pass(100);
    assert.equal(node.engines.A?.counted, 1);
    node.insert('A/p');
    await node.pass(100);
    assert.deepEqual([node.engines.A?.counted, waiter.ids.length], [2, 500]);
  });

  it('does not rely on a count that started before an element was inserted', async () => {
    const node = new JointTakeNode();
    const patient = node.join({ from: ['A/p'], count: 5, min: 5 });
    node.insert('A/p');
    const waiter = node.join({ from: ['A/p'], count: 2, min: 2 });
    await node.settle();
    node.insert('A/p');
    await node.pass(100);
    assert.deepEqual([waiter.ids, patient.isOver], [['e1', 'e2'], false]);
  });

  it('lets consumers with a smaller minimum take first, and still counts at most every 20 ms', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p'], count: 2, min: 2 });
    await node.settle();
    const got: string[] = [];
    const sink = { deliver: ({ id }: { id: string }) => void got.push(id), end: () => {} };
    for (let i = 0; i < 50; i++) {
      node.queue('A/p').get({ group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null }, sink);
      await node.settle();
      node.insert('A/p');
      await node.settle();
      node.clock.advance(1);
    }
    assert.equal(got.length, 50);
    assert.ok((node.engines.A?.counted ?? 0) <= 5, `${node.engines.A?.counted}`);
    assert.equal(waiter.isOver, false);
    node.insert('A/p');
    node.insert('A/p');
    await node.pass(100);
    assert.equal(waiter.ids.length, 2);
  });

  it('returns too few elements to their place, without counting a try, and tries again', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p', 'B/q'], count: 4, min: 4 });
    await node.settle();
    for (const path of ['A/p', 'A/p', 'B/q', 'B/q']) node.insertSilently(path);
    node.queue('A/p').match(Number.POSITIVE_INFINITY);
    node.clock.advance(20);
    // The counts return, then another node takes the elements before the looks do.
    for (let i = 0; i < 2; i++) node.pending.shift()?.();
    for (let turn = 0; turn < 3; turn++) await new Promise(setImmediate);
    node.engines.B?.queues.set('q', []);
    await node.settle();
    assert.deepEqual([waiter.isOver, node.left()], [false, ['e1', 'e2']]);
    assert.deepEqual(node.engines.A?.returned, ['e1', 'e2']);
    for (let i = 0; i < 2; i++) node.insert('B/q');
    await node.pass(300);
    assert.deepEqual(waiter.ids, ['e1', 'e2', 'e5', 'e6']);
  });

  it('gets at its timeout what is ready, and times out if nothing is', async () => {
    const node = new JointTakeNode();
    const some = node.join({ from: ['A/p', 'B/q'], count: 9, min: 5, timeoutMs: 1000 });
    node.insert('B/q');
    await node.pass(999);
    assert.equal(some.isOver, false);
    await node.pass(1);
    assert.deepEqual([some.ids, some.ended], [['e1'], null]);
    const none = node.join({ from: ['A/p'], count: 9, min: 5, timeoutMs: 1000 });
    await node.pass(1000);
    assert.equal(none.ended?.code, 'pop-timeout');
    assert.deepEqual([node.broker.waiting, node.clock.pending], [0, 0]);
  });

  it('takes less than the minimum if its byte limit is reached', async () => {
    const node = new JointTakeNode();
    for (let i = 0; i < 5; i++) node.insert('A/p', { bytes: 400 });
    const waiter = node.join({ from: ['A/p'], count: 5, min: 5, maxBytes: 1000 });
    await node.pass(100);
    assert.deepEqual(waiter.ids, ['e1', 'e2']);
  });

  it('is served when scheduled elements complete the minimum', async () => {
    const node = new JointTakeNode();
    node.insert('A/p');
    for (const delayMs of [1000, 2000]) node.insert('A/p', { delayMs });
    const waiter = node.join({ from: ['A/p'], count: 3, min: 3 });
    await node.pass(1900);
    assert.equal(waiter.isOver, false);
    await node.pass(700);
    assert.deepEqual(waiter.ids, ['e1', 'e2', 'e3']);
  });

  it('is served when scheduled and new elements together complete the minimum', async () => {
    const node = new JointTakeNode();
    node.insert('A/p', { delayMs: 300 });
    const waiter = node.join({ from: ['A/p'], count: 2, min: 2 });
    await node.settle();
    node.insert('A/p');
    await node.pass(1_000);
    assert.deepEqual(waiter.ids, ['e2', 'e1']);
  });

  it('waits while a queue is paused, and continues after its resume', async () => {
    const node = new JointTakeNode();
    node.setPaused('A/p', true);
    const waiter = node.join({ from: ['A/p'], count: 2, min: 2 });
    for (let i = 0; i < 2; i++) node.insert('A/p');
    await node.pass(2000);
    assert.equal(waiter.isOver, false);
    node.setPaused('A/p', false);
    await node.pass(100);
    assert.equal(waiter.ids.length, 2);
  });

  it('waits while its engine is unavailable, and continues after its recovery', async () => {
    const node = new JointTakeNode();
    if (node.engines.A !== undefined) node.engines.A.failure = UNAVAILABLE;
    const waiter = node.join({ from: ['A/p'], count: 2, min: 2 });
    for (let i = 0; i < 2; i++) node.insert('A/p');
    await node.pass(2000);
    assert.equal(waiter.isOver, false);
    if (node.engines.A !== undefined) node.engines.A.failure = null;
    await node.pass(6000, 100);
    assert.equal(waiter.ids.length, 2);
  });
});

describe('joint takes, in any interleaving', () => {
  it('lose no element, deliver none twice, return undelivered ones, and miss no wake-up', async () => {
    await fc.assert(
      fc.asyncProperty(fc.scheduler(), fc.array(step, { maxLength: 40 }), async (scheduler, steps) => {
        const node = new JointTakeNode(scheduler);
        // Calls that wait equally long after taking from each other could take from each other for ever.
        node.randoms = Array.from({ length: 1000 }, seededRandom(1).next);
        const waiters: JointWaiter[] = [];
        const got: string[] = [];
        for (const run of steps) {
          run(node, waiters, got);
          if (scheduler.count() > 0 && node.inserted % 2 === 0) await scheduler.waitOne();
        }
        const drain = async (): Promise<void> => {
          for (let quiet = 0; quiet < 4; quiet++) {
            if (scheduler.count() > 0) {
              quiet = 0;
              await scheduler.waitOne();
            }
            await new Promise(setImmediate);
          }
        };
        await drain();
        // Let pauses after insufficient counts and back-offs end.
        for (let i = 0; i < 12; i++) {
          node.clock.advance(1000);
          await drain();
        }
        const left = node.left();
        const delivered = [...waiters.flatMap(({ ids }) => ids), ...got];
        const all = [...left, ...delivered];
        assert.equal(new Set(all).size, all.length, 'an element was duplicated');
        assert.equal(all.length, node.inserted, 'an element was lost');
        for (const waiter of waiters) {
          assert.ok(waiter.answers <= 1);
          assert.ok(waiter.ids.length <= waiter.count);
          if (waiter.hasLeft) assert.deepEqual(waiter.ids, waiter.answers === 1 ? waiter.ids : []);
        }
        for (const { isOver, from, min } of waiters) {
          if (isOver) continue;
          const ready = from.flatMap((path) => {
            const [ns = '', name = ''] = path.split('/');
            return node.engines[ns]?.queues.get(name) ?? [];
          });
          assert.ok(ready.length < min, `a wake-up was lost: ${ready.length} of ${min}`);
        }
        for (const waiter of waiters) waiter.leave();
        await drain();
        assert.equal(node.broker.waiting, 0);
      }),
      { numRuns: Number(process.env.MODEL_RUNS ?? 300) },
    );
  });
});

type Step = (node: JointTakeNode, waiters: JointWaiter[], got: string[]) => void;

const path = fc.constantFrom('A/p', 'A/q', 'B/r');

const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ queue: path, delayMs: fc.constantFrom(0, 0, 0, 300) }).map<Step>(
      ({ queue, delayMs }) =>
        (node) =>
          node.insert(queue, { delayMs }),
    ),
  },
  {
    weight: 3,
    arbitrary: fc
      .record({
        from: fc.uniqueArray(path, { minLength: 1, maxLength: 3 }),
        count: fc.constantFrom(3, 4, 10),
        min: fc.constantFrom(1, 1, 2, 3),
        leaseMs: fc.constantFrom(null, 1000),
        timeoutMs: fc.constantFrom(null, null, 0, 500),
        order: fc.constantFrom('strict' as const, 'fair' as const),
      })
      .map<Step>((options) => (node, waiters) => {
        waiters.push(node.join(options));
      }),
  },
  // A competing pop that does not wait.
  path.map<Step>((queue) => (node, _, got) => {
    node.queue(queue).get(
      { group: null, leaseMs: null, timeoutMs: 0, tid: null, owner: null },
      {
        deliver: ({ id }) => {
          got.push(id);
        },
        end: () => {},
      },
    );
  }),
  fc.nat(10).map<Step>((i) => (_, waiters) => {
    const waiter = waiters[i];
    if (waiter !== undefined && !waiter.isOver) waiter.leave();
  }),
  fc.constantFrom(1, 20, 600).map<Step>((ms) => (node) => {
    node.clock.advance(ms);
  }),
);
