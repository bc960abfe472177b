import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElement } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { startSentinel } from '../support/redis-servers.ts';
import { until } from '../support/until.ts';
import { redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain')];
const QUEUE = { ns: 'plain', name: 'q' };
const POP = { group: '', count: 9, leaseMs: null };

describe('the Redis engine with Sentinel', () => {
  it('follows the master, and finds what was answered before the old one died', async () => {
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
    // A machine that stands still for a second causes a failover by itself.
    const isFirst = (await watched.masterPort()) === master.port;
    const [old, successor] = isFirst ? [master, replica] : [replica, master];
    await old.kill();
    await inserted(engine, 'after');
    // The Sentinels tell one another which is the master, so that this one may learn it later than the engine.
    await until(async () => (await watched.masterPort().catch(() => 0)) === successor.port);
    assert.deepEqual(await popped(engine), ['before', 'after']);
    await engine.stop();
    await watched.stop();
  });

  it('answers outcome-unknown while no replica has the change, and takes back what such a pop took', async () => {
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

  it('does not start where the Sentinels know no such master, and names it', async () => {
    const watched = await startSentinel();
    const url = watched.url.replace('sentinel=watched', 'sentinel=mistyped');
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock });
    await assert.rejects(engine.start(), /knows no master "mistyped"/);
    await watched.stop();
  });
});

/**
 * A failover, and a replica of a busy machine, may take longer than one call may: then it is made again, under the same
 * keys.
 */
async function inserted({ storage }: Engine, ...bodies: readonly string[]): Promise<void> {
  const elements = bodies.map((body) => newElement({ body, dedupKey: body }));
  await until(async () => {
    const code = await codeOf(storage.insert(QUEUE, elements));
    assert.ok(['done', 'storage-unavailable', 'outcome-unknown'].includes(code), code);
    return code === 'done';
  });
}

/** What is in the queue. A pop whose outcome is unknown is taken back. */
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
