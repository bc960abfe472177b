import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Finding } from '../../src/engine/engine.ts';
import { freshSchema, runSql, sharedServer } from '../engines/postgres.ts';
import { CertificateAuthority, writeCertificate } from '../support/certificate.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { Folder, type ProgramOptions } from './program.ts';

const REDIS_PAGE = new URL('../../docs/engines/redis.md', import.meta.url);
const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
const run = promisify(execFile);

const SQLITE = { N: { url: 'sqlite:N.db' } };
/** Fewer than any limit of open files. */
const FEW_SOCKETS = { maxSockets: 100 };
/** Only root may listen on this port, and no test does. */
const NO_SERVER = 'http://127.0.0.1:1';

interface Report {
  readonly code: number | null;
  readonly findings: readonly Finding[];
  readonly stderr: string;
}

describe('quayside doctor', () => {
  let folder: Folder;
  beforeEach(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  afterEach(() => folder.dispose());

  /** @param url null uses the configured address */
  async function doctor(
    config: object,
    url: string | null = NO_SERVER,
    options: ProgramOptions = {},
  ): Promise<Report> {
    await folder.write('config.json', config);
    const args = ['doctor', '--config', 'config.json', ...(url === null ? [] : ['--url', url])];
    const { code, stdout, stderr } = await folder.run(args, options);
    const lines = stdout.split('\n').filter((line) => line !== '');
    return { code, findings: lines.map((line) => JSON.parse(line)), stderr };
  }

  /** The findings of checks whose name contains `check`, as `level: message; hint`. */
  const found = ({ findings }: Report, check: string): string[] =>
    findings
      .filter((finding) => finding.check.includes(check))
      .map(({ level, message, hint }) => `${level}: ${message}${hint === null ? '' : `; ${hint}`}`);

  const matches = (texts: readonly string[], ...patterns: RegExp[]): void => {
    assert.equal(texts.length, patterns.length, texts.join('\n'));
    for (const [i, pattern] of patterns.entries()) assert.match(texts[i] ?? '', pattern);
  };

  it('reports only that no server is listening before the first start, and creates nothing', async () => {
    const report = await doctor({ namespaces: SQLITE, http: FEW_SOCKETS }, NO_SERVER, { ownProcess: true });
    assert.equal(report.code, 0, report.stderr);
    const notOk = report.findings.filter(({ level }) => level !== 'ok');
    assert.deepEqual(notOk, [
      {
        level: 'warning',
        check: 'server',
        message: `no server listens at ${NO_SERVER}`,
        hint: 'start it, or name its address with --url',
      },
    ]);
    matches(found(report, 'dataDir'), /^ok: .*data does not exist; the server creates it/);
    assert.ok(!existsSync(folder.file('data')));
  });

  it('warns, as a start does, of a SQLite file of an earlier start that no namespace names any more', async () => {
    const other = { N: { url: 'sqlite:other.db' } };
    await folder.write('config.json', { namespaces: SQLITE });
    await (await folder.serve(['--config', 'config.json'])).stop();
    const file = folder.file('data/N.db');
    for (const namespaces of [
      SQLITE,
      { N: { url: `sqlite:${file}` } },
      { N: other.N, S: { ...other.N, stats: SQLITE.N } },
    ]) {
      assert.ok(!found(await doctor({ namespaces }), 'dataDir').some((text) => text.includes('N.db')));
    }
    const expected = `no namespace names the SQLite file ${file}: nobody gets elements that it still has; name it by`;
    const warnings = found(await doctor({ namespaces: other }), 'dataDir');
    assert.ok(
      warnings.some((text) => text.startsWith(`warning: ${expected}`)),
      warnings.join(),
    );
    const server = await folder.serve(['--config', 'config.json']);
    assert.ok(`${server.stdout}${server.stderr}`.includes(expected));
  });

  it('names users.json if it cannot be used', async () => {
    mkdirSync(folder.file('data'), { mode: 0o700 });
    writeFileSync(folder.file('data/users.json'), '{}', { mode: 0o600 });
    const report = await doctor({ namespaces: SQLITE });
    assert.equal(report.code, 1, report.stderr);
    matches(found(report, 'configuration'), /^error: \S+data\/users\.json cannot be used: .*reset-admin/);
  });

  it('queries the running server and reads the limits of its process', async () => {
    await folder.write('config.json', { namespaces: SQLITE });
    const server = await folder.serve(['--config', 'config.json']);
    chmodSync(folder.file('data'), 0o755);
    const report = await doctor({ namespaces: SQLITE, http: { maxSockets: 2_000_000_000 } }, server.url);
    assert.equal(report.code, 0, report.stderr);
    matches(found(report, 'server'), /^ok: http:\S+ responds 200 to \/readyz$/);
    matches(found(report, 'dataDir'), /^warning: .*data has mode 0755, .*; run chmod 700 on it$/);
    matches(found(report, 'sqlite:'), /^ok: its files take \d+ MiB, and [\d,]+ MiB are free$/);
    matches(
      found(report, 'open files'),
      new RegExp(`^warning: process ${server.pid} may open \\d+ files, no more .*; raise the limit`),
    );
  });

  it('accepts a limit of open files only if it is above the connections that may be open', async () => {
    const maxSockets = (most: number): Promise<Report> =>
      doctor({ namespaces: SQLITE, http: { port: 1, maxSockets: most } });
    const [, limit = ''] =
      /may open (\d+) files/.exec(found(await maxSockets(1), 'open files')[0] ?? '') ?? [];
    matches(found(await maxSockets(Number(limit) - 1), 'open files'), /^ok: /);
    matches(
      found(await maxSockets(Number(limit)), 'open files'),
      /^warning: this process may open \d+ files, no more than the connections that it may keep/,
    );
  });

  for (const [what, respond, expected] of [
    [
      'a server that is not ready',
      (response) => response.writeHead(503).end(),
      /^error: http:\S+ responds 503 to \/readyz; request \/readyz with/,
    ],
    [
      'the page of a proxy',
      (response) => response.end('<p>Log in</p>'),
      /^error: http:\S+ responds 200 to \/readyz, but not as a server of Quayside; a proxy may have responded/,
    ],
    [
      'a server that does not respond',
      () => {},
      /^error: http:\S+ does not respond within 5 s; see its log, or/,
    ],
  ] satisfies [string, (response: ServerResponse) => void, RegExp][]) {
    it(`reports ${what}`, async () => {
      const server = createServer((_, response) => respond(response)).listen(0, '127.0.0.1');
      await once(server, 'listening');
      try {
        const { port } = server.address() as AddressInfo;
        const report = await doctor({ namespaces: SQLITE }, `http://127.0.0.1:${port}`);
        assert.equal(report.code, 1);
        matches(found(report, 'server'), expected);
      } finally {
        server.close();
        await once(server, 'close');
      }
    });
  }

  for (const [what, content, why] of [
    ['does not exist', null, 'ENOENT'],
    ['contains no certificate', 'rubbish', 'it has none'],
  ] as const) {
    it(`reports that the server cannot be checked if its certificate file ${what}`, async () => {
      if (content !== null) await folder.write('tls.pem', content);
      const http = { port: 1, tls: { cert: 'tls.pem', key: 'tls.pem' } };
      const report = await doctor({ namespaces: SQLITE, http }, null);
      matches(
        found(report, 'server'),
        new RegExp(
          `^error: https:\\S+ cannot be checked: the certificate \\S+tls\\.pem cannot be read \\(${why}\\); see`,
        ),
      );
    });
  }

  it('names the Unix socket on which the server is configured to listen', async () => {
    const host = folder.file('q.sock');
    const missing = await doctor({ namespaces: SQLITE, http: { host } }, null);
    matches(found(missing, 'server'), /^warning: no server listens at unix:\S+q\.sock; start it/);
  });

  it('queries the address of --url even if the server is configured to listen on a Unix socket', async () => {
    const server = createServer((_, response) => response.end('{"status":"ready"}')).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const http = { host: folder.file('none.sock') };
    try {
      const { port } = server.address() as AddressInfo;
      const report = await doctor({ namespaces: SQLITE, http }, `http://127.0.0.1:${port}`);
      matches(found(report, 'server'), /^ok: http:\S+ responds 200 to \/readyz$/);
      const wrong = await doctor({ namespaces: SQLITE, http }, 'ftp://127.0.0.1');
      assert.equal(wrong.code, 1);
      assert.match(wrong.stderr, /^quayside: --url "ftp:\/\/127\.0\.0\.1" is no address\. Allowed:/);
    } finally {
      server.close();
      await once(server, 'close');
    }
  });

  it('reports an unusable data folder, a missing certificate and an invalid URL as errors', async () => {
    writeFileSync(folder.file('file'), '');
    const tls = { cert: 'missing.pem', key: 'missing.pem' };
    const report = await doctor({ namespaces: SQLITE, dataDir: 'file', http: { tls } });
    assert.equal(report.code, 1);
    matches(found(report, 'dataDir'), /^error: dataDir .*file is no folder; Name a folder$/);
    matches(found(report, 'http.tls'), /^error: http\.tls\.\w+ .*missing\.pem cannot be read \(ENOENT\)/);
    assert.equal((await folder.run(['doctor', '--url', 'nowhere'], { ownProcess: true })).code, 1);
  });

  const REJECTED: [why: string, config: object, check: string, error: RegExp][] = [
    [
      'a hash that is too weak',
      { http: { users: { u: `$argon2id$v=19$m=8,t=1,p=1$${'A'.repeat(22)}$${'A'.repeat(43)}` } } },
      'configuration',
      /^error: http\.users\.u\.password is too weak: m=8,t=1,p=1.*; Create a hash/,
    ],
    [
      'rights in an unknown namespace',
      { http: { users: { u: { password: 'x', rights: { M: ['read'] } } } } },
      'configuration',
      /^error: http\.users\.u\.rights\.M there is no such namespace; Name one of N, or \*$/,
    ],
    [
      'a proxy that is not a network',
      { http: { trustedProxies: ['10.0.0.0/33'] } },
      'configuration',
      /^error: http\.trustedProxies\.0 .*10\.0\.0\.0\/33/,
    ],
    [
      'an exchange to an unknown namespace',
      { exchanges: { x: { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'M', queue: 'b' }], consumer: {} } } },
      'exchanges',
      /^error: exchanges\.x dst\[0\]\.ns: there is no namespace "M"; Correct its declaration$/,
    ],
    [
      'an exchange with a selector that does not parse',
      {
        exchanges: {
          x: { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'N', queue: 'b', selector: '(' }], consumer: {} },
        },
      },
      'exchanges',
      /^error: exchanges\.x .*dst\[0\]\.selector.*; Correct its declaration$/,
    ],
  ];
  for (const [why, config, check, error] of REJECTED) {
    it(`reports ${why}, which also prevents a start`, async () => {
      const report = await doctor({ namespaces: SQLITE, ...config });
      assert.equal(report.code, 1, report.stderr);
      matches(
        found(report, check).filter((text) => text.startsWith('error')),
        error,
      );
      assert.equal((await folder.run(['--config', 'config.json'])).code, 2);
    });
  }

  it('checks the configured exchanges without storing them', async () => {
    const x = {
      src: { ns: 'N', queue: 'a' },
      dst: [{ ns: 'N', queue: 'b', selector: 'env => env.msg.tries > 0' }],
      consumer: {},
    };
    const report = await doctor({ namespaces: SQLITE, exchanges: { x } });
    assert.equal(report.code, 0, report.stderr);
    matches(found(report, 'exchanges'), /^ok: those of the configuration can run: 1$/);
    assert.ok(!existsSync(folder.file('data')));
  });

  it('warns of a certificate that expires soon and reports an expired one as an error', async () => {
    const tls = { cert: 'cert.pem', key: 'key.pem' };
    writeCertificate({ cert: folder.file('cert.pem'), key: folder.file('key.pem') });
    const soon = await doctor({ namespaces: SQLITE, http: { tls } });
    assert.equal(soon.code, 0, soon.stderr);
    matches(found(soon, 'http.tls'), /^warning: CN=localhost in .*cert\.pem is valid until \S+Z; renew it/);

    const { cert, key } = new CertificateAuthority().sign('/CN=expired', { days: -1 });
    writeFileSync(folder.file('cert.pem'), cert);
    writeFileSync(folder.file('key.pem'), key);
    chmodSync(folder.file('key.pem'), 0o604);
    const expired = await doctor({ namespaces: SQLITE, http: { tls } });
    assert.equal(expired.code, 1);
    matches(
      found(expired, 'http.tls'),
      /^warning: everybody on this machine may read .*key\.pem/,
      /^error: CN=expired in .*cert\.pem expired at \S+Z; renew it, and send SIGHUP/,
    );
  });

  it('accepts a server only with the configured certificate, not with another one of the same CA', async () => {
    const authority = new CertificateAuthority();
    const write = ({ cert, key }: { cert: string; key: string }, chain: string): void => {
      writeFileSync(folder.file('cert.pem'), cert + chain);
      writeFileSync(folder.file('key.pem'), key);
      chmodSync(folder.file('key.pem'), 0o600);
    };
    const tls = { cert: 'cert.pem', key: 'key.pem' };
    const config = { namespaces: SQLITE, http: { tls } };
    const own = authority.sign('/CN=jobs.example', { usage: 'serverAuth', days: 100 });
    write(own, authority.cert);
    await folder.write('config.json', config);
    const server = await folder.serve(['--config', 'config.json']);
    // Uses the configured address, so that the configured certificate is expected there.
    const http = { tls, port: Number(new URL(server.url).port) };
    const report = async (): Promise<readonly string[]> => {
      await folder.write('asked.json', { ...config, http });
      const { stdout } = await folder.run(['doctor', '--config', 'asked.json']);
      const lines = stdout.split('\n').filter((line) => line !== '');
      return found({ code: 0, stderr: '', findings: lines.map((line) => JSON.parse(line)) }, 'server');
    };
    matches(await report(), /^ok: https:\S+ responds 200 to \/readyz$/);
    write(own, '');
    matches(await report(), /^ok: https:\S+ responds 200 to \/readyz$/);

    matches(found(await doctor(config, server.url), 'server'), /^ok: https:\S+ responds 200 to \/readyz$/);

    write(authority.sign('/CN=jobs.example', { usage: 'serverAuth', days: 100 }), authority.cert);
    matches(
      await report(),
      /^error: https:\S+ cannot be checked: its certificate is not the one in \S+cert\.pem; if that was renewed, send SIGHUP to the server/,
    );
  });

  it('prints text on a terminal, and JSON there with --json', async () => {
    await folder.write('config.json', { namespaces: SQLITE, http: FEW_SOCKETS });
    const command = `${process.execPath} ${MAIN} doctor --config config.json --url ${NO_SERVER}`;
    const onTerminal = async (flags: string): Promise<string[]> => {
      const { stdout } = await run('script', ['-qec', `${command} ${flags}`, '/dev/null'], {
        cwd: folder.path,
      });
      return stdout.trimEnd().split('\r\n');
    };
    const lines = await onTerminal('');
    assert.match(lines[0] ?? '', /^ok {7}configuration: it can be used; namespaces: 1$/);
    assert.deepEqual(lines.slice(-3), [
      `warning  server: no server listens at ${NO_SERVER}`,
      '         start it, or name its address with --url',
      'errors: 0, warnings: 1',
    ]);
    for (const line of await onTerminal('--json')) assert.ok(JSON.parse(line).level);
  });

  describe('on Redis', () => {
    let server: RedisServer;
    before(async () => {
      server = await startRedis();
    });
    after(() => server.stop());

    const cli = (...words: string[]): string => redisCli(server.port, ...words);

    it('prints its findings once if several engines use the server', async () => {
      const { url } = server;
      const namespaces = { R: { url }, L: { url, variant: 'list' }, P: { url: `${url}?prefix=p` } };
      const findings = found(await doctor({ namespaces }), 'redis:');
      assert.equal(findings.filter((text) => /it is version/.test(text)).length, 1, findings.join('\n'));
    });

    it('reports settings that endanger elements, and loads no functions', async () => {
      const config = { namespaces: { N: { url: server.url } } };
      const good = await doctor(config);
      assert.equal(good.code, 0, good.stderr);
      matches(
        found(good, 'redis:'),
        /^ok: it is version \d/,
        /^ok: its maxmemory-policy is noeviction$/,
        /^ok: it keeps an append-only file; its appendfsync is everysec$/,
        /^ok: its connected replicas: 0; /,
        /^ok: its clock and that of this machine are 0\.\d s apart$/,
      );
      assert.equal(cli('FUNCTION', 'LIST').trim(), '');

      cli('CONFIG', 'SET', 'appendonly', 'no');
      const bad = await doctor({ namespaces: { N: { url: `${server.url}?wait=2` } } });
      assert.equal(bad.code, 1);
      const [, , appendOnly = '', replicas = ''] = found(bad, 'redis:');
      assert.match(appendOnly, /^warning: it keeps no append-only file: .*; set appendonly yes$/);
      assert.match(replicas, /^error: its connected replicas: 0; wait is 2, .*; connect the replicas/);

      cli('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
      const evicting = await doctor(config);
      assert.equal(evicting.code, 1);
      matches(found(evicting, 'redis:'), /^error: .*maxmemory-policy is allkeys-lru.*; set maxmemory-policy/);
    });

    it('reports a login that fails and each right without which the server does not start or work', async () => {
      cli('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
      const [, words = ''] = /^ACL SETUSER quayside (.*)$/m.exec(readFileSync(REDIS_PAGE, 'utf8')) ?? [];
      const rights = words.replaceAll("'", '').split(' ');
      const config = { namespaces: { N: { url: `redis://quayside:CHANGE-ME@127.0.0.1:${server.port}` } } };
      const withUser = async (...further: string[]): Promise<Report> => {
        cli('ACL', 'SETUSER', 'quayside', 'reset', ...rights, ...further);
        return doctor(config);
      };
      const good = await withUser();
      assert.equal(good.code, 0, found(good, 'redis:').join('\n'));

      const wrong = await withUser('resetpass', '>other');
      matches(
        found(wrong, 'redis:'),
        /^error: .*: WRONGPASS .*; correct user and password in the namespace's url$/,
      );
      const address = `127.0.0.1:${server.port}`;
      const several = await doctor({
        namespaces: { N: { url: `redis://quayside:CHANGE-ME@${address},${address}` } },
      });
      matches(
        found(several, 'redis:'),
        new RegExp(`^error: .*: ${address}: WRONGPASS .*; correct user and password in the namespace's url$`),
      );
      for (const [missing, named] of [
        ['-info', "'info'"],
        ['-function|list', "'function|list'"],
        ['-function|load', "'function|load'"],
        ['-fcall', "'fcall'"],
        ['-subscribe', "'subscribe'"],
        ['resetkeys', 'keys'],
        ['resetchannels', 'channels'],
      ] as const) {
        const report = await withUser(missing);
        assert.equal(report.code, 1, missing);
        matches(
          found(report, 'redis:'),
          new RegExp(`^error: .*: NOPERM .*${named.replace('|', '\\|')}.*; give the user the rights`),
        );
      }
      assert.equal(cli('FUNCTION', 'LIST').trim(), '');
    });
  });

  describe('on PostgreSQL', () => {
    it('reports settings that endanger elements, and creates no schema', async () => {
      const server = await sharedServer();
      const schema = freshSchema();
      const url = server.url({ parameters: `?schema=${schema}&synchronousCommit=off` });
      const report = await doctor({ namespaces: { N: { url } } });
      const fsync = (await runSql(server, 'SHOW fsync')).rows[0].fsync;
      assert.equal(report.code, fsync === 'on' ? 0 : 1, report.stderr);
      const texts = found(report, 'postgres:');
      assert.equal(texts.length, 7);
      assert.match(texts[0] ?? '', /^ok: it is PostgreSQL \d/);
      assert.match(
        texts[1] ?? '',
        /^warning: synchronous_commit is off: .*; remove synchronousCommit from the URL/,
      );
      assert.match(
        texts[2] ?? '',
        fsync === 'on' ? /^ok: fsync is on$/ : /^error: fsync is off: .*; set fsync/,
      );
      assert.equal(texts[4], 'ok: autovacuum is on');
      assert.match(texts[5] ?? '', /^ok: its clock and that of this machine are 0\.\d s apart$/);
      const [, , , , , , ofSchema] = texts;
      assert.equal(
        ofSchema,
        `ok: the user may use the schema "${schema}"; the first node creates its tables`,
      );
      const { rows } = await runSql(server, `SELECT 1 FROM pg_namespace WHERE nspname = '${schema}'`);
      assert.deepEqual(rows, []);
    });

    it('reports a schema that another version wrote', async (t) => {
      const server = await sharedServer();
      const schema = freshSchema();
      const url = server.url({ parameters: `?schema=${schema}` });
      await runSql(
        server,
        `CREATE SCHEMA ${schema}; CREATE TABLE ${schema}.meta AS VALUES ('version', '99'), ('tag', 'abcd');
        ALTER TABLE ${schema}.meta RENAME column1 TO key; ALTER TABLE ${schema}.meta RENAME column2 TO value`,
      );
      t.after(() => runSql(server, `DROP SCHEMA ${schema} CASCADE`));
      const report = await doctor({ namespaces: { N: { url } } });
      assert.equal(report.code, 1);
      const expected = new RegExp(
        `^error: schema "${schema}" has tables of version "99"; this Quayside needs version "2"`,
      );
      assert.match(found(report, 'postgres:').at(-1) ?? '', expected);
    });

    it('reports a schema that the user may not create or use', async (t) => {
      const server = await sharedServer();
      const [user, schema] = [freshSchema(), freshSchema()];
      await runSql(server, `CREATE ROLE ${user} LOGIN PASSWORD 'x'; CREATE SCHEMA ${schema}`);
      t.after(() => runSql(server, `DROP SCHEMA ${schema}; DROP ROLE ${user}`));
      for (const [name, expected] of [
        [freshSchema(), /^error: the user may not create the schema "\w+"; grant CREATE on the database/],
        [schema, /^error: the user may not create tables in the schema "\w+"; make them the owner/],
      ] as const) {
        const url = `postgres://${user}:x@127.0.0.1:${server.port}/postgres?schema=${name}`;
        const report = await doctor({ namespaces: { N: { url } } });
        assert.equal(report.code, 1);
        assert.match(found(report, 'postgres:').at(-1) ?? '', expected);
      }
    });

    it('names max_connections and limits of the login if the server accepts no further connection', async (t) => {
      const server = await sharedServer();
      const user = freshSchema();
      await runSql(server, `CREATE ROLE ${user} LOGIN PASSWORD 'x' CONNECTION LIMIT 0`);
      t.after(() => runSql(server, `DROP ROLE ${user}`));
      const url = `postgres://${user}:x@127.0.0.1:${server.port}/postgres`;
      const report = await doctor({ namespaces: { N: { url } } });
      assert.equal(report.code, 1);
      matches(
        found(report, 'postgres:'),
        /^error: .*: PostgreSQL error 53300: too many connections .*; raise max_connections, .* CONNECTION LIMIT .* three connections/,
      );
    });

    it('reports that hosts of the URL are different primaries, but not that a host is a standby', async (t) => {
      const primary = await PostgresServer.start({ settings: { fsync: 'off' } });
      t.after(() => primary.dispose());
      const standby = await primary.startStandby();
      t.after(() => standby.dispose());
      const third = await primary.startStandby();
      t.after(() => third.dispose());
      const hostOf = ({ port }: PostgresServer): string => `127.0.0.1:${port}`;
      const primaries = async (...servers: PostgresServer[]): Promise<readonly string[]> => {
        const url = primary.url().replace(hostOf(primary), servers.map(hostOf).join(','));
        const report = await doctor({ namespaces: { N: { url } } });
        return found(report, 'postgres:').filter((text) => text.includes('primar'));
      };
      assert.deepEqual(await primaries(primary, standby), []);
      assert.deepEqual(await primaries(primary, primary), []);
      await runSql(standby, 'SELECT pg_promote()');
      matches(
        await primaries(primary, standby),
        new RegExp(
          `^error: its hosts are different primaries: ${hostOf(primary)} on timeline 1, ${hostOf(standby)} on timeline 2; stop the one that was replaced`,
        ),
      );
      await runSql(third, 'SELECT pg_promote()');
      matches(
        await primaries(third, standby),
        new RegExp(`: ${hostOf(third)} on timeline 2, ${hostOf(standby)} on timeline 2; stop the one`),
      );
    });

    it('warns if track_counts is off, which disables autovacuum', async (t) => {
      const server = await sharedServer();
      const user = freshSchema();
      await runSql(
        server,
        `CREATE ROLE ${user} LOGIN PASSWORD 'x'; ALTER ROLE ${user} SET track_counts = off`,
      );
      t.after(() => runSql(server, `DROP ROLE ${user}`));
      const url = `postgres://${user}:x@127.0.0.1:${server.port}/postgres`;
      const report = await doctor({ namespaces: { N: { url } } });
      const [, , , , autovacuum = ''] = found(report, 'postgres:');
      assert.match(autovacuum, /^warning: track_counts is off: .*; set autovacuum = on/);
    });
  });
});
