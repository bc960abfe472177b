import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { QuaysideError } from '../../src/model/errors.ts';
import { JointTakeNode, type JointWaiter } from './joint-take-node.ts';

const UNAVAILABLE = new QuaysideError('storage-unavailable', 'unavailable');

describe('a joint take of several queues', () => {
  it('fills up in order, and leaves what is more than `count`', async () => {
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

  it('takes from one queue only of several that get elements at the same moment', async () => {
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

  it('is one of the consumers of each queue, and does not hold up those behind it', async () => {
    const node = new JointTakeNode();
    const joint = node.join({ from: ['A/p', 'A/q'] });
    await node.settle();
    const got: string[] = [];
    const sink = { deliver: ({ id }: { id: string }) => void got.push(id), end: () => {} };
    node.queue('A/q').get({ group: null, leaseMs: null, timeoutMs: null, tid: null, owner: 'u' }, sink);
    await node.settle();
    // Its take of A/p is in flight when A/q gets an element: the consumer behind it takes that one.
    node.insertSilently('A/q');
    node.insert('A/p');
    node.queue('A/q').match(1);
    await node.settle();
    assert.deepEqual([joint.ids, got], [['e2'], ['e1']]);
  });

  it('looks again in a queue that got elements while its take of another one came back empty', async () => {
    const node = new JointTakeNode();
    const joint = node.join({ from: ['A/p', 'A/q'] });
    await node.settle();
    node.queue('A/p').match(1);
    node.insert('A/q');
    await node.settle();
    assert.deepEqual(joint.ids, ['e1']);
  });

  it('looks at the first of many queues, counts the others at once, and looks only at those that have elements', async () => {
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

  it('misses nothing that comes during its first look through the queues', async () => {
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

  it('misses nothing that came while a count for a call that has left is in flight', async () => {
    const node = new JointTakeNode();
    const from = ['B/r', 'A/q', 'B/s'];
    const other = node.join({ from: ['A/p', 'A/q'] });
    await node.settle();
    node.insert('A/p');
    const takeForOther = node.pending.shift();
    const gone = node.join({ from });
    node.pending.shift()?.();
    await new Promise(setImmediate);
    // It waits for counts of the second and the third queue.
    gone.leave();
    node.insert('A/q');
    const waiter = node.join({ from });
    // Its take of the first queue returns before those counts do.
    node.pending.pop()?.();
    await new Promise(setImmediate);
    takeForOther?.();
    await node.settle();
    assert.deepEqual([other.ids, waiter.ids], [['e1'], ['e2']]);
  });

  it('gets an element that was scheduled before it came, in whichever queue, when that matures', async () => {
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

  it('ends at its timeout, and gets what is on its way then', async () => {
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

  it('takes from the others while one engine is unavailable, and says so only to a call that does not wait', async () => {
    const node = new JointTakeNode();
    if (node.engines.A !== undefined) node.engines.A.failure = UNAVAILABLE;
    const at0 = node.join({ from: ['A/p', 'A/q', 'B/r'], timeoutMs: 0 });
    await node.settle();
    assert.equal(at0.ended?.code, 'storage-unavailable');
    assert.equal(node.engines.A?.takes, 1, 'the second queue of the engine that failed is not looked at');
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

  it('finds by the slow poll what came without a signal', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p', 'B/q'] });
    await node.settle();
    node.insertSilently('B/q');
    await node.pass(45_000, 1_000);
    assert.deepEqual(waiter.ids, ['e1']);
  });

  it('returns all that it took if its client leaves, or it is cancelled, before the end of its look', async () => {
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
        // Of reservations, the sweeper knows when they would have ended.
        if (leaseMs === null) assert.equal(node.clock.pending, 0);
      }
    }
  });

  it('stops at its bytes; an element that is larger than what is left stays, the first is taken whatever its size', async () => {
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

  it('fair: looks first where chance and weight say', async () => {
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

  it('counts once for each queue towards the limit, and is rejected whole', async () => {
    const node = new JointTakeNode(null, 5);
    node.join({ from: ['A/p', 'A/q', 'B/r'] });
    assert.throws(() => node.join({ from: ['A/p', 'A/q', 'B/r'] }), { code: 'too-many-consumers' });
    assert.equal(node.queue('A/p').namespace.meter.operations().get('get')?.get('too-many-consumers'), 1);
    assert.equal(node.broker.waiting, 3);
    const waiter = node.join({ from: ['A/p', 'A/q'] });
    assert.equal(node.broker.waiting, 5);
    // Its looks need no place of their own.
    node.insert('A/q');
    await node.settle();
    assert.equal(node.left().length, 0);
    waiter.leave();
  });

  it('is listed once in each of its queues, with one tid', async () => {
    const node = new JointTakeNode();
    node.join({ from: ['A/p', 'B/q'], timeoutMs: 1000 });
    for (const isLooking of [true, false]) {
      const [[p, ...more], [q]] = [node.queue('A/p').consumers(), node.queue('B/q').consumers()];
      assert.deepEqual([more, p?.tid === q?.tid, p?.cleanup_timeout], [[], true, 'set'], `${isLooking}`);
      await node.settle();
    }
  });

  it('returns what its sink did not take', async () => {
    const node = new JointTakeNode();
    node.insert('A/p');
    const waiter = node.join({ from: ['A/p', 'B/q'] });
    waiter.failure = new Error('broken');
    await node.settle();
    assert.deepEqual(node.left(), ['e1']);
    assert.equal(node.broker.waiting, 0);
  });
});

describe('a joint take of several elements at once', () => {
  it('takes nothing until there are enough, then all of them in one take', async () => {
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

  it('counts seldom: not for each element, but when enough may be there', async () => {
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

  it('does not take a count for its own that began before an element came', async () => {
    const node = new JointTakeNode();
    const patient = node.join({ from: ['A/p'], count: 5, min: 5 });
    node.insert('A/p');
    const waiter = node.join({ from: ['A/p'], count: 2, min: 2 });
    await node.settle();
    node.insert('A/p');
    await node.pass(100);
    assert.deepEqual([waiter.ids, patient.isOver], [['e1', 'e2'], false]);
  });

  it('lets consumers that wait for less take before it, and does not count more than every 20 ms for that', async () => {
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

  it('returns to their place, uncounted, the elements that were too few since others were faster, and tries again', async () => {
    const node = new JointTakeNode();
    const waiter = node.join({ from: ['A/p', 'B/q'], count: 4, min: 4 });
    await node.settle();
    for (const path of ['A/p', 'A/p', 'B/q', 'B/q']) node.insertSilently(path);
    node.queue('A/p').match(Number.POSITIVE_INFINITY);
    node.clock.advance(20);
    // The counts return, and another node takes before the looks.
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

  it('gets at its timeout what there is, and ends if that is nothing', async () => {
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

  it('takes fewer if their bytes are as many as it may return', async () => {
    const node = new JointTakeNode();
    for (let i = 0; i < 5; i++) node.insert('A/p', { bytes: 400 });
    const waiter = node.join({ from: ['A/p'], count: 5, min: 5, maxBytes: 1000 });
    await node.pass(100);
    assert.deepEqual(waiter.ids, ['e1', 'e2']);
  });

  it('is served when scheduled elements complete what is missing', async () => {
    const node = new JointTakeNode();
    node.insert('A/p');
    for (const delayMs of [1000, 2000]) node.insert('A/p', { delayMs });
    const waiter = node.join({ from: ['A/p'], count: 3, min: 3 });
    await node.pass(1900);
    assert.equal(waiter.isOver, false);
    await node.pass(700);
    assert.deepEqual(waiter.ids, ['e1', 'e2', 'e3']);
  });

  it('is served when scheduled elements and new ones together complete what is missing', async () => {
    const node = new JointTakeNode();
    node.insert('A/p', { delayMs: 300 });
    const waiter = node.join({ from: ['A/p'], count: 2, min: 2 });
    await node.settle();
    node.insert('A/p');
    await node.pass(1_000);
    assert.deepEqual(waiter.ids, ['e2', 'e1']);
  });

  it('waits while a queue is paused, and continues when it is resumed', async () => {
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

  it('waits while its engine is unavailable, and continues after it', async () => {
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
  it('lose no element, deliver none twice, return what they do not pass on, and miss no wake-up', async () => {
    await fc.assert(
      fc.asyncProperty(fc.scheduler(), fc.array(step, { maxLength: 40 }), async (scheduler, steps) => {
        const node = new JointTakeNode(scheduler);
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
        // Rests after counts that brought too little, and back-offs.
        for (let i = 0; i < 12; i++) {
          node.clock.advance(1000);
          await drain();
        }
        const left = node.left();
        const delivered = [...waiters.flatMap(({ ids }) => ids), ...got];
        const all = [...left, ...delivered];
        assert.equal(new Set(all).size, all.length, 'an element is in two places');
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
  // A plain pop that does not wait, in competition.
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
