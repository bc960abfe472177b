import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { startSentinel } from '../support/redis-servers.ts';
import { redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain')];

describe('the Redis engine with Sentinel', () => {
  it('follows the master, and finds what was answered before the old one died', async () => {
    const watched = await startSentinel();
    const engine = redisEngine({ url: watched.url, namespaces: NAMESPACES, clock: null });
    await engine.start();
    const queue = { ns: 'plain', name: 'q' };
    await engine.storage.insert(queue, newElements('before'));
    assert.equal(await watched.masterPort(), watched.master.port);
    await watched.master.kill();
    await insertWhenPossible(() => engine.storage.insert(queue, newElements('after')));
    assert.equal(await watched.masterPort(), watched.replica.port);
    const { deliveries } = await engine.storage.take(queue, { group: '', count: 9, leaseMs: null });
    assert.deepEqual(bodyTexts(deliveries).slice(0, 2), ['before', 'after']);
    await engine.stop();
    await watched.stop();
  });

  it('answers outcome-unknown while no replica has the change, and takes back what such a pop took', async () => {
    const watched = await startSentinel();
    const engine = redisEngine({ url: watched.url, namespaces: NAMESPACES, clock: null });
    await engine.start();
    const queue = { ns: 'plain', name: 'q' };
    const pop = { group: '', count: 9, leaseMs: null };
    await engine.storage.insert(queue, newElements('a', 'b'));
    watched.replica.freeze();
    const isUnknown = (error: unknown): boolean =>
      error instanceof Error && 'code' in error && error.code === 'outcome-unknown';
    await assert.rejects(engine.storage.take(queue, pop), isUnknown);
    watched.replica.thaw();
    let bodies: string[] = [];
    while (bodies.length === 0) {
      try {
        bodies = bodyTexts((await engine.storage.take(queue, pop)).deliveries);
      } catch (error) {
        assert.ok(isUnknown(error), String(error));
      }
    }
    assert.deepEqual(bodies, ['a', 'b']);
    await engine.stop();
    await watched.stop();
  });

  it('does not start where the Sentinels know no such master, and names it', async () => {
    const watched = await startSentinel();
    const url = watched.url.replace('sentinel=watched', 'sentinel=mistyped');
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null });
    await assert.rejects(engine.start(), /knows no master "mistyped"/);
    await watched.stop();
  });
});

/** The failover may take longer than one call may. */
async function insertWhenPossible(insert: () => Promise<unknown>): Promise<void> {
  for (let tries = 0; tries < 10; tries++) {
    try {
      await insert();
      return;
    } catch (error) {
      assert.ok(
        error instanceof Error && 'code' in error && error.code === 'storage-unavailable',
        String(error),
      );
    }
  }
  assert.fail('no new master in ten calls');
}
