import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { inspect } from 'node:util';
import type { Engine } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/postgres/index.ts';
import { systemClock } from '../../src/util/clock.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';

const PASSWORD = 'canary-4711';

function engineFor(url: string, settings: Record<string, unknown> = {}, logged: unknown[] = []): Engine {
  return open({
    url,
    dataDir: '',
    namespaces: [],
    clock: systemClock,
    dedupWindowMs: 1000,
    settings,
    log: { info: (...record) => logged.push(record), warn: (...record) => logged.push(record) },
  });
}

/**
 * Returns the message with which the engine's start is rejected, or 'started'. Asserts that neither error nor log has
 * the password.
 */
async function startError(url: string, settings?: Record<string, unknown>): Promise<string> {
  const logged: unknown[] = [];
  let engine: Engine | null = null;
  try {
    engine = engineFor(url, settings, logged);
    await engine.start();
  } catch (error) {
    const shown = inspect([error, logged], { depth: 9, showHidden: true });
    for (const secret of [PASSWORD, encodeURIComponent(PASSWORD)]) assert.ok(!shown.includes(secret), shown);
    return error instanceof Error ? error.message : String(error);
  }
  await engine.stop();
  return 'started';
}

describe('The URL and the settings of a PostgreSQL engine', () => {
  const wrong: [what: string, url: string, settings: Record<string, unknown>, message: RegExp][] = [
    [
      'a URL of another scheme',
      `http://u:${PASSWORD}@h/d`,
      {},
      /\*\*\*@h\/d is not a URL of this engine; write postgres:/,
    ],
    ['an invalid port', `postgres://u:${PASSWORD}@h:x/d`, {}, /"x" is not a port; write a number/],
    ['a percent sign that encodes nothing', `postgres://u:${PASSWORD}%@h/d`, {}, /write %25/],
    ['an unknown parameter', `postgres://u:${PASSWORD}@h/d?a=b`, {}, /unknown setting "a"; allowed: sslmode/],
    [
      'a TLS mode that falls back to no TLS',
      `postgres://u:${PASSWORD}@h/d?sslmode=prefer`,
      {},
      /"sslmode" must be one of disable/,
    ],
    [
      'a missing certificate',
      `postgres://u:${PASSWORD}@h/d?sslrootcert=/none`,
      {},
      /"sslrootcert" names a file/,
    ],
    ['an unknown setting', `postgres://u:${PASSWORD}@h/d`, { shema: 'x' }, /unknown setting "shema"/],
    [
      'a request for a server that may be a standby',
      `postgres://u:${PASSWORD}@h,i/d?target_session_attrs=any`,
      {},
      /"target_session_attrs" must be one of read-write, primary/,
    ],
    [
      'an invalid schema name',
      `postgres://u:${PASSWORD}@h/d`,
      { schema: 'a"b' },
      /"schema" must be 1 to 40 lower-case/,
    ],
    [
      'an unknown durability',
      `postgres://u:${PASSWORD}@h/d`,
      { synchronousCommit: 'yes' },
      /"synchronousCommit" must be one of on, off/,
    ],
  ];
  for (const [what, url, settings, message] of wrong) {
    it(`are rejected if they contain ${what}; the message names it and hides the password`, async () => {
      assert.match(await startError(url, settings), message);
    });
  }

  it('are in the error if the server does not answer, without the password', async () => {
    const nobody = await startError(`postgres://u:${PASSWORD}@127.0.0.1:1/d`);
    assert.match(
      nobody,
      /postgres:\/\/\*\*\*@127\.0\.0\.1:1\/d: connect ECONNREFUSED.*; check that the server is running/,
    );
  });

  it('cause an error about the password if it is wrong', async () => {
    const { port } = await sharedServer();
    assert.match(
      await startError(`postgres://postgres:${PASSWORD}@127.0.0.1:${port}/postgres`),
      /password authentication/,
    );
  });

  it('cause an error about the database if there is none of that name', async () => {
    const server = await sharedServer();
    assert.match(
      await startError(server.url().replace(/postgres$/, 'missing')),
      /database "missing" does not exist; check that .* database, user and password are correct/,
    );
  });

  it('are rejected if the encoding of the database cannot represent all characters', async () => {
    const server = await sharedServer();
    await runSql(server, `CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0`);
    assert.match(await startError(server.url().replace(/postgres$/, 'latin')), /encoding LATIN1/);
  });

  it('need the right to create the schema only if it does not exist', async () => {
    const server = await sharedServer();
    const schema = freshSchema();
    await runSql(server, `CREATE ROLE worker LOGIN PASSWORD '${PASSWORD}'`);
    const url = `postgres://worker:${PASSWORD}@127.0.0.1:${server.port}/postgres?schema=${schema}`;
    assert.match(await startError(url), /may not create the schema .*; grant CREATE/);
    await runSql(server, `CREATE SCHEMA ${schema} AUTHORIZATION worker`);
    assert.equal(await startError(url), 'started');
    await runSql(server, `DROP SCHEMA ${schema} CASCADE; DROP ROLE worker`);
  });

  it('cause an error that names the missing rights on the schema, with or without tables in it', async () => {
    const server = await sharedServer();
    const schema = freshSchema();
    await runSql(server, `CREATE ROLE guest LOGIN PASSWORD '${PASSWORD}'; CREATE SCHEMA ${schema}`);
    const url = `postgres://guest:${PASSWORD}@127.0.0.1:${server.port}/postgres?schema=${schema}`;
    const grant = `GRANT USAGE ON SCHEMA ${schema} TO guest`;
    const revoke = `REVOKE USAGE ON SCHEMA ${schema} FROM guest`;
    assert.match(await startError(url), /may not create tables in the schema .*; make them the owner/);
    await runSql(server, grant);
    assert.match(await startError(url), /may not create tables in the schema .*; make them the owner/);
    const separator = server.url().includes('?') ? '&' : '?';
    assert.equal(await startError(`${server.url()}${separator}schema=${schema}`), 'started');
    assert.match(await startError(url), /may not use the tables of the schema .*; make them the owner/);
    await runSql(server, revoke);
    assert.match(await startError(url), /may not use the tables of the schema .*; make them the owner/);
    await runSql(server, `DROP SCHEMA ${schema} CASCADE; DROP ROLE guest`);
  });

  it('may name several hosts, if one of them answers, as libpq does', async () => {
    const server = await sharedServer();
    const schema = freshSchema();
    const hosts = server.url().replace('127.0.0.1:', 'localhost:1,127.0.0.1:');
    const url = `${hosts}?target_session_attrs=read-write`;
    assert.equal(await startError(url, { schema }), 'started');
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  it('may name a Unix socket, and set the schema and the durability in the URL', async () => {
    const server = await sharedServer();
    const schema = freshSchema();
    const password = encodeURIComponent(server.password);
    const url = `postgres://postgres:${password}@/postgres?host=${server.folder}&port=${server.port}`;
    assert.equal(
      await startError(`${url}&schema=${schema}&synchronousCommit=off`, { schema: undefined }),
      'started',
    );
    const made = await runSql(server, `SELECT 1 FROM pg_namespace WHERE nspname = '${schema}'`);
    assert.equal(made.rows.length, 1);
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });
});

describe('PostgreSQL over TLS', () => {
  let server: PostgresServer;
  let folder: string;
  const url = (parameters: string): string => server.url({ parameters });

  before(async () => {
    folder = mkdtempSync(path.join(tmpdir(), 'quayside-tls-'));
    chmodSync(folder, 0o755);
    makeCertificates(folder);
    server = await PostgresServer.start({
      settings: {
        ssl: 'on',
        ssl_cert_file: path.join(folder, 'server.crt'),
        ssl_key_file: path.join(folder, 'server.key'),
      },
      own: ['server.key', 'server.crt'].map((name) => path.join(folder, name)),
    });
  });
  after(() => {
    server.dispose();
    rmSync(folder, { recursive: true });
  });

  it('is used if the certificate is valid for the host name', async () => {
    const right = url(`?sslmode=verify-full&sslrootcert=${folder}/ca.crt`).replace('127.0.0.1', 'localhost');
    assert.equal(await startError(right), 'started');
  });

  it('is rejected if the certificate is for another name or by an unknown authority', async () => {
    const other = url(`?sslmode=verify-full&sslrootcert=${folder}/ca.crt`);
    assert.match(await startError(other), /IP: 127\.0\.0\.1|does not match/);
    assert.match(
      await startError(url('?sslmode=verify-full').replace('127.0.0.1', 'localhost')),
      /certificate[^;]*; name the authority's PEM file by sslrootcert=FILE in the URL, or install the authority on this system$/,
    );
  });

  it('does not check the name with verify-ca, and checks nothing with require', async () => {
    assert.equal(await startError(url(`?sslmode=verify-ca&sslrootcert=${folder}/ca.crt`)), 'started');
    assert.equal(await startError(url('?sslmode=require')), 'started');
  });

  it('is required by sslmode=require even if the server does not support it', async () => {
    const plain = await sharedServer();
    assert.match(
      await startError(plain.url({ parameters: '?sslmode=require' })),
      /does not support SSL.*; if this port does not use TLS, write sslmode=disable in the URL$/,
    );
  });
});

/** Writes an authority, and a certificate signed by it for the name `localhost` only. */
function makeCertificates(folder: string): void {
  const openssl = (...args: string[]): void => {
    execFileSync('openssl', args, { cwd: folder, stdio: 'ignore' });
  };
  const days = ['-days', '2', '-nodes'];
  openssl(
    'req',
    '-x509',
    '-newkey',
    'rsa:2048',
    ...days,
    '-keyout',
    'ca.key',
    '-out',
    'ca.crt',
    '-subj',
    '/CN=test authority',
  );
  openssl(
    'req',
    '-newkey',
    'rsa:2048',
    '-nodes',
    '-keyout',
    'server.key',
    '-out',
    'server.csr',
    '-subj',
    '/CN=localhost',
    '-addext',
    'subjectAltName=DNS:localhost',
  );
  openssl(
    'x509',
    '-req',
    '-in',
    'server.csr',
    '-CA',
    'ca.crt',
    '-CAkey',
    'ca.key',
    '-CAcreateserial',
    '-days',
    '2',
    '-copy_extensions',
    'copy',
    '-out',
    'server.crt',
  );
  chmodSync(path.join(folder, 'server.key'), 0o600);
}
