import assert from 'node:assert/strict';
import { afterEach, before, beforeEach, describe, it } from 'node:test';
import type { Engine, NamespacePolicy } from '../../src/engine/engine.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { newElement } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { commit, type DeliveryRef, remove, settle, transfer } from '../support/settle.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const MEGABYTE = 1024 * 1024;
const COUNT = 24;
const NAMESPACES: readonly NamespacePolicy[] = [
  { name: 'jobs', groups: null, deadLetter: { maxTries: 1, queue: 'dead' }, retentionMs: null },
  { name: 'stream', groups: ['g1', 'g2'], deadLetter: null, retentionMs: null },
];
const JOBS = { ns: 'jobs', name: 'q' };
const DEAD = { ns: 'jobs', name: 'dead' };
const STREAM = { ns: 'stream', name: 'q' };

/**
 * Deleting a body takes PostgreSQL up to 10 ms for each MiB, and moving it 25 ms, within the 3 s of a statement: a
 * thousand commits of 1 MiB in one call failed however often they were repeated.
 */
describe('Settlements of large elements in PostgreSQL', () => {
  let server: PostgresServer;
  let schema: string;
  let engine: Engine;

  before(async () => {
    server = await sharedServer();
  });
  beforeEach(async () => {
    schema = freshSchema();
    engine = await openNode(server, { schema, namespaces: NAMESPACES });
    // Records how many deliveries each statement finished or moved.
    await runSql(
      server,
      `CREATE TABLE ${schema}.gone (n bigint);
       CREATE FUNCTION ${schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         INSERT INTO ${schema}.gone SELECT count(*) FROM old_rows HAVING count(*) > 0; RETURN NULL; END $$;
       CREATE TRIGGER noting AFTER DELETE ON ${schema}.delivery REFERENCING OLD TABLE AS old_rows
         FOR EACH STATEMENT EXECUTE FUNCTION ${schema}.note()`,
    );
  });
  afterEach(async () => {
    await engine.stop();
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  async function insert(queue: QueueKey, groups = ['']): Promise<string[]> {
    const ids: string[] = [];
    for (let stored = 0; stored < COUNT; stored += 4) {
      const some = Array.from({ length: 4 }, () => newElement({ body: Buffer.alloc(MEGABYTE), groups }));
      ids.push(...(await engine.storage.insert(queue, some)));
    }
    return ids;
  }

  async function reserve(queue: QueueKey, group = ''): Promise<DeliveryRef[]> {
    const refs: DeliveryRef[] = [];
    while (refs.length < COUNT) {
      const { deliveries } = await engine.storage.take(queue, { group, count: 8, leaseMs: 3_600_000 });
      refs.push(...deliveries.map(({ id, lease }) => ({ id, group, token: lease?.token ?? null })));
    }
    return refs;
  }

  /** Asserts that all deliveries are gone and no statement had more than it has time for. */
  async function assertInSteps(outcomes: readonly string[], expected: string): Promise<void> {
    assert.deepEqual(outcomes, new Array(COUNT).fill(expected));
    const { rows } = await runSql(server, `SELECT n::int FROM ${schema}.gone`);
    const steps = rows.map(({ n }) => Number(n));
    assert.equal(
      steps.reduce((sum, n) => sum + n, 0),
      COUNT,
    );
    assert.ok(Math.max(...steps) <= 9, `${steps} MiB in one statement`);
  }

  it('a commit of many elements runs in statements of few bytes each', async () => {
    await insert(JOBS);
    await assertInSteps(await commit(engine.storage, JOBS, await reserve(JOBS)), 'done');
  });

  it('a commit of many elements of a stream runs in statements of few bytes each', async () => {
    await insert(STREAM, ['g1', 'g2']);
    await assertInSteps(await commit(engine.storage, STREAM, await reserve(STREAM, 'g1')), 'done');
  });

  it('commits of many concurrent calls run in statements of few bytes each', async () => {
    await insert(JOBS);
    const refs = await reserve(JOBS);
    const outcomes = await Promise.all(refs.map((ref) => commit(engine.storage, JOBS, [ref])));
    await assertInSteps(outcomes.flat(), 'done');
  });

  it('removals by id run in statements of few bytes each', async () => {
    const ids = await insert(JOBS);
    const outcomes = await Promise.all(ids.map((id) => remove(engine.storage, JOBS, [id])));
    await assertInSteps(outcomes.flat(), 'done');
  });

  it('dead-lettering many elements runs in statements of few bytes each', async () => {
    await insert(JOBS);
    const action = { kind: 'dead-letter', countTry: true, reason: null } as const;
    await assertInSteps(await settle(engine.storage, JOBS, await reserve(JOBS), action), 'dead-lettered');
    assert.equal((await engine.storage.counts(DEAD)).ready, COUNT);
  });

  for (const [queue, group] of [
    [JOBS, ''],
    [STREAM, 'g1'],
  ] as const) {
    it(`all commits of a call that also inserts are one transaction, in ${queue.ns}`, async () => {
      await insert(queue, [group]);
      const inserts = [{ queue: JOBS, element: newElement() }];
      const transfers = (await reserve(queue, group)).map((finish, place) => {
        return { from: queue, finish, inserts: place === 0 ? inserts : [] };
      });
      assert.deepEqual(await transfer(engine.storage, transfers), new Array(COUNT).fill('done'));
      const { rows } = await runSql(
        server,
        `SELECT sum(n)::int AS n FROM ${schema}.gone GROUP BY xmin::text`,
      );
      assert.deepEqual(
        rows.map(({ n }) => n),
        [COUNT],
      );
    });
  }

  it('a settlement with a wrong token is rejected, at any position among large ones', async () => {
    await insert(JOBS);
    const refs = await reserve(JOBS);
    const last = refs.at(-1) as DeliveryRef;
    const others = refs.slice(0, -1);
    const lost = { ...last, token: refs[0]?.token ?? null };
    const outcomes = await commit(engine.storage, JOBS, [...others, lost]);
    assert.deepEqual(outcomes, [...others.map(() => 'done'), 'lease-lost']);
  });

  it('pages that are read at once return at most 16 MiB in one transaction', async () => {
    await insert(JOBS);
    // Each statement reads the clock once. A transaction that writes has a number.
    await runSql(
      server,
      `CREATE TABLE ${schema}.pages (transaction bigint);
       CREATE OR REPLACE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$ BEGIN
         IF current_query() LIKE '%from_moment%' THEN INSERT INTO ${schema}.pages VALUES (txid_current()); END IF;
         RETURN floor(extract(epoch FROM clock_timestamp()) * 1000); END $$`,
    );
    const page = { group: '', states: ['ready'], after: null, limit: 4, bodies: true } as const;
    const pages = await Promise.all(Array.from({ length: 20 }, () => engine.storage.scan(JOBS, page)));
    assert.deepEqual(new Set(pages.map(({ deliveries }) => deliveries.length)), new Set([2]));
    const { rows } = await runSql(
      server,
      `SELECT count(*)::int AS pages FROM ${schema}.pages GROUP BY transaction`,
    );
    const perTransaction = rows.map(({ pages }) => Number(pages));
    assert.ok(Math.max(...perTransaction) <= 8, `${perTransaction} pages of 2 MiB`);
  });
});
