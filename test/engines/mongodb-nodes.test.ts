import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { DefinitionChange, JsonValue } from '../../src/engine/definitions.ts';
import type { Engine, NamespacePolicy } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/mongodb/index.ts';
import { type Clock, systemClock } from '../../src/model/clock.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyText, bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { freshDatabase, MONGODB_URL, urlOf, withClient } from './mongodb.ts';
import { SILENT } from './postgres.ts';
import { until } from './postgres-node.ts';

const NAMESPACES: readonly NamespacePolicy[] = [
  { name: 'plain', groups: null, deadLetter: null, retentionMs: null },
  { name: 'jobs', groups: null, deadLetter: { maxTries: 2, queue: 'dead' }, retentionMs: null },
];
const POP = { group: '', count: 10, leaseMs: null };
/** What the service promises: any call is answered within this time, ms. */
const ANSWERED_MS = 5_000;

function engineOn(database: string, port?: number, clock: Clock = systemClock): Engine {
  return open({
    url: urlOf(database, port),
    dataDir: '',
    namespaces: NAMESPACES,
    clock,
    dedupWindowMs: 60_000,
    settings: {},
    log: SILENT,
  });
}

// These need a server; see `mongodb.ts`.
if (MONGODB_URL !== null) {
  describe('Nodes behind one MongoDB', () => {
    const database = freshDatabase();
    const nodes = [engineOn(database), engineOn(database), engineOn(database)] as const;
    const [a, b] = nodes;
    let queues = 0;
    const freshQueue = (ns = 'plain') => ({ ns, name: `queue ${++queues}` });

    // All at once: each of them finds the database empty or half made.
    before(() => Promise.all(nodes.map((node) => node.start())));
    after(async () => {
      await Promise.all(nodes.map((node) => node.stop()));
      await withClient((client) => client.db(database).dropDatabase());
    });

    it('go by the time of the server', async () => {
      const queue = freshQueue();
      const [id] = await a.storage.insert(queue, [newElement({ delayMs: 60_000 })]);
      const due = (await b.storage.nextDueAt(queue, '')) ?? 0;
      const { localTime } = await withClient((client) => client.db('admin').command({ hello: 1 }));
      assert.ok(Math.abs(due - (localTime as Date).getTime() - 60_000) < 30_000);
      assert.deepEqual(await b.storage.remove(queue, [id ?? '']), ['done']);
    });

    it('hand each element to one taker', async () => {
      const queue = freshQueue();
      const bodies = Array.from({ length: 600 }, (_, index) => `${index}`);
      await Promise.all(bodies.map((body, at) => nodes[at % 3]?.storage.insert(queue, newElements(body))));
      const taken: string[] = [];
      const taker = async (node: Engine): Promise<void> => {
        for (;;) {
          const { deliveries } = await node.storage.take(queue, { ...POP, count: 7 });
          taken.push(...bodyTexts(deliveries));
          if (deliveries.length === 0 && (await node.storage.sizes(queue)).ready === 0) return;
        }
      };
      await Promise.all([...nodes, ...nodes].map(taker));
      assert.deepEqual(
        taken.map(Number).sort((x, y) => x - y),
        bodies.map(Number),
      );
    });

    it('finish a delivery once, whoever commits, moves or gives it back at the same time', async () => {
      const [queue, other] = [freshQueue('jobs'), freshQueue('jobs')];
      for (let round = 0; round < 20; round++) {
        await a.storage.insert(queue, newElements('x'));
        const { deliveries } = await a.storage.take(queue, { group: '', count: 1, leaseMs: 60_000 });
        const ref = { id: deliveries[0]?.id ?? '', group: '', token: null };
        const inserts = [{ queue: other, element: newElement({ body: 'copy' }) }];
        const outcomes = await Promise.all([
          a.storage.commit(queue, [ref]),
          b.storage.commit(queue, [ref]),
          nodes[2].storage.transfer([{ from: queue, finish: ref, inserts }]),
        ]);
        assert.equal(outcomes.flat().filter((outcome) => outcome === 'done').length, 1);
        const copies = (await b.storage.take(other, POP)).deliveries.length;
        assert.equal(copies, outcomes[2]?.[0] === 'done' ? 1 : 0);
      }
      assert.equal((await a.storage.sizes(queue)).reserved, 0);
    });

    it('store an element once that several insert with one key at the same time', async () => {
      const queue = freshQueue();
      const insert = (node: Engine): Promise<string[]> =>
        node.storage.insert(queue, [newElement({ body: 'once', dedupKey: 'k' })]);
      const ids = await Promise.all([...nodes, ...nodes].map(insert));
      assert.equal(new Set(ids.flat()).size, 1);
      assert.deepEqual(bodyTexts((await b.storage.take(queue, POP)).deliveries), ['once']);
    });

    it('leave nothing of what is finished but its key, however it is finished', async () => {
      const [queue, other] = [freshQueue('jobs'), freshQueue('jobs')];
      const keyed = (body: string) => [newElement({ body, dedupKey: body }), newElement({ body })];
      const reserved = async (body: string): Promise<{ id: string; group: string; token: null }[]> => {
        await a.storage.insert(queue, keyed(body));
        const { deliveries } = await b.storage.take(queue, { group: '', count: 2, leaseMs: 60_000 });
        return deliveries.map(({ id }) => ({ id, group: '', token: null }));
      };
      const ways: ((refs: { id: string; group: string; token: null }[]) => Promise<unknown>)[] = [
        (refs) => a.storage.commit(queue, refs),
        (refs) => b.storage.transfer(refs.map((finish) => ({ from: queue, finish, inserts: [] }))),
        () => a.storage.purge(queue),
        async (refs) => {
          await a.storage.rollback(
            queue,
            refs.map((ref) => ({ ...ref, delayMs: 0, countTry: false })),
          );
          return b.storage.remove(
            queue,
            refs.map(({ id }) => id),
          );
        },
        async (refs) => {
          for (const ref of refs) {
            await a.storage.rollback(queue, [{ ...ref, delayMs: 0, countTry: true }]);
            const { deliveries } = await a.storage.take(queue, { group: '', count: 1, leaseMs: 60_000 });
            const again = deliveries.map(({ id }) => ({ id, group: '', token: null }));
            await a.storage.rollback(
              queue,
              again.map((one) => ({ ...one, delayMs: 0, countTry: true })),
            );
          }
          return a.storage.purge({ ns: 'jobs', name: 'dead' });
        },
      ];
      for (const [way, finish] of ways.entries()) await finish(await reserved(`way ${way}`));
      await a.storage.insert(other, keyed('popped'));
      await b.storage.take(other, POP);

      await withClient(async (client) => {
        const elements = client.db(database).collection('elements');
        const left = () => elements.find({ ns: 'jobs' }).toArray();
        await until(async () => (await left()).every(({ key, body }) => key !== undefined && !body));
        assert.equal((await left()).length, ways.length + 1);
      });
      for (const way of ways.keys()) {
        await b.storage.insert(queue, [newElement({ body: 'again', dedupKey: `way ${way}` })]);
      }
      assert.equal((await a.storage.sizes(queue)).ready, 0);
    });

    it('give the elements of a node that is gone back when its leases end', async () => {
      const queue = freshQueue('jobs');
      const gone = engineOn(database);
      await gone.start();
      await gone.storage.insert(queue, newElements('left', 'dead'));
      await gone.storage.take(queue, { group: '', count: 1, leaseMs: 50 });
      await gone.stop();
      await until(async () => (await a.storage.sweep()).touched.some(({ name }) => name === queue.name));
      const [left] = (await b.storage.take(queue, { ...POP, count: 1 })).deliveries;
      assert.ok(left !== undefined);
      assert.deepEqual([bodyText(left), left.tries], ['dead', 0]);
      const [again] = (await b.storage.take(queue, POP)).deliveries;
      assert.deepEqual([again && bodyText(again), again?.tries], ['left', 1]);
    });

    it('hear each other, once, and themselves', async () => {
      const heard: [number, JsonValue][] = [];
      const stops = nodes.map((node, at) =>
        node.signaller.subscribe('topic', (message) => heard.push([at, message])),
      );
      a.signaller.publish('topic', { $set: 'é' });
      b.signaller.publish('topic', 'two');
      await until(() => heard.length >= 6);
      for (const at of [0, 1, 2]) {
        const own = heard.filter(([node]) => node === at).map(([, message]) => JSON.stringify(message));
        assert.deepEqual(own.sort(), ['"two"', '{"$set":"é"}']);
      }
      for (const stop of stops) stop();
    });

    it('are told of definitions that another one changes', async () => {
      const told: DefinitionChange[] = [];
      const stop = b.definitions.watch((change) => told.push(change));
      await a.definitions.put('exchange', 'x', { a: 1 }, null);
      await until(() => told.length > 0);
      assert.deepEqual(told[0], { kind: 'exchange', key: 'x' });
      assert.deepEqual((await b.definitions.get('exchange', 'x'))?.value, { a: 1 });
      stop();
    });

    it('add to the same counters', async () => {
      const queue = freshQueue();
      await Promise.all(
        nodes.map(async ({ stats }) => {
          stats.add(queue, '', { put: 2 });
          await stats.flush();
        }),
      );
      assert.equal((await b.stats.read(queue)).get('')?.put, 6);
    });
  });

  describe('A MongoDB that is away', () => {
    const database = freshDatabase();
    let proxy: TcpProxy;
    let engine: Engine;
    const other = engineOn(database);
    const queue = { ns: 'plain', name: 'q' };

    before(async () => {
      const { port } = new URL(urlOf(database));
      proxy = await TcpProxy.start(Number(port || 27017));
      engine = engineOn(database, proxy.port);
      await engine.start();
      await other.start();
    });
    after(async () => {
      proxy.state = 'open';
      await Promise.all([engine.stop(), other.stop()]);
      await proxy.stop();
      await withClient((client) => client.db(database).dropDatabase());
    });

    const back = (): Promise<void> => until(async () => (await codeOf(engine.ping())) === 'done');

    it('refuses every call in time, and goes on by itself', async () => {
      const clock = new FakeClock();
      const patient = engineOn(database, proxy.port, clock);
      await patient.start();
      await patient.storage.insert(queue, newElements('a', 'b'));
      proxy.state = 'dark';
      for (let round = 0; round < 2; round++) {
        const codes: string[] = [];
        const calls = callsOn(patient).map((call) => codeOf(call).then((code) => codes.push(code)));
        for (let passed = 0; passed < ANSWERED_MS; passed += 250) {
          clock.advance(250);
          await new Promise((resolve) => setImmediate(resolve));
        }
        assert.equal(codes.length, calls.length);
        for (const code of codes) assert.match(code, /^(storage-unavailable|outcome-unknown)$/);
      }
      proxy.state = 'open';
      proxy.reset();
      await until(async () => {
        const ping = codeOf(patient.ping());
        clock.advance(100);
        return (await ping) === 'done';
      });
      await patient.storage.purge(queue);
      await patient.storage.insert(queue, newElements('c', 'd'));
      assert.deepEqual(bodyTexts((await patient.storage.take(queue, POP)).deliveries), ['c', 'd']);
      await patient.stop();
      assert.equal(clock.pending, 0);
    });

    it('stores once what it is sent twice because a connection ended', async () => {
      for (let round = 0; round < 10; round++) {
        const inserts = Array.from({ length: 20 }, (_, at) =>
          engine.storage.insert(queue, newElements(`${round} ${at}`)).then(
            () => [`${round} ${at}`],
            () => [],
          ),
        );
        setImmediate(() => proxy.reset());
        const answered = (await Promise.all(inserts)).flat();
        await back();
        const stored = bodyTexts((await other.storage.take(queue, { ...POP, count: 100 })).deliveries);
        assert.equal(new Set(stored).size, stored.length, 'nothing is there twice');
        assert.deepEqual(
          answered.filter((body) => !stored.includes(body)),
          [],
          'nothing that was answered is missing',
        );
      }
    });

    it('says when signals were lost: definitions are compared', async () => {
      const told: DefinitionChange[] = [];
      const stop = engine.definitions.watch((change) => told.push(change));
      await engine.definitions.put('queue', 'first', 1, 'any');
      await until(() => told.length === 1);
      proxy.state = 'dark';
      proxy.reset();
      await other.definitions.put('queue', 'meanwhile', 1, 'any');
      proxy.state = 'open';
      proxy.reset();
      await until(() => told.some(({ key }) => key === 'meanwhile'));
      stop();
    });
  });
}

/** One call of each kind. */
function callsOn(engine: Engine): Promise<unknown>[] {
  const { storage, definitions, stats } = engine;
  const queue = { ns: 'plain', name: 'q' };
  const ref = { id: 'x', group: '', token: null };
  return [
    storage.insert(queue, newElements('x')),
    storage.take(queue, POP),
    storage.commit(queue, [ref]),
    storage.rollback(queue, [{ ...ref, delayMs: 0, countTry: true }]),
    storage.extend(queue, [{ ...ref, leaseMs: 1 }]),
    storage.remove(queue, ['x']),
    storage.transfer([{ from: { ...queue, name: 'r' }, finish: ref, inserts: [] }]),
    storage.sizes({ ...queue, name: 's' }),
    storage.sweep(),
    definitions.get('queue', 'x'),
    definitions.put('queue', 'x', 1, 'any'),
    stats.read(queue),
    engine.ping(),
  ];
}
