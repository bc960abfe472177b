import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { SettleAction, SettleItem } from '../../src/engine/storage.ts';
import { DELIVERY_STATES, type ElementId } from '../../src/model/element.ts';
import { OperationNode } from '../operations/node.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { freshPrefix, redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain', { deadLetter: { maxTries: 2, queue: 'dead' } })];
const [QUEUE, OTHER, DEAD] = [
  { ns: 'plain', name: 'queue' },
  { ns: 'plain', name: 'other' },
  { ns: 'plain', name: 'dead' },
];
const [POP, RESERVE] = [
  { group: '', count: 1, leaseMs: null },
  { group: '', count: 1, leaseMs: 1_000 },
];
const PAGE = { group: '', states: DELIVERY_STATES, after: null, limit: 100, bodies: true };

describe('A Redis server', () => {
  let server: RedisServer;
  let engine: Engine;
  let prefix: string;
  let clock: FakeClock;
  const lines: string[] = [];
  const log = {
    info: () => {},
    warn: (_fields: object, line: string): void => void lines.push(line),
  };

  beforeEach(async () => {
    server = await startRedis();
    [clock, prefix] = [new FakeClock(), freshPrefix()];
    engine = redisEngine({ url: server.url, namespaces: NAMESPACES, clock, prefix, log });
    await engine.start();
  });

  afterEach(async () => {
    await engine.stop();
    await server.stop();
  });

  const config = (name: string, value: number): string =>
    redisCli(server.port, 'CONFIG', 'SET', name, String(value));

  /** Stores twenty elements, and lowers the server's limit so that it has memory again when about ten are gone. */
  const fill = async (): Promise<readonly string[]> => {
    const bodies = Array.from({ length: 20 }, (_, i) => `${i}`.padEnd(200_000));
    await engine.storage.insert(QUEUE, newElements(...bodies));
    const used = Number(/used_memory:(\d+)/.exec(redisCli(server.port, 'INFO', 'memory'))?.[1]);
    config('maxmemory', used - 2_000_000);
    return bodies;
  };

  const reserve = async (): Promise<ElementId> =>
    (await engine.storage.take(QUEUE, RESERVE)).deliveries[0]?.id ?? '';

  const settle = (id: ElementId, from: SettleItem['from'], action: SettleAction): Promise<string> =>
    engine.storage.settle([{ queue: QUEUE, id, group: '', token: null, from, action }]).then(
      ([result]) => result?.outcome ?? '',
      ({ code }) => code,
    );

  it('that is full rejects only what stores elements, and loses none', async () => {
    const { storage, definitions, stats } = engine;
    const bodies = await fill();
    assert.equal(await codeOf(storage.insert(OTHER, newElements('too much'))), 'storage-full');

    const first = await reserve();
    const inserts = [{ queue: OTHER, element: newElement({ body: 'copy' }) }];
    assert.equal(await settle(first, 'reserved', { kind: 'finish', inserts }), 'storage-full');
    assert.equal(await settle(first, 'reserved', { kind: 'extend', leaseMs: 2_000 }), 'done');
    const move = { kind: 'move', to: OTHER, groups: [''], tries: null, head: null } as const;
    assert.equal(await settle(first, 'reserved', move), 'storage-full');
    const release = { kind: 'release', delayMs: 1_000, countTry: true } as const;
    assert.equal(await settle(first, 'reserved', release), 'done');
    const expiring = await reserve();
    clock.advance(2_000);
    await storage.sweep();
    const [back] = (await storage.scan(QUEUE, { ...PAGE, ids: [expiring] })).deliveries;
    assert.equal(back?.tries, 1);
    const dying = { kind: 'dead-letter', countTry: true, reason: null } as const;
    assert.equal(await settle(await reserve(), 'reserved', dying), 'dead-lettered');

    const { deliveries } = await storage.take(QUEUE, POP);
    await storage.undoTake(QUEUE, deliveries);
    const [removed] = (await storage.scan(QUEUE, PAGE)).deliveries;
    assert.equal(await settle(removed?.id ?? '', 'waiting', { kind: 'finish' }), 'done');
    assert.equal(await settle(await reserve(), 'reserved', { kind: 'finish' }), 'done');

    stats.add(QUEUE, '', { put: 20 });
    await stats.flush();
    assert.equal((await stats.read(QUEUE)).get('')?.put, 20);
    await storage.declare([QUEUE], { retentionMs: 3_600_000 });
    await definitions.put('queue', 'plain/queue', { paused: true }, 'any');
    assert.equal((await definitions.list('queue')).length, 1);
    assert.equal((await storage.usage('plain')).elements, 18);
    assert.equal(await storage.drop(OTHER), true);

    const left: string[] = [];
    for (const queue of [DEAD, QUEUE]) {
      left.push(...bodyTexts((await storage.take(queue, { ...POP, count: 20 })).deliveries));
    }
    assert.equal(left.length, 18);
    assert.deepEqual(
      left.filter((body) => !bodies.includes(body)),
      [],
    );
    // The server keeps popped elements until the node's next call, in case the reply was lost.
    await storage.take(QUEUE, POP);
    await storage.insert(QUEUE, newElements('fits again'));
  });

  it('that is full is logged once, however many calls it rejects', async () => {
    await fill();
    lines.splice(0);
    for (let i = 0; i < 3; i++) {
      assert.equal(await codeOf(engine.storage.insert(OTHER, newElements('too much'))), 'storage-full');
    }
    assert.deepEqual(lines, [
      'Redis is out of memory: inserts, copies and moves are rejected, everything else continues',
    ]);
  });

  it('that is full removes elements by a bulk operation, and then has memory again', async () => {
    const places = NAMESPACES.map((policy) => ({ policy, engine }));
    const node = new OperationNode(places, clock, sharedSandbox());
    await node.start();
    const bodies = await fill();
    const request = { action: 'delete', source: { ns: 'plain', queue: 'queue' } };
    const ended = await node.run(request, { passTime: async (ms) => clock.advance(ms) });
    assert.deepEqual([ended.state, ended.changed], ['done', bodies.length]);
    await engine.storage.insert(QUEUE, newElements('fits again'));
    await node.stop();
  });

  it('that rejects changes for lack of replicas still shows counts, counters and usage', async () => {
    const reader = redisEngine({ url: server.url, namespaces: NAMESPACES, clock, prefix });
    await reader.start();
    await engine.storage.insert(QUEUE, newElements('a', 'b'));
    engine.stats.add(QUEUE, '', { put: 2 });
    await engine.stats.flush();
    config('min-replicas-to-write', 1);
    assert.equal((await reader.storage.counts(QUEUE)).ready, 2);
    assert.equal((await reader.stats.read(QUEUE)).get('')?.put, 2);
    assert.equal((await reader.storage.usage('plain')).elements, 2);
    config('min-replicas-to-write', 0);
    await reader.stop();
  });
});
