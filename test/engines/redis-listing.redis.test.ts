import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { zeroCounters } from '../../src/engine/stats.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import { DELIVERY_STATES } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { ANSWERED_MS, inTime, stopped } from './fake-time.ts';
import { freshPrefix, QUEUE_CALL, redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain'), plain('stream', { groups: ['g'] })];
const QUEUES: readonly QueueKey[] = Array.from({ length: 300 }, (_, i) => ({ ns: 'plain', name: `q${i}` }));

describe('A listing of queues on Redis', () => {
  let server: RedisServer;
  let writer: Engine;
  /** Made no call of a queue: it reads queues of which it knows nothing. */
  let reader: Engine;
  const clock = new FakeClock();
  const prefix = freshPrefix();
  const WAITING = { ready: 2, scheduled: 0, reserved: 0, nextMatureAt: clock.now(), groups: new Map() };

  before(async () => {
    server = await startRedis();
    const common = { namespaces: NAMESPACES, url: server.url, clock, prefix };
    [writer, reader] = [redisEngine(common), redisEngine(common)];
    await Promise.all([writer.start(), reader.start()]);
    await Promise.all(QUEUES.map((queue) => writer.storage.insert(queue, newElements('a', 'b'))));
    for (const queue of QUEUES) writer.stats.add(queue, '', { put: 2, get: 1 });
    await writer.stats.flush();
  });

  after(async () => {
    await Promise.all([writer.stop(), reader.stop()]);
    await server.stop();
  });

  const cli = (...args: string[]): string => redisCli(server.port, ...args).trim();

  /** The result of a call, and how many functions the server executed for it. */
  async function withCalls<T>(call: () => Promise<T>): Promise<[result: T, calls: number]> {
    cli('CONFIG', 'RESETSTAT');
    const result = await call();
    return [result, Number(/cmdstat_fcall:calls=(\d+)/.exec(cli('INFO', 'commandstats'))?.[1] ?? 0)];
  }

  const countAll = () => Promise.all(QUEUES.map((queue) => reader.storage.counts(queue)));

  it('counts 300 queues in three calls', async () => {
    const [counts, calls] = await withCalls(countAll);
    assert.deepEqual(counts, Array(300).fill(WAITING));
    assert.equal(calls, 3);
  });

  it('reads the counters of 300 queues in three calls', async () => {
    const [read, calls] = await withCalls(() => Promise.all(QUEUES.map((queue) => reader.stats.read(queue))));
    const counted = read.map((counters) => counters.get(''));
    assert.deepEqual(counted, Array(300).fill({ ...zeroCounters(), put: 2, get: 1 }));
    assert.equal(calls, 3);
  });

  it('reads many counters in several calls, since one would block the server', async () => {
    const queues = QUEUES.slice(0, 5);
    const each = { put: 1, get: 2, reserve: 3, commit: 4, rollback: 5, deadletter: 6 };
    for (const queue of queues) for (let i = 0; i < 250; i++) writer.stats.add(queue, `g${i}`, each);
    await writer.stats.flush();
    const [read, calls] = await withCalls(() => Promise.all(queues.map((queue) => reader.stats.read(queue))));
    for (const counters of read) {
      assert.deepEqual([counters.size, counters.get('')?.put, counters.get('g249')], [251, 2, each]);
    }
    assert.equal(calls, 2);
  });

  it('counts an element whose lease has expired as ready, with one call more', async () => {
    const [queue = { ns: '', name: '' }] = QUEUES;
    const { deliveries } = await writer.storage.take(queue, { group: '', count: 1, leaseMs: 1_000 });
    assert.deepEqual(await reader.storage.counts(queue), { ...WAITING, ready: 1, reserved: 1 });
    clock.advance(1_001);
    const [[counts], calls] = await withCalls(countAll);
    assert.deepEqual([counts?.ready, counts?.reserved, calls], [2, 0, 4]);
    const scan = { states: DELIVERY_STATES, after: null, limit: 10, bodies: false, group: '' };
    const tries = (await writer.storage.scan(queue, scan)).deliveries.map((delivery) => delivery.tries);
    assert.deepEqual([deliveries.length, tries.sort()], [1, [0, 1]]);
  });

  it('is answered in time although its first call took long, and an expired lease makes another one necessary', async () => {
    const proxy = await TcpProxy.start(server.port);
    const own = new FakeClock();
    const url = `redis://127.0.0.1:${proxy.port}`;
    const far = redisEngine({ url, namespaces: NAMESPACES, clock, prefix, ownClock: own });
    await far.start();
    const queue = { ns: 'plain', name: 'slow' };
    await writer.storage.insert(queue, newElements('a'));
    await writer.storage.take(queue, { group: '', count: 1, leaseMs: 1_000 });
    clock.advance(1_001);
    try {
      const caught = proxy.catch(/_counts\r\n/, 'held');
      const counted = codeOf(far.storage.counts(queue));
      await caught;
      own.advance(1_500);
      const caughtAgain = proxy.catch(QUEUE_CALL, 'deaf');
      proxy.release();
      await caughtAgain;
      proxy.state = 'dark';
      assert.deepEqual(await inTime(own, [counted], ANSWERED_MS - 1_500), []);
    } finally {
      await stopped(far, own);
      await proxy.stop();
    }
  });

  it('counts the groups of streams', async () => {
    const streams = ['s0', 's1'].map((name) => ({ ns: 'stream', name }));
    await writer.storage.insert(streams[0] as QueueKey, [newElement({ groups: ['g', 'h'] })]);
    const [[first, second], calls] = await withCalls(() =>
      Promise.all(streams.map((queue) => reader.storage.counts(queue))),
    );
    const each = { ready: 1, scheduled: 0, reserved: 0, nextMatureAt: clock.now() };
    assert.deepEqual(first, { ...each, groups: new Map(['g', 'h'].map((group) => [group, each])) });
    assert.deepEqual(second, { ...WAITING, ready: 0, nextMatureAt: null });
    assert.equal(calls, 1);
  });

  it('shows the other queues if what is stored of one cannot be read', async () => {
    const [, queue = { ns: '', name: '' }, other] = QUEUES;
    const keys = new Keys(prefix).queue(queue);
    cli('SET', keys.order, 'damaged');
    cli('SET', keys.stats, 'damaged');
    const counted = await Promise.allSettled(QUEUES.map((each) => reader.storage.counts(each)));
    const failed = counted.flatMap(({ status }, i) => (status === 'rejected' ? [i] : []));
    assert.deepEqual(failed, [1]);
    const [none, some] = await Promise.all([reader.stats.read(queue), reader.stats.read(other as QueueKey)]);
    assert.deepEqual([none.size, some.get('')?.put], [0, 2]);
  });
});
