import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { QuaysideError } from '../../src/model/errors.ts';
import { LineUnderTest, type Waiter } from './line-host.ts';

describe('a waiting line', () => {
  it('hands an element that is there to a consumer that comes', async () => {
    const host = new LineUnderTest();
    const id = host.insert();
    const waiter = host.join();
    await host.settle();
    assert.deepEqual(waiter.got, [id]);
    assert.equal(host.line.isEmpty, true);
  });

  it('serves consumers in the order in which they came', async () => {
    const host = new LineUnderTest();
    const waiters = [host.join(), host.join({ leaseMs: 1000 }), host.join()];
    await host.settle();
    const ids = [host.insert(), host.insert(), host.insert()];
    await host.settle();
    assert.deepEqual(
      waiters.map(({ got }) => got),
      ids.map((id) => [id]),
    );
  });

  it('asks the engine for one consumer when one element comes, however many wait', async () => {
    const host = new LineUnderTest();
    for (let i = 0; i < 5000; i += 1) host.join();
    await host.settle();
    host.takes = 0;
    host.insert();
    await host.settle();
    assert.equal(host.takes, 1);
    assert.equal(host.line.consumers().length, 4999);
  });

  it('asks in the turn in which the insert was called, so that both share a round trip', async () => {
    const host = new LineUnderTest();
    host.join();
    await host.settle();
    host.takes = 0;
    host.insert();
    assert.equal(host.takes, 1);
    await host.settle();
  });

  it('remembers an element that came while the engine was being asked', async () => {
    const host = new LineUnderTest();
    const waiter = host.join();
    const id = host.insert();
    await host.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  it('hands out at once what matures while the engine is being asked', async () => {
    const host = new LineUnderTest();
    const early = host.insert(1000);
    const waiter = host.join();
    host.clock.advance(1000);
    await host.settle();
    assert.deepEqual(waiter.got, [early]);
    const next = host.join();
    const late = host.insert(1000);
    host.clock.advance(1000);
    await host.settle();
    assert.deepEqual(next.got, [late]);
  });

  it('wakes at the maturity of what it was told of, and re-arms when an earlier one comes', async () => {
    const host = new LineUnderTest();
    const [first, second] = [host.join(), host.join()];
    await host.settle();
    const late = host.insert(10_000);
    const early = host.insert(1_000);
    host.clock.advance(999);
    await host.settle();
    assert.deepEqual(first.got, []);
    host.clock.advance(1);
    await host.settle();
    assert.deepEqual(first.got, [early]);
    host.clock.advance(9_000);
    await host.settle();
    assert.deepEqual(second.got, [late]);
  });

  it('wakes for a maturity that was stored while a round was under way', async () => {
    const host = new LineUnderTest();
    const waiter = host.join();
    const id = host.insert(500);
    await host.settle();
    host.clock.advance(500);
    await host.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  for (const [isShared, withinMs, where] of [
    [false, 45_000, 'in this process'],
    [true, 4_500, 'from other nodes'],
  ] as const) {
    it(`finds by its slow poll what no signal told it of, where they come ${where}`, async () => {
      const host = new LineUnderTest();
      host.isShared = isShared;
      const waiter = host.join();
      await host.settle();
      host.insertSilently();
      host.clock.advance(withinMs);
      await host.settle();
      assert.equal(waiter.got.length, 1);
    });
  }

  it('answers a call with timeout 0 at once: with an element if there is one, else with pop-timeout', async () => {
    const host = new LineUnderTest();
    const empty = host.join({ timeoutMs: 0 });
    await host.settle();
    assert.equal(empty.ended?.code, 'pop-timeout');
    const id = host.insert();
    const served = host.join({ timeoutMs: 0 });
    await host.settle();
    assert.deepEqual(served.got, [id]);
    assert.equal(host.clock.pending, 0);
  });

  it('answers a call with timeout 0 that stands behind others who wait', async () => {
    const host = new LineUnderTest();
    host.join();
    await host.settle();
    const impatient = host.join({ timeoutMs: 0 });
    await host.settle();
    assert.equal(impatient.ended?.code, 'pop-timeout');
  });

  it('ends a call when its time is over, and not before', async () => {
    const host = new LineUnderTest();
    const waiter = host.join({ timeoutMs: 100 });
    await host.settle();
    host.clock.advance(99);
    assert.equal(waiter.ended?.code, undefined);
    host.clock.advance(1);
    assert.equal(waiter.ended?.code, 'pop-timeout');
    assert.equal(host.line.isEmpty, true);
    assert.equal(host.clock.pending, 0);
  });

  it('gives an element that is already on its way to a call whose time ran out meanwhile', async () => {
    const host = new LineUnderTest();
    const id = host.insert();
    const waiter = host.join({ timeoutMs: 5 });
    host.clock.advance(10);
    await host.settle();
    assert.deepEqual(waiter.got, [id]);
    assert.equal(waiter.ended, null);
  });

  it('passes an element whose consumer left on to the next, or back', async () => {
    const host = new LineUnderTest();
    const id = host.insert();
    const [gone, next] = [host.join(), host.join()];
    host.line.leave(gone.consumer);
    await host.settle();
    assert.deepEqual(gone.got, []);
    assert.deepEqual(next.got, [id]);

    const alone = host.join();
    const other = host.insert();
    host.line.leave(alone.consumer);
    await host.settle();
    assert.deepEqual(
      host.eligible.map((element) => element.id),
      [other],
    );
  });

  it('does not pass a popped element to a consumer that wanted to reserve', async () => {
    const host = new LineUnderTest();
    host.insert();
    const gone = host.join();
    const reserver = host.join({ leaseMs: 1000 });
    host.line.leave(gone.consumer);
    await host.settle();
    assert.equal(host.givenBack.length, 1);
    assert.deepEqual(reserver.got, host.givenBack);
  });

  it('hands nothing out while paused, and goes on after resume', async () => {
    const host = new LineUnderTest();
    const waiter = host.join();
    await host.settle();
    host.paused = true;
    host.line.pause();
    const id = host.insert();
    await host.settle();
    assert.deepEqual(waiter.got, []);
    assert.equal(host.clock.pending, 0);
    host.paused = false;
    host.line.match(Number.POSITIVE_INFINITY);
    await host.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  it('ends calls whose time is over on a paused queue', async () => {
    const host = new LineUnderTest();
    host.paused = true;
    const now = host.join({ timeoutMs: 0 });
    const later = host.join({ timeoutMs: 50 });
    assert.equal(now.ended?.code, 'pop-timeout');
    host.clock.advance(50);
    assert.equal(later.ended?.code, 'pop-timeout');
  });

  it('keeps those who wait while the engine is away, and tells those who will not why', async () => {
    const host = new LineUnderTest();
    host.fault = new QuaysideError('storage-unavailable', 'away');
    const patient = host.join();
    const impatient = host.join({ timeoutMs: 0 });
    await host.settle();
    assert.equal(impatient.ended?.code, 'storage-unavailable');
    assert.equal(patient.ended, null);
    host.fault = null;
    host.insertSilently();
    host.clock.advance(5_000);
    await host.settle();
    assert.equal(patient.got.length, 1);
  });

  it('ends those who may have taken something that nobody will see, and keeps the others', async () => {
    const host = new LineUnderTest();
    const first = host.join();
    const second = host.join({ leaseMs: 1000 });
    const third = host.join();
    await host.settle();
    host.fault = new QuaysideError('outcome-unknown', 'nobody knows');
    host.insert();
    host.insert();
    await host.settle();
    assert.deepEqual([first.ended?.code, second.ended, third.ended], ['outcome-unknown', null, null]);
    host.fault = null;
    host.clock.advance(5_000);
    await host.settle();
    assert.deepEqual([second.got, third.got, first.got], [['e1'], ['e2'], []]);
  });

  it('keeps also those where the engine undoes a take that nobody heard of', async () => {
    const host = new LineUnderTest(null, true);
    const waiter = host.join();
    host.fault = new QuaysideError('outcome-unknown', 'nobody knows');
    const id = host.insert();
    await host.settle();
    assert.equal(waiter.ended, null);
    host.fault = null;
    host.clock.advance(5_000);
    await host.settle();
    assert.deepEqual(waiter.got, [id]);
  });

  it('gives a consumer that asks for several as many as there are, up to its number', async () => {
    const host = new LineUnderTest();
    for (let i = 0; i < 5; i += 1) host.insert();
    const three = host.join({ count: 3 });
    const ten = host.join({ count: 10 });
    await host.settle();
    assert.deepEqual(three.got, ['e1', 'e2', 'e3']);
    assert.deepEqual(ten.got, ['e4', 'e5']);
  });

  it('looks for each of several who ask for several and join while the engine is being asked', async () => {
    const host = new LineUnderTest();
    for (let i = 0; i < 20; i += 1) host.insert();
    const waiters = Array.from({ length: 5 }, () => host.join({ count: 4 }));
    await host.settle();
    assert.deepEqual(
      waiters.map(({ got }) => got.length),
      [4, 4, 4, 4, 4],
    );
  });

  it('goes on past a sink that throws: what it was given goes to the next, and the others hear their end', async () => {
    const host = new LineUnderTest();
    const broken = host.join({ count: 2 });
    broken.fault = new Error('broken');
    await host.settle();
    const next = host.join({ count: 2 });
    await host.settle();
    const ids = [host.insert(), host.insert()];
    await host.settle();
    assert.deepEqual([host.givenBack, next.got.toSorted()], [ids.slice(0, 1), ids]);
    const [brokenEnd, end] = [host.join({ timeoutMs: 5 }), host.join({ timeoutMs: 5 })];
    brokenEnd.fault = broken.fault;
    await host.settle();
    host.clock.advance(5);
    assert.equal(end.ended?.code, 'pop-timeout');
    assert.deepEqual(host.sinkFaults, [broken.fault, broken.fault]);
  });

  it('at rest never leaves an eligible element beside a waiting consumer, whatever the interleaving', async () => {
    await fc.assert(
      fc.asyncProperty(fc.scheduler(), fc.array(step, { maxLength: 40 }), async (scheduler, steps) => {
        const host = new LineUnderTest(scheduler);
        const waiters: Waiter[] = [];
        for (const run of steps) {
          run(host, waiters);
          if (scheduler.count() > 0 && waiters.length % 2 === 0) await scheduler.waitOne();
        }
        await scheduler.waitIdle();
        await new Promise(setImmediate);
        while (scheduler.count() > 0) await scheduler.waitIdle();

        const waiting = waiters.filter((waiter) => waiter.consumer.state === 'waiting');
        assert.ok(waiting.length === 0 || host.eligible.length === 0, 'a wake-up was lost');
        const got = waiters.flatMap((waiter) => waiter.got);
        assert.equal(new Set(got).size, got.length, 'an element was handed out twice');
        assert.equal(waiters.filter((waiter) => waiter.consumer.state === 'asked').length, 0);
        for (const { consumer, got: own, ended } of waiters) {
          if (consumer.state === 'gone')
            assert.ok(own.length <= consumer.count && (own.length === 0 || ended === null));
        }
      }),
      { numRuns: Number(process.env.MODEL_RUNS ?? 300) },
    );
  });
});

type Step = (host: LineUnderTest, waiters: Waiter[]) => void;

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.constant<Step>((host) => {
    host.insert();
  }),
  fc
    .record({ leaseMs: fc.constantFrom(undefined, 1000), count: fc.constantFrom(1, 1, 3) })
    .map<Step>(({ leaseMs, count }) => (host, waiters) => {
      waiters.push(host.join({ count, ...(leaseMs !== undefined && { leaseMs }) }));
    }),
  fc.constant<Step>((host, waiters) => {
    waiters.push(host.join({ timeoutMs: 0 }));
  }),
  fc.nat(20).map<Step>((i) => (host, waiters) => {
    const waiter = waiters[i];
    if (waiter !== undefined) host.line.leave(waiter.consumer);
  }),
);
