import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import { Connection } from '../../src/engines/postgres/connection.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { rollback } from '../support/settle.ts';
import { until } from '../support/until.ts';
import { clockAt, freshSchema, sharedServer } from './postgres.ts';
import { NODE_NAMESPACES, openNode } from './postgres-node.ts';

const QUEUE = { ns: 'plain', name: 'q' };
const POP = { group: '', count: 9, leaseMs: null };
const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
describe('An unused queue on PostgreSQL with several nodes', () => {
  let server: PostgresServer;
  /** Sets the clock hundreds of times; opening a session for each would cost more than the code under test. */
  let control: pg.Client;
  let schema: string;
  let nodes: [Engine, Engine, ...Engine[]];
  let now: number;

  before(async () => {
    server = await sharedServer();
    control = new pg.Client({ connectionString: server.url() });
    await control.connect();
  });
  after(() => control.end());
  beforeEach(async () => {
    schema = freshSchema();
    now = Date.UTC(2026, 0, 1);
    nodes = [await openNode(server, { schema }), await openNode(server, { schema })];
    await pass(0);
  });
  afterEach(async () => {
    await Promise.all(nodes.map((node) => node.stop()));
    await control.query(`DROP SCHEMA ${schema} CASCADE`);
  });

  /** Sets the database's clock forward; nodes read it with their next call. */
  const setForward = async (ms: number): Promise<void> => {
    now += ms;
    await control.query(clockAt(schema, now));
  };
  const pass = async (ms: number): Promise<void> => {
    await setForward(ms);
    await Promise.all(nodes.map((node) => node.ping()));
  };
  const sweep = () => Promise.all(nodes.map(({ storage }) => storage.sweep()));
  const passHours = async (hours: number, inEach: () => Promise<unknown> = async () => {}) => {
    for (let hour = 0; hour < hours; hour++) {
      await pass(HOUR_MS);
      await inEach();
      await sweep();
    }
  };
  const rows = async (sql: string): Promise<unknown[]> => (await control.query(sql)).rows;
  const registered = () => rows(`SELECT id FROM ${schema}.subscription WHERE name = 'q'`);
  const insert = ({ storage }: Engine, body: string) => storage.insert(QUEUE, newElements(body));
  const pop = async ({ storage }: Engine) => bodyTexts((await storage.take(QUEUE, POP)).deliveries);

  it('is forgotten after a day, with its name and counters', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    assert.deepEqual(await pop(b), ['first']);
    await passHours(23);
    assert.deepEqual(await b.storage.queues('plain'), ['q']);
    await passHours(3);
    assert.deepEqual(await b.storage.queues('plain'), []);
    assert.deepEqual(await registered(), []);
    assert.deepEqual(await rows(`SELECT 1 FROM ${schema}.counter`), []);
    // Both nodes have the old queue cached.
    await insert(b, 'second');
    assert.equal((await a.storage.counts(QUEUE)).ready, 1);
    assert.deepEqual(await pop(a), ['second']);
    await insert(a, 'third');
    assert.deepEqual(await pop(b), ['third']);
  });

  it('leaves no counters that another node stored after its deletion; those of queues stored elsewhere are kept', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    await a.storage.insert({ ns: 'plain', name: 'kept' }, newElements('x'));
    await pop(b);
    await a.storage.drop(QUEUE);
    const counted = [
      QUEUE,
      { ns: 'plain', name: 'kept' },
      { ns: 'jobs', name: 'of another engine' },
      { ns: 'collection/plain', name: 'q' },
    ];
    for (const queue of counted) b.stats.add(queue, '', { get: 1 });
    await b.stats.flush();
    await passHours(1);
    assert.deepEqual(
      await rows(`SELECT ns, queue AS name FROM ${schema}.stats ORDER BY ns DESC`),
      counted.slice(1),
    );
  });

  it('is kept while one node uses it, whichever node sweeps', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    await pop(a);
    const before = await registered();
    await passHours(60, () => pop(b));
    assert.deepEqual(await a.storage.queues('plain'), ['q']);
    assert.deepEqual(await registered(), before);
  });

  it('is kept if an element was stored and removed between two sweeps', async () => {
    const [a] = nodes;
    await insert(a, 'first');
    await pop(a);
    await passHours(23);
    await insert(a, 'second');
    await a.storage.purge(QUEUE);
    await passHours(3);
    assert.deepEqual(await a.storage.queues('plain'), ['q']);
  });

  it('is forgotten although a node reads its counts, and that node sees later elements', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    await pop(a);
    await passHours(60, () => b.storage.counts(QUEUE));
    assert.deepEqual(await registered(), []);
    await insert(a, 'second');
    assert.equal((await b.storage.counts(QUEUE)).ready, 1);
  });

  it('is kept if a node uses it while another is about to forget it', async () => {
    const [a] = nodes;
    await insert(a, 'first');
    await pop(a);
    await passHours(1);
    await pass(30 * HOUR_MS);
    const client = new pg.Client({ connectionString: server.url() });
    await client.connect();
    try {
      // The other node's use does the same, and is not committed yet.
      await client.query(`BEGIN; UPDATE ${schema}.subscription SET idle_from = NULL WHERE name = 'q'`);
      await a.storage.sweep();
      await client.query('COMMIT');
    } finally {
      await client.end();
    }
    assert.deepEqual(await a.storage.queues('plain'), ['q']);
    await passHours(1);
    assert.deepEqual(await a.storage.queues('plain'), ['q']);
  });

  it('keeps an element of a node that had it cached when it was forgotten after the clock was set forward', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    assert.deepEqual(await pop(b), ['first']);
    // b's use of the queue is stored on the same connection before this sweep, hence before the mark that a sweep sets.
    await b.storage.sweep();
    await a.storage.sweep();
    // Node b has not read yet that two days passed.
    await setForward(48 * HOUR_MS);
    await a.ping();
    await a.storage.sweep();
    assert.deepEqual(await a.storage.queues('plain'), []);
    await insert(b, 'second');
    await passHours(30);
    assert.deepEqual(await a.storage.queues('plain'), ['q']);
    assert.deepEqual(await pop(a), ['second']);
  });

  /** Stores an element as an insert does that saw the queue without a mark. */
  const storeUnregistered = (client: pg.Client) =>
    client.query(`WITH d AS (INSERT INTO ${schema}.delivery (seq, due_at, inserted_at, subscription, tries, bytes, head, body)
        SELECT nextval('${schema}.element_seq'), 0, 0, id, 0, 3, '[]', 'abc' FROM ${schema}.subscription WHERE name = 'q'
        RETURNING subscription)
      INSERT INTO ${schema}.counter (subscription, step, waiting, reserved, bytes) SELECT subscription, 0, 1, 0, 3 FROM d`);

  it('is kept if an insert that began before it was marked idle is committed after the clock was set forward', async () => {
    const [a] = nodes;
    await insert(a, 'first');
    await pop(a);
    await passHours(1);
    await insert(a, 'second');
    await pop(a);
    const client = new pg.Client({ connectionString: server.url() });
    await client.connect();
    try {
      await client.query('BEGIN');
      await storeUnregistered(client);
      await passHours(1);
      await pass(48 * HOUR_MS);
      await sweep();
      await client.query('COMMIT');
    } finally {
      await client.end();
    }
    assert.deepEqual(await a.storage.queues('plain'), ['q']);
    await passHours(30);
    assert.deepEqual(await a.storage.queues('plain'), ['q']);
  });

  describe('when it is dropped while another transaction may be storing an element in it', () => {
    let older: pg.Client;

    beforeEach(async () => {
      const [a] = nodes;
      await insert(a, 'first');
      await pop(a);
      older = new pg.Client({ connectionString: server.url() });
      await older.connect();
      // Acts as a statement that has just started to store something: it has the locks and the snapshot that it keeps
      // to its end.
      await older.query(
        `BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK TABLE ${schema}.subscription IN ROW EXCLUSIVE MODE`,
      );
      await older.query('SELECT 1');
    });
    afterEach(() => older.end());

    /** Resolves when this many statements wait for a lock of the registry. */
    const waiting = (statements: number) =>
      until(async () => {
        const waits = await rows(
          `SELECT 1 FROM pg_locks WHERE relation = '${schema}.subscription'::regclass AND NOT granted`,
        );
        return waits.length === statements;
      });

    it('is gone once the transaction ends', async () => {
      const dropped = nodes[0].storage.drop(QUEUE);
      await waiting(1);
      await older.query('COMMIT');
      assert.equal(await dropped, true);
      assert.deepEqual(await registered(), []);
      assert.deepEqual(await rows(`SELECT 1 FROM ${schema}.counter`), []);
    });

    it('is kept if the transaction stores an element in it', async () => {
      const [a] = nodes;
      const dropped = a.storage.drop(QUEUE);
      await waiting(1);
      await storeUnregistered(older);
      await older.query('COMMIT');
      assert.equal(await dropped, false);
      assert.equal((await registered()).length, 1);
      assert.equal((await a.storage.counts(QUEUE)).ready, 1);
    });

    it('is kept if the transaction does not end in time, and can be dropped later', async () => {
      const [a] = nodes;
      await assert.rejects(a.storage.drop(QUEUE), { code: 'storage-unavailable' });
      assert.equal((await registered()).length, 1);
      await older.query('COMMIT');
      assert.equal(await a.storage.drop(QUEUE), true);
    });

    it('is kept if the registry was not locked, since the BEGIN of the drop was cancelled', async (t) => {
      const [a, b] = nodes;
      const { run } = Connection.prototype;
      t.mock.method(Connection.prototype, 'run', function (this: Connection, sql: string) {
        return run.call(this, sql === 'BEGIN' ? 'SELECT 1/0' : sql);
      });
      await storeUnregistered(older);
      await assert.rejects(a.storage.drop(QUEUE), { code: 'outcome-unknown' });
      t.mock.restoreAll();
      await older.query('COMMIT');
      assert.equal((await registered()).length, 1);
      assert.equal((await b.storage.counts(QUEUE)).ready, 1);
    });

    it('is created again by an insert that waits for the drop', async () => {
      const [a, b] = nodes;
      const dropped = a.storage.drop(QUEUE);
      await waiting(1);
      const inserted = insert(b, 'second');
      await waiting(2);
      await older.query('COMMIT');
      assert.equal(await dropped, true);
      await inserted;
      assert.equal((await registered()).length, 1);
      assert.deepEqual(await pop(a), ['second']);
    });

    it('is gone if two nodes drop it at the same time', async () => {
      const drops = nodes.map((node) => node.storage.drop(QUEUE));
      await waiting(2);
      await older.query('COMMIT');
      assert.deepEqual(await Promise.all(drops), [true, true]);
      assert.deepEqual(await registered(), []);
    });
  });

  it('receives dead letters of one node although another node does not have that policy', async () => {
    const [a] = nodes;
    const namespaces = NODE_NAMESPACES.map((policy) => ({ ...policy, deadLetter: null }));
    nodes.push(await openNode(server, { schema, namespaces }));
    await passHours(60);
    const queue = { ns: 'jobs', name: 'q' };
    await a.storage.insert(queue, newElements('failed'));
    for (let tries = 0; tries < 3; tries++) {
      const { deliveries } = await a.storage.take(queue, { ...POP, leaseMs: HOUR_MS });
      const refs = deliveries.map(({ id }) => ({ id, group: '', token: null, delayMs: 0, countTry: true }));
      await rollback(a.storage, queue, refs);
    }
    for (const { storage } of nodes) assert.deepEqual(await storage.queues('jobs'), ['dead', 'q']);
    const { deliveries } = await a.storage.take({ ns: 'jobs', name: 'dead' }, POP);
    assert.deepEqual(bodyTexts(deliveries), ['failed']);
  });
});
