import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import type { SettleItem } from '../../src/engine/storage.ts';
import { Connection } from '../../src/engines/postgres/connection.ts';
import { LIMITS } from '../../src/model/limits.ts';
import { systemClock } from '../../src/util/clock.ts';
import { patient } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { until } from '../support/until.ts';
import { CountingClock, freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const RESERVE = { group: '', count: 9, leaseMs: 60_000 };

/** A second session acts at a chosen moment, as another node might. */
describe('A call on PostgreSQL that runs concurrently with another node', () => {
  let server: PostgresServer;
  let schema: string;
  let engine: Engine;
  let other: pg.Client;
  let queues = 0;
  const queue = () => ({ ns: 'plain', name: `queue ${++queues}` });

  before(async () => {
    server = await sharedServer();
    schema = freshSchema();
    // A patient clock: on a busy machine, a call that waits three seconds for another one must still be in time.
    engine = await openNode(server, { schema, clock: new CountingClock(patient(systemClock)) });
  });
  after(async () => {
    await engine.stop();
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });
  beforeEach(async () => {
    other = new pg.Client({ connectionString: server.url() });
    await other.connect();
    await other.query(`SET search_path = ${schema}`);
  });
  afterEach(() => other.end());

  /** Resolves when a session of the engine waits for a lock that the second session holds. */
  const blocked = (): Promise<void> =>
    until(async () => {
      const { rows } = await runSql(
        server,
        `SELECT FROM pg_stat_activity WHERE application_name LIKE 'quayside main %' AND wait_event_type = 'Lock'`,
      );
      return rows.length > 0;
    });

  it('is rejected with outcome-unknown if only a part of it was applied', async () => {
    const own = queue();
    await engine.storage.insert(own, newElements('a', 'b'));
    const { deliveries } = await engine.storage.take(own, RESERVE);
    await other.query(`CREATE TABLE broken (); CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF (SELECT count(*) FROM ${schema}.broken) > 0 THEN RAISE EXCEPTION 'asked for by a test'; END IF; RETURN OLD; END $$;
      CREATE TRIGGER failing BEFORE DELETE ON delivery FOR EACH ROW EXECUTE FUNCTION fail()`);
    // The second row is another version when the statement gets its lock, so it is settled again, which fails.
    await other.query(`BEGIN; CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM delivery ORDER BY seq DESC LIMIT 1;
      DELETE FROM delivery WHERE seq = (SELECT seq FROM kept); INSERT INTO delivery SELECT * FROM kept; INSERT INTO broken DEFAULT VALUES`);
    const items = deliveries.map(
      ({ id, lease }): SettleItem => ({
        queue: own,
        id,
        group: '',
        token: lease?.token ?? null,
        from: 'reserved',
        action: { kind: 'finish' },
      }),
    );
    const settled = codeOf(engine.storage.settle(items));
    await blocked();
    await other.query('COMMIT');
    assert.equal(await settled, 'outcome-unknown');
    await other.query('DROP TRIGGER failing ON delivery');
    assert.equal((await engine.storage.counts(own)).reserved, 1);
  });

  it('is repeated if both nodes create the same queue', async () => {
    const own = queue();
    // As if both had found the name unused: the second one finds the id taken.
    await other.query(`BEGIN; INSERT INTO subscription (id, queue, ns, name, grp)
      SELECT subscription_id('plain', '${own.name}', ''), subscription_id('plain', '${own.name}', ''), 'plain', 'not yet', ''`);
    const inserted = codeOf(engine.storage.insert(own, newElements('x')));
    await blocked();
    await other.query(`UPDATE subscription SET name = '${own.name}' WHERE name = 'not yet'`);
    await other.query('COMMIT');
    assert.equal(await inserted, 'done');
  });

  it('returns a due time within 50 ms if a waiting element is locked', async () => {
    const own = queue();
    await engine.storage.insert(own, newElements('locked', 'free'));
    await other.query(
      'BEGIN; SELECT FROM delivery WHERE seq = (SELECT max(seq) - 1 FROM delivery) FOR UPDATE',
    );
    const taken = await engine.storage.take(own, RESERVE);
    assert.deepEqual(bodyTexts(taken.deliveries), ['free']);
    const inMs = (taken.nextDueAt ?? 0) - engine.storage.now();
    assert.ok(inMs > 0 && inMs <= 50, `looks again in ${inMs} ms`);
    await other.query('ROLLBACK');
    const { deliveries, nextDueAt } = await engine.storage.take(own, RESERVE);
    assert.deepEqual([bodyTexts(deliveries), nextDueAt], [['locked'], null]);
  });

  it('returns a due time within 50 ms if a waiting element was taken and returned after its snapshot', async () => {
    const own = queue();
    await engine.storage.insert(own, newElements('x'));
    // The take has its snapshot when it reads the time. It gets the time after the row of the element has another
    // version.
    await other.query(`ALTER FUNCTION now_ms() RENAME TO real_now_ms;
      CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock_shared(99); RETURN real_now_ms(); END $$; SELECT pg_advisory_lock(99)`);
    const taking = engine.storage.take(own, { ...RESERVE, count: 1 });
    await blocked();
    await other.query('UPDATE delivery SET lease_until = 0, token = 1');
    await other.query('UPDATE delivery SET lease_until = NULL, token = NULL');
    await other.query('SELECT pg_advisory_unlock(99)');
    const { deliveries, nextDueAt } = await taking;
    await other.query('DROP FUNCTION now_ms; ALTER FUNCTION real_now_ms RENAME TO now_ms');
    assert.deepEqual(deliveries, []);
    const inMs = (nextDueAt ?? Number.NaN) - engine.storage.now();
    assert.ok(inMs > 0 && inMs <= 50, `looks again in ${inMs} ms`);
    assert.deepEqual(bodyTexts((await engine.storage.take(own, RESERVE)).deliveries), ['x']);
  });

  it('does not create the target queues of a settlement that is rejected', async () => {
    const [own, target, stream] = [queue(), queue(), { ns: 'stream', name: 'target' }];
    const [id = ''] = await engine.storage.insert(own, newElements('x'));
    const inserts = [
      { queue: target, element: newElement() },
      { queue: stream, element: newElement({ groups: ['g1'] }) },
    ];
    for (const some of [inserts.slice(0, 1), inserts]) {
      const [settled] = await engine.storage.settle([
        {
          queue: own,
          id,
          group: '',
          token: null,
          from: 'reserved',
          action: { kind: 'finish', inserts: some },
        },
      ]);
      assert.equal(settled?.outcome, 'not-reserved');
    }
    const queuesOf = (ns: string) => engine.storage.queues(ns);
    assert.equal((await queuesOf('plain')).includes(target.name), false);
    assert.deepEqual(await queuesOf('stream'), []);
  });

  it('moves a failed element to the dead-letter queue that another node has declared', async () => {
    const own = queue();
    const far = await openNode(server, { schema });
    await engine.storage.insert(own, newElements('x', 'y'));
    const { deliveries } = await engine.storage.take(own, RESERVE);
    await far.storage.declare([own], { deadLetter: { maxTries: 1, queue: 'failed' } });
    await far.stop();
    for (const { id } of deliveries) {
      const action = { kind: 'release', delayMs: 0, countTry: true } as const;
      const [settled] = await engine.storage.settle([
        { queue: own, id, group: '', token: null, from: 'reserved', action },
      ]);
      assert.equal(settled?.outcome, 'dead-lettered');
    }
    const { ready } = await engine.storage.counts({ ns: 'plain', name: 'failed' });
    assert.equal(ready, 2);
  });

  it('cannot extend the lease of a waiting element', async () => {
    const own = queue();
    const [id = ''] = await engine.storage.insert(own, newElements('x'));
    const action = { kind: 'extend', leaseMs: 1000 } as const;
    const [settled] = await engine.storage.settle([
      { queue: own, id, group: '', token: null, from: 'waiting', action },
    ]);
    assert.equal(settled?.outcome, 'not-reserved');
  });

  it('succeeds although another call of its batch has a statement that times out', async () => {
    const own = queue();
    const [slow = ''] = await engine.storage.insert(own, [newElement({ tries: 666 })]);
    // A sequence also counts calls that are rolled back.
    await other.query(`CREATE SEQUENCE slept;
      CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('slept'), pg_sleep(9); RETURN OLD; END $$;
      CREATE TRIGGER sleeping BEFORE DELETE ON delivery FOR EACH ROW WHEN (OLD.tries = 666) EXECUTE FUNCTION sleep()`);
    const action = { kind: 'finish' } as const;
    const codes = await Promise.all([
      codeOf(
        engine.storage.settle([{ queue: own, id: slow, group: '', token: null, from: 'waiting', action }]),
      ),
      codeOf(engine.storage.insert(queue(), newElements('x'))),
      codeOf(engine.storage.insert(own, newElements('y'))),
    ]);
    await other.query('DROP TRIGGER sleeping ON delivery');
    assert.deepEqual(codes, ['storage-unavailable', 'done', 'done']);
    const { rows } = await other.query('SELECT last_value::int AS times FROM slept');
    assert.deepEqual(rows, [{ times: 1 }], 'the slow call is not repeated, as others would wait for it');
    assert.equal((await engine.storage.counts(own)).ready, 2);
  });

  it('shares its batch with at most one statement that may be slow: a page, a take with its own bound, a count or a purge', async (t) => {
    const own = queue();
    await engine.storage.insert(own, newElements('a', 'b', 'c'));
    const { calls } = t.mock.method(Connection.prototype, 'transact').mock;
    const page = { group: '', states: ['ready'], bodies: true, after: null, limit: 1000 } as const;
    await Promise.all([
      engine.storage.insert(own, newElements('d')),
      ...[1, 2].map(() => engine.storage.scan(own, page)),
      ...[1, 2].map(() => engine.storage.take(own, { ...RESERVE, count: 1000, maxBytes: LIMITS.takeBytes })),
      engine.storage.counts({ ns: 'stream', name: 'any' }),
      engine.storage.purge(own, ['ready']),
      engine.storage.insert(own, newElements('e')),
    ]);
    const batches = calls.map(({ arguments: [queries] }) => queries.map(({ statement }) => statement.name));
    const large = /^(scan|reserve|counts of a stream|purge ready)$/;
    for (const names of batches)
      assert.ok(names.filter((name) => large.test(name)).length <= 1, names.join(', '));
  });
});
