import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { freshPrefix, QUEUE_CALL, redisEngine } from './redis.ts';
import { inTime, passTo, passUntil, refusalOf, stopped } from './redis-time.ts';

const NAMESPACES = [plain('plain')];
const QUEUE: QueueKey = { ns: 'plain', name: 'queue' };
const POP = { group: '', count: 10, leaseMs: null };

describe('A pop in Redis whose answer was lost', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  let near: Engine;
  let far: Engine;
  /** What the engine behind the proxy measures its waiting with. */
  let clock: FakeClock;

  beforeEach(async () => {
    server = await startRedis();
    proxy = await TcpProxy.start(server.port);
    clock = new FakeClock();
    const common = { namespaces: NAMESPACES, clock: null, prefix: freshPrefix() };
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
    redisCli('-p', String(server.port), 'CONFIG', 'SET', 'maxmemory', String(bytes));

  /** Two elements are popped, and whoever asked is told that nobody knows. From here on nothing passes. */
  async function popInVain(): Promise<void> {
    await far.storage.insert(QUEUE, newElements('a', 'b'));
    const caught = proxy.catch(QUEUE_CALL, 'mute');
    const popped = refusalOf(far.storage.take(QUEUE, POP));
    await caught;
    proxy.state = 'dark';
    assert.equal(await passTo(clock, popped), 'outcome-unknown');
    assert.equal((await near.storage.sizes(QUEUE)).ready, 0, 'the pop was done');
  }

  async function connectAgain(): Promise<void> {
    proxy.state = 'open';
    proxy.reset();
    await passUntil(clock, () => far.ping());
  }

  async function assertBack(): Promise<void> {
    await passUntil(clock, async () => assert.equal((await near.storage.sizes(QUEUE)).ready, 2));
    const { deliveries } = await near.storage.take(QUEUE, POP);
    assert.deepEqual(
      deliveries.map(({ tries }) => tries),
      [0, 0],
    );
    assert.deepEqual(bodyTexts(deliveries), ['a', 'b']);
  }

  it('is undone although calls that were never sent came between', async () => {
    await popInVain();
    for (let round = 0; round < 4; round++) await inTime(clock, []);
    await connectAgain();
    await assertBack();
  });

  it('is undone although the next call was refused for want of memory', async () => {
    await popInVain();
    setMemory(1);
    proxy.state = 'open';
    proxy.reset();
    // Made before time goes on: it comes before the call that settles the pop.
    const inserted = refusalOf(far.storage.insert(QUEUE, newElements('too much')));
    await passUntil(clock, () => far.ping());
    assert.equal(await inserted, 'storage-full');
    setMemory(0);
    await assertBack();
  });
});
