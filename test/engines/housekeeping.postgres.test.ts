import assert from 'node:assert/strict';
import { afterEach, before, beforeEach, describe, it } from 'node:test';
import pg from 'pg';
import type { Engine, NamespacePolicy } from '../../src/engine/engine.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { commit, purge } from '../support/settle.ts';
import { sweepAffected } from '../support/sweep.ts';
import { until } from '../support/until.ts';
import { clockAt, freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const MEGABYTE = 1024 * 1024;
const NAMESPACES: readonly NamespacePolicy[] = [
  { name: 'jobs', groups: null, deadLetter: { maxTries: 1, queue: 'dead' }, retentionMs: null },
  { name: 'stream', groups: ['g1'], deadLetter: { maxTries: 1, queue: 'dead' }, retentionMs: 60_000 },
];
const OTHERS: readonly NamespacePolicy[] = [
  { name: 'others', groups: null, deadLetter: null, retentionMs: null },
];
const JOBS = { ns: 'jobs', name: 'q' };
const DEAD = { ns: 'jobs', name: 'dead' };
const STREAM = { ns: 'stream', name: 'q' };
const LEASE_MS = 1000;
const RESERVE = { group: '', count: 1000, leaseMs: LEASE_MS };

describe('Housekeeping of the PostgreSQL engine', () => {
  let server: PostgresServer;
  let schema: string;
  let engine: Engine;
  let other: pg.Client;
  let now: number;
  let warnings: string[];

  before(async () => {
    server = await sharedServer();
  });
  beforeEach(async () => {
    schema = freshSchema();
    now = Date.UTC(2026, 0, 1);
    warnings = [];
    const log = { info: () => {}, warn: (_: object, message: string) => void warnings.push(message) };
    engine = await openNode(server, { schema, namespaces: NAMESPACES, log });
    other = new pg.Client({ connectionString: server.url() });
    await other.connect();
    await other.query(`SET search_path = ${schema}`);
    await pass(0);
  });
  afterEach(async () => {
    await other.end();
    await engine.stop();
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  const pass = async (ms: number): Promise<void> => {
    now += ms;
    await runSql(server, clockAt(schema, now));
    await engine.ping();
  };
  const sweepAll = async (): Promise<void> => {
    for (let calls = 0; calls < 100; calls++) {
      const nextAt = await engine.storage.sweep();
      if (nextAt === null || nextAt > now) return;
    }
    assert.fail('sweeping does not end');
  };
  const ready = async (queue: { ns: string; name: string }, node = engine): Promise<number> =>
    (await node.storage.counts(queue)).ready;
  const numberOf = async (sql: string): Promise<number> => Number((await other.query(sql)).rows[0].n);

  it('fails no call while expiring leases fails, and expires them when it succeeds again', async () => {
    await other.query(`CREATE SEQUENCE failures; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM nextval('${schema}.failures'); RAISE 'asked for by a test'; END $$;
      CREATE TRIGGER failing BEFORE INSERT ON delivery FOR EACH ROW WHEN (NEW.reason IS NOT NULL) EXECUTE FUNCTION fail()`);
    await engine.storage.insert(JOBS, newElements('dies'));
    await engine.storage.take(JOBS, RESERVE);
    await engine.storage.insert(JOBS, [newElement({ body: 'expires', expiresAt: now + LEASE_MS })]);
    await engine.storage.insert(JOBS, newElements('stays'));
    await pass(LEASE_MS);
    for (let call = 0; call < 5; call++)
      assert.equal(await codeOf(engine.storage.insert(JOBS, newElements('more'))), 'done');
    const { deliveries } = await engine.storage.take(JOBS, { ...RESERVE, leaseMs: null });
    assert.deepEqual(bodyTexts(deliveries), ['stays', ...Array(5).fill('more')]);
    const nextAt = await engine.storage.sweep();
    assert.ok(nextAt !== null && nextAt > now);
    const failures = await numberOf('SELECT last_value AS n FROM failures');
    assert.ok(failures <= 2, `it was tried ${failures} times`);
    assert.equal(warnings.length, 1);
    await other.query('DROP TRIGGER failing ON delivery');
    await until(async () => {
      await engine.storage.sweep();
      return (await ready(DEAD)) === 2;
    });
  });

  it('dead-letters in steps of few bytes, so that no statement times out', async () => {
    const body = Buffer.alloc(MEGABYTE);
    for (let i = 0; i < 4; i++) {
      await engine.storage.insert(
        JOBS,
        Array.from({ length: 5 }, () => newElement({ body })),
      );
      await engine.storage.take(JOBS, RESERVE);
    }
    await pass(LEASE_MS);
    await sweepAll();
    assert.equal(await ready(DEAD), 20);
    const most = await numberOf(
      `SELECT max(c) AS n FROM (SELECT count(*) AS c FROM delivery WHERE reason IS NOT NULL GROUP BY xmin::text) x`,
    );
    assert.ok(most <= 9, `${most} MiB in one transaction`);
  });

  const megabytes = (count: number, groups = ['']) =>
    Array.from({ length: count }, () => newElement({ body: Buffer.alloc(MEGABYTE), groups }));

  it('purges in steps of few bytes, over all states, so that no statement times out', async () => {
    const size = 24;
    for (let stored = 0; stored < size; stored += 4) await engine.storage.insert(JOBS, megabytes(4));
    await engine.storage.take(JOBS, { ...RESERVE, count: size / 2 });
    const first = await engine.storage.purge(JOBS);
    assert.ok(first.removed > 0 && first.removed <= 11, `${first.removed} MiB in one step`);
    assert.equal(first.isDone, false);
    const waiting = await engine.storage.purge(JOBS, ['ready', 'scheduled']);
    assert.ok(waiting.removed > 0 && waiting.removed <= 9, `${waiting.removed} MiB in one step`);
    const rest = await purge(engine.storage, JOBS);
    assert.equal(first.removed + waiting.removed + rest, size);
  });

  it('purges the reserved elements of a queue that was plain before its namespace became a stream', async () => {
    await engine.storage.insert(JOBS, newElements('a', 'b'));
    await engine.storage.take(JOBS, { ...RESERVE, count: 1 });
    const namespaces = NAMESPACES.map((policy) => ({ ...policy, groups: policy.groups ?? ['g1'] }));
    const later = await openNode(server, { schema, namespaces });
    try {
      assert.deepEqual(await later.storage.purge(JOBS), { removed: 2, isDone: true });
      assert.equal(await later.storage.drop(JOBS), true);
    } finally {
      await later.stop();
    }
  });

  it('applies retention in steps of few bytes until no old element is left', async () => {
    const size = 20;
    for (let stored = 0; stored < size; stored += 4)
      await engine.storage.insert(STREAM, megabytes(4, ['g1']));
    await pass(120_000);
    const nextAt = await engine.storage.sweep();
    const left = await numberOf('SELECT count(*) AS n FROM delivery');
    assert.ok(left < size && left >= size - 9, `${size - left} MiB in one statement`);
    assert.notEqual(nextAt, null, 'more elements are past their retention');
    for (let sweeps = 0; sweeps < 4; sweeps++) await engine.storage.sweep();
    assert.equal(await numberOf('SELECT count(*) AS n FROM delivery'), 0);
  });

  it('expires leases and elements behind thousands of a namespace that this node does not have', async () => {
    const far = await openNode(server, { schema, namespaces: OTHERS });
    const theirs = { ns: 'others', name: 'q' };
    const many = Array.from({ length: 1250 }, () => newElement({ expiresAt: now + LEASE_MS / 2 }));
    for (let i = 0; i < 2; i++) await far.storage.insert(theirs, many);
    for (let i = 0; i < 2; i++) await far.storage.take(theirs, { ...RESERVE, leaseMs: 10 });
    await far.stop();
    await engine.storage.insert(JOBS, newElements('a'));
    await engine.storage.take(JOBS, RESERVE);
    await engine.storage.insert(JOBS, [newElement({ body: 'b', expiresAt: now + LEASE_MS })]);
    await pass(LEASE_MS);
    await sweepAll();
    assert.equal(await ready(DEAD), 2);
    assert.equal(
      await numberOf('SELECT count(*) AS n FROM delivery WHERE reason IS NULL'),
      2500,
      'elements of the other namespace remain',
    );
  });

  it('dead-letters an element that expired while reserved when it is returned after the sweep', async () => {
    await engine.storage.insert(JOBS, [newElement({ body: 'a', expiresAt: now + LEASE_MS })]);
    const { deliveries } = await engine.storage.take(JOBS, { ...RESERVE, leaseMs: 3_600_000 });
    await pass(30 * LEASE_MS);
    await sweepAll();
    const action = { kind: 'release', delayMs: 0, countTry: false } as const;
    const [id = ''] = deliveries.map((delivery) => delivery.id);
    await engine.storage.settle([{ queue: JOBS, id, group: '', token: null, from: 'reserved', action }]);
    assert.deepEqual((await engine.storage.take(JOBS, { ...RESERVE, leaseMs: null })).deliveries, []);
    assert.deepEqual(bodyTexts((await engine.storage.take(DEAD, RESERVE)).deliveries), ['a']);
  });

  it('does not wait for a stream that another node has locked', async (t) => {
    // A sweep that takes long on a busy machine is not repeated soon. By this node's fake clock it takes no time.
    const node = await openNode(server, { schema, namespaces: NAMESPACES, clock: new FakeClock() });
    t.after(() => node.stop());
    const element = newElement({ groups: ['g1'] });
    await engine.storage.insert(STREAM, [element, element]);
    await engine.storage.take(STREAM, { ...RESERVE, group: 'g1', count: 1 });
    await other.query(`BEGIN; SELECT pg_advisory_xact_lock('element'::regclass::oid::int, (id << 32 >> 32)::int)
      FROM subscription WHERE grp = '' AND name = 'q'`);
    await pass(120_000);
    let isSwept = false;
    const sweep = node.storage.sweep().finally(() => {
      isSwept = true;
    });
    do {
      const { rows } = await other.query('SELECT FROM pg_locks WHERE NOT granted');
      assert.equal(rows.length, 0, 'the sweep does not wait for the lock');
    } while (!isSwept);
    const nextAt = await sweep;
    assert.ok(nextAt !== null && nextAt - now <= 50, 'the next sweep is due soon');
    assert.equal(await numberOf('SELECT count(*) AS n FROM delivery WHERE reason IS NULL'), 2);
    await other.query('COMMIT');
    await until(async () => {
      await pass(100);
      await sweepAll();
      return (await numberOf('SELECT count(*) AS n FROM delivery WHERE reason IS NULL')) === 0;
    });
    assert.deepEqual([await ready(STREAM), await ready({ ns: 'stream', name: 'dead' })], [0, 1]);
  });

  it('returns the queues that gained elements although a later step of the sweep failed', async () => {
    await engine.storage.declare([JOBS], { deadLetter: null });
    await engine.storage.insert(JOBS, newElements('a'));
    await engine.storage.take(JOBS, RESERVE);
    await other.query('ALTER TABLE dedup RENAME TO elsewhere');
    await pass(LEASE_MS);
    const affected = await sweepAffected(engine.storage);
    assert.deepEqual(affected, [JOBS]);
    assert.deepEqual(warnings, [
      'PostgreSQL rejected a call',
      'A step of housekeeping failed. It is repeated with the next sweep.',
    ]);
    await other.query('ALTER TABLE elsewhere RENAME TO dedup');
    await engine.storage.sweep();
  });

  it('merges counter rows into a few after many changes at many moments', async () => {
    const queue = { ns: 'jobs', name: 'counted' };
    await engine.storage.insert(queue, [newElement({ delayMs: 10 ** 12 })]);
    for (let step = 0; step < 80; step++) {
      await pass(2 ** 20);
      await engine.storage.insert(queue, newElements('x', 'y', 'z'));
      const { deliveries } = await engine.storage.take(queue, { ...RESERVE, count: 2 });
      const refs = deliveries.map(({ id }) => ({ id, group: '', token: null }));
      await commit(engine.storage, queue, refs);
    }
    const before = await engine.storage.counts(queue);
    await engine.storage.sweep();
    assert.ok((await numberOf('SELECT count(*) AS n FROM counter')) <= 3);
    assert.deepEqual(await engine.storage.counts(queue), before);
    assert.deepEqual([before.ready, before.scheduled], [80, 1]);
  });

  it('merges counter rows into a few although there are more than one statement reads', async () => {
    const queue = { ns: 'jobs', name: 'calendar' };
    const stays = newElement({ matureAt: now + 2 ** 40 });
    await engine.storage.insert(queue, [stays]);
    // Elements for five months, stored and purged three times.
    for (let times = 0; times < 3; times++) {
      for (let step = 0; step < 12_000; step += 1000) {
        const elements = Array.from({ length: 1000 }, (_, n) =>
          newElement({ matureAt: now + (step + n) * 2 ** 20 + MEGABYTE }),
        );
        await engine.storage.insert(queue, elements);
      }
      assert.equal((await engine.storage.counts(queue)).scheduled, 12_001);
      await purge(engine.storage, queue);
      await engine.storage.insert(queue, [stays]);
    }
    const rows = await numberOf('SELECT count(*) AS n FROM counter');
    for (let sweep = 0; sweep < 10; sweep++) {
      for (let batch = 0; batch < 200; batch++) await engine.ping();
      await engine.storage.sweep();
    }
    assert.equal((await engine.storage.counts(queue)).scheduled, 1);
    const left = await numberOf('SELECT count(*) AS n FROM counter');
    assert.ok(left < 100, `${left} rows of ${rows} are left`);
  });
});
