import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { Batchers } from '../../src/engines/redis/batcher.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { freePort } from '../support/free-port.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { rollback, transfer } from '../support/settle.ts';
import { sweepAffected } from '../support/sweep.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { passGently, turns } from './fake-time.ts';
import { freshPrefix, redisEngine, sharedRedis } from './redis.ts';

const SOURCE: QueueKey = { ns: 'plain', name: 'source' };
const TARGET: QueueKey = { ns: 'plain', name: 'target' };
const APPLY = /\r\napply\r\n/;
const SETTLE = /\r\nsettle\r\n/;
const ACKNOWLEDGE = /\r\nacknowledge\r\n/;
const POP = { group: '', count: 100, leaseMs: null };
const MINUTE = 60_000;

/** A cluster with one master, behind a proxy: elements move between its queues as they do between servers. */
describe('The outbox of a queue of a Redis cluster', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  let engine: Engine;
  /** The clock that the Redis functions use. */
  let clock: FakeClock;
  /** For how long the node was suspended. */
  let suspendedMs = 0;
  let keys: Keys;
  let url = '';
  let prefix = '';

  const cli = (...args: string[]): string => redisCli(server.port, ...args).trim();

  before(async () => {
    const cluster = ['--cluster-enabled', 'yes', '--cluster-port', String(await freePort())];
    // With `everysec`, a kill may lose changes that were replied to while an fsync was slow.
    server = await startRedis('--appendfsync', 'always', ...cluster);
    proxy = await TcpProxy.start(server.port);
    url = `redis://127.0.0.1:${proxy.port}`;
    cli('CLUSTER', 'ADDSLOTSRANGE', '0', '16383');
    await serving();
  });

  async function serving(): Promise<void> {
    cli('CONFIG', 'SET', 'cluster-announce-port', String(proxy.port));
    await until(() => cli('CLUSTER', 'INFO').includes('cluster_state:ok'));
  }

  beforeEach(async () => {
    prefix = freshPrefix();
    keys = new Keys(prefix);
    clock = new FakeClock();
    suspendedMs = 0;
    const ownClock = { ...systemClock, monotonic: () => systemClock.monotonic() + suspendedMs };
    engine = redisEngine({ url, namespaces: [plain('plain')], clock, prefix, ownClock });
    await engine.start();
  });

  afterEach(() => engine.stop());

  after(async () => {
    await proxy.stop();
    await server.stop();
  });

  async function move(...copies: string[]): Promise<void> {
    await engine.storage.insert(SOURCE, newElements('moved'));
    const take = { group: '', count: 1, leaseMs: MINUTE };
    const [reserved] = (await engine.storage.take(SOURCE, take)).deliveries;
    const finish = { id: reserved?.id ?? '', group: '', token: null };
    const inserts = copies.map((body) => ({ queue: TARGET, element: newElement({ body }) }));
    assert.deepEqual(await transfer(engine.storage, [{ from: SOURCE, finish, inserts }]), ['done']);
  }

  const fields = (queue: QueueKey, prefix: string): number =>
    cli('HKEYS', keys.queue(queue).hash)
      .split('\n')
      .filter((field) => field.startsWith(prefix)).length;

  /** Resolves when the outbox of the source is empty. */
  const relayed = async (): Promise<void> => {
    await until(() => fields(SOURCE, 'p') === 0);
  };

  it('has an entry applied once, although a late request to apply it arrives after its source has deleted it', async () => {
    const caught = proxy.catch(APPLY, 'deaf');
    const moving = move('copy');
    const late = await caught;
    proxy.reset();
    await moving;
    await relayed();
    clock.advance(MINUTE);
    await engine.storage.sweep();
    const socket = connect(server.port, '127.0.0.1').end(late);
    await once(socket, 'data');
    assert.equal((await engine.storage.counts(TARGET)).ready, 1);
  });

  it('has an entry applied once, although the reply was lost', async () => {
    const caught = proxy.catch(APPLY, 'mute');
    const moving = move('copy');
    await caught;
    proxy.reset();
    await moving;
    await relayed();
    assert.equal((await engine.storage.counts(TARGET)).ready, 1);
  });

  const anotherNode = async (): Promise<Engine> => {
    const other = redisEngine({ url, namespaces: [plain('plain')], clock, prefix, ownClock: systemClock });
    await other.start();
    return other;
  };

  /** Lets 27 hours pass in which another node relays and sweeps, so that the mark of the entry is forgotten. */
  const markForgotten = async (other: Engine): Promise<void> => {
    for (let hours = 0; hours < 27; hours += 1) {
      clock.advance(60 * MINUTE);
      await other.storage.sweep();
    }
    await relayed();
    assert.equal(fields(TARGET, 'o'), 0);
  };

  it('has an entry applied once, although a node sends it again more than a day after the other nodes have relayed it', async () => {
    const other = await anotherNode();
    const caught = proxy.catch(APPLY, 'mute');
    const moving = move('copy');
    await caught;
    await markForgotten(other);
    proxy.reset();
    await moving;
    await turns();
    assert.equal((await other.storage.counts(TARGET)).ready, 1);
    await other.stop();
  });

  it('has an entry applied once, although a node was suspended for more than a day before it read the reply that contains it', async () => {
    const other = await anotherNode();
    const caught = proxy.catch(SETTLE, 'held-replies');
    const moving = move('copy').catch(() => {});
    await caught;
    await markForgotten(other);
    suspendedMs = 27 * 60 * MINUTE;
    const applied = proxy.catch(APPLY, 'mute');
    proxy.release();
    await Promise.race([applied, moving]);
    assert.equal((await other.storage.counts(TARGET)).ready, 1);
    proxy.reset();
    await other.stop();
  });

  it('has an entry applied once, although the reply was lost and the target queue was deleted', async () => {
    const other = await anotherNode();
    const caught = proxy.catch(APPLY, 'mute');
    const moving = move('copy');
    await caught;
    assert.deepEqual(bodyTexts((await other.storage.take(TARGET, POP)).deliveries), ['copy']);
    assert.equal(await other.storage.drop(TARGET), true);
    proxy.reset();
    await moving;
    await relayed();
    assert.equal((await other.storage.counts(TARGET)).ready, 0);
    await other.stop();
  });

  it('has entries applied once, although the acknowledgement was lost and a node sends them again with others', async () => {
    const caught = proxy.catch(ACKNOWLEDGE, 'deaf');
    await move('a');
    await caught;
    await engine.stop();
    proxy.reset();
    assert.equal(fields(SOURCE, 'p'), 1);
    engine = redisEngine({ url, namespaces: [plain('plain')], clock, prefix, ownClock: systemClock });
    await engine.start();
    await move('b', 'c');
    await relayed();
    assert.deepEqual(bodyTexts((await engine.storage.take(TARGET, POP)).deliveries), ['a', 'b', 'c']);
  });

  it('is relayed by a node that sweeps if the node that wrote it has stopped', async () => {
    const caught = proxy.catch(APPLY, 'deaf');
    const moving = move('left');
    await caught;
    await engine.stop();
    await moving;
    proxy.reset();
    engine = redisEngine({ url, namespaces: [plain('plain')], clock, prefix, ownClock: systemClock });
    await engine.start();
    assert.equal((await engine.storage.counts(TARGET)).ready, 0);
    clock.advance(2 * MINUTE);
    // A sweep starts the relay, and the first one after the relay's reply returns the queue.
    await until(async () => {
      const affected = await sweepAffected(engine.storage);
      return affected.some(({ name }) => name === TARGET.name);
    });
    assert.deepEqual(bodyTexts((await engine.storage.take(TARGET, POP)).deliveries), ['left']);
  });

  it('is relayed on a single server to which the keys of the cluster were copied', async () => {
    const caught = proxy.catch(APPLY, 'deaf');
    const moving = move('left');
    await caught;
    await engine.stop();
    await moving;
    proxy.reset();
    const single = await sharedRedis();
    const { hostname, port } = new URL(single);
    for (const key of cli('KEYS', `${prefix}:*`).split('\n')) {
      assert.equal(cli('MIGRATE', hostname, port, key, '0', '5000', 'COPY'), 'OK');
    }
    engine = redisEngine({ url: single, namespaces: [plain('plain')], clock, prefix, ownClock: systemClock });
    await engine.start();
    clock.advance(2 * MINUTE);
    await engine.storage.sweep();
    await until(async () => (await engine.storage.counts(TARGET)).ready !== 0);
    assert.deepEqual(bodyTexts((await engine.storage.take(TARGET, POP)).deliveries), ['left']);
  });

  it('is relayed to a queue although twenty earlier destinations cannot store anything', async () => {
    const names = Array.from({ length: 21 }, (_, i) => ({ ns: 'plain', name: `target ${10 + i}` }));
    for (const queue of names.slice(0, 20)) cli('SET', keys.queue(queue).hash, 'no hash');
    await engine.storage.insert(SOURCE, newElements('moved'));
    const [reserved] = (await engine.storage.take(SOURCE, { ...POP, leaseMs: MINUTE })).deliveries;
    const finish = { id: reserved?.id ?? '', group: '', token: null };
    const inserts = names.map((queue) => ({ queue, element: newElement({ body: 'copy' }) }));
    const caught = proxy.catch(APPLY, 'deaf');
    const moving = transfer(engine.storage, [{ from: SOURCE, finish, inserts }]);
    await caught;
    await engine.stop();
    await moving;
    proxy.reset();
    engine = redisEngine({ url, namespaces: [plain('plain')], clock, prefix, ownClock: systemClock });
    await engine.start();
    const last = names.at(-1) ?? TARGET;
    await until(async () => {
      clock.advance(2 * MINUTE);
      await engine.storage.sweep();
      return (await engine.storage.counts(last)).ready > 0;
    });
  });

  it('is not read as a whole by each call that adds to it while its destination is unavailable', async () => {
    // On this clock, the pause after which a relay reads the whole outbox again never ends, however slow the test is.
    const ownClock = new FakeClock();
    await engine.stop();
    engine = redisEngine({ url, namespaces: [plain('plain')], clock, prefix, ownClock });
    await engine.start();
    const body = 'x'.repeat(500_000);
    cli('SET', keys.queue(TARGET).hash, 'no hash');
    void move(body, body).catch(() => {});
    await until(() => fields(SOURCE, 'p') > 0);
    await engine.storage.counts(SOURCE);
    cli('CONFIG', 'RESETSTAT');
    await engine.storage.insert(SOURCE, newElements(...Array.from({ length: 10 }, () => 'moved')));
    const { deliveries } = await engine.storage.take(SOURCE, { ...POP, leaseMs: MINUTE });
    const moving: Promise<unknown>[] = [];
    for (const { id } of deliveries) {
      const finish = { id, group: '', token: null };
      const inserts = [{ queue: TARGET, element: newElement() }];
      moving.push(transfer(engine.storage, [{ from: SOURCE, finish, inserts }]));
      // Each transfer is sent in its own batch.
      await until(() => fields(SOURCE, 'p') > moving.length);
    }
    const [, sent] = /total_net_output_bytes:(\d+)/.exec(cli('INFO', 'stats')) ?? [];
    assert.ok(Number(sent) < 4 * body.length, `${sent} bytes`);
    cli('DEL', keys.queue(TARGET).hash);
    await passGently(ownClock, Promise.all(moving));
  });

  it('delivers elements that expire in time, although they arrive in a batch with a sweep of a queue without expiring ones', async (t) => {
    const { storage } = engine;
    await storage.insert(TARGET, [newElement({ expiresAt: clock.now() + 60 * MINUTE })]);
    await storage.take(TARGET, POP);
    clock.advance(2 * MINUTE);
    await storage.insert(SOURCE, newElements('moved'));
    const [reserved] = (await storage.take(SOURCE, { ...POP, leaseMs: MINUTE })).deliveries;
    const finish = { id: reserved?.id ?? '', group: '', token: null };
    const element = newElement({ expiresAt: clock.now() + MINUTE });
    const calling = t.mock.method(Batchers.prototype, 'call');
    const called = (verb: string) =>
      until(() =>
        calling.mock.calls.some(
          ({ arguments: [queue, { name }] }) => queue.name === 'target' && name === verb,
        ),
      );
    // Calls made while the queue has a batch in flight are sent together in the next one.
    const caught = proxy.catch(/\r\ncounts\r\n/, 'deaf');
    const counting = storage.counts(TARGET);
    await caught;
    const sweeping = storage.sweep();
    await called('sweep');
    const moving = transfer(storage, [{ from: SOURCE, finish, inserts: [{ queue: TARGET, element }] }]);
    await called('apply');
    proxy.reset();
    await Promise.all([counting, sweeping, moving]);
    assert.equal((await storage.counts(TARGET)).ready, 1);
    clock.advance(MINUTE + 1);
    assert.deepEqual((await storage.take(TARGET, POP)).deliveries, []);
  });

  it('leaves no keys at a source that lost its data before its entries were acknowledged', async () => {
    const caught = proxy.catch(ACKNOWLEDGE, 'deaf');
    await move('copy');
    await caught;
    const { hash, order } = keys.queue(SOURCE);
    cli('DEL', hash, order);
    cli('CONFIG', 'RESETSTAT');
    proxy.reset();
    await until(() => cli('INFO', 'commandstats').includes('cmdstat_fcall'));
    assert.equal(cli('EXISTS', hash, order), '0');
  });

  it('keeps the order in which elements left the source, even if connections are lost', async () => {
    const bodies = Array.from({ length: 40 }, (_, i) => `${i}`);
    for (const [i, body] of bodies.entries()) {
      const moving = move(body);
      if (i % 8 === 3) {
        await turns();
        proxy.reset();
      }
      await moving;
    }
    await relayed();
    assert.deepEqual(bodyTexts((await engine.storage.take(TARGET, POP)).deliveries), bodies);
  });

  it('is relayed in several steps, in order, if it is large', async () => {
    const body = 'x'.repeat(300_000);
    const copies = Array.from({ length: 30 }, (_, i) => `${i} ${body}`);
    await move(...copies);
    await relayed();
    const { deliveries } = await engine.storage.take(TARGET, POP);
    assert.deepEqual(
      deliveries.map((delivery) => Number.parseInt(Buffer.from(delivery.body).toString(), 10)),
      copies.map((_, i) => i),
    );
  });

  it('is relayed as a whole before its callers continue, although an acknowledgement is sent in a batch with a sweep', async (t) => {
    const { call } = Batchers.prototype;
    let sweep: Parameters<Batchers['call']> | null = null;
    t.mock.method(
      Batchers.prototype,
      'call',
      function (this: Batchers, ...args: Parameters<Batchers['call']>) {
        const [queue, { name }] = args;
        if (name === 'sweep') sweep = args;
        const outcome = call.apply(this, args);
        // Calls of the same turn share a batch.
        if (name === 'acknowledge' && sweep !== null) {
          call.call(this, queue, sweep[1], sweep[2]).catch(() => {});
        }
        return outcome;
      },
    );
    await engine.storage.insert(SOURCE, newElements('first'));
    await engine.storage.take(SOURCE, POP);
    clock.advance(2 * MINUTE);
    await engine.storage.sweep();
    assert.notEqual(sweep, null);
    const body = 'x'.repeat(300_000);
    await move(...Array.from({ length: 30 }, () => body));
    assert.equal((await engine.storage.counts(TARGET)).ready, 30);
  });

  it('has one high-water mark per source at the destination, which is forgotten a day after the last use', async () => {
    for (let i = 0; i < 5; i++) await move(`${i}`);
    await relayed();
    assert.equal(fields(TARGET, 'o'), 1);
    const passHours = async (hours: number): Promise<void> => {
      for (let hour = 0; hour < hours; hour++) {
        clock.advance(60 * MINUTE);
        await engine.storage.sweep();
      }
    };
    await passHours(23);
    await move('again');
    await relayed();
    await passHours(23);
    assert.equal(fields(TARGET, 'o'), 1);
    await passHours(3);
    assert.equal(fields(TARGET, 'o'), 0);
  });

  function copySource(from: string, to: string): void {
    const { hash, order } = keys.queue(SOURCE);
    for (const key of [hash, order]) cli('COPY', key + from, key + to, 'REPLACE');
  }

  /** Simulates a failover to a master that has the copied state of the source, and whose clock is behind. */
  async function failOver(): Promise<void> {
    copySource(':replica', '');
    // The successor is another process.
    await server.kill();
    await server.restart();
    await serving();
    clock = new FakeClock();
    engine = redisEngine({ url, namespaces: [plain('plain')], clock, prefix, ownClock: systemClock });
    await engine.start();
  }

  it('has new entries applied after a failover to a server that lost the last entry numbers and whose clock is behind', async () => {
    await move('first');
    await relayed();
    copySource('', ':replica');
    clock.advance(60 * MINUTE);
    await move('lost at the source only');
    await relayed();
    await engine.stop();
    await failOver();
    await move('new');
    await relayed();
    clock.advance(2 * 60 * MINUTE);
    const { deliveries } = await engine.storage.take(TARGET, POP);
    assert.deepEqual(bodyTexts(deliveries).toSorted(), ['first', 'lost at the source only', 'new']);
  });

  it('keeps new entries if an entry applied before such a failover is acknowledged after it', async () => {
    await move('first');
    await relayed();
    copySource('', ':replica');
    clock.advance(60 * MINUTE);
    const acknowledging = proxy.catch(ACKNOWLEDGE, 'deaf');
    await move('lost at the source only');
    const late = await acknowledging;
    await engine.stop();
    proxy.reset();
    await failOver();
    const applying = proxy.catch(APPLY, 'deaf');
    const moving = move('new');
    await applying;
    const socket = connect(server.port, '127.0.0.1').end(late);
    await once(socket, 'data');
    assert.equal(fields(SOURCE, 'p'), 1);
    proxy.reset();
    await moving;
    clock.advance(2 * 60 * MINUTE);
    const { deliveries } = await engine.storage.take(TARGET, POP);
    assert.deepEqual(bodyTexts(deliveries).toSorted(), ['first', 'lost at the source only', 'new']);
  });

  it('keeps a dead letter for a server that is out of memory until it has memory again', async () => {
    const { storage } = engine;
    await storage.declare([SOURCE], { deadLetter: { maxTries: 1, queue: TARGET.name } });
    await storage.insert(SOURCE, newElements('poison', 'copied'));
    const { deliveries } = await storage.take(SOURCE, { ...POP, leaseMs: MINUTE });
    const [poison, copied] = deliveries.map(({ id }) => ({ id, group: '', token: null }));
    assert.ok(poison && copied);
    cli('CONFIG', 'SET', 'maxmemory', '1');
    const inserts = [{ queue: TARGET, element: newElement() }];
    const forwarding = transfer(storage, [{ from: SOURCE, finish: copied, inserts }]);
    await assert.rejects(forwarding, { code: 'storage-full' });
    const failing = rollback(storage, SOURCE, [{ ...poison, delayMs: 0, countTry: true }]);
    await until(() => fields(SOURCE, 'p') === 1);
    assert.equal(fields(TARGET, 'e'), 0);
    cli('CONFIG', 'SET', 'maxmemory', '0');
    assert.deepEqual(await failing, ['dead-lettered']);
    await until(async () => (await storage.counts(TARGET)).ready === 1);
    await relayed();
    assert.deepEqual(bodyTexts((await storage.take(TARGET, POP)).deliveries), ['poison']);
  });

  it('carries elements and dead letters of queues with stored options to other slots', async () => {
    const { storage } = engine;
    await storage.declare([SOURCE], { deadLetter: { maxTries: 1, queue: 'own' } });
    await storage.insert(SOURCE, newElements('dies', 'moves'));
    const { deliveries } = await storage.take(SOURCE, { ...POP, leaseMs: MINUTE });
    const [dies, moves] = deliveries.map(({ id }) => ({ id, group: '', token: null }));
    assert.ok(dies && moves);
    const failed = { ...dies, delayMs: 0, countTry: true, reason: 'no good' };
    assert.deepEqual(await rollback(storage, SOURCE, [failed]), ['dead-lettered']);
    const head = { contentType: null, contentEncoding: null, headers: ['x-note', 'ü'] };
    const action = { kind: 'move', to: TARGET, groups: [''], tries: 7, head } as const;
    const [result] = await storage.settle([{ ...moves, queue: SOURCE, from: 'reserved', action }]);
    assert.equal(result?.outcome, 'done');
    const [dead] = (await storage.take({ ns: 'plain', name: 'own' }, POP)).deliveries;
    assert.deepEqual(dead?.headers.slice(-4, -2), ['x-dl-reason', 'no good']);
    const [moved] = (await storage.take(TARGET, POP)).deliveries;
    assert.deepEqual([moved?.tries, moved?.headers], [7, ['x-note', 'ü']]);
    assert.deepEqual(await storage.queues('plain'), ['own', 'source', 'target']);
  });
});
