import assert from 'node:assert/strict';
import { it, type TestContext } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Connection } from '../../src/engines/postgres/connection.ts';
import { Link } from '../../src/engines/postgres/link.ts';
import { readSettings } from '../../src/engines/postgres/settings.ts';
import { type CancelTimer, systemClock } from '../../src/util/clock.ts';
import { FakeClock, patient, SuspendedClock } from '../support/clock.ts';
import { newElements } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { CountingClock, freshSchema, runSql, SILENT, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

it('A link to PostgreSQL closes its connection properly when it is stopped, and leaves no earlier one open', async (t) => {
  const server = await sharedServer();
  // Closing may take a second, and more on a busy machine.
  const clock = new CountingClock(patient(systemClock));
  const options = {
    url: server.url(),
    dataDir: '',
    namespaces: [],
    clock,
    dedupWindowMs: 1,
    settings: {},
    log: SILENT,
  };
  let back = Promise.withResolvers<void>();
  const link = new Link(readSettings(options), 'main', options, {
    prepare: async () => {},
    onReconnected: () => back.resolve(),
  });
  await link.start();
  for (let round = 0; round < 3; round++) {
    back = Promise.withResolvers();
    link.drop('asked for by a test');
    await back.promise;
  }
  const destroyed = t.mock.method(Connection.prototype, 'destroy');
  const closed = t.mock.method(Connection.prototype, 'close');
  await link.stop();
  assert.deepEqual([destroyed.mock.callCount(), closed.mock.callCount()], [0, 1]);
  assert.equal(clock.pending, 0);
});

it('A PostgreSQL session sets its own timeouts, whatever an administrator has set for its user', async (t) => {
  const server = await sharedServer();
  const user = freshSchema();
  const expected = new Map([
    ['statement_timeout', '3s'],
    ['lock_timeout', '1500ms'],
    ['idle_in_transaction_session_timeout', '5s'],
    ['idle_session_timeout', '0'],
    ['transaction_timeout', '0'],
  ]);
  // PostgreSQL has `transaction_timeout` since 17.
  const { rows: existing } = await runSql(server, 'SELECT name FROM pg_settings');
  const limits = [...expected.keys()].filter((limit) => existing.some(({ name }) => name === limit));
  await runSql(
    server,
    `CREATE ROLE ${user} LOGIN PASSWORD 'x'; ${limits.map((name) => `ALTER ROLE ${user} SET ${name} = '1h'`).join('; ')}`,
  );
  t.after(() => runSql(server, `DROP ROLE ${user}`));
  const connection = connectionOf(user, server);
  await connection.open();
  const shown = limits.map((name) => `current_setting('${name}')`).join(', ');
  const rows = await connection.query({ name: 'limits', text: `SELECT ${shown}` }, []);
  await connection.close();
  assert.deepEqual(rows, [limits.map((name) => expected.get(name))]);
});

it('A PostgreSQL session is ended by its successor, even if its user takes another role', async (t) => {
  const server = await sharedServer();
  const [user, owner] = [freshSchema(), freshSchema()];
  await runSql(
    server,
    `CREATE ROLE ${user} LOGIN PASSWORD 'x'; CREATE ROLE ${owner} NOLOGIN; GRANT ${owner} TO ${user}; ALTER ROLE ${user} SET role = '${owner}'`,
  );
  t.after(() => runSql(server, `DROP ROLE ${user}, ${owner}`));
  const ended = Promise.withResolvers<Error>();
  const [old, successor] = [connectionOf(user, server, ended.resolve), connectionOf(user, server)];
  await old.open();
  await successor.open();
  await successor.endSession(old.name);
  assert.match(String((await ended.promise).message), /administrator command/);
  const role = await successor.query({ name: 'role', text: 'SELECT current_user' }, []);
  await successor.close();
  assert.deepEqual(role, [[owner]]);
});

it('A PostgreSQL session that a pooler shares between connections without a reset is rejected', async (t) => {
  const server = await sharedServer();
  const user = freshSchema();
  // The role's setting stands for one that an earlier connection left in the session.
  await runSql(
    server,
    `CREATE ROLE ${user} LOGIN PASSWORD 'x'; ALTER ROLE ${user} SET quayside.session = 'used'`,
  );
  t.after(() => runSql(server, `DROP ROLE ${user}`));
  const connection = connectionOf(user, server);
  await assert.rejects(
    connection.open(),
    /a connection pooler shares one session .*; configure session mode/,
  );
  connection.destroy();
});

it('A PostgreSQL transaction is rolled back if the callback that reads its results throws', async (t) => {
  const server = await sharedServer();
  const user = freshSchema();
  await runSql(server, `CREATE ROLE ${user} LOGIN PASSWORD 'x'`);
  t.after(() => runSql(server, `DROP ROLE ${user}`));
  const connection = connectionOf(user, server);
  await connection.open();
  await connection.run('CREATE TEMP TABLE kept (name text)');
  const insert = { name: 'insert', text: 'INSERT INTO kept VALUES ($1)' };
  const judged = connection.transact([{ statement: insert, values: ['never'] }], () => {
    throw new Error('asked for by a test');
  });
  await assert.rejects(judged, { message: 'asked for by a test' });
  await connection.transact([
    { statement: insert, values: ['a'] },
    { statement: insert, values: ['b'] },
  ]);
  const rows = await connection.query({ name: 'kept', text: 'SELECT name FROM kept ORDER BY name' }, []);
  await connection.close();
  assert.deepEqual(rows, [['a'], ['b']]);
});

/** Ends pauses of up to a second immediately. */
class HastyClock extends CountingClock {
  override after(delayMs: number, run: () => void): CancelTimer {
    return super.after(delayMs <= 1000 ? 0 : delayMs, run);
  }
}

it('A link to several PostgreSQL hosts logs once per host why it cannot be used', async (t) => {
  const server = await sharedServer();
  const user = freshSchema();
  await runSql(server, `CREATE ROLE ${user} LOGIN PASSWORD 'x'`);
  t.after(() => runSql(server, `DROP ROLE ${user}`));
  const reasons: unknown[] = [];
  const options = {
    url: `postgres://${user}:x@127.0.0.1:${server.port},127.0.0.1:1/postgres`,
    dataDir: '',
    namespaces: [],
    clock: new HastyClock(),
    dedupWindowMs: 1,
    settings: {},
    log: { info: () => {}, warn: ({ reason }: Record<string, unknown>) => reasons.push(reason) },
  };
  const link = new Link(readSettings(options), 'main', options, {});
  await link.start();
  await runSql(server, `ALTER ROLE ${user} NOLOGIN`);
  const opened = t.mock.method(Connection.prototype, 'open');
  link.drop('asked for by a test');
  await until(() => opened.mock.callCount() > 8);
  await link.stop();
  const [dropped, ...others] = reasons.map(String);
  assert.equal(dropped, 'asked for by a test');
  assert.deepEqual(others.map((reason) => /ECONNREFUSED|not permitted to log in/.exec(reason)?.[0]).sort(), [
    'ECONNREFUSED',
    'not permitted to log in',
  ]);
});

/** A link to a server that accepts connections and sends nothing; its clock moves only when the test advances it. */
async function linkToSilent(t: TestContext, clock: FakeClock, hosts: number) {
  const proxy = await TcpProxy.start((await sharedServer()).port);
  t.after(() => proxy.stop());
  proxy.state = 'dark';
  const url = new URL((await sharedServer()).url());
  url.port = String(proxy.port);
  const each = `127.0.0.1:${proxy.port}`;
  const options = {
    url: url.href.replace(url.host, Array.from({ length: hosts }, () => each).join(',')),
    dataDir: '',
    namespaces: [],
    clock,
    dedupWindowMs: 1,
    settings: {},
    log: SILENT,
  };
  return { proxy, link: new Link(readSettings(options), 'main', options, {}) };
}

it('A start waits 15 s for a silent PostgreSQL server, and 5 s if there is another host to try', async (t) => {
  const clock = new FakeClock();
  const { link } = await linkToSilent(t, clock, 2);
  const opened = t.mock.method(Connection.prototype, 'open');
  let error: Error | null = null;
  const starting = link.start().catch((reason: Error) => {
    error = reason;
  });
  clock.advance(4_999);
  await turn();
  assert.equal(opened.mock.callCount(), 1);
  clock.advance(1);
  await until(() => opened.mock.callCount() === 2);
  clock.advance(14_999);
  await turn();
  assert.equal(error, null);
  clock.advance(1);
  await starting;
  assert.match(
    String(error),
    /: it did not reply within 5 s, it did not reply within 15 s; check that the server is running/,
  );
  assert.equal(clock.pending, 0);
  await link.stop();
});

it('A node that was suspended while it connected to PostgreSQL uses the connection if the server had replied', async (t) => {
  const clock = new SuspendedClock();
  const { proxy, link } = await linkToSilent(t, clock, 1);
  proxy.state = 'open';
  const [replied, read] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const { open } = Connection.prototype;
  t.mock.method(Connection.prototype, 'open', async function (this: Connection) {
    await open.call(this);
    replied.resolve();
    await read.promise;
  });
  const starting = link.start();
  await replied.promise;
  setImmediate(read.resolve);
  clock.suspend(15_000);
  await starting;
  assert.equal(link.connection?.isOpen, true);
  await link.stop();
});

function connectionOf(
  user: string,
  { port }: PostgresServer,
  lost: (reason: Error) => void = () => {},
): Connection {
  const url = `postgres://${user}:x@127.0.0.1:${port}/postgres`;
  const options = { url, dataDir: '', namespaces: [], clock: new CountingClock(), dedupWindowMs: 1 };
  const { clock } = options;
  const settings = readSettings({ ...options, settings: {}, log: SILENT });
  const [host] = settings.hosts;
  assert.ok(host);
  return new Connection(settings, host, 'main', {
    clock,
    events: { onLost: lost, onNotification: () => {} },
  });
}

it('PostgreSQL may reject calls: the reason is logged, once a minute, and further ones are counted', async (t) => {
  const server = await sharedServer();
  const schema = freshSchema();
  const lines: (readonly [fields: object, message: string])[] = [];
  const log = { info: () => {}, warn: (...line: [object, string]) => lines.push(line) };
  const node = await openNode(server, { schema, log });
  t.after(() => runSql(server, `DROP SCHEMA ${schema} CASCADE`));
  await runSql(
    server,
    `ALTER TABLE ${schema}.delivery ADD CONSTRAINT none CHECK (false) NOT VALID;
    ALTER TABLE ${schema}.definition ADD CONSTRAINT none CHECK (false) NOT VALID`,
  );
  for (let i = 0; i < 3; i++) {
    await assert.rejects(node.storage.insert({ ns: 'plain', name: 'q' }, newElements('secret')), {
      code: 'storage-unavailable',
    });
  }
  await assert.rejects(node.definitions.put('token', 'key', 'secret', 'any'), {
    code: 'storage-unavailable',
  });
  await node.stop();
  const name = server.url().replace(/\/\/.*@/, '//***@');
  const reason = (table: string): string =>
    `PostgreSQL error 23514: new row for relation "${table}" violates check constraint "none"`;
  assert.deepEqual(lines, [
    [{ server: name, role: 'main', reason: reason('delivery') }, 'PostgreSQL rejected a call'],
    [{ server: name, role: 'second', reason: reason('definition') }, 'PostgreSQL rejected a call'],
    [
      { server: name, role: 'main', code: '23514', leftOut: 2 },
      'PostgreSQL rejected further calls; their lines were left out',
    ],
  ]);
});
