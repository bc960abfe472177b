import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { JsonValue } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { followDefinitions } from '../support/followed-definitions.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { commit, purge } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { endSessions, openNode } from './postgres-node.ts';
import { Traffic } from './traffic.ts';

describe('PostgreSQL with several nodes', () => {
  let server: PostgresServer;
  let schema: string;
  let nodes: [Engine, Engine];
  let queues = 0;
  const queue = (ns = 'plain') => ({ ns, name: `queue ${++queues}` });

  before(async () => {
    server = await sharedServer();
    schema = freshSchema();
    // Started concurrently on an empty database: one creates the schema, and the other one waits for it.
    nodes = await Promise.all([openNode(server, { schema }), openNode(server, { schema })]);
  });
  after(async () => {
    await Promise.all(nodes.map((node) => node.stop()));
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  it('creates the schema once, however many nodes start at the same time', async () => {
    const own = freshSchema();
    const started = await Promise.all(Array.from({ length: 5 }, () => openNode(server, { schema: own })));
    const ids = await Promise.all(started.map(({ storage }) => storage.insert(queue(), newElements('x'))));
    assert.equal(new Set(ids.flat()).size, 5);
    await Promise.all(started.map((node) => node.stop()));
    await runSql(server, `DROP SCHEMA ${own} CASCADE`);
  });

  it('delivers each element once, whichever node takes', async () => {
    const traffic = new Traffic(
      nodes.map(({ storage }) => storage),
      [queue()],
    );
    await traffic.acknowledged(2000);
    const { lost, twice, changed, unknown } = await traffic.end();
    assert.deepEqual({ lost, twice, changed, unknown }, { lost: [], twice: [], changed: [], unknown: 0 });
  });

  it('delivers elements in the order in which all nodes inserted them', async () => {
    const own = queue();
    const [a, b] = nodes;
    for (let turn = 0; turn < 10; turn++)
      await (turn % 2 === 0 ? a : b).storage.insert(own, newElements(`${turn}`));
    const { deliveries } = await b.storage.take(own, { group: '', count: 99, leaseMs: null });
    assert.deepEqual(bodyTexts(deliveries), ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
  });

  it('accepts the commit of a reservation that another node made', async () => {
    const own = queue();
    const [a, b] = nodes;
    await a.storage.insert(own, newElements('x'));
    const { deliveries } = await a.storage.take(own, { group: '', count: 1, leaseMs: 60_000 });
    const refs = deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null }));
    const outcomes = await Promise.all([commit(a.storage, own, refs), commit(b.storage, own, refs)]);
    assert.deepEqual(outcomes.flat().sort(), ['done', 'not-found']);
    assert.equal((await a.storage.counts(own)).reserved, 0);
  });

  it('stores an element once when two nodes insert it with the same dedup key', async () => {
    const own = queue();
    for (let turn = 0; turn < 20; turn++) {
      const element = newElement({ body: `${turn}`, dedupKey: `key ${turn}` });
      const ids = await Promise.all(nodes.map(({ storage }) => storage.insert(own, [element])));
      assert.deepEqual(ids[0], ids[1]);
    }
    assert.equal((await nodes[0].storage.counts(own)).ready, 20);
  });

  it('removes an element of a stream once, although its last two groups finish it at the same time', async () => {
    const own = queue('stream');
    const [a, b] = nodes;
    const count = 50;
    await a.storage.insert(
      own,
      Array.from({ length: count }, () => newElement({ groups: ['g1', 'g2'] })),
    );
    const pops = [a, b].flatMap(({ storage }, index) =>
      Array.from({ length: count }, () =>
        storage.take(own, { group: `g${index + 1}`, count: 1, leaseMs: null }),
      ),
    );
    const taken = (await Promise.all(pops)).flatMap(({ deliveries }) => deliveries);
    assert.equal(taken.length, 2 * count);
    const { rows } = await runSql(server, `SELECT count(*) FROM ${schema}.element`);
    assert.equal(Number(rows[0].count), 0, 'no content is left behind');
  });

  it('finishes elements of a stream on all nodes concurrently without a deadlock', async () => {
    const own = queue('stream');
    const groups = ['g1', 'g2', 'g3'];
    const third = await openNode(server, { schema });
    const all = [...nodes, third];
    const before = await deadlocks();
    const elements = Array.from({ length: 1000 }, () => newElement({ groups }));
    for (let turn = 0; turn < 6; turn++) await third.storage.insert(own, elements);
    let left = 6 * elements.length * groups.length;
    const consume = async ({ storage }: Engine, group: string, leaseMs: number | null): Promise<void> => {
      while (left > 0) {
        const { deliveries } = await storage.take(own, { group, count: 4, leaseMs });
        left -= deliveries.length;
        const refs = deliveries.map(({ id, lease }) => ({ id, group, token: lease?.token ?? null }));
        if (leaseMs !== null) await commit(storage, own, refs);
      }
    };
    const leases = [null, null, null, 60_000, 60_000];
    try {
      await Promise.all(
        all.flatMap((node) =>
          groups.flatMap((group) => leases.map((leaseMs) => consume(node, group, leaseMs))),
        ),
      );
      assert.equal((await deadlocks()) - before, 0);
      const { ready, scheduled, reserved } = await third.storage.counts(own);
      assert.deepEqual([ready, scheduled, reserved], [0, 0, 0]);
    } finally {
      await third.stop();
    }
  });

  it('receives signals after malformed notifications, which any user of the database may send', async () => {
    const warnings: string[] = [];
    const log = { info: () => {}, warn: (_: object, message: string) => void warnings.push(message) };
    const node = await openNode(server, { schema, log });
    const payloads = [
      '',
      'x',
      'null',
      '5',
      '{}',
      '[]',
      '{"signals":null}',
      '{"signals":[null]}',
      '{"signals":[[5,5]]}',
    ];
    for (const payload of payloads)
      await runSql(server, `SELECT pg_notify('${schema}_signals', '${payload}')`);
    const received: JsonValue[] = [];
    node.signaller.subscribe('topic', (message) => void received.push(message));
    nodes[0].signaller.publish('topic', 'a signal');
    await until(() => received.length > 0);
    await node.stop();
    assert.deepEqual(received, ['a signal']);
    assert.equal(warnings.length, payloads.length);
  });

  it('counts and purges elements that another node stored for groups unknown to this node', async () => {
    const own = queue('stream');
    const [a, b] = nodes;
    await a.storage.insert(own, [newElement({ groups: ['g1'] })]);
    assert.deepEqual([...(await a.storage.counts(own)).groups.keys()], ['g1']);
    await b.storage.insert(own, [newElement({ groups: ['g2'] }), newElement({ groups: ['g3'] })]);
    await until(async () => (await a.storage.counts(own)).groups.size === 3);
    assert.equal(await purge(a.storage, own), 3);
    assert.equal((await b.storage.take(own, { group: 'g2', count: 1, leaseMs: null })).deliveries.length, 0);
  });

  it('expires each lease once, although all nodes sweep', async () => {
    const own = queue();
    const count = 1500;
    await nodes[0].storage.insert(
      own,
      Array.from({ length: count }, () => newElement()),
    );
    for (let taken = 0; taken < count; taken += 500) {
      await nodes[0].storage.take(own, { group: '', count: 500, leaseMs: 1 });
    }
    await until(async () => {
      await Promise.all([...nodes, ...nodes].map(({ storage }) => storage.sweep()));
      return (await nodes[1].storage.counts(own)).ready === count;
    });
    const { deliveries } = await nodes[1].storage.take(own, { group: '', count: 1000, leaseMs: null });
    assert.ok(deliveries.every(({ tries }) => tries === 1));
  });

  it("delivers a popped element that another node returned to a place below this node's low watermark", async () => {
    const own = queue();
    const [a, b] = nodes;
    await a.storage.insert(own, newElements('given back'));
    const popped = await a.storage.take(own, { group: '', count: 1, leaseMs: null });
    // Enough elements to raise the watermark of node b above the returned one.
    for (let turn = 0; turn < 10; turn++) {
      await b.storage.insert(
        own,
        Array.from({ length: 1000 }, () => newElement()),
      );
      await b.storage.take(own, { group: '', count: 1000, leaseMs: null });
    }
    await a.storage.undoTake(own, popped.deliveries);
    await until(async () => {
      const { deliveries } = await b.storage.take(own, { group: '', count: 1, leaseMs: null });
      return bodyTexts(deliveries).includes('given back');
    });
  });

  it('delivers signals and changes of definitions to the other node', async () => {
    const [a, b] = nodes;
    const received: JsonValue[] = [];
    const changed: (string | null)[] = [];
    const stops = [
      b.signaller.subscribe('topic', (message) => received.push(message)),
      b.definitions.watch(({ key }) => changed.push(key)),
    ];
    a.signaller.publish('topic', { from: 'a' });
    await a.definitions.put('exchange', 'e1', { some: 'value' }, null);
    await until(() => received.length > 0 && changed.includes('e1'));
    assert.deepEqual(received, [{ from: 'a' }]);
    for (const stop of stops) stop();
  });

  it('delivers a signal that a node publishes right before it stops, and stops even if that fails', async () => {
    const [, staying] = nodes;
    const leaving = await openNode(server, { schema });
    const received = Promise.withResolvers<JsonValue>();
    const stop = staying.signaller.subscribe('last', received.resolve);
    leaving.signaller.publish('last', 'gone');
    await leaving.stop();
    assert.equal(await received.promise, 'gone');
    stop();

    const proxy = await TcpProxy.start(server.port);
    const cut = await openNode(server, { schema, port: proxy.port });
    proxy.state = 'dark';
    cut.signaller.publish('last', 'gone');
    await cut.stop();
    await proxy.stop();
  });

  it('sends equal signals of a batch once, and delivers all different ones', async () => {
    const [a, b] = nodes;
    const received = new Map<string, number>();
    const stop = b.signaller.subscribe('many', (message) => {
      received.set(String(message), (received.get(String(message)) ?? 0) + 1);
    });
    for (let index = 0; index < 2000; index++)
      a.signaller.publish('many', `${index % 1000} ${'x'.repeat(50)}`);
    await until(() => received.size === 1000);
    assert.ok([...received.values()].every((times) => times === 1));
    stop();
  });

  it('listens again after its listener session was ended, and reports that changes may have been missed', async () => {
    const [a, b] = nodes;
    const { cache, read } = followDefinitions(b.definitions);
    const received: JsonValue[] = [];
    const stops = [() => cache.stop(), b.signaller.subscribe('after', (message) => received.push(message))];
    await endSessions(server, 'listener');
    await a.definitions.put('queue', 'missed', { paused: true }, 'any');
    await until(() => read.includes('missed'));
    await until(() => {
      a.signaller.publish('after', 'again');
      return received.length > 0;
    });
    for (const stop of stops) stop();
  });

  it('sums the statistics of all nodes', async () => {
    const own = queue();
    for (const { stats } of nodes) stats.add(own, '', { put: 2 });
    await Promise.all(nodes.map(({ stats }) => stats.flush()));
    assert.equal((await nodes[0].stats.read(own)).get('')?.put, 4);
  });

  async function deadlocks(): Promise<number> {
    const { rows } = await runSql(
      server,
      'SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()',
    );
    return Number(rows[0].deadlocks);
  }
});
