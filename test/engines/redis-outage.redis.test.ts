import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { Engine } from '../../src/engine/engine.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { patient } from '../support/clock.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { AWAY, type RedisServer, startRedis } from '../support/redis-servers.ts';
import { commit } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { freshPrefix, redisEngine } from './redis.ts';

const QUEUE: QueueKey = { ns: 'jobs', name: 'held' };
const LEASE_MS = 2_000;
/** Longer than the lease, and than the silence that counts as an outage. */
const OUTAGE_MS = 4_500;
/** One failed try makes an element a dead letter. */
const JOBS = plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } });

describe('A lease on Redis that expires', () => {
  let server: RedisServer;
  let prefix: string;
  const engines: Engine[] = [];

  const open = async (url = server.url, ownClock: Clock = systemClock): Promise<Engine> => {
    const engine = redisEngine({ url, namespaces: [JOBS], clock: null, prefix, ownClock });
    engines.push(engine);
    await engine.start();
    return engine;
  };

  const take = async ({ storage }: Engine, leaseMs: number, count = 1): Promise<Delivery[]> =>
    (await storage.take(QUEUE, { group: '', count, leaseMs })).deliveries;

  /** Returns the number of dead letters; null while the server does not reply. */
  const buried = (engine: Engine): Promise<number | null> =>
    engine.storage.counts({ ns: 'jobs', name: 'dead' }).then(
      ({ ready }) => ready,
      () => null,
    );

  /** Sweeps until the element is ready again, reserves it, and returns it. */
  const returned = async (engine: Engine): Promise<Delivery> => {
    for (;;) {
      const swept = await engine.storage.sweep().then(
        () => true,
        () => false,
      );
      const [found] = swept ? await take(engine, LEASE_MS) : [];
      if (found !== undefined) return found;
      assert.notEqual(await buried(engine), 1, 'a try was counted');
      await delay(20);
    }
  };

  beforeEach(async () => {
    server = await startRedis('--appendfsync', 'always');
    prefix = freshPrefix();
  });

  afterEach(async () => {
    await Promise.all(engines.splice(0).map((engine) => engine.stop()));
    await server.stop();
  });

  for (const [state, { begin, end }] of Object.entries(AWAY)) {
    it(`while the server is ${state} counts no try: its element regains its place, or can still be committed`, async () => {
      const [one, other] = [await open(), await open()];
      await one.storage.insert(QUEUE, newElements('first', 'second', 'third'));
      const [first, second] = await take(one, LEASE_MS, 2);
      await begin(server);
      await delay(OUTAGE_MS);
      await end(server);
      const found = await returned(other);
      assert.deepEqual([found.id, found.tries, found.matureAt], [first?.id, 0, first?.matureAt]);
      const ref = { id: second?.id ?? '', group: '', token: second?.lease?.token ?? '' };
      assert.deepEqual(await commit(one.storage, QUEUE, [ref]), ['done']);
      assert.deepEqual(bodyTexts(await take(one, LEASE_MS, 9)), ['third']);
    });
  }

  it('soon after the server is back counts no try, but one granted after that does', async () => {
    const engine = await open();
    await engine.storage.insert(QUEUE, newElements('held'));
    await take(engine, OUTAGE_MS + LEASE_MS);
    server.freeze();
    await delay(OUTAGE_MS);
    server.thaw();
    assert.equal((await returned(engine)).tries, 0);
    await until(async () => (await engine.storage.counts(QUEUE)).reserved === 0, 20);
    assert.equal(await buried(engine), 1);
  });

  it('while one node is cut off counts a try if another node can reach the server', async () => {
    const proxy = await TcpProxy.start(server.port);
    const cut = await open(`redis://127.0.0.1:${proxy.port}`);
    // A node that was suspended for seconds would assume an outage; hence the patient clock.
    const whole = await open(server.url, patient(systemClock));
    await whole.storage.insert(QUEUE, newElements('held'));
    await take(whole, LEASE_MS);
    proxy.state = 'dark';
    await delay(OUTAGE_MS);
    await whole.storage.sweep();
    proxy.state = 'open';
    proxy.reset();
    assert.equal(await buried(whole), 1);
    await cut.stop();
    await proxy.stop();
  });
});
