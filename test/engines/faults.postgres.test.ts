import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, before, describe, it, type TestContext } from 'node:test';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import { Connection } from '../../src/engines/postgres/connection.ts';
import { FakeClock, SuspendedClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { commit } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { clockAt, freshSchema, runSql } from './postgres.ts';
import { endSessions, openNode, sessionsOf } from './postgres-node.ts';
import { Traffic, type Verdict } from './traffic.ts';

/** Number of restarts under load; `npm run test:faults` sets it to five. */
const ROUNDS = Number(process.env.FAULT_ROUNDS ?? 1);
/** How long the server stays frozen after the first call was rejected, ms; `FAULT_FROZEN_MS=30000` for a long time. */
const FROZEN_MS = Number(process.env.FAULT_FROZEN_MS ?? 0);

const pop = (engine: Engine, queue: { ns: string; name: string }, count = 9) =>
  engine.storage.take(queue, { group: '', count, leaseMs: null });

function assertNothingLost(verdict: Verdict): void {
  assert.ok(verdict.lost.length <= verdict.unknownPops, `${verdict.lost} lost`);
  assert.deepEqual(verdict.twice, []);
  assert.deepEqual(verdict.changed, []);
}

describe('A PostgreSQL engine whose server fails', () => {
  let server: PostgresServer;
  let engine: Engine;
  let schema: string;
  let queues = 0;
  const queue = () => ({ ns: 'plain', name: `queue ${++queues}` });

  before(async () => {
    server = await PostgresServer.start({ settings: { fsync: 'off' } });
    schema = freshSchema();
    engine = await openNode(server, { schema });
  });
  after(async () => {
    await engine.stop();
    server.dispose();
  });

  it(`loses no acknowledged element if the server crashes under load, ${ROUNDS} times`, async () => {
    const other = await openNode(server, { schema });
    const traffic = new Traffic([engine.storage, other.storage], [queue()]);
    for (let round = 0; round < ROUNDS; round++) {
      await traffic.acknowledged(300);
      await server.stop('immediate');
      await server.start();
    }
    await traffic.acknowledged(300);
    assertNothingLost(await traffic.end());
    await other.stop();
  });

  it('loses no acknowledged element if an administrator ends its sessions under load', async () => {
    const traffic = new Traffic([engine.storage], [queue()]);
    for (let round = 0; round < ROUNDS; round++) {
      await traffic.acknowledged(200);
      await endSessions(server, 'main');
    }
    await traffic.acknowledged(200);
    assertNothingLost(await traffic.end());
  });

  it('loses no acknowledged element if its connections stop transmitting under load', async () => {
    const proxy = await TcpProxy.start(server.port);
    const far = await openNode(server, { schema, port: proxy.port });
    const traffic = new Traffic([engine.storage, far.storage], [queue()]);
    // First transactions that started and were never committed, then those whose commit was never replied to.
    for (const state of ['deaf', 'mute'] as const) {
      await traffic.acknowledged(200);
      proxy.state = state;
      await until(async () => (await codeOf(far.ping())) === 'storage-unavailable');
      proxy.state = 'open';
      await until(async () => (await codeOf(far.ping())) === 'done');
    }
    await traffic.acknowledged(200);
    assertNothingLost(await traffic.end());
    await far.stop();
    await proxy.stop();
  });

  it('settles every call while the server is frozen, and continues when it resumes', async () => {
    const traffic = new Traffic([engine.storage], [queue()]);
    await traffic.acknowledged(200);
    server.signalAll('SIGSTOP');
    assert.notEqual(await codeOf(engine.storage.insert(queue(), newElements('into ice'))), 'done');
    assert.equal(await codeOf(engine.ping()), 'storage-unavailable');
    await new Promise((resolve) => setTimeout(resolve, FROZEN_MS));
    server.signalAll('SIGCONT');
    await traffic.acknowledged(200);
    assertNothingLost(await traffic.end());
  });

  it('rejects calls immediately during a long outage, with a retry time', async () => {
    const own = queue();
    await server.stop('fast');
    await until(async () => (await codeOf(engine.storage.counts(own))) === 'storage-unavailable');
    const refusal = engine.storage.insert(own, newElements('x'));
    await assert.rejects(refusal, { code: 'storage-unavailable', details: { retryAfterMs: 1000 } });
    await server.start();
    await until(async () => (await codeOf(engine.storage.insert(own, newElements('back')))) === 'done');
    assert.deepEqual(bodyTexts((await pop(engine, own)).deliveries), ['back']);
  });

  it('rejects an insert with outcome-unknown if the connection ends before the reply', async () => {
    const proxy = await TcpProxy.start(server.port);
    const far = await openNode(server, { schema, port: proxy.port });
    const own = queue();
    await far.storage.declare([own]);
    await far.storage.insert(own, newElements('first'));
    const swallowed = proxy.catch(/lost answer/, 'mute');
    const insert = codeOf(far.storage.insert(own, newElements('lost answer')));
    await swallowed;
    proxy.reset();
    assert.equal(await insert, 'outcome-unknown');
    assert.deepEqual(bodyTexts((await pop(engine, own)).deliveries), ['first', 'lost answer']);
    await far.stop();
    await proxy.stop();
  });

  it('notifies all nodes of a definition whose change has an unknown outcome', async () => {
    const proxy = await TcpProxy.start(server.port);
    // Both nodes are new, so they receive changes from now on, even if the connections of others are broken.
    const far = await openNode(server, { schema, port: proxy.port });
    const near = await openNode(server, { schema });
    const changed = new Set<string>();
    for (const node of [far, near]) {
      node.definitions.watch(({ key }) => {
        if (key !== null) changed.add(`${key}, ${node === far}`);
      });
    }
    const changes = {
      'put definition': () => far.definitions.put('queue', 'unsure', 1, 'any'),
      'delete definition': () => far.definitions.delete('queue', 'unsure', 'any'),
    };
    for (const [statement, change] of Object.entries(changes)) {
      changed.clear();
      const swallowed = proxy.catch(new RegExp(statement), 'mute');
      const outcome = codeOf(change());
      await swallowed;
      proxy.reset();
      assert.equal(await outcome, 'outcome-unknown');
      await until(() => changed.size === 2);
    }
    await Promise.all([far.stop(), near.stop()]);
    await proxy.stop();
  });

  it('prevents a pop from taking effect after it failed with outcome-unknown', async () => {
    const own = queue();
    await engine.storage.insert(own, newElements('kept'));
    const frozen = await sessionsOf(server, 'main');
    for (const pid of frozen) process.kill(pid, 'SIGSTOP');
    assert.equal(await codeOf(pop(engine, own)), 'outcome-unknown');
    for (const pid of frozen) process.kill(pid, 'SIGCONT');
    await until(async () => (await sessionsOf(server, 'main')).every((pid) => !frozen.includes(pid)));
    await until(async () => (await codeOf(engine.storage.counts(own))) === 'done');
    assert.deepEqual(bodyTexts((await pop(engine, own)).deliveries), ['kept']);
  });

  it('prevents a pop that waited for an earlier batch from taking effect after it failed', async () => {
    const clock = new FakeClock();
    const own = freshSchema();
    const far = await openNode(server, { schema: own, clock });
    const now = Date.UTC(2026, 0, 1);
    await runSql(server, clockAt(own, now));
    await far.ping();
    const from = queue();
    await far.storage.insert(from, newElements('kept'));
    const [registry, time] = [await session(), await session()];
    await registry.query(`BEGIN; LOCK TABLE ${own}.subscription`);
    // Sessions that read the time wait until the pop has failed.
    await time.query(`SELECT pg_advisory_lock(7);
      CREATE OR REPLACE FUNCTION ${own}.now_ms() RETURNS bigint LANGUAGE plpgsql AS
      $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN ${now + 4_500}; END $$`);
    const declared = far.storage.declare([queue()]);
    await waitingFor('relation');
    const popped = codeOf(pop(far, from));
    clock.advance(3_000);
    await registry.end();
    await declared;
    await waitingFor('advisory');
    // Exactly the pop's deadline.
    clock.advance(1_500);
    assert.equal(await popped, 'outcome-unknown');
    await time.end();
    assert.deepEqual(bodyTexts((await pop(far, from)).deliveries), ['kept']);
    await far.stop();
    await runSql(server, `DROP SCHEMA ${own} CASCADE`);
  });

  it('settles a call within the time left of its deadline after an earlier wait', async () => {
    const own = queue();
    const clock = new FakeClock();
    const node = await openNode(server, { schema, clock });
    await node.storage.insert(own, newElements('a'));
    const holder = await session();
    await holder.query(`BEGIN; LOCK TABLE ${schema}.delivery`);
    const inserted = codeOf(node.storage.insert(own, newElements('b'), { leftMs: 1_000 }));
    await waitingFor('relation');
    clock.advance(1_000);
    assert.equal(await inserted, 'outcome-unknown');
    await holder.end();
    assert.equal(await codeOf(node.storage.counts(own)), 'done');
    await node.stop();
  });

  it('detects a server that stopped replying, and uses it again when it replies', async () => {
    const proxy = await TcpProxy.start(server.port);
    const far = await openNode(server, { schema, port: proxy.port });
    const own = queue();
    await far.storage.insert(own, newElements('before'));
    proxy.state = 'dark';
    assert.equal(await codeOf(far.storage.insert(own, newElements('dark'))), 'outcome-unknown');
    proxy.state = 'open';
    proxy.reset();
    await until(async () => (await codeOf(far.storage.counts(own))) === 'done');
    assert.deepEqual(bodyTexts((await pop(far, own)).deliveries), ['before']);
    await far.stop();
    await proxy.stop();
  });

  it('keeps a connection whose server is slower than the deadlines of calls, as long as it replies', async (t) => {
    const clock = new FakeClock();
    const own = freshSchema();
    const warnings: string[] = [];
    const log = { info: () => {}, warn: (_: object, message: string) => void warnings.push(message) };
    const node = await openNode(server, { schema: own, clock, log });
    const target = queue();
    await node.storage.insert(target, newElements('before'));
    const [first, second] = [await session(), await session()];
    await first.query('SELECT pg_advisory_lock(7)');
    await second.query('SELECT pg_advisory_lock(8)');
    // Each statement waits for the lock whose number is in the table when it starts.
    await runSql(
      server,
      `CREATE TABLE ${own}.gate AS SELECT 7 AS id;
      CREATE OR REPLACE FUNCTION ${own}.now_ms() RETURNS bigint LANGUAGE plpgsql STABLE SET lock_timeout = '1min' AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(id) FROM ${own}.gate;
        RETURN (extract(epoch FROM clock_timestamp()) * 1000)::bigint; END $$`,
    );
    const query = t.mock.method(Connection.prototype, 'query');
    const calls = [
      codeOf(node.storage.insert(target, newElements('slow'))),
      codeOf(commit(node.storage, target, [{ id: 'none', group: '', token: null }])),
    ];
    await waitingFor('advisory');
    const inserting = query.mock.calls.find(({ arguments: [{ name }] }) => name === 'insert');
    clock.advance(3_000);
    await runSql(server, `UPDATE ${own}.gate SET id = 8`);
    await first.end();
    await inserting?.result;
    await waitingFor('advisory');
    clock.advance(1_600);
    assert.deepEqual(await Promise.all(calls), ['outcome-unknown', 'outcome-unknown']);
    await second.end();
    assert.equal((await node.storage.counts(target)).ready, 2);
    assert.deepEqual(warnings, []);
    await node.stop();
    await runSql(server, `DROP SCHEMA ${own} CASCADE`);
  });

  it('replaces a connection that stopped replying, even if its calls expired early', async () => {
    const proxy = await TcpProxy.start(server.port);
    const clock = new FakeClock();
    const warnings: string[] = [];
    const log = { info: () => {}, warn: (_: object, message: string) => void warnings.push(message) };
    const far = await openNode(server, { schema, port: proxy.port, clock, log });
    const swallowed = proxy.catch(/into silence/, 'deaf');
    const insert = codeOf(far.storage.insert(queue(), newElements('into silence'), { leftMs: 1_000 }));
    await swallowed;
    clock.advance(1_000);
    assert.equal(await insert, 'outcome-unknown');
    assert.deepEqual(warnings, []);
    clock.advance(3_000);
    assert.deepEqual(warnings, ['PostgreSQL is unavailable']);
    await until(async () => {
      clock.advance(10);
      return (await codeOf(far.ping())) === 'done';
    });
    await far.stop();
    await proxy.stop();
  });

  it('rejects inserts with storage-full if the disk is full, while takes and commits succeed', async () => {
    const own = queue();
    await engine.storage.insert(own, newElements('a', 'b'));
    await failing(`WHEN (NEW.lease_until IS NULL) EXECUTE FUNCTION ${schema}.fail('53100')`, async () => {
      assert.equal(await codeOf(engine.storage.insert(own, newElements('too much'))), 'storage-full');
      const { deliveries } = await engine.storage.take(own, { group: '', count: 1, leaseMs: 60_000 });
      const [held] = deliveries;
      const ref = { id: held?.id ?? '', group: '', token: null };
      assert.deepEqual(await commit(engine.storage, own, [ref]), ['done']);
      assert.deepEqual(bodyTexts((await pop(engine, own)).deliveries), ['b']);
    });
    assert.equal(await codeOf(engine.storage.insert(own, newElements('room again'))), 'done');
  });

  it('replaces both its connections, main and second, if the server became read-only', async () => {
    const own = queue();
    await engine.storage.declare([own]);
    const calls = {
      main: () => engine.storage.insert(own, newElements('x')),
      second: () => engine.definitions.put('queue', 'x', 1, 'any'),
    };
    await failing(`EXECUTE FUNCTION ${schema}.fail('25006')`, async () => {
      await runSql(
        server,
        `CREATE TRIGGER failing BEFORE INSERT ON ${schema}.definition EXECUTE FUNCTION ${schema}.fail('25006')`,
      );
      for (const [role, call] of Object.entries(calls) as [keyof typeof calls, () => Promise<unknown>][]) {
        const [before] = await sessionsOf(server, role);
        assert.equal(await codeOf(call()), 'storage-unavailable');
        await until(async () => {
          const [now = before] = await sessionsOf(server, role);
          return now !== before;
        });
      }
      await runSql(server, `DROP TRIGGER failing ON ${schema}.definition`);
    });
    for (const call of Object.values(calls)) await until(async () => (await codeOf(call())) === 'done');
  });

  it('confines the failure of a call to that call, not to others of its batch', async () => {
    const [good, bad] = [queue(), queue()];
    await engine.storage.insert(good, newElements('x'));
    await engine.storage.insert(bad, newElements('x'));
    await failing(`WHEN (NEW.tries = 666) EXECUTE FUNCTION ${schema}.fail('22000')`, async () => {
      const outcomes = await Promise.all([
        codeOf(engine.storage.insert(good, newElements('one'))),
        codeOf(engine.storage.insert(bad, [newElement({ tries: 666 })])),
        codeOf(engine.storage.insert(bad, [newElement({ tries: 2 ** 40 })])),
        codeOf(engine.storage.insert(good, newElements('two'))),
        codeOf(pop(engine, good, 2)),
      ]);
      assert.deepEqual(outcomes, ['done', 'storage-unavailable', 'internal', 'done', 'done']);
    });
    assert.deepEqual(bodyTexts((await pop(engine, good)).deliveries), ['two']);
  });

  it('rejects a batch of which a part was applied, since its BEGIN was cancelled, with outcome-unknown and does not repeat it', async (t) => {
    const [good, bad, taken] = [queue(), queue(), queue()];
    await engine.storage.insert(taken, newElements('x'));
    await failing(`WHEN (NEW.tries = 666) EXECUTE FUNCTION ${schema}.fail('22000')`, async () => {
      cancelNext(t, 'BEGIN');
      // Three statements; the second one fails.
      const outcomes = await Promise.all([
        codeOf(engine.storage.insert(good, newElements('once'))),
        codeOf(engine.storage.insert(bad, [newElement({ tries: 666, dedupKey: 'k' })])),
        codeOf(pop(engine, taken)),
      ]);
      assert.deepEqual(outcomes, ['outcome-unknown', 'outcome-unknown', 'outcome-unknown']);
    });
    await until(async () => (await codeOf(engine.storage.counts(good))) === 'done');
    assert.deepEqual(bodyTexts((await pop(engine, good)).deliveries), ['once']);
  });

  for (const [command, what] of [
    ['BEGIN', 'returns the results of a batch whose BEGIN was cancelled if all of it was applied'],
    ['COMMIT', 'repeats a batch whose COMMIT was cancelled, outside of its aborted transaction'],
  ] as const) {
    it(what, async (t) => {
      const [own, taken] = [queue(), queue()];
      await engine.storage.insert(taken, newElements('x'));
      cancelNext(t, command);
      const [ids, { deliveries }] = await Promise.all([
        engine.storage.insert(own, newElements('once')),
        pop(engine, taken),
      ]);
      assert.deepEqual([ids.length, bodyTexts(deliveries)], [1, ['x']]);
      assert.deepEqual(bodyTexts((await pop(engine, own)).deliveries), ['once']);
    });
  }

  it('repeats a call that PostgreSQL aborted to resolve a deadlock', async () => {
    const own = queue();
    await runSql(server, `CREATE SEQUENCE ${schema}.failures`);
    await failing(
      `WHEN (nextval('${schema}.failures') < 3) EXECUTE FUNCTION ${schema}.fail('40P01')`,
      async () => {
        assert.equal(await codeOf(engine.storage.insert(own, newElements('once'))), 'done');
      },
    );
    assert.deepEqual(bodyTexts((await pop(engine, own)).deliveries), ['once']);
  });

  it('rejects a call with storage-unavailable if a lock is not released in time', async () => {
    const own = queue();
    await engine.storage.insert(own, newElements('a'));
    const holder = await session();
    await holder.query(`BEGIN; LOCK TABLE ${schema}.delivery`);
    assert.equal(await codeOf(engine.storage.insert(own, newElements('b'))), 'storage-unavailable');
    await holder.end();
    assert.deepEqual(bodyTexts((await pop(engine, own)).deliveries), ['a']);
  });

  it('rejects all waiting calls with storage-unavailable, and applies none, if a lock outlasts their deadlines', async () => {
    const own = queue();
    const clock = new FakeClock();
    const node = await openNode(server, { schema, clock });
    await node.storage.insert(own, newElements('a'));
    const holder = await session();
    await holder.query(`BEGIN; LOCK TABLE ${schema}.delivery`);
    // Calls about one queue keep their order, so these share no statement, and only the first one waits for the lock.
    const calls = ['b', 'c', 'd'].flatMap((body) => [
      codeOf(node.storage.insert(own, newElements(body))),
      codeOf(pop(node, own)),
    ]);
    await waitingFor('relation');
    clock.advance(3000);
    assert.deepEqual(new Set(await Promise.all(calls)), new Set(['storage-unavailable']));
    await holder.query('COMMIT');
    await holder.end();
    assert.deepEqual(bodyTexts((await pop(node, own)).deliveries), ['a']);
    await node.stop();
  });

  /** The next command of that kind fails as if an administrator had cancelled it. */
  function cancelNext(t: TestContext, command: 'BEGIN' | 'COMMIT'): void {
    const { run } = Connection.prototype;
    let isCancelled = false;
    t.mock.method(Connection.prototype, 'run', function (this: Connection, sql: string) {
      if (sql !== command || isCancelled) return run.call(this, sql);
      isCancelled = true;
      return run.call(this, "DO $$ BEGIN RAISE EXCEPTION 'asked for' USING ERRCODE = '57014'; END $$");
    });
  }

  async function session(): Promise<pg.Client> {
    const client = new pg.Client({ connectionString: server.url() });
    await client.connect();
    return client;
  }

  /** Resolves when a session of an engine waits for a lock of that kind. */
  function waitingFor(kind: 'relation' | 'advisory'): Promise<void> {
    return until(async () => {
      const { rows } = await runSql(
        server,
        `SELECT FROM pg_stat_activity WHERE application_name LIKE 'quayside main %' AND wait_event = '${kind}'`,
      );
      return rows.length > 0;
    });
  }

  /** Makes inserts of the deliveries that `trigger` selects fail during a test, with the error code that it names. */
  async function failing(trigger: string, test: () => Promise<void>): Promise<void> {
    await runSql(
      server,
      `CREATE OR REPLACE FUNCTION ${schema}.fail() RETURNS trigger LANGUAGE plpgsql
       AS $$ BEGIN RAISE EXCEPTION 'asked for by a test' USING ERRCODE = TG_ARGV[0]; END $$;
       CREATE TRIGGER failing BEFORE INSERT ON ${schema}.delivery FOR EACH ROW ${trigger}`,
    );
    try {
      await test();
    } finally {
      await runSql(server, `DROP TRIGGER failing ON ${schema}.delivery`);
    }
  }
});

describe('PostgreSQL with a synchronous standby', () => {
  it('loses no acknowledged element if the primary crashes under load and the standby takes over', async (t) => {
    const primary = await PostgresServer.start({ settings: { fsync: 'off' } });
    t.after(() => primary.dispose());
    const standby = await primary.startStandby();
    t.after(() => standby.dispose());
    await runSql(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'");
    await runSql(primary, 'SELECT pg_reload_conf()');
    await until(async () => {
      const { rows } = await runSql(primary, 'SELECT sync_state FROM pg_stat_replication');
      return rows[0]?.sync_state === 'sync';
    });
    const url = primary.url().replace(`:${primary.port}`, `:${primary.port},127.0.0.1:${standby.port}`);
    const schema = freshSchema();
    const nodes = [
      await openNode(primary, { schema, url }),
      await openNode(primary, { schema, url }),
    ] as const;
    const [a, b] = nodes;
    const traffic = new Traffic(
      nodes.map(({ storage }) => storage),
      [{ ns: 'plain', name: 'q' }],
    );
    await a.definitions.put('queue', 'before', 1, null);
    await traffic.acknowledged(200);
    await primary.stop('immediate');
    await runSql(standby, 'SELECT pg_promote()');
    await traffic.acknowledged(200);
    assertNothingLost(await traffic.end());
    await until(async () => (await codeOf(b.definitions.get('queue', 'before'))) === 'done');
    assert.equal((await b.definitions.get('queue', 'before'))?.value, 1);
    await Promise.all(nodes.map((node) => node.stop()));
  });
});

/**
 * Blocks the event loop, so that no socket of this process is read, until PostgreSQL has popped all elements and
 * replied.
 */
function waitForPop(url: string, schema: string): void {
  const program = `
    const client = new (require('pg').Client)({ connectionString: ${JSON.stringify(url)} });
    const query = "SELECT FROM ${schema}.delivery UNION ALL SELECT FROM pg_stat_activity"
      + " WHERE application_name LIKE 'quayside main %' AND state = 'active'";
    client.connect().then(async () => {
      while ((await client.query(query)).rowCount > 0);
      await client.end();
    });`;
  execFileSync(process.execPath, ['-e', program]);
}

describe('A node that was suspended for longer than calls may take', () => {
  it('returns the elements that PostgreSQL popped for it in that time', async (t) => {
    const server = await PostgresServer.start({ settings: { fsync: 'off' } });
    t.after(() => server.dispose());
    const clock = new SuspendedClock();
    const schema = freshSchema();
    const engine = await openNode(server, { schema, clock });
    t.after(() => engine.stop());
    const queue = { ns: 'plain', name: 'q' };
    await engine.storage.insert(queue, newElements('a', 'b'));
    server.signalAll('SIGSTOP');
    const popped = pop(engine, queue);
    popped.catch(() => {});
    // The pop is sent within a few turns.
    for (let turn = 0; turn < 10; turn += 1) await new Promise((resolve) => setImmediate(resolve));
    server.signalAll('SIGCONT');
    waitForPop(server.url(), schema);
    clock.suspend();
    assert.deepEqual(bodyTexts((await popped).deliveries), ['a', 'b']);
  });
});
