import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { SettleAction } from '../../src/engine/storage.ts';
import { textFingerprint } from '../../src/model/fingerprint.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { redisCli } from '../support/redis-servers.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { passGently, passTo, passUntil } from './fake-time.ts';
import { freshPrefix, QUEUE_CALL, redisEngine, standalone } from './redis.ts';

const ID = '0123456789ab0000000001';
const TAKE = { group: '', count: 1, leaseMs: null };
const ACTIONS: readonly SettleAction[] = [
  { kind: 'finish' },
  { kind: 'release', delayMs: 0, countTry: true },
  { kind: 'extend', leaseMs: 3_600_000 },
  { kind: 'dead-letter', countTry: true, reason: 'x' },
  { kind: 'move', to: { ns: 'plain', name: 'other' }, groups: [''], tries: null, head: null },
];

/** Two elements with one key and different content: neither is stored. */
const CONTRADICTORY = ['one', 'two'].map((text) => ({
  ...newElement({ dedupKey: 'k' }),
  fingerprint: textFingerprint(text),
}));

async function keysUnder(prefix: string): Promise<string[]> {
  const { port } = await standalone();
  const found = redisCli(port, 'KEYS', `*${prefix}:*`);
  return found.split('\n').filter(Boolean).sort();
}

/** Returns the keys of queues under a prefix. */
async function queueKeys(prefix: string): Promise<string[]> {
  return (await keysUnder(prefix)).filter((key) => key.includes(':{'));
}

it('Operations on a queue that does not exist leave no keys on the Redis server', async () => {
  const { url } = await standalone();
  const prefix = freshPrefix();
  const engine = redisEngine({ url, namespaces: [plain('plain')], clock: null, prefix });
  await engine.start();
  try {
    const { storage } = engine;
    await storage.insert({ ns: 'plain', name: 'there' }, newElements('a'));
    const before = await keysUnder(prefix);
    const names = (): string[] => before.filter((key) => key.includes(':queues:') || key.endsWith(':tidy'));
    const { port } = await standalone();
    const sizes = (): string[] => names().map((key) => redisCli(port, 'ZCARD', key).trim());
    const sizesBefore = sizes();
    for (let i = 0; i < 20; i++) {
      const queue: QueueKey = { ns: 'plain', name: `unknown ${i}` };
      const item = { queue, id: ID, group: '', token: null, from: 'reserved' } as const;
      await Promise.all([
        storage.take(queue, TAKE),
        storage.take(queue, { ...TAKE, leaseMs: 3_600_000 }),
        storage.settle([{ ...item, from: 'waiting', action: { kind: 'finish' } }]),
        ...ACTIONS.map(async (action) => {
          assert.equal((await storage.settle([{ ...item, action }]))[0]?.outcome, 'not-found', action.kind);
        }),
        storage.scan(queue, { group: '', states: ['ready'], after: null, limit: 1, bodies: true }),
        storage.counts(queue),
        storage.purge(queue),
        storage.insert(queue, CONTRADICTORY),
        storage.insert(
          queue,
          CONTRADICTORY.map((element) => ({ ...element, expiresAt: storage.now() + 3_600_000 })),
        ),
      ]);
    }
    assert.deepEqual(await keysUnder(prefix), before);
    assert.deepEqual(sizes(), sizesBefore);
    assert.deepEqual(await storage.queues('plain'), ['there']);
  } finally {
    await engine.stop();
  }
});

it('Takes that find nothing in a queue write nothing to the Redis server', async () => {
  const { url, port } = await standalone();
  const engine = redisEngine({ url, namespaces: [plain('plain')], clock: null });
  const changes = (): number =>
    Number(/rdb_changes_since_last_save:(\d+)/.exec(redisCli(port, 'INFO', 'persistence'))?.[1]);
  await engine.start();
  try {
    const { storage } = engine;
    const queue = { ns: 'plain', name: 'awaited' };
    const reserve = { ...TAKE, leaseMs: 3_600_000 };
    await storage.insert(queue, newElements('a', 'b'));
    assert.equal((await storage.take(queue, TAKE)).deliveries.length, 1);
    assert.equal((await storage.take(queue, reserve)).deliveries.length, 1);
    // The pop is finished by the call after it, and the reply of the reserve is replaced by the next one.
    await storage.take(queue, TAKE);
    const before = changes();
    for (let i = 0; i < 3; i += 1) {
      for (const options of [TAKE, reserve]) {
        assert.deepEqual((await storage.take(queue, options)).deliveries, []);
      }
    }
    assert.equal(changes(), before);
  } finally {
    await engine.stop();
  }
});

it('The record on Redis of a call with unknown outcome on a queue that does not exist is removed a minute later', async () => {
  const { url } = await standalone();
  const proxy = await TcpProxy.start(Number(new URL(url).port));
  const [clock, own, prefix] = [new FakeClock(), new FakeClock(), freshPrefix()];
  const common = { namespaces: [plain('plain')], clock, prefix };
  const engine = redisEngine({ ...common, url: `redis://127.0.0.1:${proxy.port}`, ownClock: own });
  await engine.start();
  const queue = { ns: 'plain', name: 'unknown' };
  try {
    const caught = proxy.catch(QUEUE_CALL, 'deaf');
    const lost = codeOf(engine.storage.take(queue, TAKE));
    await caught;
    proxy.state = 'dark';
    assert.equal(await passTo(own, lost), 'outcome-unknown');
    proxy.state = 'open';
    proxy.reset();
    // The lost call may still arrive, so a record that rejects it is stored.
    await passUntil(own, async () => assert.ok((await queueKeys(prefix)).length > 0));
    for (let i = 0; i < 3; i++) {
      clock.advance(61_000);
      await passGently(own, engine.storage.sweep());
    }
    assert.deepEqual(await keysUnder(prefix), []);
  } finally {
    await passTo(own, engine.stop());
    await proxy.stop();
  }
});
