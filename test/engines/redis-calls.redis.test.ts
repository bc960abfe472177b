import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { FakeClock, SuspendedClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { followDefinitions } from '../support/followed-definitions.ts';
import { codeOf } from '../support/outcome.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { commit, rollback, transfer } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { passGently, turns } from './fake-time.ts';
import { freshPrefix, listening, QUEUE_CALL, redisEngine, standalone } from './redis.ts';

const NAMESPACES = [plain('plain'), plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } })];
const POP = { group: '', count: 10, leaseMs: null };
const RESERVE = { group: '', count: 10, leaseMs: 60_000 };

describe('A Redis engine on a bad network', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  let near: Engine;
  let queues = 0;
  let prefix = '';

  /** The engine behind the proxy; `near` connects to the server directly. */
  let far: Engine;

  const freshQueue = (): QueueKey => ({ ns: 'plain', name: `queue ${++queues}` });

  before(async () => {
    server = await startRedis();
    proxy = await TcpProxy.start(server.port);
    prefix = freshPrefix();
    const common = { namespaces: NAMESPACES, clock: null, prefix, ownClock: systemClock };
    far = redisEngine({ ...common, url: `redis://127.0.0.1:${proxy.port}` });
    near = redisEngine({ ...common, url: server.url });
    await Promise.all([far.start(), near.start()]);
  });

  after(async () => {
    await Promise.all([far.stop(), near.stop()]);
    await proxy.stop();
    await server.stop();
  });

  /** Makes a call, drops its reply, cuts the connection, and returns the result of the call. */
  async function withAnswerLost<T>(call: () => Promise<T>): Promise<T> {
    const caught = proxy.catch(QUEUE_CALL, 'mute');
    const called = call();
    await caught;
    proxy.reset();
    return called;
  }

  /** Returns a queue that this process has used, so that everything outside the queue's keys is registered. */
  async function used(...bodies: string[]): Promise<QueueKey> {
    const queue = freshQueue();
    await far.storage.insert(queue, newElements(...bodies));
    const { deliveries } = await far.storage.take(queue, { ...RESERVE, count: 1 });
    const back = { group: '', token: null, delayMs: 0, countTry: false };
    await rollback(
      far.storage,
      queue,
      deliveries.map(({ id }) => ({ id, ...back })),
    );
    return queue;
  }

  it('inserts once although the reply was lost, and returns the ids', async () => {
    const queue = await used('before');
    const ids = await withAnswerLost(() => far.storage.insert(queue, newElements('a', 'b')));
    const { deliveries } = await near.storage.take(queue, POP);
    assert.deepEqual(bodyTexts(deliveries), ['before', 'a', 'b']);
    assert.deepEqual(
      deliveries.slice(1).map(({ id }) => id),
      ids,
    );
  });

  it('inserts once although the reply was lost and the queue was deleted before the second attempt', async () => {
    const queue = await used('before');
    const caught = proxy.catch(QUEUE_CALL, 'mute');
    const inserting = far.storage.insert(queue, newElements('a'));
    await caught;
    assert.deepEqual(bodyTexts((await near.storage.take(queue, POP)).deliveries), ['before', 'a']);
    assert.equal(await near.storage.drop(queue), true);
    proxy.reset();
    assert.match(String(await inserting), /^[0-9a-f]{12}[0-9a-v]{10}$/);
    assert.equal((await near.storage.counts(queue)).ready, 0);
    assert.ok(!(await near.storage.queues('plain')).includes(queue.name));
    await far.storage.insert(queue, newElements('b'));
    assert.ok((await near.storage.queues('plain')).includes(queue.name));
    assert.deepEqual(bodyTexts((await near.storage.take(queue, POP)).deliveries), ['b']);
  });

  it('lists a queue that receives a copy, although it existed only because the reply to a pop had been lost', async () => {
    const [from, to] = [await used('a'), freshQueue()];
    assert.deepEqual((await withAnswerLost(() => far.storage.take(to, POP))).deliveries, []);
    const [reserved] = (await near.storage.take(from, RESERVE)).deliveries;
    const finish = { id: reserved?.id ?? '', group: '', token: null };
    await transfer(near.storage, [{ from, finish, inserts: [{ queue: to, element: newElement() }] }]);
    assert.ok((await near.storage.queues('plain')).includes(to.name));
  });

  it('publishes the signal of an insert with each attempt, so that it is not lost with a connection', async () => {
    const queue = await used();
    const messages: string[] = [];
    const signal = { topic: 'tries', messageFor: (count: number) => messages.push(`${count}`) };
    const receivedTwice = Promise.withResolvers<void>();
    let times = 0;
    await listening(near, far, 'tries', () => {
      times += 1;
      if (times === 2) receivedTwice.resolve();
    });
    await withAnswerLost(() => far.storage.insert(queue, newElements('x'), { signal }));
    await receivedTwice.promise;
    assert.deepEqual(messages, ['1'], 'both attempts publish the same message');
  });

  it('pops once although the reply was lost, and returns the popped elements', async () => {
    const queue = await used('a', 'b');
    const { deliveries } = await withAnswerLost(() => far.storage.take(queue, POP));
    assert.deepEqual(bodyTexts(deliveries), ['a', 'b']);
    assert.equal((await near.storage.counts(queue)).ready, 0);
  });

  it('pops nothing if the first attempt arrives after the second one found no queue', async () => {
    const queue = freshQueue();
    const caught = proxy.catch(QUEUE_CALL, 'deaf');
    const popping = far.storage.take(queue, POP);
    const late = await caught;
    proxy.reset();
    assert.deepEqual((await popping).deliveries, []);
    await near.storage.insert(queue, newElements('a'));
    const socket = connect(server.port, '127.0.0.1').end(late);
    await once(socket, 'data');
    assert.deepEqual(bodyTexts((await far.storage.take(queue, POP)).deliveries), ['a']);
  });

  it('reserves once although the reply was lost, and returns the valid token', async () => {
    const queue = await used('a');
    const [reserved] = (await withAnswerLost(() => far.storage.take(queue, RESERVE))).deliveries;
    const ref = { id: reserved?.id ?? '', group: '', token: reserved?.lease?.token ?? '' };
    assert.deepEqual(await commit(near.storage, queue, [ref]), ['done']);
  });

  it('returns done for a commit whose first reply was lost', async () => {
    const queue = await used('a');
    const [reserved] = (await far.storage.take(queue, RESERVE)).deliveries;
    const ref = { id: reserved?.id ?? '', group: '', token: null };
    assert.deepEqual(await withAnswerLost(() => commit(far.storage, queue, [ref])), ['done']);
  });

  it('counts one try for a rollback whose first reply was lost', async () => {
    const queue = await used('a');
    const [reserved] = (await far.storage.take(queue, RESERVE)).deliveries;
    const item = { id: reserved?.id ?? '', group: '', token: null, delayMs: 0, countTry: true };
    assert.deepEqual(await withAnswerLost(() => rollback(far.storage, queue, [item])), ['done']);
    assert.equal((await near.storage.take(queue, POP)).deliveries[0]?.tries, 1);
  });

  it('returns dead-lettered, and stores one dead letter, although the reply was lost', async () => {
    const queue = { ns: 'jobs', name: 'failing' };
    await far.storage.insert(queue, newElements('poison'));
    const [reserved] = (await far.storage.take(queue, RESERVE)).deliveries;
    const item = { id: reserved?.id ?? '', group: '', token: null, delayMs: 0, countTry: true };
    assert.deepEqual(await withAnswerLost(() => rollback(far.storage, queue, [item])), ['dead-lettered']);
    const { deliveries } = await near.storage.take({ ns: 'jobs', name: 'dead' }, POP);
    assert.deepEqual(bodyTexts(deliveries), ['poison']);
  });

  it('transfers once although the reply was lost', async () => {
    const [from, to] = [await used('a'), await used()];
    const [reserved] = (await far.storage.take(from, RESERVE)).deliveries;
    const finish = { id: reserved?.id ?? '', group: '', token: null };
    const inserts = [{ queue: to, element: newElement({ body: 'copy' }) }];
    assert.deepEqual(await withAnswerLost(() => transfer(far.storage, [{ from, finish, inserts }])), [
      'done',
    ]);
    assert.deepEqual(bodyTexts((await near.storage.take(to, POP)).deliveries), ['copy']);
  });

  it('keeps the order of calls through lost connections', async () => {
    const queue = await used();
    const calls: Promise<unknown>[] = [];
    const bodies = Array.from({ length: 60 }, (_, index) => `${index}`);
    for (const [index, body] of bodies.entries()) {
      calls.push(far.storage.insert(queue, newElements(body)));
      if (index % 20 === 10) await far.ping().then(() => proxy.reset());
    }
    await Promise.all(calls);
    const taken = await near.storage.take(queue, { ...POP, count: 100 });
    assert.deepEqual(bodyTexts(taken.deliveries), bodies);
  });

  it('rejects a pop without a reply with outcome-unknown, and returns its elements to the queue', async () => {
    const queue = await used('a', 'b');
    const caught = proxy.catch(QUEUE_CALL, 'mute');
    const popped = far.storage.take(queue, POP);
    await caught;
    proxy.state = 'dark';
    await assert.rejects(popped, { code: 'outcome-unknown' });
    assert.equal((await near.storage.counts(queue)).ready, 0, 'the pop was applied');
    proxy.state = 'open';
    proxy.reset();
    await until(async () => (await near.storage.counts(queue)).ready === 2);
    assert.deepEqual(bodyTexts((await near.storage.take(queue, POP)).deliveries), ['a', 'b']);
  });

  it('rejects calls that could not be sent with storage-unavailable, and continues when the server is back', async () => {
    const queue = await used();
    proxy.state = 'dark';
    proxy.reset();
    const calls = [far.storage.insert(queue, newElements('never')), far.ping(), far.storage.counts(queue)];
    await Promise.all(calls.map((call) => assert.rejects(call, { code: 'storage-unavailable' })));
    proxy.state = 'open';
    proxy.reset();
    await until(async () => (await codeOf(far.ping())) === 'done');
    await far.storage.insert(queue, newElements('now'));
    assert.deepEqual(bodyTexts((await near.storage.take(queue, POP)).deliveries), ['now']);
  });

  it('reports that changes of definitions may have been missed after a lost connection', async () => {
    await far.definitions.put('queue', 'kept', 1, 'any');
    await far.definitions.put('queue', 'deleted', 1, 'any');
    const { cache, read } = followDefinitions(far.definitions);
    await cache.reload();
    read.splice(0);
    proxy.state = 'dark';
    await near.definitions.delete('queue', 'deleted', 'any');
    await near.definitions.put('queue', 'created', 1, 'any');
    proxy.state = 'open';
    proxy.reset();
    await until(async () => ['kept', '-deleted', 'created'].every((key) => read.includes(key)));
    cache.stop();
  });

  it('loads its functions again when the server has lost them', async () => {
    const queue = await used();
    redisCli(server.port, 'FUNCTION', 'FLUSH');
    await far.storage.insert(queue, newElements('a'));
    assert.equal((await far.storage.counts(queue)).ready, 1);
  });

  it('registers its queues again on a server that lost all data', async () => {
    const queue = await used('gone');
    redisCli(server.port, 'FLUSHALL');
    await far.storage.insert(queue, newElements('new'));
    assert.deepEqual(await near.storage.queues('plain'), [queue.name]);
    assert.deepEqual(bodyTexts((await far.storage.take(queue, POP)).deliveries), ['new']);
  });

  it('removes the state of a stopped node when another node sweeps a minute later', async () => {
    const queue = freshQueue();
    const clock = new FakeClock();
    const own = { url: server.url, namespaces: NAMESPACES, clock, prefix: freshPrefix() };
    const [stopped, other] = [redisEngine(own), redisEngine(own)];
    await Promise.all([stopped.start(), other.start()]);
    await stopped.storage.insert(queue, newElements('a', 'b'));
    await stopped.storage.take(queue, { ...POP, count: 1 });
    await stopped.stop();
    clock.advance(61_000);
    await other.storage.sweep();
    const { hash } = new Keys(own.prefix).queue(queue);
    const fields = redisCli(server.port, 'HLEN', hash).trim();
    assert.equal(fields, '3', "the queue's tag and number, and the element that is left");
    await other.stop();
  });
});

