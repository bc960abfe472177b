import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, describe, it } from 'node:test';
import type { Sink } from '../../src/broker/consumer.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { type RedisServer, redisCli, redisReply, startRedis } from '../support/redis-servers.ts';
import { commit, purge, rollback } from '../support/settle.ts';
import { until } from '../support/until.ts';
import { freshPrefix, redisEngine } from './redis.ts';

const QUEUE = { ns: 'N', name: 'large' };
const COUNT = 8;
const BODY = Buffer.alloc(9_000_000, 'x');

describe('Large elements in Redis', () => {
  let server: RedisServer;
  let engine: Engine;

  before(async () => {
    server = await startRedis();
    engine = redisEngine({
      namespaces: [plain('N')],
      clock: null,
      prefix: freshPrefix(),
      url: server.url,
    });
    await engine.start();
    for (let i = 0; i < COUNT; i += 1) await engine.storage.insert(QUEUE, [newElement({ body: BODY })]);
  });
  after(async () => {
    await engine.stop();
    await server.stop();
  });

  /** Returns how many elements Redis reads while it executes a call. */
  async function readBy(call: () => Promise<unknown>): Promise<number> {
    const monitor = connect(server.port, '127.0.0.1');
    let text = '';
    monitor.setEncoding('latin1').on('data', (chunk: string) => {
      text += chunk;
    });
    monitor.write('MONITOR\r\n');
    await until(() => text.startsWith('+OK'));
    await call();
    monitor.write('PING\r\n');
    await until(() => text.includes('+PONG') || text.includes('"PING"'));
    monitor.destroy();
    await once(monitor, 'close');
    // The name of an element's field: `e` and six bytes of its number.
    const reads = text.split('\n').filter((line) => /"h(m?get)"/i.test(line));
    return reads.join('\n').match(/ "e\\x00/g)?.length ?? 0;
  }

  it('are read only as far as a page of a scan returns them: Lua takes 4 ms for a megabyte', async () => {
    const options = { group: '', states: ['ready'], after: null, limit: COUNT, bodies: true } as const;
    const read = await readBy(async () => {
      const { deliveries } = await engine.storage.scan(QUEUE, options);
      assert.equal(deliveries.length, 1);
    });
    assert.equal(read, 1);
  });

  for (const variant of ['simple', 'list']) {
    it(`${variant}: are returned by all takes of a batch together only as far as one take would get; the others must take again`, async () => {
      const settings = { variant };
      const url = server.url;
      const sharing = redisEngine({
        namespaces: [plain('N')],
        clock: null,
        prefix: freshPrefix(),
        url,
        settings,
      });
      await sharing.start();
      const { storage } = sharing;
      const body = Buffer.alloc(1_000_000, 'x');
      for (let i = 0; i < 6; i++) {
        await storage.insert(
          QUEUE,
          Array.from({ length: 4 }, () => newElement({ body })),
        );
      }
      const take = { group: '', count: 4, leaseMs: null, maxBytes: 16_000_000 };
      const now = storage.now(QUEUE);
      const left = [6, 6, 6, 6, 6, 6].map(() => 4);
      let calls = 0;
      while (left.some((count) => count > 0)) {
        calls++;
        const asking = [...left.keys()].filter((i) => (left[i] ?? 0) > 0);
        const results = await Promise.all(
          asking.map((i) => storage.take(QUEUE, { ...take, count: left[i] ?? 0 })),
        );
        const taken = results.reduce((sum, { deliveries }) => sum + deliveries.length, 0);
        assert.ok(taken > 0 && taken <= 17, `${taken} megabytes in one reply`);
        for (const [at, { deliveries, nextDueAt, isCut = false }] of results.entries()) {
          const i = asking[at] ?? 0;
          left[i] = (left[i] ?? 0) - deliveries.length;
          if (left[i] === 0) continue;
          assert.equal(isCut, false, 'the take was not cut by its own limit');
          assert.ok((nextDueAt ?? Number.POSITIVE_INFINITY) <= now + 60_000);
        }
      }
      assert.equal(calls, 2);
      await sharing.stop();
    });
  }

  it('reach every client of a batch whose reply was full, even with a timeout of 0', async () => {
    const policy = plain('N');
    const url = server.url;
    const own = redisEngine({ namespaces: [policy], clock: null, prefix: freshPrefix(), url });
    await own.start();
    const broker = brokerOn([{ policy, engine: own }], systemClock);
    await broker.start();
    const body = Buffer.alloc(1_000_000, 'x');
    for (let i = 0; i < 12; i++) {
      await own.storage.insert(
        QUEUE,
        Array.from({ length: 4 }, () => newElement({ body })),
      );
    }
    const queue = broker.namespace(QUEUE.ns).queue(QUEUE.name);
    const request = { group: null, leaseMs: null, count: 8, maxBytes: 16_000_000, timeoutMs: 0, tid: null };
    const got = await Promise.all(
      Array.from({ length: 6 }, () => {
        const { promise, resolve } = Promise.withResolvers<string>();
        const sink: Sink = { deliver: () => resolve('elements'), end: ({ code }) => resolve(code) };
        queue.get({ ...request, owner: null }, sink);
        return promise;
      }),
    );
    assert.deepEqual(
      got,
      Array.from({ length: 6 }, () => 'elements'),
    );
    await broker.stop();
    await own.stop();
  });

  it('are read by batches of at most eight pages', async () => {
    redisCli(server.port, 'CONFIG', 'RESETSTAT');
    const page = { group: '', states: ['ready'], after: null, limit: 1, bodies: false } as const;
    await Promise.all(Array.from({ length: 24 }, () => engine.storage.scan(QUEUE, page)));
    const stats = redisCli(server.port, 'INFO', 'commandstats');
    assert.equal(/cmdstat_fcall:calls=(\d+)/.exec(stats)?.[1], '3');
  });

  it('are read only as far as a take returns them', async () => {
    const read = await readBy(async () => {
      const take = { group: '', count: COUNT, leaseMs: 60_000 };
      assert.equal((await engine.storage.take(QUEUE, take)).deliveries.length, 2);
    });
    assert.equal(read, 2);
  });

  it('are read only as far as they are returned, even behind small elements', async () => {
    const { storage } = engine;
    const queue = { ns: 'N', name: 'mixed' };
    const small = Array.from({ length: 9 }, () => newElement({ body: 'small' }));
    const body = Buffer.alloc(1_500_000, 'x');
    await storage.insert(queue, small);
    for (let i = 0; i < 12; i += 1) await storage.insert(queue, [newElement({ body })]);
    const page = { group: '', states: ['ready'], after: null, limit: 100, bodies: true } as const;
    const take = { group: '', count: 100, leaseMs: null };
    for (const [returned, call] of [
      [11, () => storage.scan(queue, page)],
      [10, () => storage.take(queue, { ...take, maxBytes: 2_000_000 })],
      [11, () => storage.take(queue, take)],
    ] as const) {
      const read = await readBy(async () => assert.equal((await call()).deliveries.length, returned));
      assert.equal(read, returned);
    }
  });

  describe('whose bodies are stored in fields of their own', () => {
    const clock = new FakeClock();
    const prefix = freshPrefix();
    const namespaces = [plain('N'), plain('S', { groups: ['g', 'other'] })];
    let front: Engine;

    before(async () => {
      front = redisEngine({ namespaces, clock, prefix, url: server.url });
      await front.start();
    });
    after(() => front.stop());

    const fieldsOf = (queue: QueueKey): string[] => {
      const { hash } = new Keys(prefix).queue(queue);
      const fields = redisReply(server.port, 'HKEYS', hash) as readonly string[];
      return fields.flatMap((field) => /^([ef])\0/.exec(field)?.[1] ?? []);
    };

    it('are not read by scans without bodies, removals, expiry and purges, and a take reads only what it returns', async () => {
      const { storage } = front;
      const insert = async (fields: Parameters<typeof newElement>[0]): Promise<string> =>
        String(await storage.insert(QUEUE, [newElement({ body: BODY, ...fields })]));
      const headed = await insert({ headers: ['h', 'v'], contentType: 'text/x' });
      const tried = await insert({ tries: 3, contentType: null });
      const expiring = await insert({ expiresAt: clock.now() + 1_000 });
      const scheduled = await insert({ delayMs: 1_000 });
      const ids = [scheduled, expiring, headed, tried];
      const page = {
        group: '',
        states: ['ready', 'scheduled'],
        after: null,
        limit: 100,
        bodies: false,
      } as const;
      const finish = { group: '', from: 'waiting', token: null, action: { kind: 'finish' } } as const;
      const read = await readBy(async () => {
        for (const options of [page, { ...page, ids }]) {
          const { deliveries, next } = await storage.scan(QUEUE, options);
          assert.deepEqual(
            deliveries.map((each) => [
              each.id,
              each.bytes,
              each.headers,
              each.contentType,
              each.tries,
              each.state,
            ]),
            [
              [headed, BODY.length, ['h', 'v'], 'text/x', 0, 'ready'],
              [tried, BODY.length, [], null, 3, 'ready'],
              [expiring, BODY.length, [], 'text/plain', 0, 'ready'],
              [scheduled, BODY.length, [], 'text/plain', 0, 'scheduled'],
            ],
          );
          assert.equal(next, null);
        }
        assert.equal((await storage.settle([{ ...finish, queue: QUEUE, id: tried }]))[0]?.outcome, 'done');
        clock.advance(1_000);
        await storage.sweep();
        assert.equal((await storage.counts(QUEUE)).ready, 2);
      });
      assert.equal(read, 0);
      const taken: Delivery[] = [];
      const readByTake = await readBy(async () => {
        const options = { group: '', count: 1, leaseMs: null };
        taken.push(...(await storage.take(QUEUE, options)).deliveries);
      });
      assert.deepEqual(
        taken.map(({ id, body }) => [id, BODY.equals(body)]),
        [[headed, true]],
      );
      assert.equal(readByTake, 1);
      await storage.undoTake(QUEUE, taken);
      await insert({ expiresAt: clock.now() + 1_000 });
      const readByPurge = await readBy(async () => assert.equal((await storage.purge(QUEUE)).removed, 3));
      assert.equal(readByPurge, 0);
    });

    it('leave no fields behind, however they end', async () => {
      const { storage } = front;
      const body = Buffer.alloc(5_000, 'x');
      for (const [ns, groups] of [
        ['N', ['']],
        ['S', ['g', 'other']],
      ] as const) {
        const queue = { ns, name: 'ends' };
        const group = groups[0];
        const fields = { group, token: null, owner: null };
        await storage.insert(
          queue,
          ['a', 'b', 'c', 'd', 'e'].map((name) => newElement({ body, groups, headers: ['name', name] })),
        );
        await storage.insert(queue, [newElement({ body: 'small', groups })]);
        assert.deepEqual(fieldsOf(queue).toSorted().join(''), 'eeeeeefffff');
        const take = { group, count: 1, leaseMs: 60_000 };
        const committed = (await storage.take(queue, take)).deliveries;
        await commit(
          storage,
          queue,
          committed.map(({ id, lease }) => ({ ...fields, id, token: lease?.token ?? null })),
        );
        const returned = (await storage.take(queue, take)).deliveries;
        await rollback(
          storage,
          queue,
          returned.map(({ id }) => ({ ...fields, id, delayMs: 0, countTry: true })),
        );
        await storage.take(queue, { ...take, leaseMs: null, count: 3 });
        const [last] = (await storage.take(queue, { ...take, leaseMs: null })).deliveries;
        assert.equal(last === undefined ? null : bodyText(last).length, 5_000);
        await purge(storage, queue);
        // The second purge, a later call of the node, confirms its last pop, whose elements are then removed.
        await storage.purge(queue);
        assert.deepEqual(fieldsOf(queue), []);
      }
    });
  });
});
