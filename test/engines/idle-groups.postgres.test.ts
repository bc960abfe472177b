import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import { bodyTexts, newElement } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { clockAt, freshSchema, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const QUEUE = { ns: 'stream', name: 'q' };
const MINUTE_MS = 60_000;

describe('An empty group of a stream on PostgreSQL', () => {
  let server: PostgresServer;
  /** Sets the clock hundreds of times; opening a session for each would cost more than the code under test. */
  let control: pg.Client;
  let schema: string;
  let nodes: [Engine, Engine];
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
    await passMinutes(0);
  });
  afterEach(async () => {
    await Promise.all(nodes.map((node) => node.stop()));
    await control.query(`DROP SCHEMA ${schema} CASCADE`);
  });

  /** Both nodes sweep every minute, as their brokers would. */
  const passMinutes = async (
    minutes: number,
    inEach: () => Promise<unknown> = async () => {},
  ): Promise<void> => {
    for (let minute = 0; minute <= minutes; minute++) {
      if (minute > 0) now += MINUTE_MS;
      await showTime();
      await inEach();
      await Promise.all(nodes.map(({ storage }) => storage.sweep()));
    }
  };
  const showTime = async (): Promise<void> => {
    await control.query(clockAt(schema, now));
    await Promise.all(nodes.map((node) => node.ping()));
  };
  const insert = (node: Engine, body: string): Promise<unknown> =>
    node.storage.insert(QUEUE, [newElement({ body, groups: ['group'] })]);
  const pop = async (node: Engine): Promise<string[]> => {
    const { deliveries } = await node.storage.take(QUEUE, { group: 'group', count: 9, leaseMs: null });
    return bodyTexts(deliveries);
  };
  const groups = async (): Promise<string[]> => {
    const { rows } = await control.query(
      `SELECT grp FROM ${schema}.subscription WHERE grp <> '' ORDER BY grp`,
    );
    return rows.map(({ grp }) => String(grp));
  };

  it('is forgotten with its counter rows after 15 idle minutes, unless it is a default group', async () => {
    const [a] = nodes;
    await a.storage.insert(QUEUE, [newElement({ groups: ['g1', 'group'] })]);
    await pop(a);
    await passMinutes(14);
    assert.deepEqual(await groups(), ['g1', 'group']);
    // Up to ten minutes more than the fifteen: a check that runs a moment too early waits for the next minute.
    await passMinutes(10);
    assert.deepEqual(await groups(), ['g1']);
    const { rows } = await control.query(
      `SELECT 1 FROM ${schema}.counter WHERE subscription > 0 AND subscription NOT IN (SELECT id FROM ${schema}.subscription)`,
    );
    assert.equal(rows.length, 0);
  });

  it('is forgotten no later if the clock of the database was ahead and was corrected', async () => {
    const [a] = nodes;
    now += 60 * MINUTE_MS;
    await passMinutes(0);
    now -= 60 * MINUTE_MS;
    await passMinutes(0);
    await insert(a, 'first');
    await pop(a);
    await passMinutes(24);
    assert.deepEqual(await groups(), []);
  });

  it('is created again by an insert of a node that had it cached', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    assert.deepEqual(await pop(b), ['first']);
    await passMinutes(30);
    assert.deepEqual(await groups(), []);
    await insert(b, 'second');
    assert.deepEqual(await pop(a), ['second']);
    await insert(a, 'third');
    assert.deepEqual(await pop(b), ['third']);
  });

  it('is kept while any node takes from it', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    await pop(a);
    await passMinutes(40, () => pop(b));
    assert.deepEqual(await groups(), ['group']);
    await insert(a, 'second');
    assert.deepEqual(await pop(b), ['second']);
  });

  it('is counted and kept once it has an element again, although no node has swept since', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    await pop(a);
    await passMinutes(2);
    await insert(a, 'second');
    now += 20 * MINUTE_MS;
    await showTime();
    for (const node of [a, b]) assert.equal((await node.storage.counts(QUEUE)).ready, 1);
    await passMinutes(30);
    assert.deepEqual(await pop(b), ['second']);
  });

  it('is not forgotten while it has a waiting or reserved delivery', async () => {
    const [a, b] = nodes;
    await insert(a, 'first');
    await passMinutes(30);
    await b.storage.take(QUEUE, { group: 'group', count: 1, leaseMs: 60 * MINUTE_MS });
    await passMinutes(30);
    assert.deepEqual(await groups(), ['group']);
    assert.equal((await a.storage.counts(QUEUE)).groups.get('group')?.reserved, 1);
  });
});
