import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { TakeResult } from '../../src/engine/storage.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyText, bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { commit, purge, rollback } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { inTime, passGently, passTo, passUntil, stopped } from './fake-time.ts';
import { freshPrefix, QUEUE_CALL, redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain')];
const QUEUE: QueueKey = { ns: 'plain', name: 'queue' };
const POP = { group: '', count: 10, leaseMs: null };
const PAGE = { group: '', after: null, limit: 10 };
const LEASE_MS = 60_000;

describe('A call of Redis whose reply was lost', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  let prefix: string;
  let near: Engine;
  let far: Engine;
  /** The clock of the timeouts of the engine behind the proxy. */
  let clock: FakeClock;

  beforeEach(async () => {
    server = await startRedis();
    proxy = await TcpProxy.start(server.port);
    clock = new FakeClock();
    prefix = freshPrefix();
    const common = { namespaces: NAMESPACES, clock: null, prefix };
    far = redisEngine({ ...common, url: `redis://127.0.0.1:${proxy.port}`, ownClock: clock });
    near = redisEngine({ ...common, url: server.url });
    await Promise.all([far.start(), near.start()]);
  });

  afterEach(async () => {
    await Promise.all([stopped(far, clock), near.stop()]);
    await proxy.stop();
    await server.stop();
  });

  const setMemory = (bytes: number): string =>
    redisCli(server.port, 'CONFIG', 'SET', 'maxmemory', String(bytes));

  /** Pops two elements whose caller gets `outcome-unknown`. From then on the proxy forwards nothing. */
  async function popInVain(): Promise<void> {
    await far.storage.insert(QUEUE, newElements('a', 'b'));
    const caught = proxy.catch(QUEUE_CALL, 'mute');
    const popped = codeOf(far.storage.take(QUEUE, POP));
    await caught;
    proxy.state = 'dark';
    assert.equal(await passTo(clock, popped), 'outcome-unknown');
    assert.equal((await near.storage.counts(QUEUE)).ready, 0, 'the pop was applied');
  }

  async function connectAgain(): Promise<void> {
    proxy.state = 'open';
    proxy.reset();
    await passUntil(clock, () => far.ping());
  }

  async function assertBack(): Promise<void> {
    await passUntil(clock, async () => assert.equal((await near.storage.counts(QUEUE)).ready, 2));
    const { deliveries } = await near.storage.take(QUEUE, POP);
    assert.deepEqual(
      deliveries.map(({ tries }) => tries),
      [0, 0],
    );
    assert.deepEqual(bodyTexts(deliveries), ['a', 'b']);
  }

  it('is undone if it was a pop, although later calls were never sent', async () => {
    await popInVain();
    for (let round = 0; round < 4; round++) await inTime(clock, []);
    await connectAgain();
    await assertBack();
  });

  it('is undone if it was a pop, although the next call was rejected because memory was full', async () => {
    await popInVain();
    setMemory(1);
    proxy.state = 'open';
    proxy.reset();
    // Called before the clock advances, so it precedes the call that settles the pop.
    const inserted = codeOf(far.storage.insert(QUEUE, newElements('too much')));
    await passUntil(clock, () => far.ping());
    assert.equal(await inserted, 'storage-full');
    setMemory(0);
    await assertBack();
  });

  const fields = (): number => Number(redisCli(server.port, 'HLEN', new Keys(prefix).queue(QUEUE).hash));

  const LARGE = 'x'.repeat(70_000);

  for (const bodies of [
    ['a', 'b'],
    ['a', LARGE],
  ]) {
    const size = bodies.join('').length;
    it(`is answered again with the same elements and tries if it was a pop of ${size} bytes`, async () => {
      await far.storage.insert(
        QUEUE,
        bodies.map((body, tries) => newElement({ body, tries })),
      );
      const caught = proxy.catch(QUEUE_CALL, 'mute');
      const taking = far.storage.take(QUEUE, POP);
      await caught;
      while ((await near.storage.counts(QUEUE)).ready > 0);
      proxy.reset();
      const { deliveries } = await passGently(clock, taking);
      assert.deepEqual(bodyTexts(deliveries), bodies);
      assert.deepEqual(
        deliveries.map(({ tries }) => tries),
        [0, 1],
      );
      assert.equal((await near.storage.counts(QUEUE)).ready, 0);
    });
  }

  for (const hasFailed of [false, true]) {
    it(`is undone with all tries if it was a pop${hasFailed ? ' of elements of which some were reserved before' : ''}`, async () => {
      const inserted = newElement({ body: 'inserted with tries', tries: 3 });
      const expiring = newElement({ body: 'expiring', tries: 1, expiresAt: near.storage.now() + LEASE_MS });
      const failing = hasFailed ? [newElement({ body: 'failed' })] : [];
      const [id = ''] = await far.storage.insert(QUEUE, [...failing, inserted, expiring]);
      if (hasFailed) {
        await near.storage.take(QUEUE, { group: '', count: 1, leaseMs: LEASE_MS });
        const item = { id, group: '', token: null, delayMs: 0, countTry: true };
        assert.deepEqual(await rollback(near.storage, QUEUE, [item]), ['done']);
      }
      const tries = async (): Promise<(readonly [string, number])[]> => {
        const page = { ...PAGE, states: ['ready'], bodies: true } as const;
        const { deliveries } = await near.storage.scan(QUEUE, page);
        return deliveries.map((delivery) => [bodyTexts([delivery])[0] ?? '', delivery.tries] as const);
      };
      const before = await tries();
      assert.equal(before.length, hasFailed ? 3 : 2);
      const caught = proxy.catch(QUEUE_CALL, 'mute');
      const popped = codeOf(far.storage.take(QUEUE, POP));
      await caught;
      proxy.state = 'dark';
      assert.equal(await passTo(clock, popped), 'outcome-unknown');
      assert.deepEqual(await tries(), []);
      await connectAgain();
      await passUntil(clock, async () => assert.deepEqual(await tries(), before));
    });
  }

  it('is answered again with the counts of the first attempt and a page of the present', async () => {
    await far.storage.insert(QUEUE, newElements('a'));
    const caught = proxy.catch(QUEUE_CALL, 'mute');
    const inserting = far.storage.insert(QUEUE, newElements('b'));
    const counting = far.storage.counts(QUEUE);
    const scanning = far.storage.scan(QUEUE, { ...PAGE, states: ['ready'], bodies: true });
    await caught;
    while ((await near.storage.counts(QUEUE)).ready < 2);
    await near.storage.insert(QUEUE, newElements('c'));
    proxy.reset();
    const [ids, { ready }, { deliveries }] = await passGently(
      clock,
      Promise.all([inserting, counting, scanning]),
    );
    assert.equal(ids.length, 1);
    assert.equal(ready, 2);
    assert.deepEqual(bodyTexts(deliveries), ['a', 'b', 'c']);
  });

  for (const { kind, leaseMs, hasFailed } of [
    { kind: 'a pop', leaseMs: null, hasFailed: false },
    { kind: 'a pop of elements of which one was reserved before', leaseMs: null, hasFailed: true },
    { kind: 'a reserve', leaseMs: LEASE_MS, hasFailed: true },
  ]) {
    it(`returns only the elements of callers that had timed out, if it was ${kind}`, async () => {
      const [id = ''] = await near.storage.insert(QUEUE, newElements('a', 'b', 'c', 'd', 'e', 'f', 'g'));
      if (hasFailed) {
        await near.storage.take(QUEUE, { group: '', count: 1, leaseMs: LEASE_MS });
        const item = { id, group: '', token: null, delayMs: 0, countTry: true };
        assert.deepEqual(await rollback(near.storage, QUEUE, [item]), ['done']);
      }
      const before = await near.storage.scan(QUEUE, { ...PAGE, states: ['ready'], bodies: true });
      const take = { group: '', leaseMs, leftMs: 4_000 };
      const fieldsBefore = fields();
      const caught = proxy.catch(QUEUE_CALL, 'mute');
      const calls = [
        far.storage.take(QUEUE, { ...take, count: 1 }),
        far.storage.take(QUEUE, { ...take, count: 2, leftMs: 100 }),
        far.storage.take(QUEUE, { ...take, count: 1 }),
        far.storage.insert(QUEUE, newElements('h')),
        far.storage.take(QUEUE, { ...take, count: 1, leftMs: 100 }),
        far.storage.take(QUEUE, { ...take, count: 1, maxBytes: 1_000 }),
      ] as const;
      const late = [calls[1], calls[4]].map(codeOf);
      await caught;
      while ((await near.storage.counts(QUEUE)).ready > 2);
      clock.advance(100);
      assert.deepEqual(await Promise.all(late), ['outcome-unknown', 'outcome-unknown']);
      proxy.reset();
      const [first, , second, , , last] = await passGently(clock, Promise.allSettled(calls));
      const results = [first, second, last].flatMap((each) =>
        each?.status === 'fulfilled' ? each.value : [],
      );
      const taken = results.flatMap(({ deliveries }) => deliveries);
      const bodies = before.deliveries.map(bodyText);
      assert.deepEqual(
        taken.map(bodyText),
        [0, 3, 5].map((at) => bodies[at]),
      );
      // This call runs after the one that returns the others.
      await passGently(clock, far.storage.counts(QUEUE));
      const after = await near.storage.scan(QUEUE, { ...PAGE, states: ['ready'], bodies: true });
      const ready = before.deliveries.filter((_, at) => ![0, 3, 5].includes(at));
      assert.deepEqual(after.deliveries.slice(0, -1), ready);
      assert.deepEqual(bodyTexts(after.deliveries.slice(-1)), ['h']);
      assert.equal((await near.storage.counts(QUEUE)).reserved, leaseMs === null ? 0 : 3);
      if (leaseMs === null) {
        const message = 'three elements fewer, one more, and the record of the other node';
        assert.equal(fields(), fieldsBefore - 3 + 1 + 1, message);
        // The next change of the node finishes only the pops that were not returned.
        await passGently(clock, far.storage.insert(QUEUE, newElements('i')));
        const later = await near.storage.scan(QUEUE, { ...PAGE, states: ['ready'], bodies: true });
        assert.deepEqual(later.deliveries.slice(0, ready.length), ready);
        return;
      }
      const refs = taken.map(({ id: of, lease }) => ({ id: of, group: '', token: lease?.token ?? null }));
      assert.deepEqual(await commit(far.storage, QUEUE, refs), ['done', 'done', 'done']);
    });
  }

  /** Reserves two elements through the proxy, loses the reply, and runs `change` before the second attempt. */
  async function reserveAgainAfter(change: () => Promise<unknown>): Promise<TakeResult> {
    const caught = proxy.catch(QUEUE_CALL, 'mute');
    const taking = far.storage.take(QUEUE, { group: '', count: 2, leaseMs: LEASE_MS });
    await caught;
    // The reserve was sent, but calls of the other engine may still overtake it.
    while ((await near.storage.counts(QUEUE)).reserved < 2);
    await change();
    proxy.reset();
    return passGently(clock, taking);
  }

  it('delivers the elements that are still reserved, if it was a reserve', async () => {
    await far.storage.insert(QUEUE, newElements('a', 'b', 'c'));
    const { deliveries, nextDueAt } = await reserveAgainAfter(async () => {
      const [first] = (await near.storage.scan(QUEUE, { ...PAGE, states: ['reserved'], bodies: true }))
        .deliveries;
      const ref = { id: first?.id ?? '', group: '', token: null };
      await commit(near.storage, QUEUE, [ref]);
    });
    assert.deepEqual(bodyTexts(deliveries), ['b']);
    assert.ok((nextDueAt ?? Number.POSITIVE_INFINITY) <= near.storage.now(), 'another take is due now');
    const refs = deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null }));
    assert.deepEqual(await commit(far.storage, QUEUE, refs), ['done']);
  });

  it('delivers no element that was removed before the retry, if it was a reserve', async () => {
    await far.storage.insert(QUEUE, newElements('a', 'b'));
    const { deliveries } = await reserveAgainAfter(() => purge(near.storage, QUEUE));
    assert.deepEqual(deliveries, []);
  });

  it('delivers no element that another consumer reserved before the retry, if it was a reserve', async () => {
    await far.storage.insert(QUEUE, newElements('a', 'b'));
    const { deliveries } = await reserveAgainAfter(async () => {
      const reserved = (await near.storage.scan(QUEUE, { ...PAGE, states: ['reserved'], bodies: true }))
        .deliveries;
      const items = reserved.map(({ id }) => ({ id, group: '', token: null, delayMs: 0, countTry: false }));
      await rollback(near.storage, QUEUE, items);
      await near.storage.take(QUEUE, { group: '', count: 1, leaseMs: LEASE_MS });
    });
    assert.deepEqual(deliveries, []);
    assert.equal((await near.storage.counts(QUEUE)).ready, 1);
  });
});

