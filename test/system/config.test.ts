import assert from 'node:assert/strict';
import { mkdir, symlink } from 'node:fs/promises';
import { createServer } from 'node:net';
import { after, before, describe, it } from 'node:test';
import { describeOptions } from '../../src/config/declared.ts';
import { redisCli, startRedis } from '../support/redis-servers.ts';
import { Folder, type Program } from './program.ts';

const USERS = { test1: 'test1' };

// Each test has its own configuration file, because two tests run at the same time.
describe('A start that fails', { concurrency: 2 }, () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
    await mkdir(folder.file('data/folder.db'), { recursive: true });
    await folder.write('data/damaged.db', 'This is no database. '.repeat(400));
    await folder.write('not.pem', 'CANARY');
    await symlink('loop', folder.file('loop'));
    await symlink('not-mounted', folder.file('link'));
  });

  after(() => folder.dispose());

  const cases: [why: string, config: object, message: RegExp][] = [
    [
      'for an unknown key',
      { http: { prot: 1 } },
      /http\.prot: there is no such option\. Did you mean "port"\?/,
    ],
    [
      'for a value of the wrong type',
      { http: { port: 'CANARY' } },
      /http\.port: must be a whole number from 0/,
    ],
    [
      'for an unknown engine',
      { namespaces: { N: { url: 'slqite:N.db' } } },
      /namespaces\.N\.url: there is no engine "slqite:"\. Use one of sqlite:/,
    ],
    [
      'for MongoDB, which is no longer supported,',
      { namespaces: { N: { url: 'mongodb://user:CANARY@127.0.0.1/db' } } },
      /namespaces\.N\.url: mongodb: \(MongoDB\) is no longer supported\. Use one of sqlite:/,
    ],
    [
      'for a database file that is a folder',
      { namespaces: { N: { url: 'sqlite:folder.db' } } },
      /namespaces\.N\.url: cannot be opened: .*folder\.db.*\. Check that its folder/,
    ],
    [
      'for a data folder that is a file',
      { dataDir: 'data/damaged.db', namespaces: { N: { url: 'sqlite:N.db' } } },
      /dataDir: .*damaged\.db is no folder\. Name a folder\./,
    ],
    [
      'for a data folder that is a link to nothing',
      { dataDir: 'link/data', namespaces: { N: { url: 'sqlite:N.db' } } },
      /dataDir: .*link is a link to nothing\. Create the folder that it names, or name another\./,
    ],
    [
      'for a data folder below a file',
      { dataDir: 'data/damaged.db/a/b', namespaces: { N: { url: 'sqlite:N.db' } } },
      /dataDir: .*damaged\.db is no folder\. Name a folder\./,
    ],
    [
      'for a damaged database',
      { namespaces: { N: { url: 'sqlite:damaged.db' } } },
      /namespaces\.N\.url: cannot be opened: .*damaged\.db.*\. Restore it/,
    ],
    [
      'for two engines',
      { namespaces: { N: { url: 'sqlite:damaged.db' }, M: { url: 'sqlite:folder.db' } } },
      /namespaces\.N\.url: .*damaged\.db[\s\S]*namespaces\.M\.url: .*folder\.db/,
    ],
    [
      'for a data folder that is a link to itself',
      { dataDir: 'loop' },
      /dataDir: .*loop cannot be entered \(ELOOP\)/,
    ],
    [
      'for a weak hash',
      { http: { users: { u: `$argon2id$v=19$m=8,t=1,p=1$${'A'.repeat(22)}$${'A'.repeat(43)}` } } },
      /http\.users\.u\.password: is too weak: m=8,t=1,p=1.*hash-password/,
    ],
    [
      'for an unknown right',
      { http: { users: { u: { password: 'x', rights: { N: ['reed'] } } } } },
      /http\.users\.u\.rights\.N: there is no right "reed"\. Choose among read, write, manage, browse, exchange/,
    ],
    [
      'for an exchange to an unknown namespace',
      {
        exchanges: {
          good: { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'N', queue: 'b' }], consumer: {} },
          bad: { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'Z', queue: 'b' }], consumer: {} },
        },
      },
      /exchanges\.bad: dst\[0\]\.ns: there is no namespace "Z"\. Correct its declaration/,
    ],
    [
      'for a selector that does not parse',
      {
        exchanges: {
          bad: { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'N', queue: 'b', selector: '(' }], consumer: {} },
        },
      },
      /exchanges\.bad: .*dst\[0\]\.selector.*Correct its declaration/,
    ],
    [
      'for a missing certificate file',
      { http: { users: USERS, tls: { cert: 'no.pem', key: 'no.pem' } } },
      /http\.tls\.cert: .*no\.pem cannot be read \(ENOENT\)/,
    ],
    [
      'for a file that is not a certificate',
      { http: { users: USERS, tls: { cert: 'not.pem', key: 'not.pem' } } },
      /http\.tls\.key: does not serve with .*not\.pem/,
    ],
    [
      'for listening on all addresses without TLS',
      { http: { host: '0.0.0.0' } },
      /http\.host: .*http\.insecure: true/,
    ],
    [
      'for an address in brackets, as in a URL,',
      { http: { host: '[::1]' } },
      /http\.host: \[::1\] is an address in brackets\. Write ::1\.$/m,
    ],
  ];
  for (const [i, [why, config, message]] of cases.entries()) {
    it(`${why} names the file, the option and a hint, and exits with 2`, async () => {
      const http = { port: 0, users: USERS, ...('http' in config && (config.http as object)) };
      const namespaces = { N: { url: 'sqlite::memory:' } };
      const file = await folder.write(`q${i}.json`, { namespaces, ...config, http });
      const program = await folder.run(['--config', file], { ownProcess: i === 0 || hasCanary(config) });
      assert.match(program.stderr, message);
      assert.ok(program.stderr.includes(`quayside: ${file}: `), program.stderr);
      assertRefused(program);
    });
  }

  it('for an address that this machine may have later exits with 1, so that the start is repeated', async () => {
    const http = { port: 0, users: USERS, host: '192.0.2.1', insecure: true };
    await folder.write('later.json', { http, namespaces: { N: { url: 'sqlite::memory:' } } });
    const program = await folder.run(['--config', 'later.json']);
    assert.match(
      program.stderr,
      /later\.json: http\.host: cannot listen on 192\.0\.2\.1, port 0 \(EADDRNOTAVAIL\)\. This machine does not have the address now; choose one that it has\.$/m,
    );
    assert.equal(program.code, 1);
  });

  const AWAY: [engine: string, url: string, message: RegExp][] = [
    [
      'Redis',
      'redis://:CANARY@127.0.0.1:1/0',
      /namespaces\.N\.url: cannot be opened: redis:\/\/\*\*\*@127\.0\.0\.1:1\/0: .*ECONNREFUSED [^;]*\. Start Redis there, or correct the namespace's url\.$/m,
    ],
    [
      'PostgreSQL',
      'postgres://u:CANARY@127.0.0.1:1/db',
      /namespaces\.N\.url: cannot be opened: postgres:\/\/\*\*\*@127\.0\.0\.1:1\/db: .*ECONNREFUSED [^;]*\. Check that the server is running/,
    ],
  ];
  for (const [engine, url, message] of AWAY) {
    it(`for an unreachable ${engine} says so and exits with 1, because a later start may succeed`, async () => {
      const namespaces = { N: { url }, M: { url: 'sqlite::memory:' } };
      const file = await folder.write(`${engine}.json`, { http: { port: 0, users: USERS }, namespaces });
      const program = await folder.run(['--config', file], { ownProcess: hasCanary(namespaces) });
      assert.match(program.stderr, message);
      assert.ok(program.stderr.includes(`quayside: ${file}: `), program.stderr);
      assertEnded(program, 1);
    });
  }

  it('for a Redis that rejects the first call of the start says why, without a stack', async (t) => {
    const server = await startRedis();
    t.after(() => server.stop());
    const user = '~quayside:none &quayside:* +@all'.split(' ');
    redisCli(server.port, 'ACL', 'SETUSER', 'other', 'on', '>pw', ...user);
    const url = server.url.replace('redis://', 'redis://other:pw@');
    const namespaces = { N: { url } };
    const file = await folder.write('rejected.json', { http: { port: 0, users: USERS }, namespaces });
    const program = await folder.run(['--config', file]);
    assert.match(
      program.stderr,
      /^quayside: an engine cannot be used: redis:\/\/\*\*\*@\S+ cannot be used now: NOPERM .* keys used as arguments\.?\n$/m,
    );
    assert.ok(!/^ {4}at /m.test(program.stderr), program.stderr);
    assertEnded(program, 1);
  });

  it('for a port that is in use says so', async () => {
    const other = createServer().listen(0, '127.0.0.1');
    await new Promise((resolve) => other.once('listening', resolve));
    const address = other.address();
    const port = typeof address === 'object' ? address?.port : 0;
    const file = await folder.write('port.json', { http: { port, users: USERS }, namespaces: memory() });
    const program = await folder.run(['--config', file]);
    other.close();
    assert.match(program.stderr, /port\.json: http\.port: cannot listen.*EADDRINUSE.*choose another port/);
    assertRefused(program);
  });

  it('for a database that another server uses names the file and does not affect that server', async () => {
    const namespaces = { N: { url: 'sqlite:shared.db' } };
    const file = await folder.write('shared.json', { http: { port: 0, users: USERS }, namespaces });
    const first = await folder.serve(['--config', file], { ownProcess: true });
    const second = await folder.run(['--config', file]);
    assert.match(second.stderr, /namespaces\.N\.url: .*shared\.db/);
    // The other one may end, such as a backup of a stopped server.
    assertEnded(second, 1);
    assert.equal(first.code, null);
    assert.equal(await first.stop(), 0);
  });

  it('for an environment variable without an option names the variable', async () => {
    const program = await folder.run([], { env: { QUAYSIDE_HTTP__PROT: '1' }, ownProcess: true });
    assert.match(program.stderr, /^quayside: QUAYSIDE_HTTP__PROT: there is no such option/);
    assertRefused(program);
  });

  it('for an invalid users file says how to create a new one', async () => {
    await folder.write('data/users.json', '{"admin": {}}');
    const program = await folder.run([], { env: { QUAYSIDE_HTTP__PORT: '0' } });
    assert.match(
      program.stderr,
      /data.users\.json: cannot be used: user admin has no password\. .*reset-admin/,
    );
    assertRefused(program);
  });

  describe('for a data folder that cannot be created', {
    skip: process.platform !== 'linux' && 'only Linux has a /proc in which mkdir fails with ENOENT',
    // Bounds the wait if a start hangs.
    timeout: 60_000,
  }, () => {
    const dataDir = '/proc/quayside/data';
    const cases: [of: string, args: string[], config: object, message: RegExp][] = [
      [
        'the queues',
        [],
        { http: { port: 0, users: USERS }, namespaces: { N: { url: 'sqlite:N.db' } } },
        /namespaces\.N\.url: cannot be opened: ENOENT.*'\/proc\/quayside'/,
      ],
      [
        'the users',
        [],
        { http: { port: 0 }, namespaces: memory() },
        /dataDir: \/proc\/quayside\/data\/users\.json cannot be written \(ENOENT\)/,
      ],
      [
        'a new administrator',
        ['reset-admin'],
        {},
        /dataDir: \/proc\/quayside\/data\/users\.json cannot be written \(ENOENT\)/,
      ],
    ];
    for (const [i, [of, args, config, message]] of cases.entries()) {
      it(`and is needed for ${of} names the option`, async () => {
        const file = await folder.write(`proc${i}.json`, { ...config, dataDir });
        const program = await folder.run(['--config', file, ...args]);
        assert.match(program.stderr, message);
        assertRefused(program);
      });
    }
  });

  it('for an invalid command line quotes the argument', async () => {
    for (const [args, message] of [
      [['frobnicate'], /^quayside: Unknown command "frobnicate"\. /],
      [['docotr', '--json'], /^quayside: Unknown command "docotr"\. Did you mean "doctor"\?/],
      [['--frobnicate'], /^quayside: Unknown option "--frobnicate"\. /],
      [['--config'], /^quayside: Option '--config <file>' argument missing/],
    ] as const) {
      const program = await folder.run(args);
      assertRefused(program);
      assert.match(program.stderr, message);
    }
  });
});

