import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElement } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { redisCli, startSentinel } from '../support/redis-servers.ts';
import { until } from '../support/until.ts';
import { redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain')];
const QUEUE = { ns: 'plain', name: 'q' };
const POP = { group: '', count: 9, leaseMs: null };

describe('The Redis engine with Sentinel', () => {
  it('follows the master after a failover, and finds what was acknowledged before', async () => {
    const watched = await startSentinel();
    const engine = redisEngine({
      url: watched.url,
      namespaces: NAMESPACES,
      clock: null,
      ownClock: systemClock,
    });
    await engine.start();
    await inserted(engine, 'before');
    const { master, replica } = watched;
    // A machine that stalls for a second causes a failover by itself.
    const isFirst = (await watched.masterPort()) === master.port;
    const [old, successor] = isFirst ? [master, replica] : [replica, master];
    await old.kill();
    await inserted(engine, 'after');
    // The Sentinels notify one another, so this one may learn of the new master later than the engine.
    await until(async () => (await watched.masterPort().catch(() => 0)) === successor.port);
    assert.deepEqual(await popped(engine), ['before', 'after']);
    await engine.stop();
    await watched.stop();
  });

  it('follows a failover that an operator requested while the old master still serves', async () => {
    const watched = await startSentinel();
    const engine = redisEngine({
      url: watched.url,
      namespaces: NAMESPACES,
      clock: null,
      ownClock: systemClock,
    });
    await engine.start();
    await inserted(engine, 'before');
    const oldPort = await watched.masterPort();
    // The Sentinels make the old master a replica only after ten seconds; here, they never can.
    redisCli(oldPort, 'ACL', 'SETUSER', 'default', '-slaveof', '-replicaof');
    const { port: sentinelPort } = new URL(watched.url.replace(/,.*/, ''));
    redisCli(Number(sentinelPort), 'SENTINEL', 'FAILOVER', 'watched');
    await until(async () => (await watched.masterPort()) !== oldPort);
    await inserted(engine, 'after');
    assert.match(redisCli(oldPort, 'INFO', 'replication'), /role:master/);
    assert.deepEqual(await popped(engine), ['before', 'after']);
    await engine.stop();
    await watched.stop();
  });

  it('rejects a pop that no replica acknowledged with outcome-unknown, and returns its elements to the queue', async () => {
    const watched = await startSentinel();
    const engine = redisEngine({
      url: watched.url,
      namespaces: NAMESPACES,
      clock: null,
      ownClock: systemClock,
    });
    await engine.start();
    await inserted(engine, 'a', 'b');
    watched.replica.freeze();
    await assert.rejects(engine.storage.take(QUEUE, POP), { code: 'outcome-unknown' });
    watched.replica.thaw();
    assert.deepEqual(await popped(engine), ['a', 'b']);
    await engine.stop();
    await watched.stop();
  });

  it('does not start if the URL takes a Sentinel for a server, or a server for a Sentinel, and the error says which', async () => {
    const watched = await startSentinel();
    for (const [url, error] of [
      [watched.url.replace(/\?.*/, ''), /: it is a Sentinel; name its master with \?sentinel=NAME$/],
      [
        `${watched.master.url}?sentinel=watched`,
        /: it is not a Sentinel; leave out sentinel, or name the Sentinels$/,
      ],
    ] as const) {
      const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock });
      await assert.rejects(engine.start(), error);
    }
    await watched.stop();
  });

  it('does not start if the Sentinels do not know the master, which the error names', async () => {
    const watched = await startSentinel();
    const url = watched.url.replace('sentinel=watched', 'sentinel=mistyped');
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock });
    await assert.rejects(engine.start(), /knows no master "mistyped"/);
    await watched.stop();
  });
});

/**
 * Inserts elements, and repeats the insert with the same dedup keys until it succeeds: a failover, or a replica on a
 * busy machine, may take longer than a call may.
 */
async function inserted({ storage }: Engine, ...bodies: readonly string[]): Promise<void> {
  const elements = bodies.map((body) => newElement({ body, dedupKey: body }));
  await until(async () => {
    const code = await codeOf(storage.insert(QUEUE, elements));
    assert.ok(['done', 'storage-unavailable', 'outcome-unknown'].includes(code), code);
    return code === 'done';
  });
}

/**
 * Pops until it gets elements, and returns their bodies. Elements of a pop with an unknown outcome return to the queue.
 */
async function popped({ storage }: Engine): Promise<string[]> {
  for (;;) {
    try {
      const { deliveries } = await storage.take(QUEUE, POP);
      if (deliveries.length > 0) return bodyTexts(deliveries);
    } catch (error) {
      assert.ok(error instanceof QuaysideError && error.code === 'outcome-unknown', String(error));
    }
  }
}