describe('A call that never reached Redis', () => {
  it('does not prevent the stored reply of the next call from being removed a minute after its node failed', async () => {
    const server = await startRedis();
    const proxy = await TcpProxy.start(server.port);
    const [clock, own, prefix] = [new FakeClock(), new FakeClock(), freshPrefix()];
    const common = { namespaces: NAMESPACES, clock, prefix };
    const dying = redisEngine({ ...common, url: `redis://127.0.0.1:${proxy.port}`, ownClock: own });
    const other = redisEngine({ ...common, url: server.url });
    await Promise.all([dying.start(), other.start()]);
    await dying.storage.insert(QUEUE, newElements('a'));
    const caught = proxy.catch(QUEUE_CALL, 'deaf');
    const lost = codeOf(dying.storage.insert(QUEUE, newElements('lost')));
    await caught;
    proxy.state = 'dark';
    assert.equal(await passTo(own, lost), 'outcome-unknown');
    proxy.state = 'open';
    proxy.reset();
    // The engine settles its outcome by itself half a second later; later calls wait for that.
    await passUntil(own, () => dying.ping());
    own.advance(1_000);
    assert.equal((await passGently(own, dying.storage.take(QUEUE, POP))).deliveries.length, 1);
    proxy.state = 'dark';
    const burying = stopped(dying, own);
    const fields = (): number => Number(redisCli(server.port, 'HLEN', new Keys(prefix).queue(QUEUE).hash));
    assert.equal(fields(), 4, 'tag, number, the popped element, one reply');
    clock.advance(61_000);
    await other.storage.sweep();
    assert.equal(fields(), 2, 'tag, number');
    await Promise.all([burying, other.stop()]);
    await proxy.stop();
    await server.stop();
  });
});