describe('The command line', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });

  after(() => folder.dispose());

  it('lists all options in its help', async () => {
    const { code, stdout } = await folder.run(['--help'], { ownProcess: true });
    assert.equal(code, 0);
    for (const { path, variable } of describeOptions()) {
      assert.ok(stdout.includes(`  ${path}\n`), path);
      assert.ok(stdout.includes(`      ${variable}\n`), variable);
    }
  });

  it("lists the server's commands and their options in its help, like all commands", async () => {
    const { stdout } = await folder.run(['--help']);
    for (const name of ['serve', 'doctor', 'backup', 'restore', 'hash-password', 'reset-admin', 'put'])
      assert.match(stdout, new RegExp(`^  ${name} `, 'm'));
    const backup = await folder.run(['backup', '--help']);
    assert.equal(backup.code, 0);
    assert.match(backup.stdout, /^Usage: quayside backup \[options\] <folder>\n/);
    assert.match(backup.stdout, /--config <file>/);
  });

  it('prints the effective configuration with masked secrets, without starting anything', async () => {
    await folder.write(
      'q.yaml',
      'http: { users: { a: CANARY } }\nnamespaces: { N: { url: "sqlite:N.db?key=CANARY" } }',
    );
    const { code, stdout, stderr } = await folder.run(['--config', 'q.yaml', '--print-config'], {
      env: { QUAYSIDE_HTTP__PORT: '8080' },
      ownProcess: true,
    });
    assert.equal(code, 0);
    assert.equal(stderr, '');
    assert.match(stdout, /port: 8080/);
    assert.match(stdout, /password: "\*\*\*"/);
    assert.match(stdout, /url: sqlite:N\.db\?key=\*\*\*/);
    assert.ok(!stdout.includes('CANARY'));
  });
});

function memory(): object {
  return { N: { url: 'sqlite::memory:' } };
}

/** Then the program runs in a process of its own, whose standard error also has what Node prints. */
function hasCanary(config: object): boolean {
  return JSON.stringify(config).includes('CANARY');
}

function assertRefused(program: Program): void {
  assertEnded(program, 2);
}

function assertEnded({ code, stdout, stderr }: Program, expected: number): void {
  assert.equal(code, expected);
  assert.equal(stdout, '');
  assert.doesNotMatch(stderr, /\n\s+at /, 'a stack trace');
  assert.ok(!stderr.includes('CANARY') || stderr.includes('not "CANARY"'), stderr);
}
