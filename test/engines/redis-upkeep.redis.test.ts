import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import type { Engine } from '../../src/engine/engine.ts';
import { Batchers } from '../../src/engines/redis/batcher.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyText, bodyTexts, newElement, newElements } from '../support/elements.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { commit, extend, purge, rollback, settle } from '../support/settle.ts';
import { sweepAffected } from '../support/sweep.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { passGently } from './fake-time.ts';
import { freshPrefix, QUEUE_CALL, redisEngine, standalone } from './redis.ts';

const QUEUE: QueueKey = { ns: 'plain', name: 'kept' };
const NAMESPACES = [
  plain('plain'),
  plain('stream', { groups: ['g'] }),
  plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } }),
  plain('aging', { groups: ['g'], retentionMs: 60_000, deadLetter: { maxTries: 1, queue: 'dead' } }),
];
const [FAILING, DEAD] = [
  { ns: 'jobs', name: 'failing' },
  { ns: 'jobs', name: 'dead' },
];
const WINDOW_MS = 10_000;
const POP = { group: '', count: 1000, leaseMs: null };

describe('Housekeeping of the Redis engine', () => {
  let clock: FakeClock;
  let prefix: string;
  let engine: Engine;

  beforeEach(async () => {
    const { url } = await standalone();
    [clock, prefix] = [new FakeClock(), freshPrefix()];
    engine = redisEngine({ url, namespaces: NAMESPACES, clock, prefix, dedupWindowMs: WINDOW_MS });
    await engine.start();
  });

  afterEach(() => engine.stop());

  const cli = async (...args: string[]): Promise<string> =>
    redisCli((await standalone()).port, ...args).trim();

  const reserve = (leaseMs: number) => engine.storage.take(QUEUE, { ...POP, leaseMs });

  /** Reserves eighteen elements of 2 MB in a queue whose elements become dead letters at the first failed try. */
  const reserveLarge = async (): Promise<Delivery[]> => {
    const body = Buffer.alloc(2_000_000);
    for (let i = 0; i < 18; i++) await engine.storage.insert(FAILING, [newElement({ body })]);
    const taken: Delivery[] = [];
    for (let i = 0; i < 3; i++) {
      const { deliveries } = await engine.storage.take(FAILING, { group: '', count: 6, leaseMs: 60_000 });
      taken.push(...deliveries);
    }
    return taken;
  };

  /** Sweeps while the registry's clock is ahead of the queue's by `ms`, or behind if negative. */
  const sweepApart = async (ms: number): Promise<readonly QueueKey[]> => {
    const sweeping = sweepAffected(engine.storage);
    const now = clock.now();
    clock.setWallTime(now + ms);
    const affected = await sweeping;
    clock.setWallTime(now);
    return affected;
  };

  /** Sweeps until no more work is due now. */
  const sweepAll = async (): Promise<void> => {
    let nextAt: number | null;
    do {
      nextAt = await engine.storage.sweep();
    } while (nextAt !== null && nextAt <= clock.now());
  };

  it('a sweep keeps the entry that it adds if the clock of the queue is behind that of the due list', async () => {
    await engine.storage.insert(QUEUE, newElements('a'));
    await reserve(10_000);
    clock.advance(10_000);
    assert.deepEqual(await sweepApart(-500), []);
    clock.advance(1_000);
    assert.deepEqual(await sweepAffected(engine.storage), [QUEUE]);
  });

  it('a sweep returns a queue whose lease it expired while it determined the next due time', async () => {
    await engine.storage.insert(QUEUE, newElements('a'));
    await reserve(10_000);
    clock.advance(9_900);
    assert.deepEqual(await sweepApart(200), [QUEUE]);
  });

  it('retention removes dead letters although nobody uses their queue', async () => {
    const [failing, dead] = [
      { ns: 'aging', name: 'failing' },
      { ns: 'aging', name: 'dead' },
    ];
    await engine.storage.insert(failing, [newElement({ groups: ['g'] })]);
    await engine.storage.take(failing, { ...POP, group: 'g', leaseMs: 10_000 });
    clock.advance(10_000);
    assert.deepEqual(await sweepAffected(engine.storage), [dead]);
    clock.advance(60_000);
    await engine.storage.sweep();
    assert.equal((await engine.storage.counts(dead)).ready, 0);
  });

  it('repeated sweeps remove all expired dedup keys', async () => {
    const keyed = (i: number) => newElement({ dedupKey: `key ${i}` });
    await engine.storage.insert(
      QUEUE,
      Array.from({ length: 900 }, (_, i) => keyed(i)),
    );
    await engine.storage.insert(
      QUEUE,
      Array.from({ length: 900 }, (_, i) => keyed(900 + i)),
    );
    clock.advance(60_000);
    await sweepAll();
    const fields = await cli('HKEYS', new Keys(prefix).queue(QUEUE).hash);
    assert.equal(fields.split('\n').filter((field) => field.startsWith('kkey')).length, 0);
  });

  it('repeated sweeps process all queues that are due for housekeeping', async () => {
    const queues = Array.from({ length: 1_100 }, (_, i) => ({ ns: 'plain', name: `queue ${i}` }));
    await Promise.all(queues.map((queue) => engine.storage.insert(queue, newElements('a'))));
    clock.advance(60_000);
    await sweepAll();
    assert.equal(await cli('ZCOUNT', new Keys(prefix).tidy, '-inf', String(clock.now())), '0');
  });

  it('a sweep registers the next moments of all its queues together', async () => {
    const queues = Array.from({ length: 50 }, (_, i) => ({ ns: 'plain', name: `queue ${i}` }));
    await Promise.all(
      queues.map(async (queue) => {
        await engine.storage.insert(queue, newElements('a'));
        await engine.storage.take(queue, { ...POP, leaseMs: 100_000 });
      }),
    );
    clock.advance(60_000);
    await cli('CONFIG', 'RESETSTAT');
    assert.equal(await engine.storage.sweep(), clock.now() + 40_000);
    const [, calls] = /cmdstat_fcall:calls=(\d+)/.exec(await cli('INFO', 'commandstats')) ?? [];
    assert.ok(Number(calls) < 60, `${calls} calls`);
  });

  it('the counts of a queue whose counters cannot be changed do not prevent those of others', async () => {
    const queues = ['damaged', 'other'].map((name) => ({ ns: 'plain', name }));
    const [damaged, other] = queues as [QueueKey, QueueKey];
    await cli('SET', new Keys(prefix).queue(damaged).stats, 'something else');
    for (const queue of queues) engine.stats.add(queue, '', { put: 1 });
    await engine.stats.flush();
    assert.equal((await engine.stats.read(other)).get('')?.put, 1);
  });

  it('the counts of many queues are stored by few calls', async () => {
    const queues = Array.from({ length: 50 }, (_, i) => ({ ns: 'plain', name: `queue ${i}` }));
    for (const [i, queue] of queues.entries()) engine.stats.add(queue, '', { put: i + 1, get: 1 });
    await cli('CONFIG', 'RESETSTAT');
    await engine.stats.flush();
    const [, calls] = /cmdstat_fcall:calls=(\d+)/.exec(await cli('INFO', 'commandstats')) ?? [];
    assert.ok(Number(calls) < 5, `${calls} calls`);
    for (const [i, queue] of queues.entries()) {
      const { put, get } = (await engine.stats.read(queue)).get('') ?? {};
      assert.deepEqual([put, get], [i + 1, 1]);
    }
  });

  it('a sweep leaves queues of other namespaces to nodes that know their policies', async () => {
    const { url } = await standalone();
    const other = redisEngine({ url, namespaces: [plain('other')], clock, prefix });
    await other.start();
    try {
      const expiring = newElement({ expiresAt: clock.now() + 10_000 });
      await engine.storage.insert(FAILING, [newElement({}), expiring]);
      await engine.storage.take(FAILING, { ...POP, count: 1, leaseMs: 10_000 });
      clock.advance(10_000);
      assert.deepEqual(await sweepAffected(other.storage), []);
      assert.deepEqual(await sweepAffected(engine.storage), [DEAD]);
      assert.equal((await engine.storage.counts(DEAD)).ready, 2);
    } finally {
      await other.stop();
    }
  });

  it('leases expire in time although many queues of namespaces that no node has are due', async () => {
    const { url } = await standalone();
    const gone = redisEngine({ url, namespaces: [plain('gone')], clock, prefix });
    await gone.start();
    const queues = Array.from({ length: 600 }, (_, i) => ({ ns: 'gone', name: `queue ${i}` }));
    await Promise.all(
      queues.map(async (queue) => {
        await gone.storage.insert(queue, newElements('a'));
        await gone.storage.take(queue, { ...POP, leaseMs: 10_000 });
      }),
    );
    await gone.stop();
    await engine.storage.insert(QUEUE, newElements('a'));
    await reserve(20_000);
    clock.advance(20_000);
    assert.deepEqual(await sweepAffected(engine.storage), [QUEUE]);
  });

  it('leases expire in time after the clock was an hour ahead and was corrected', async () => {
    await engine.storage.insert(QUEUE, newElements('a', 'b'));
    const first = { group: '', count: 1, leaseMs: 60_000 };
    await engine.storage.take(QUEUE, first);
    const now = clock.now();
    clock.setWallTime(now + 3_600_000);
    assert.deepEqual(await sweepAffected(engine.storage), [QUEUE]);
    clock.setWallTime(now + 1_000);
    assert.equal((await engine.storage.take(QUEUE, first)).deliveries.length, 1);
    clock.advance(60_000);
    assert.deepEqual(await sweepAffected(engine.storage), [QUEUE]);
  });

  it('an element that expired while it was reserved is removed by the first sweep after its release', async () => {
    await engine.storage.insert(QUEUE, [newElement({ expiresAt: clock.now() + 10_000 })]);
    const { deliveries } = await reserve(600_000);
    clock.advance(20_000);
    await engine.storage.sweep();
    const released = deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null }));
    await rollback(
      engine.storage,
      QUEUE,
      released.map((ref) => ({ ...ref, delayMs: 0, countTry: false })),
    );
    await engine.storage.sweep();
    assert.equal((await engine.storage.counts(QUEUE)).ready, 0);
  });

  it('an element that was inserted while nothing could be added to the lists expires in time', async () => {
    const { due, tidy } = new Keys(prefix);
    for (const key of [due, tidy]) await cli('SET', key, 'something else');
    await engine.storage.insert(QUEUE, [newElement({ expiresAt: clock.now() + 10_000 })]);
    await cli('DEL', due, tidy);
    clock.advance(10_000);
    await engine.storage.sweep();
    assert.equal((await engine.storage.counts(QUEUE)).ready, 0);
  });

  it('a queue accepts inserts after that of an element that expires while neither lists nor names can be changed', async () => {
    const keys = new Keys(prefix);
    const keyNames = [keys.due, keys.tidy, keys.names(QUEUE.ns)];
    await engine.storage.insert(QUEUE, newElements('before'));
    for (const key of keyNames) await cli('SET', key, 'something else');
    await engine.storage.insert(QUEUE, [newElement({ expiresAt: clock.now() + 10_000 })]);
    await engine.storage.insert(QUEUE, newElements('after'));
    await cli('DEL', ...keyNames);
    clock.advance(10_000);
    await engine.storage.sweep();
    assert.equal((await engine.storage.counts(QUEUE)).ready, 2);
    const { deliveries } = await engine.storage.take(QUEUE, POP);
    assert.deepEqual(bodyTexts(deliveries), ['before', 'after']);
  });

  it('an element that was moved to another queue expires in time, although nobody uses that queue', async () => {
    const expiresAt = clock.now() + 100_000;
    await engine.storage.insert(QUEUE, [newElement({ expiresAt })]);
    const { deliveries } = await reserve(1_000);
    const refs = deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null }));
    const action = { kind: 'move', to: DEAD, groups: [''], tries: null, head: null } as const;
    assert.deepEqual(await settle(engine.storage, QUEUE, refs, action), ['done']);
    clock.advance(20_000);
    await sweepAll();
    assert.equal(await engine.storage.sweep(), expiresAt);
    clock.advance(80_000);
    await engine.storage.sweep();
    assert.equal((await engine.storage.counts(DEAD)).ready, 0);
  });

  it('a purge leaves no index entries of elements with an expiry', async () => {
    const expiring = Array.from({ length: 300 }, (_, i) =>
      newElement({ expiresAt: clock.now() + 60_000 + i, delayMs: i % 2 }),
    );
    await engine.storage.insert(QUEUE, expiring);
    assert.equal(await purge(engine.storage, QUEUE), 300);
    const members = await cli('ZRANGE', new Keys(prefix).queue(QUEUE).order, '-', '+', 'BYLEX');
    assert.deepEqual(members.match(/^[xwl]/gm), null);
  });

  it('leases of large elements that become dead letters expire over several sweeps, as each blocks the server', async () => {
    const { storage } = engine;
    await reserveLarge();
    clock.advance(60_000);
    const nextAt = await storage.sweep();
    assert.equal(nextAt, clock.now());
    const { ready } = await storage.counts(DEAD);
    assert.ok(ready > 0 && ready < 18, `${ready} at once`);
    await storage.sweep();
    await storage.sweep();
    assert.equal((await storage.counts(DEAD)).ready, 18);
  });

  it('moves of large elements take several function calls, as each blocks the server', async () => {
    const { storage } = engine;
    const refs = (await reserveLarge()).map(({ id, lease }) => ({
      id,
      group: '',
      token: lease?.token ?? null,
    }));
    await cli('CONFIG', 'RESETSTAT');
    const action = { kind: 'dead-letter', countTry: true, reason: null } as const;
    assert.deepEqual(new Set(await settle(storage, FAILING, refs, action)), new Set(['dead-lettered']));
    const [, calls] = /cmdstat_fcall:calls=(\d+)/.exec(await cli('INFO', 'commandstats')) ?? [];
    assert.ok(Number(calls) > 1, `${calls} calls`);
    assert.equal((await storage.counts(DEAD)).ready, 18);
  });

  it('many settlements take several function calls, as each blocks the server, and keep their order', async () => {
    const { storage } = engine;
    await storage.insert(
      FAILING,
      Array.from({ length: 2_500 }, (_, i) => newElement({ body: `${i}` })),
    );
    const refs = [];
    for (let i = 0; i < 3; i++) {
      const { deliveries } = await storage.take(FAILING, { ...POP, leaseMs: 60_000 });
      for (const { id, lease } of deliveries) refs.push({ id, group: '', token: lease?.token ?? null });
    }
    await cli('CONFIG', 'RESETSTAT');
    const action = { kind: 'dead-letter', countTry: true, reason: null } as const;
    const [first] = refs;
    assert.ok(first);
    const settled = await settle(storage, FAILING, [...refs, first], action);
    assert.deepEqual(settled, [...refs.map(() => 'dead-lettered'), 'not-found']);
    const [, calls] = /cmdstat_fcall:calls=(\d+)/.exec(await cli('INFO', 'commandstats')) ?? [];
    assert.ok(Number(calls) >= 3, `${calls} calls`);
    const dead: string[] = [];
    for (let i = 0; i < 3; i++) dead.push(...(await storage.take(DEAD, POP)).deliveries.map(bodyText));
    assert.deepEqual(
      dead,
      Array.from({ length: 2_500 }, (_, i) => `${i}`),
    );
  });

  it('a move of many elements registers its target for a sweep once', async () => {
    const { storage } = engine;
    await storage.insert(
      QUEUE,
      Array.from({ length: 500 }, () => newElement()),
    );
    const { deliveries } = await reserve(60_000);
    const refs = deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null }));
    await cli('CONFIG', 'RESETSTAT');
    const action = { kind: 'move', to: DEAD, groups: [''], tries: null, head: null } as const;
    assert.deepEqual(new Set(await settle(storage, QUEUE, refs, action)), new Set(['done']));
    const [, calls] = /cmdstat_fcall:calls=(\d+)/.exec(await cli('INFO', 'commandstats')) ?? [];
    assert.ok(Number(calls) < 10, `${calls} calls`);
  });

  it('inserts of elements with many groups are split into several function calls, as each blocks the server', async () => {
    const groups = Array.from({ length: 60 }, (_, i) => `group ${i}`);
    const insert = () => engine.storage.insert({ ns: 'stream', name: 'q' }, [newElement({ groups })]);
    await insert();
    await cli('CONFIG', 'RESETSTAT');
    await Promise.all(Array.from({ length: 40 }, insert));
    const [, calls] = /cmdstat_fcall:calls=(\d+)/.exec(await cli('INFO', 'commandstats')) ?? [];
    assert.ok(Number(calls) >= 3, `${calls} calls`);
    assert.equal((await engine.storage.counts({ ns: 'stream', name: 'q' })).ready, 41);
  });

  it('expiry and retention of elements with many groups take several sweeps', async () => {
    const { storage } = engine;
    const groups = Array.from({ length: 60 }, (_, i) => `group ${i}`);
    const old = { ns: 'stream', name: 'old' };
    const expiring = { ns: 'stream', name: 'expiring' };
    await storage.declare([old], { retentionMs: 60_000 });
    const insert = (queue: QueueKey, expiresAt: number | null) =>
      storage.insert(
        queue,
        Array.from({ length: 40 }, () => newElement({ groups, expiresAt })),
      );
    await insert(old, null);
    await insert(expiring, clock.now() + 60_000);
    clock.advance(60_001);
    await storage.sweep();
    for (const queue of [old, expiring]) {
      const { ready } = await storage.counts(queue);
      assert.ok(ready > 0 && ready < 40, `${ready} of ${queue.name} are left`);
    }
    for (let i = 0; i < 4; i++) await storage.sweep();
    for (const queue of [old, expiring]) assert.equal((await storage.counts(queue)).ready, 0);
  });

  describe('of a stream with many groups', () => {
    const WIDE = { ns: 'stream', name: 'wide' };
    const AGING = { ns: 'aging', name: 'wide' };
    const GROUPS = Array.from({ length: 240 }, (_, i) => `group ${i}`);

    /** Inserts elements, each for these groups. */
    const insertFor = (queue: QueueKey, groups: readonly string[], count: number, body = 'x') =>
      engine.storage.insert(
        queue,
        Array.from({ length: count }, () => newElement({ groups, body })),
      );

    /** Reserves `count` elements in each of these groups. */
    const reserveIn = (queue: QueueKey, groups: readonly string[], count: number, leaseMs: number) =>
      Promise.all(groups.map((group) => engine.storage.take(queue, { group, count, leaseMs })));

    /** How many members of the queue's sorted set have this prefix. */
    const membersOf = async (queue: QueueKey, prefixed: string): Promise<number> => {
      const next = String.fromCharCode(prefixed.charCodeAt(0) + 1);
      const { order } = new Keys(prefix).queue(queue);
      return Number(await cli('ZLEXCOUNT', order, `[${prefixed}`, `(${next}`));
    };

    /** How many commands Redis executes for a call, including those of functions. */
    const commandsOf = async (call: () => Promise<unknown>): Promise<number> => {
      await cli('CONFIG', 'RESETSTAT');
      await call();
      const stats = await cli('INFO', 'commandstats');
      return [...stats.matchAll(/calls=(\d+)/g)].reduce((sum, [, calls]) => sum + Number(calls), 0);
    };

    beforeEach(async () => {
      for (let from = 0; from < GROUPS.length; from += 60) {
        await insertFor(WIDE, GROUPS.slice(from, from + 60), 1);
      }
    });

    it('groups without deliveries cost nothing', async () => {
      await purge(engine.storage, WIDE);
      await insertFor(WIDE, ['g'], 1);
      clock.advance(60_000);
      for (const [what, call] of Object.entries({
        counts: () => engine.storage.counts(WIDE),
        sweep: () => engine.storage.sweep(),
        purge: () => engine.storage.purge(WIDE),
      })) {
        const commands = await commandsOf(call);
        assert.ok(commands < 200, `${what}: ${commands} commands`);
      }
    });

    it('a rollback in one group, and the counts of one, do not visit the others', async () => {
      const [first] = (await reserveIn(WIDE, GROUPS, 1, 60_000))[0]?.deliveries ?? [];
      assert.ok(first?.lease);
      const { id, group, lease } = first;
      const ref = { id, group, token: lease.token, delayMs: 0, countTry: true };
      for (const call of [
        () => rollback(engine.storage, WIDE, [ref]),
        () => engine.storage.counts(WIDE, group),
      ]) {
        const commands = await commandsOf(call);
        assert.ok(commands < 100, `${commands} commands`);
      }
    });

    it('reads of the same counts that are made together are executed once', async () => {
      const one = await commandsOf(() => engine.storage.counts(WIDE));
      const many = await commandsOf(() =>
        Promise.all(Array.from({ length: 10 }, () => engine.storage.counts(WIDE))),
      );
      assert.ok(many < 2 * one, `${many} commands instead of ${one}`);
    });

    it('purges take several function calls, as each blocks the server', async () => {
      await insertFor(QUEUE, [''], 1_000);
      await cli('CONFIG', 'RESETSTAT');
      await Promise.all([1, 2, 3].map(() => engine.storage.purge(QUEUE)));
      const [, calls] = /cmdstat_fcall:calls=(\d+)/.exec(await cli('INFO', 'commandstats')) ?? [];
      assert.ok(Number(calls) >= 3, `${calls} calls`);
    });

    it('a group whose many leases have expired does not delay others', async () => {
      await insertFor(AGING, ['busy'], 1_000);
      await insertFor(AGING, ['busy'], 500);
      await insertFor(AGING, ['quiet'], 1, 'quiet');
      await reserveIn(AGING, ['busy', 'busy'], 1_000, 10_000);
      await reserveIn(AGING, ['quiet'], 1, 11_000);
      clock.advance(11_000);
      await engine.storage.sweep();
      const { deliveries } = await engine.storage.take({ ns: 'aging', name: 'dead' }, { ...POP, group: 'g' });
      assert.ok(deliveries.map(bodyText).includes('quiet'), `${deliveries.length} dead letters`);
    });

    it('takes of one function call end a thousand leases together, as each blocks the server', async () => {
      const some = GROUPS.slice(0, 40);
      await insertFor(WIDE, some, 50);
      await reserveIn(WIDE, some, 50, 10_000);
      assert.equal(await membersOf(WIDE, 'l'), 2_000);
      clock.advance(10_000);
      await Promise.all(some.map((group) => engine.storage.take(WIDE, { ...POP, group, count: 1 })));
      assert.equal(await membersOf(WIDE, 'l'), 1_000);
      await sweepAll();
      assert.equal(await membersOf(WIDE, 'l'), 0);
    });

    it('takes of one function call remove a thousand expired elements together, as each blocks the server', async () => {
      const expiring = Array.from({ length: 900 }, () => newElement({ expiresAt: clock.now() + 10_000 }));
      for (let i = 0; i < 3; i++) await engine.storage.insert(QUEUE, expiring);
      clock.advance(10_000);
      const take = { ...POP, count: 1, maxBytes: 1_000 };
      const taken = await Promise.all([1, 2, 3].map(() => engine.storage.take(QUEUE, take)));
      assert.equal(await membersOf(QUEUE, 'x'), 1_700);
      for (const { deliveries, isLeft } of taken) assert.deepEqual([deliveries.length, isLeft], [0, true]);
    });
  });

  it('a page without bodies ends when the server has read enough bytes', async () => {
    const { storage } = engine;
    // Bodies of this size are stored, and read, together with their envelope.
    const body = Buffer.alloc(4_000);
    for (let i = 0; i < 2; i++) {
      const elements = Array.from({ length: 500 }, () => newElement({ body }));
      await storage.insert(QUEUE, elements);
    }
    const states = ['ready'] as const;
    const pages: number[] = [];
    for (let after: string | null | undefined; after !== null; ) {
      const options = { group: '', states, after: after ?? null, limit: 1_000, bodies: false };
      const page = await storage.scan(QUEUE, options);
      pages.push(page.deliveries.length);
      after = page.next;
    }
    assert.ok(pages.length > 1 && pages.every((length) => length > 0), `${pages}`);
    assert.equal(
      pages.reduce((sum, length) => sum + length),
      1_000,
    );
  });

  it('an undone pop keeps the reason of the last failed try', async () => {
    for (const [queue, group] of [
      [QUEUE, ''],
      [{ ns: 'stream', name: 'q' }, 'g'],
    ] as const) {
      const { storage } = engine;
      const insert = (body: string) => storage.insert(queue, [newElement({ body, groups: [group] })]);
      await insert('a');
      await insert('b');
      const { deliveries } = await storage.take(queue, { group, count: 1, leaseMs: 60_000 });
      const failed = { group, token: null, delayMs: 0, countTry: true, reason: 'no good' };
      await rollback(
        storage,
        queue,
        deliveries.map(({ id }) => ({ id, ...failed })),
      );
      const popped = await storage.take(queue, { ...POP, group });
      assert.equal(popped.deliveries.length, 2);
      // The node's next call makes its pop final.
      await insert('c');
      await storage.undoTake(queue, popped.deliveries);
      const states = ['ready', 'scheduled', 'reserved'] as const;
      const page = await storage.scan(queue, { group, states, after: null, limit: 9, bodies: true });
      assert.deepEqual(page.deliveries.map((each) => [bodyText(each), each.reason]).toSorted(), [
        ['a', 'no good'],
        ['b', null],
        ['c', null],
      ]);
    }
  });

  it('reserves with short leases share due entries instead of adding one each', async () => {
    const bodies = Array.from({ length: 100 }, (_, i) => `${i}`);
    await engine.storage.insert(QUEUE, newElements(...bodies));
    for (const _ of bodies) {
      await engine.storage.take(QUEUE, { group: '', count: 1, leaseMs: 2_000 });
      clock.advance(10);
    }
    const entries = Number(await cli('ZCARD', new Keys(prefix).due));
    assert.ok(entries <= 4, `${entries} entries`);
  });

  it('ending a lease of a stream takes no more commands if many other groups have leases', async () => {
    /** How many commands a sweep takes after a lease of one of so many groups has expired. */
    const commandsWith = async (count: number): Promise<number> => {
      const own = redisEngine({ url: (await standalone()).url, namespaces: NAMESPACES, clock });
      await own.start();
      const { storage } = own;
      const queue = { ns: 'stream', name: 'q' };
      const groups = Array.from({ length: count }, (_, i) => `g${i}`);
      for (let at = 0; at < count; at += 50) {
        await storage.insert(queue, [newElement({ groups: groups.slice(at, at + 50) })]);
      }
      const reserveIn = (group: string, leaseMs: number) => storage.take(queue, { group, count: 1, leaseMs });
      await Promise.all(groups.map((group) => reserveIn(group, 50_000)));
      await storage.insert(queue, [newElement({ groups: ['g3'] })]);
      await reserveIn('g3', 1_000);
      clock.advance(1_000);
      await cli('CONFIG', 'RESETSTAT');
      assert.deepEqual(await sweepAffected(storage), [queue]);
      const calls = (await cli('INFO', 'commandstats')).matchAll(/^cmdstat_z\w+:calls=(\d+)/gm);
      assert.deepEqual(await sweepAffected(storage), []);
      const { deliveries } = await storage.take(queue, { ...POP, group: 'g3' });
      assert.deepEqual(
        deliveries.map(({ tries }) => tries),
        [1],
      );
      await own.stop();
      return [...calls].reduce((sum, [, each]) => sum + Number(each), 0);
    };
    assert.equal(await commandsWith(400), await commandsWith(50));
  });

  it('ends a lease of a stream in time that an extension has shortened', async () => {
    const queue = { ns: 'stream', name: 'shortened' };
    await engine.storage.insert(queue, [newElement({ groups: ['g'] }), newElement({ groups: ['g'] })]);
    const take = () => engine.storage.take(queue, { group: 'g', count: 1, leaseMs: 60_000 });
    const [taken] = (await take()).deliveries;
    // Only the second lease shows that this version lists the groups.
    await take();
    const ref = { id: taken?.id ?? '', group: 'g', token: null, leaseMs: 2_000 };
    await extend(engine.storage, queue, [ref]);
    clock.advance(2_000);
    assert.deepEqual(await sweepAffected(engine.storage), [queue]);
  });

  it('a sweep returns when the first lease of a stream ends, whatever groups had leases that ended earlier', async () => {
    const queue = { ns: 'stream', name: 'settled' };
    const groups = ['g', 'h', 'i'];
    const { storage } = engine;
    await storage.insert(queue, [newElement({ groups })]);
    const taken = await Promise.all(
      groups.map((group) => storage.take(queue, { group, count: 1, leaseMs: 10_000 })),
    );
    const refs = taken.flatMap(({ deliveries }) =>
      deliveries.map(({ id, group }) => ({ id, group, token: null })),
    );
    await commit(storage, queue, refs);
    await storage.insert(queue, [newElement({ groups })]);
    await storage.take(queue, { group: 'h', count: 1, leaseMs: 60_000 });
    assert.equal(await storage.sweep(), clock.now() + 60_000);
  });

  it('ends leases of a stream that an earlier version stored without listing their groups', async () => {
    const queue = { ns: 'stream', name: 'old' };
    await engine.storage.insert(queue, [newElement({ groups: ['g', 'h'] })]);
    for (const [group, leaseMs] of [
      ['g', 1_000],
      ['h', 2_000],
    ] as const) {
      await engine.storage.take(queue, { group, count: 1, leaseMs });
    }
    const { hash, order } = new Keys(prefix).queue(queue);
    const listed = (await cli('HKEYS', hash)).split('\n').filter((field) => /^[lM]/.test(field));
    await cli('HDEL', hash, ...listed);
    await cli('ZREMRANGEBYLEX', order, '[m', '(n');
    assert.ok(!(await cli('HKEYS', hash)).split('\n').includes('M'));
    for (const _ of ['g', 'h']) {
      clock.advance(1_000);
      assert.deepEqual(await sweepAffected(engine.storage), [queue]);
    }
    assert.equal((await engine.storage.counts(queue)).reserved, 0);
  });

  describe('a sweep of a queue that the node last changed a minute ago, in one batch with a change', () => {
    let [proxy, own, node]: [TcpProxy, FakeClock, Engine] = [] as never;

    beforeEach(async () => {
      proxy = await TcpProxy.start(Number(new URL((await standalone()).url).port));
      own = new FakeClock();
      const url = `redis://127.0.0.1:${proxy.port}`;
      node = redisEngine({ url, namespaces: NAMESPACES, clock, prefix, ownClock: own });
      await node.start();
    });

    afterEach(async () => {
      proxy.release();
      await passGently(own, node.stop());
      await proxy.stop();
    });

    /** Holds a read of the queue back until the sweep and `change` wait for the next batch. */
    const sweepWith = async (change: () => Promise<unknown>): Promise<void> => {
      const caught = proxy.catch(QUEUE_CALL, 'held');
      const counting = node.storage.counts(QUEUE);
      await caught;
      const waiting = Promise.withResolvers<void>();
      const { call } = Batchers.prototype;
      const spy = mock.method(Batchers.prototype, 'call', function (this: Batchers, ...args: never[]) {
        const [, { name }] = args as unknown as Parameters<Batchers['call']>;
        if (name === 'sweep') waiting.resolve();
        return Reflect.apply(call, this, args);
      });
      const sweeping = node.storage.sweep();
      await waiting.promise;
      spy.mock.restore();
      const changing = change();
      proxy.release();
      await Promise.all([counting, sweeping, changing]);
    };

    const reconnected = async (): Promise<void> => {
      const counts = await node.storage.counts(QUEUE).catch(() => null);
      if (counts === null) await setTimeout(10).then(reconnected);
    };

    it('leaves a session that is forgotten later', async () => {
      await node.storage.insert(QUEUE, newElements('a'));
      clock.advance(61_000);
      await sweepWith(() => node.storage.insert(QUEUE, newElements('b')));
      for (let i = 0; i < 2; i++) {
        clock.advance(61_000);
        await engine.storage.sweep();
      }
      const fields = (await cli('HKEYS', new Keys(prefix).queue(QUEUE).hash)).split('\n');
      assert.deepEqual(
        fields.filter((field) => field.startsWith('c')),
        [],
      );
    });

    it('does not delete the elements of a pop that the change undoes', async () => {
      await engine.storage.insert(QUEUE, newElements('a', 'b'));
      const caught = proxy.catch(QUEUE_CALL, 'mute');
      const popping = node.storage.take(QUEUE, POP);
      await caught;
      own.advance(5_000);
      await assert.rejects(popping, { code: 'outcome-unknown' });
      proxy.reset();
      await passGently(own, reconnected());
      clock.advance(61_000);
      await sweepWith(() => node.storage.insert(QUEUE, newElements('c')));
      assert.deepEqual(bodyTexts((await engine.storage.take(QUEUE, POP)).deliveries), ['a', 'b', 'c']);
    });
  });

  it('a reserve that arrives late has a due entry for its lease, although a sweep ran before it', async () => {
    const proxy = await TcpProxy.start(Number(new URL((await standalone()).url).port));
    const own = new FakeClock();
    const url = `redis://127.0.0.1:${proxy.port}`;
    const dying = redisEngine({ url, namespaces: NAMESPACES, clock, prefix, ownClock: own });
    await dying.start();
    try {
      for (const leaseMs of [20_000, 2_500]) {
        await engine.storage.insert(QUEUE, newElements('early', 'popped', 'late'));
        await dying.storage.take(QUEUE, { group: '', count: 1, leaseMs: 2_000 });
        const caught = proxy.catch(QUEUE_CALL, 'held');
        const reserving = dying.storage.take(QUEUE, { group: '', count: 1, leaseMs });
        await caught;
        clock.advance(3_000);
        assert.deepEqual(await sweepAffected(engine.storage), [QUEUE]);
        assert.equal((await engine.storage.take(QUEUE, { ...POP, count: 1 })).deliveries.length, 1);
        clock.advance(1_000);
        proxy.release();
        assert.equal((await passGently(own, reserving)).deliveries.length, 1);
        clock.advance(leaseMs + 5_000);
        assert.deepEqual(await sweepAffected(engine.storage), [QUEUE], `${leaseMs}`);
        await engine.storage.take(QUEUE, POP);
      }
    } finally {
      await passGently(own, dying.stop());
      await proxy.stop();
    }
  });
});

