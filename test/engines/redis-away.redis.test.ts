import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { followDefinitions } from '../support/followed-definitions.ts';
import { codeOf } from '../support/outcome.ts';
import { AWAY, type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { until } from '../support/until.ts';
import { ANSWERED_MS, inTime, passUntil, settledOf, stopped, turns } from './fake-time.ts';
import { checkOutage } from './outage.ts';
import { freshPrefix, redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain')];
const POP = { group: '', count: 10, leaseMs: null };
const MEGABYTE = 1024 * 1024;

for (const variant of ['simple', 'list'] as const) {
  for (const [state, { begin, end }] of Object.entries(AWAY)) {
    describe(`A Redis server that is ${state}, variant ${variant}`, () => {
      let server: RedisServer;
      let engine: Engine;
      let storage: Storage;
      let queues = 0;
      /** The clock of the engine's timeouts. It stands still unless a test advances it. */
      let clock: FakeClock;

      beforeEach(async () => {
        server = await startRedis('--appendfsync', 'always');
        clock = new FakeClock();
        engine = redisEngine({
          url: server.url,
          namespaces: NAMESPACES,
          clock: null,
          ownClock: clock,
          settings: { variant },
        });
        await engine.start();
        storage = engine.storage;
      });

      afterEach(async () => {
        await stopped(engine, clock);
        await server.stop();
      });

      const freshQueue = async (...bodies: string[]): Promise<QueueKey> => {
        const queue = { ns: 'plain', name: `queue ${++queues}` };
        await storage.insert(queue, newElements(...bodies));
        return queue;
      };

      const back = async (): Promise<void> => {
        await end(server);
        await passUntil(clock, () => engine.ping());
      };

      it('has every call rejected within 5 s, immediately once it is known to be unavailable, and is used again when it is back', async () => {
        const used = await freshQueue('a', 'b', 'c');
        await checkOutage({ engine, clock, used, begin: () => begin(server), end: back });
      });

      it('has at most 64 MiB of inserts waiting for it', async () => {
        const queue = await freshQueue('a');
        await begin(server);
        const element = newElement({ body: 'x'.repeat(MEGABYTE) });
        let taken = 0;
        const calls: Promise<string>[] = [];
        for (let i = 0; i < 200; i++) {
          const call = codeOf(storage.insert(queue, [element]));
          calls.push(call);
          await turns();
          if (!(await settledOf([call]))[0]) taken++;
        }
        assert.ok(taken <= 64, `${taken} MiB wait`);
        assert.deepEqual(await inTime(clock, calls), []);
        await back();
      });
    });
  }
}

describe('A Redis server that was frozen', () => {
  it('returns the elements of a pop whose reply was lost to the queue', async () => {
    const server = await startRedis();
    const clock = new FakeClock();
    const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null, ownClock: clock });
    await engine.start();
    const queue = { ns: 'plain', name: 'popped' };
    await engine.storage.insert(queue, newElements('a', 'b'));
    server.freeze();
    const popped = codeOf(engine.storage.take(queue, POP));
    assert.deepEqual(await inTime(clock, [popped]), []);
    assert.equal(await popped, 'outcome-unknown');
    server.thaw();
    await passUntil(clock, () => engine.ping());
    assert.deepEqual(bodyTexts((await engine.storage.take(queue, POP)).deliveries), ['a', 'b']);
    await stopped(engine, clock);
    await server.stop();
  });
});

describe('A single Redis server that lost its replica', () => {
  it('acknowledges changes again after ten seconds, which is logged', async (t) => {
    const server = await startRedis('--repl-diskless-sync-delay', '0');
    const replica = await startRedis('--replicaof', '127.0.0.1', String(server.port));
    const replication = (text: string) =>
      until(() => redisCli(server.port, 'INFO', 'replication').includes(text));
    await replication('state=online');
    const clock = new FakeClock();
    const logged: string[] = [];
    const log = { info: () => {}, warn: (_: object, message: string) => logged.push(message) };
    const { url } = server;
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: clock, log });
    t.after(async () => {
      await stopped(engine, clock);
      await Promise.all([replica.stop(), server.stop()]);
    });
    await engine.start();
    const insert = () => engine.storage.insert({ ns: 'plain', name: 'kept' }, newElements('a'));
    // An online replica acknowledges its offset once a second.
    await until(async () => (await codeOf(insert())) === 'done');
    await replica.kill();
    await replication('connected_slaves:0');
    const pass = async (seconds: number): Promise<void> => {
      for (let ms = 0; ms < 1_000 * seconds; ms += 500) {
        clock.advance(500);
        await engine.ping();
      }
    };
    await pass(8);
    await assert.rejects(insert(), { code: 'outcome-unknown', message: /connect more, or set a lower wait/ });
    await pass(2);
    await until(async () => (await codeOf(insert())) === 'done');
    assert.deepEqual(logged, ['Redis has no replica any more: changes are acknowledged without one.']);
  });
});