describe('A Redis engine whose server is full or unsuitable', () => {
  it('rejects inserts with storage-full when memory is full, while takes and commits succeed', async () => {
    const server = await startRedis();
    const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null });
    await engine.start();
    const { storage } = engine;
    const queue = { ns: 'plain', name: 'full' };
    await storage.insert(queue, newElements('a', 'b'));
    redisCli(server.port, 'CONFIG', 'SET', 'maxmemory', '1');
    const [inserted, taken] = await Promise.allSettled([
      storage.insert(queue, newElements('too much')),
      storage.take(queue, { ...RESERVE, count: 1 }),
    ]);
    assert.ok(inserted.status === 'rejected' && inserted.reason.code === 'storage-full');
    assert.ok(taken.status === 'fulfilled');
    const [reserved] = taken.value.deliveries;
    const ref = { id: reserved?.id ?? '', group: '', token: null };
    assert.deepEqual(await commit(storage, queue, [ref]), ['done']);
    assert.deepEqual(bodyTexts((await storage.take(queue, POP)).deliveries), ['b']);
    redisCli(server.port, 'CONFIG', 'SET', 'maxmemory', '0');
    await storage.insert(queue, newElements('fits again'));
    await engine.stop();
    await server.stop();
  });

  it('names the lack of memory in errors if the server has lost the functions and cannot load them', async () => {
    const server = await startRedis();
    const ownClock = new FakeClock();
    const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null, ownClock });
    await engine.start();
    redisCli(server.port, 'FUNCTION', 'FLUSH');
    redisCli(server.port, 'CONFIG', 'SET', 'maxmemory', '1');
    const counting = engine.storage.counts({ ns: 'plain', name: 'any' });
    await assert.rejects(passGently(ownClock, counting), /cannot be used now: OOM command not allowed/);
    await engine.stop();
    await server.stop();
  });

  it('returns the elements that Redis popped for it while the node was suspended for longer than calls may take', async () => {
    const server = await startRedis();
    const ownClock = new SuspendedClock();
    const prefix = freshPrefix();
    const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null, ownClock, prefix });
    await engine.start();
    const queue = { ns: 'plain', name: 'suspended' };
    await engine.storage.insert(queue, newElements('a', 'b'));
    const { hash } = new Keys(prefix).queue(queue);
    // Synchronous, so that no socket of this process is read at the same time.
    const stored = (): string => redisCli(server.port, 'HGETALL', hash);
    const before = stored();
    server.freeze();
    const popped = engine.storage.take(queue, POP);
    popped.catch(() => {});
    await turns();
    server.thaw();
    while (stored() === before);
    ownClock.suspend();
    assert.deepEqual(bodyTexts((await popped).deliveries), ['a', 'b']);
    await engine.stop();
    await server.stop();
  });

  it('does not start on a server that evicts, and names the setting to change', async () => {
    const server = await startRedis('--maxmemory-policy', 'allkeys-lru');
    const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null });
    await assert.rejects(engine.start(), /maxmemory-policy is allkeys-lru.*set maxmemory-policy noeviction/);
    await server.stop();
  });

  it("logs at the start which acknowledged changes a restart may lose, by the append-only file's settings", async () => {
    const rows = [
      { options: ['--appendonly', 'no'], level: 'warn', words: /a restart loses acknowledged changes/ },
      { options: ['--appendfsync', 'everysec'], level: 'info', words: /disk about a second after/ },
      { options: ['--appendfsync', 'always'], level: 'info', words: /on disk when they are acknowledged/ },
      { options: ['--appendfsync', 'no'], level: 'warn', words: /disk many seconds after/ },
    ];
    for (const { options, level, words } of rows) {
      const server = await startRedis(...options);
      const messages: [string, string][] = [];
      const log = {
        info: (_: object, message: string) => messages.push(['info', message]),
        warn: (_: object, message: string) => messages.push(['warn', message]),
      };
      const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null, log });
      await engine.start();
      assert.deepEqual(
        messages.map(([at]) => at),
        [level],
      );
      assert.match(messages[0]?.[1] ?? '', words);
      assert.match(messages[0]?.[1] ?? '', /a failover may lose the last of them/);
      await engine.stop();
      await server.stop();
    }
  });

  it('does not start with cluster: true on a server that is not part of a cluster', async () => {
    const { url } = await standalone();
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, settings: { cluster: true } });
    await assert.rejects(engine.start(), /cluster is true, but the server is not part of one/);
  });

  it('does not start if Redis accepts no further connection, and the error names maxclients', async () => {
    const server = await startRedis('--maxclients', '1');
    const occupied = connect(server.port, '127.0.0.1');
    await once(occupied, 'connect');
    const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null });
    await assert.rejects(engine.start(), /max number of clients|check maxclients of Redis/);
    occupied.destroy();
    await server.stop();
  });

  it('does not start if nothing listens at the address, which the error names', async () => {
    const server = await startRedis();
    await server.stop();
    const engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock: null });
    await assert.rejects(
      engine.start(),
      new RegExp(`127\\.0\\.0\\.1:${server.port}.*ECONNREFUSED.*; start Redis there`),
    );
  });

  it('reveals no password in errors or log, whether it is wrong or the connection is lost', async () => {
    const secret = 'p@ss/w%rd';
    const server = await startRedis('--requirepass', secret);
    const messages: string[] = [];
    const note = (fields: object, message: string): void => {
      messages.push(
        JSON.stringify(fields, (_, value) => (value instanceof Error ? value.message : value)),
        message,
      );
    };
    const log = { info: note, warn: note };
    const at = (password: string): string =>
      `redis://:${encodeURIComponent(password)}@127.0.0.1:${server.port}`;
    const wrong = redisEngine({ url: at('wr0ng-secret'), namespaces: NAMESPACES, clock: null, log });
    await assert.rejects(wrong.start(), (error: Error) => {
      messages.push(error.message);
      return error.message.includes('WRONGPASS');
    });
    const right = redisEngine({ url: at(secret), namespaces: NAMESPACES, clock: null, log });
    await right.start();
    await server.stop();
    await until(async () => messages.some((text) => text.includes('cannot be reached')));
    await right.stop();
    for (const word of [secret, encodeURIComponent(secret), 'wr0ng-secret']) {
      assert.ok(!messages.join('\n').includes(word));
    }
  });
});