describe('A Redis server without an append-only file', () => {
  const save = (server: RedisServer): string => redisCli(server.port, 'SAVE');

  /** Repeats an insert until the server is back. */
  const insert = async (engine: Engine): Promise<void> => {
    while (!(await engine.storage.insert(QUEUE, newElements('later')).then(Boolean, () => false)));
  };

  const restart = async (server: RedisServer): Promise<void> => {
    await server.kill();
    await server.restart();
  };

  for (const [what, before, lose] of [
    ['is restarted with an older state', save, restart],
    ['is restarted without data', () => '', restart],
    ['is emptied', () => '', ({ port }: RedisServer) => redisCli(port, 'FLUSHALL')],
  ] as const) {
    it(`that ${what} expires the leases of later reserves in time`, async () => {
      const server = await startRedis('--appendonly', 'no', '--save', '');
      const [clock, prefix] = [new FakeClock(), freshPrefix()];
      const engines = [1, 2].map(() =>
        redisEngine({ url: server.url, namespaces: NAMESPACES, clock, prefix }),
      );
      try {
        await Promise.all(engines.map((engine) => engine.start()));
        for (const engine of engines) await engine.storage.insert(QUEUE, newElements('first', 'second'));
        before(server);
        // Shorter than the interval of housekeeping, which would also expire the lease.
        const reserve = { ...POP, count: 1, leaseMs: 20_000 };
        for (const { storage } of engines) await storage.take(QUEUE, reserve);
        await lose(server);
        for (const engine of engines) await insert(engine);
        clock.advance(10_000);
        for (const { storage } of engines) await storage.take(QUEUE, reserve);
        clock.advance(20_000);
        assert.deepEqual(await sweepAffected((engines[0] as Engine).storage), [QUEUE]);
      } finally {
        await Promise.all(engines.map((engine) => engine.stop()));
        await server.stop();
      }
    });
  }
});