describe('A Redis server that starts to evict keys', () => {
  it('is not used, with the reason in errors and log, until it stops evicting', async () => {
    const server = await startRedis();
    const clock = new FakeClock();
    const logged: string[] = [];
    const log = { info: () => {}, warn: (fields: object) => logged.push(JSON.stringify(fields)) };
    const engine = redisEngine({
      url: server.url,
      namespaces: NAMESPACES,
      clock: null,
      ownClock: clock,
      log,
    });
    await engine.start();
    const setPolicy = (policy: string): string =>
      redisCli(server.port, 'CONFIG', 'SET', 'maxmemory-policy', policy);
    const queue = { ns: 'plain', name: 'kept' };
    setPolicy('volatile-ttl');
    await passUntil(clock, () =>
      assert.rejects(engine.storage.insert(queue, newElements('a')), {
        code: 'storage-unavailable',
        message: /maxmemory-policy is volatile-ttl/,
      }),
    );
    assert.match(logged.join(), /maxmemory-policy is volatile-ttl/);
    clock.advance(ANSWERED_MS);
    await assert.rejects(engine.storage.insert(queue, newElements('a')), {
      message: /^The store is not reachable now: .*maxmemory-policy is volatile-ttl/,
    });
    setPolicy('noeviction');
    await passUntil(clock, () => engine.storage.insert(queue, newElements('b')));
    await stopped(engine, clock);
    await server.stop();
  });
});

describe('A Redis server whose channels work before its keys can be read', () => {
  it('causes no missed definition: those changed in the gap are read later', async () => {
    const server = await startRedis();
    const clock = new FakeClock();
    const logged: string[] = [];
    const log = { info: () => {}, warn: (_: object, message: string) => logged.push(message) };
    const prefix = freshPrefix();
    const engine = redisEngine({
      url: server.url,
      namespaces: NAMESPACES,
      clock: null,
      ownClock: clock,
      prefix,
      log,
    });
    await engine.start();
    const { cache, read, failures } = followDefinitions(engine.definitions, clock);
    const cli = (...command: string[]): string => redisCli(server.port, ...command);
    const loggedOf = async (what: readonly string[], expected: RegExp): Promise<void> =>
      assert.match(what.join('\n'), expected);

    // Connections for calls reject a server that evicts; the subscriber connection does not check it.
    cli('CONFIG', 'SET', 'maxmemory-policy', 'volatile-ttl');
    await passUntil(clock, () => loggedOf(logged, /cannot be reached/));
    clock.advance(ANSWERED_MS);
    cli('HSET', new Keys(prefix).definitions('queue'), 'missed', 'v1 true');
    cli('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await passUntil(clock, async () => assert.notEqual(failures.length, 0));
    assert.deepEqual(read, []);
    cli('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
    await passUntil(clock, () => loggedOf(read, /missed/));
    cache.stop();
    await stopped(engine, clock);
    assert.equal(clock.pending, 0);
    await server.stop();
  });
});

describe('The log of a node whose Redis is unavailable', () => {
  it('has each reason once, when it changes, and that the server is back', async () => {
    const server = await startRedis();
    const master = await startRedis();
    const cli = (...command: string[]): string => redisCli(server.port, ...command);
    cli('ACL', 'SETUSER', 'node', 'on', '>old', '~*', '&*', '+@all');
    const logged: string[] = [];
    const listeners = new Set<() => void>();
    const BACK = /can be reached again/;
    const note = (fields: object, text: string): void => {
      logged.push('reason' in fields ? `${fields.reason}` : text);
      for (const listener of listeners) listener();
    };
    const untilLogged = (pattern: RegExp): Promise<void> => {
      const { promise, resolve } = Promise.withResolvers<void>();
      listeners.add(() => logged.some((text) => pattern.test(text)) && resolve());
      return promise;
    };
    const log = { info: note, warn: note };
    const url = `redis://node:old@127.0.0.1:${server.port}`;
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock, log });
    await engine.start();
    logged.splice(0);

    cli('ACL', 'SETUSER', 'node', 'resetpass', '>new');
    const rejected = untilLogged(/WRONGPASS/);
    cli('CLIENT', 'KILL', 'USER', 'node');
    await rejected;
    const back = untilLogged(BACK);
    cli('ACL', 'SETUSER', 'node', '>old');
    await back;
    const before = logged.splice(0);
    assert.ok(before.includes('WRONGPASS invalid username-password pair or user is disabled'));
    const isReplica = untilLogged(/^it is a replica; name its master/);
    cli('REPLICAOF', '127.0.0.1', String(master.port));
    cli('CLIENT', 'KILL', 'USER', 'node');
    await isReplica;
    const backAgain = untilLogged(BACK);
    cli('REPLICAOF', 'NO', 'ONE');
    await backAgain;
    await engine.stop();
    for (const each of [before, logged]) assert.equal(new Set(each).size, each.length, each.join('\n'));
    await Promise.all([server.stop(), master.stop()]);
  });

  it('has an unexpected error of the server once a minute, however many calls it fails, and says how many', async (t) => {
    const server = await startRedis();
    t.after(() => server.stop());
    redisCli(server.port, 'ACL', 'SETUSER', 'node', 'on', '>secret', '~*', '&*', '+@all');
    const logged: { readonly leftOut?: number; readonly reply?: string }[] = [];
    const log = { info: () => {}, warn: (fields: object) => void logged.push(fields) };
    const url = `redis://node:secret@127.0.0.1:${server.port}`;
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock, log });
    await engine.start();
    t.after(() => engine.stop());
    const insert = (): Promise<unknown> =>
      engine.storage.insert({ ns: 'plain', name: 'queue' }, newElements('some'));
    await insert();
    logged.splice(0);

    redisCli(server.port, 'ACL', 'SETUSER', 'node', '-@write');
    for (let call = 0; call < 4; call++) assert.equal(await codeOf(insert()), 'outcome-unknown');
    await engine.stop();
    const replies = logged.filter(({ reply }) => reply !== undefined);
    assert.equal(replies.length, 1, JSON.stringify(logged));
    // Housekeeping, which this does not wait for, may fail as well.
    const leftOut = logged.find((fields) => fields.leftOut !== undefined)?.leftOut ?? 0;
    assert.ok(leftOut >= 3, JSON.stringify(logged));
  });
});
