import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { Delivery } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { redisCli } from '../support/redis-servers.ts';
import { commit, purge, rollback } from '../support/settle.ts';
import { freshPrefix, redisEngine, standalone } from './redis.ts';

const QUEUE: QueueKey = { ns: 'jobs', name: 'damaged' };
const LEASE_MS = 60_000;
const RESERVE = { group: '', count: 10, leaseMs: LEASE_MS };
const POP = { group: '', count: 10, leaseMs: null };

describe('A queue on Redis with damaged or unknown data', () => {
  const clock = new FakeClock();
  let port = 0;
  let engine: Engine;
  const logged: object[] = [];
  let keys: { readonly hash: string; readonly order: string };

  beforeEach(async () => {
    const server = await standalone();
    port = server.port;
    const prefix = freshPrefix();
    keys = new Keys(prefix).queue(QUEUE);
    const namespaces = [plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } })];
    const log = { info: () => {}, warn: (fields: object) => logged.push(fields) };
    engine = redisEngine({ url: server.url, namespaces, clock, prefix, log });
    await engine.start();
    logged.length = 0;
  });

  afterEach(() => engine.stop());

  /** Runs Lua on the queue's hash (`KEYS[1]`) and sorted set (`KEYS[2]`). */
  const edit = (lua: string, ...args: string[]): string =>
    redisCli(port, 'EVAL', lua, '2', keys.hash, keys.order, ...args).trim();

  const numberOf = ({ id }: Pick<Delivery, 'id'>): string => String(Number.parseInt(id.slice(12), 32));

  /** Adds the index entry of a lease that ends at `till` although the delivery's record is gone or has another end. */
  const addStaleLease = (delivery: Delivery, till: number): string =>
    edit(
      `return redis.call('ZADD', KEYS[2], 0, 'l\\0\\0' .. struct.pack('>I6I6', ARGV[1], ARGV[2]))`,
      String(till),
      numberOf(delivery),
    );

  const leaseMembers = (): string => edit(`return redis.call('ZLEXCOUNT', KEYS[2], '[l', '(m')`);

  async function reserved(...bodies: string[]): Promise<Delivery[]> {
    await engine.storage.insert(QUEUE, newElements(...bodies));
    return (await engine.storage.take(QUEUE, RESERVE)).deliveries;
  }

  const commitOne = async ({ id }: Delivery, token: string | null): Promise<string | undefined> =>
    (await commit(engine.storage, QUEUE, [{ id, group: '', token }]))[0];

  it('deletes exactly the elements of the last pop of a node that ran an earlier version', async () => {
    const bodies = Array.from({ length: 600 }, (_, i) => `${i + 1}`);
    await engine.storage.insert(QUEUE, newElements(...bodies));
    // The first two elements, of which the second had a failed try, were popped: the session has their members of z.
    edit(
      `
      local now, members = struct.pack('>I6', ARGV[1]), ''
      for seq = 1, 2 do
        local before = 'w\\0\\0' .. now .. struct.pack('>I6', seq)
        redis.call('ZREM', KEYS[2], before .. struct.pack('>I4', 0))
        members = members .. before .. struct.pack('>I4', seq - 1)
      end
      local session = struct.pack('>I6', 1) .. now .. now .. 't' .. 'P' .. string.rep('\\0', 15) .. members
      redis.call('HSET', KEYS[1], 'cnode', session)
      redis.call('ZADD', KEYS[2], 0, 'c' .. now .. 'node')
      `,
      String(clock.now()),
    );
    clock.advance(61_000);
    await engine.storage.sweep();
    const { deliveries } = await engine.storage.take(QUEUE, { ...POP, count: 1000 });
    assert.deepEqual(bodyTexts(deliveries), bodies.slice(2));
    assert.equal(edit(`return redis.call('HEXISTS', KEYS[1], 'e' .. struct.pack('>I6', 1))`), '0');
    assert.equal(edit(`return redis.call('HEXISTS', KEYS[1], 'cnode')`), '0');
  });

  it('keeps the origin of a dead letter whose headers an earlier version changed', async () => {
    const headers = ['own', '1'];
    const [id = ''] = await engine.storage.insert(QUEUE, [newElement({ contentType: null, headers })]);
    const tag = id.slice(0, 12);
    // It failed, the header with its origin was removed, and it failed again: by two lines, and one in between.
    const lines = [
      ['d', QUEUE.name, clock.now(), 1, `${tag}1001`, 'broken', ''],
      ['h', 'x-ks-origin-id', null, 'own', '2'],
      ['d', QUEUE.name, clock.now(), 1, `${tag}1002`, 'broken', ''],
    ];
    const metadata = [[null, ...headers], ...lines].map((line) => JSON.stringify(line)).join('\n');
    edit(
      `
      local field = 'e' .. struct.pack('>I6', ARGV[1])
      local value = redis.call('HGET', KEYS[1], field)
      local at = string.find(value, ARGV[2], 1, true)
      local rest = string.sub(value, at + #ARGV[2])
      redis.call('HSET', KEYS[1], field, string.sub(value, 1, at - 5) .. struct.pack('>I4', #ARGV[3]) .. ARGV[3] .. rest)
      `,
      numberOf({ id }),
      JSON.stringify([null, ...headers]),
      metadata,
    );
    const [held] = (await engine.storage.take(QUEUE, RESERVE)).deliveries;
    const failed = { id, group: '', token: null, delayMs: 0, countTry: true };
    assert.deepEqual(await rollback(engine.storage, QUEUE, [failed]), ['dead-lettered']);
    const [dead] = (await engine.storage.take({ ...QUEUE, name: 'dead' }, POP)).deliveries;
    const headerOf = (delivery: Delivery | undefined, name: string): string | undefined =>
      delivery?.headers[delivery.headers.indexOf(name) + 1];
    const origin = headerOf(held, 'x-ks-origin-id') ?? '';
    assert.equal(numberOf({ id: origin }), '1002');
    assert.equal(headerOf(dead, 'x-ks-origin-id'), origin);
    assert.equal(headerOf(dead, 'own'), '2');
  });

  it('removes an expired lease without a delivery, and remains usable', async () => {
    const [first] = await reserved('first');
    assert.ok(first);
    addStaleLease(first, clock.now() + 1);
    assert.equal(await commitOne(first, first.lease?.token ?? null), 'done');
    clock.advance(2);
    const sizes = await engine.storage.counts(QUEUE);
    assert.deepEqual([sizes.ready, sizes.scheduled, sizes.reserved], [0, 0, 0]);
    assert.equal(leaseMembers(), '0');
    await engine.storage.insert(QUEUE, newElements('second'));
    assert.deepEqual(bodyTexts((await engine.storage.take(QUEUE, POP)).deliveries), ['second']);
  });

  it('keeps a reservation when an expired lease of the same delivery is removed', async () => {
    const [held] = await reserved('held');
    assert.ok(held);
    addStaleLease(held, clock.now() + 1);
    clock.advance(2);
    await engine.storage.sweep();
    assert.deepEqual((await engine.storage.take(QUEUE, POP)).deliveries, []);
    assert.equal((await engine.storage.counts({ ns: 'jobs', name: 'dead' })).ready, 0, 'no try was counted');
    assert.equal(leaseMembers(), '1');
    assert.equal(await commitOne(held, held.lease?.token ?? null), 'done');
    assert.equal(leaseMembers(), '0');
  });

  it('lists reservations without the stale lease of an element that is gone', async () => {
    const [gone, held] = await reserved('gone', 'held');
    assert.ok(gone && held);
    addStaleLease(gone, clock.now() + 2 * LEASE_MS);
    await commitOne(gone, null);
    const { deliveries } = await engine.storage.scan(QUEUE, {
      group: '',
      states: ['reserved'],
      bodies: true,
      after: null,
      limit: 10,
    });
    assert.deepEqual(bodyTexts(deliveries), ['held']);
  });

  it('keeps a waiting element when reservations are purged, although it has a stale lease', async () => {
    const [waiting, held] = await reserved('waiting', 'held');
    assert.ok(waiting && held);
    const item = { id: waiting.id, group: '', token: null, delayMs: 0, countTry: false };
    await rollback(engine.storage, QUEUE, [item]);
    addStaleLease(waiting, clock.now() + 2 * LEASE_MS);
    await purge(engine.storage, QUEUE, ['reserved']);
    assert.equal(leaseMembers(), '0');
    assert.deepEqual(bodyTexts((await engine.storage.take(QUEUE, POP)).deliveries), ['waiting']);
  });

  it('lists the other elements if the content of one cannot be decoded', async () => {
    const [id = ''] = await engine.storage.insert(QUEUE, newElements('a', 'b'));
    spoil(id);
    const page = { group: '', states: ['ready'], bodies: true, after: null, limit: 10 } as const;
    assert.deepEqual(bodyTexts((await engine.storage.scan(QUEUE, page)).deliveries), ['b']);
  });

  it('commits a reservation whose record has no token only without a token', async () => {
    const [held] = await reserved('held');
    assert.ok(held);
    // Maturity(6) tries(4) token(16) lease end(6) and more.
    const clear = `local field = 'd\\0\\0' .. struct.pack('>I6', ARGV[1])
      local record = redis.call('HGET', KEYS[1], field)
      return redis.call('HSET', KEYS[1], field, record:sub(1, 10) .. ('\\0'):rep(16) .. record:sub(27))`;
    assert.equal(edit(clear, numberOf(held)), '0');
    for (const token of ['not one of ours', 'A'.repeat(22), held.lease?.token ?? '']) {
      assert.equal(await commitOne(held, token), 'lease-lost', token);
    }
    assert.equal(await commitOne(held, null), 'done');
  });

  /**
   * Replaces the content of an element by one that only a newer version could read. Returns a function that undoes it.
   */
  function spoil(id: string): () => void {
    const number = String(Number.parseInt(id.slice(12), 32));
    const rename = (from: string, to: string): string =>
      edit(
        `local field = 'e' .. struct.pack('>I6', ARGV[1])
        local value = redis.call('HGET', KEYS[1], field)
        assert(value:sub(23, 23) == ARGV[2])
        return redis.call('HSET', KEYS[1], field, value:sub(1, 22) .. ARGV[3] .. value:sub(24))`,
        number,
        from,
        to,
      );
    assert.equal(rename('P', 'Z'), '0');
    return () => rename('Z', 'P');
  }

  const TAKES = {
    'a pop': { group: '', leaseMs: null },
    'a reserve': { group: '', leaseMs: LEASE_MS },
    'a pop of a consumer group': { group: 'g', leaseMs: null },
    'a reserve of a consumer group': { group: 'g', leaseMs: LEASE_MS },
  } as const;

  for (const [what, call] of Object.entries(TAKES)) {
    it(`postpones an element whose content cannot be decoded if ${what} takes it, and delivers those behind it`, async () => {
      const groups = [call.group, 'other'].slice(0, call.group === '' ? 1 : 2);
      const inserts = ['a', 'b', 'c'].map((body) => newElement({ body, groups }));
      const [, id = ''] = await engine.storage.insert(QUEUE, inserts);
      const repair = spoil(id);
      const take = () => engine.storage.take(QUEUE, { ...call, count: 10 });
      // Both are in one batch: the insert is applied and resolves.
      const [inserted, taken] = await Promise.allSettled([
        engine.storage.insert(QUEUE, [newElement({ body: 'd', groups })]),
        take(),
      ]);
      assert.equal(inserted.status, 'fulfilled');
      assert.ok(taken.status === 'rejected' && taken.reason instanceof QuaysideError);
      assert.equal(taken.reason.code, 'storage-unavailable');
      assert.match(taken.reason.message, new RegExp(`element ${id} cannot be decoded`));
      assert.deepEqual(
        logged.map((fields) => 'id' in fields && fields.id),
        [id],
      );
      const { deliveries } = await take();
      assert.deepEqual(bodyTexts(deliveries), ['a', 'c', 'd']);
      assert.deepEqual(
        deliveries.map(({ tries }) => tries),
        [0, 0, 0],
      );
      assert.equal((await engine.storage.counts(QUEUE, call.group)).scheduled, 1);
      repair();
      clock.advance(LEASE_MS);
      await commit(
        engine.storage,
        QUEUE,
        deliveries.map(({ id, lease }) => ({ id, group: call.group, token: lease?.token ?? null })),
      );
      const again = (await take()).deliveries;
      assert.deepEqual([bodyTexts(again), again[0]?.tries], [['b'], 0]);
    });
  }

  /** Truncates a field of an element. Returns a function that undoes it. */
  function cutOff(id: string, field: 'e' | 'g', length: number): () => void {
    const run = (lua: string): string =>
      edit(
        `local field = '${field}' .. struct.pack('>I6', ARGV[1]) ${lua}`,
        numberOf({ id }),
        String(length),
      );
    const cut = `local value = redis.call('HGET', KEYS[1], field)
      redis.call('HSET', KEYS[1], field, value:sub(1, ARGV[2]))
      return redis.call('HSET', KEYS[1], 'kept', value)`;
    assert.equal(run(cut), '1');
    return () => run(`return redis.call('HSET', KEYS[1], field, redis.call('HGET', KEYS[1], 'kept'))`);
  }

  const CUT_TAKES = {
    ...TAKES,
    'a reserve of a user with a long name': { group: '', leaseMs: LEASE_MS, owner: 'somebody' },
    'a reserve with a tid': { group: '', leaseMs: LEASE_MS, owner: 'bob', tids: ['t1', 't2', 't3', 't4'] },
  };
  const CUTS = {
    'an element of one byte': ['e', 1],
    'an element without its content': ['e', 21],
    'the record of the groups of an element, of one byte,': ['g', 1],
    'the record of the groups of an element, without its end,': ['g', 27],
  } as const;

  for (const [what, call] of Object.entries(CUT_TAKES)) {
    for (const [damage, [field, length]] of Object.entries(CUTS)) {
      if (field === 'g' && call.group === '') continue;
      it(`postpones ${damage} if ${what} takes it, and delivers all others`, async () => {
        const { storage } = engine;
        const groups = [call.group, 'other'].slice(0, call.group === '' ? 1 : 2);
        const inserts = ['a', 'b', 'c'].map((body) => newElement({ body, groups }));
        const [, id = ''] = await storage.insert(QUEUE, inserts);
        const repair = cutOff(id, field, length);
        const take = () => storage.take(QUEUE, { ...call, count: 4 });
        await assert.rejects(take(), {
          code: 'storage-unavailable',
          message: new RegExp(`element ${id} cannot be decoded`),
        });
        const { deliveries } = await take();
        assert.deepEqual(bodyTexts(deliveries), ['a', 'c']);
        const { ready, scheduled, reserved: held } = await storage.counts(QUEUE, call.group);
        assert.deepEqual([ready, scheduled, held], [0, 1, call.leaseMs === null ? 0 : 2]);
        clock.advance(LEASE_MS);
        await commit(
          storage,
          QUEUE,
          deliveries.map(({ id, lease }) => ({ id, group: call.group, token: lease?.token ?? null })),
        );
        // A minute later the damaged element is due again.
        await assert.rejects(take(), { code: 'storage-unavailable' });
        await storage.insert(QUEUE, [newElement({ body: 'd', groups })]);
        repair();
        clock.advance(LEASE_MS);
        const again = (await take()).deliveries;
        assert.deepEqual(bodyTexts(again), ['d', 'b']);
        assert.deepEqual(
          again.map(({ tries }) => tries),
          [0, 0],
        );
      });
    }
  }
});
