import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { showConfig } from '../../src/config/declared.ts';
import { ConfigError } from '../../src/config/errors.ts';
import { loadConfig } from '../../src/config/load.ts';
import { LIMITS } from '../../src/model/limits.ts';
import { configOf, folder, problemsOf } from '../support/loaded-config.ts';

describe('The configuration', () => {
  it('has a default for every option', async () => {
    const config = await configOf(null);
    assert.equal(config.http.host, '127.0.0.1');
    assert.equal(config.http.port, 3444);
    assert.equal(config.dataDir, join(folder, 'data'));
    assert.deepEqual(config.namespaces, {
      N: namespace({ url: 'sqlite:N.db' }),
      events: namespace({ url: 'sqlite:events.db', variant: 'stream', groups: ['default'] }),
    });
  });

  it('allows body limits up to what every engine stores and returns in time', async () => {
    const { http, stomp, amqp } = await configOf(
      'http: { bodyLimit: 33554432, batchBytes: 33554432 }\nstomp: { bodyLimit: 33554432 }\namqp: { bodyLimit: 33554432 }',
    );
    for (const limit of [http.bodyLimit, http.batchBytes, stomp.bodyLimit, amqp.bodyLimit])
      assert.equal(limit, LIMITS.maxBodyLimit);
  });

  it('is the same for an empty file as for none, and for JSON as for YAML', async () => {
    assert.deepEqual(await configOf(''), await configOf(null));
    assert.deepEqual(await configOf('{\n\t"http": {"port": 1}\n}'), await configOf('http: { port: 1 }'));
  });

  it('takes options from the file, and fills in defaults at every depth', async () => {
    const { namespaces, http } = await configOf(`
      http: { users: { test1: { password: secret, rights: { jobs: [read] } } } }
      namespaces:
        jobs: { url: "sqlite:jobs.db", lease: 30, deadLetter: { maxTries: 5 } }
    `);
    assert.deepEqual(http.users, { test1: { password: 'secret', rights: { jobs: ['read'] } } });
    const deadLetter = { maxTries: 5, queue: '__deadletter__' };
    assert.deepEqual(namespaces, { jobs: namespace({ url: 'sqlite:jobs.db', lease: 30, deadLetter }) });
  });

  it('with thousands of users is read without blocking the event loop', async () => {
    const user = (_: unknown, i: number): string =>
      `    user${i}: { password: 'pw', rights: { N: [read, write] } }\n`;
    const text = `http:\n  users:\n${Array.from({ length: 5_000 }, user).join('')}`;
    // Processor time, not elapsed time: on a busy machine this thread may wait arbitrarily long.
    const before = process.cpuUsage();
    let turn = process.threadCpuUsage();
    let [longest, isRead] = [0, false];
    const onTurn = (): void => {
      longest = Math.max(longest, sumOf(process.threadCpuUsage(turn)));
      turn = process.threadCpuUsage();
      if (!isRead) setImmediate(onTurn);
    };
    setImmediate(onTurn);
    const { http } = await configOf(text);
    onTurn();
    isRead = true;
    assert.equal(Object.keys(http.users).length, 5_000);
    const share = longest / sumOf(process.cpuUsage(before));
    assert.ok(share < 0.25, `the event loop was blocked for ${share} of the time`);
  });

  it('accepts `name: password` as the short form of a user', async () => {
    const { http } = await configOf('http: { users: { test1: test1 } }');
    assert.deepEqual(http.users, { test1: { password: 'test1' } });
  });

  it('accepts `console: false` as the short form of a disabled console', async () => {
    const on = { enabled: true, idle: 1800 };
    assert.deepEqual((await configOf('http: {}')).console, on);
    assert.deepEqual((await configOf('console: true')).console, on);
    assert.deepEqual((await configOf('console: false')).console, { ...on, enabled: false });
    assert.deepEqual((await configOf('console: { idle: 60 }')).console, { ...on, idle: 60 });
  });

  it('resolves relative paths against the folder of the file', async () => {
    const { dataDir, http } = await configOf('dataDir: d\nhttp: { tls: { cert: c.pem, key: /k.pem } }');
    assert.equal(dataDir, join(folder, 'd'));
    assert.deepEqual(http.tls, { cert: join(folder, 'c.pem'), key: '/k.pem' });
  });

  it('also resolves the paths in URLs of engines against that folder', async () => {
    const { namespaces } = await configOf(
      JSON.stringify({
        namespaces: {
          r: { url: 'rediss://h/1?ca=a%20b.pem&wait=1', signaller: { url: 'rediss://h?key=/k.pem' } },
          p: {
            url: 'postgres://u:p@h/d?sslrootcert=../ca.pem',
            stats: { url: 'postgres://h?sslcert=c.pem' },
          },
          s: { url: 'sqlite:N.db?ca=x' },
        },
      }),
    );
    const at = (name: string): string => join(folder, name);
    assert.equal(namespaces.r?.url, `rediss://h/1?ca=${at('a%20b.pem')}&wait=1`);
    assert.equal(namespaces.r?.signaller?.url, 'rediss://h?key=/k.pem');
    assert.equal(namespaces.p?.url, `postgres://u:p@h/d?sslrootcert=${at('../ca.pem')}`);
    assert.equal(namespaces.p?.stats?.url, `postgres://h?sslcert=${at('c.pem')}`);
    assert.equal(namespaces.s?.url, 'sqlite:N.db?ca=x');
  });
});

describe('An invalid configuration is rejected with source, path and hint:', () => {
  const cases: [why: string, text: string, path: string, problem: RegExp][] = [
    ['an unknown key', 'htpp: {}', 'htpp', /no such option/],
    ['an unknown nested key', 'http: { prot: 1 }', 'http.prot', /no such option/],
    [
      'an unknown key of a namespace',
      'namespaces: { N: { url: "sqlite:x", ttl: 1 } }',
      'namespaces.N.ttl',
      /no such/,
    ],
    ['a string for a number', 'http: { port: "80" }', 'http.port', /whole number from 0 to 65535, not "80"/],
    ['a fraction for a whole number', 'http: { port: 1.5 }', 'http.port', /whole number/],
    ['a number out of range', 'http: { port: 65536 }', 'http.port', /from 0 to 65535, not 65536/],
    ...['http.bodyLimit', 'http.batchBytes', 'stomp.bodyLimit', 'amqp.bodyLimit'].map(
      (path): [string, string, string, RegExp] => [
        `${path} above what each engine stores and returns in time`,
        `${path.replace('.', ': { ')}: 33554433 }`,
        path,
        /from 1 to 33554432, not 33554433/,
      ],
    ),
    ['a string for a boolean', 'http: { insecure: yes }', 'http.insecure', /true or false, not "yes"/],
    [
      'an anonymous user that does not exist',
      'amqp: { port: 1, anonymousUser: guest }',
      'amqp.anonymousUser',
      /guest is not a user in http\.users/,
    ],
    ['nothing for a string', 'dataDir:', 'dataDir', /must be a string/],
    [
      'a secret that is too short, which is not shown',
      'console: { secret: too short }',
      'console.secret',
      /^must be a string of at least 32 characters$/,
    ],
    [
      'a name that is too long',
      `namespaces: { N: { url: 'sqlite:x', signaller: { channel: ${'x'.repeat(256)} } } }`,
      'namespaces.N.signaller.channel',
      /^must be a string of 1 to 255 characters, not "x/,
    ],
    ['a list for a group', 'http: [1]', 'http', /group of options/],
    [
      'a value that is not one of the choices',
      'log: { level: loud }',
      'log.level',
      /one of debug, info, warn, error, not "loud"/,
    ],
    ['a missing URL', 'namespaces: { N: {} }', 'namespaces.N.url', /missing/],
    [
      'a URL without a scheme',
      'namespaces: { N: { url: x } }',
      'namespaces.N.url',
      /does not have the right form$/,
    ],
    [
      'a stream without a group',
      "namespaces: { N: { url: 'sqlite:N.db', variant: stream, groups: [] } }",
      'namespaces.N.groups',
      /must be a list of 1 to 64 strings/,
    ],
    [
      'an exchange without a destination',
      'exchanges: { x: { src: { ns: N, queue: a }, dst: [], consumer: {} } }',
      'exchanges.x.dst',
      /must be a list of 1 to 256 groups of options/,
    ],
    [
      'an exchange with an id that no request could name, and whose elements no header could carry',
      'exchanges: { "a\\u0007": { src: { ns: N, queue: a }, dst: [{ ns: N, queue: b }], consumer: {} } }',
      'exchanges["a\\u0007"]',
      /control character/,
    ],
    ['no namespace at all', 'namespaces: {}', 'namespaces', /must be/],
    [
      'a dead letter without maxTries',
      'namespaces: { N: { url: "sqlite:x", deadLetter: {} } }',
      'namespaces.N.deadLetter.maxTries',
      /missing/,
    ],
    ['a name with a slash', 'namespaces: { "a/b": { url: "sqlite:x" } }', 'namespaces["a/b"]', /slash/],
    [
      'the name * that stands for all namespaces',
      'namespaces: { "*": { url: "sqlite:x" } }',
      'namespaces.*',
      /or is \*/,
    ],
    [
      'a name with a control character',
      'namespaces: { "a\\u0007": { url: "sqlite:x" } }',
      'namespaces["a\\u0007"]',
      /control character/,
    ],
    ['the name __proto__', 'http: { users: { __proto__: { password: x } } }', 'http.users.__proto__', /name/],
    [
      'groups of a plain namespace',
      'namespaces: { N: { url: "sqlite:x", groups: [a] } }',
      'namespaces.N.groups',
      /streams/,
    ],
    [
      'retention of a plain namespace',
      'namespaces: { N: { url: "sqlite:x", retention: 5 } }',
      'namespaces.N.retention',
      /streams/,
    ],
    [
      'a group with a comma',
      'namespaces: { N: { url: "sqlite:x", variant: stream, groups: ["a,b"] } }',
      'namespaces.N.groups.0',
      /comma/,
    ],
    [
      'a group that no client could name, since lists of groups are trimmed',
      'namespaces: { N: { url: "sqlite:x", variant: stream, groups: ["a "] } }',
      'namespaces.N.groups.0',
      /no space at an end/,
    ],
    [
      'a signaller in a file, which no other process may open',
      'namespaces: { N: { url: "redis://h", signaller: { url: "sqlite:x" } } }',
      'namespaces.N.signaller.url',
      /no other process/,
    ],
    [
      'a list that is not in Redis',
      'namespaces: { N: { url: "sqlite:x", variant: list } }',
      'namespaces.N.variant',
      /redis: only/,
    ],
    [
      'a list with a dead-letter queue',
      'namespaces: { N: { url: "redis://h", variant: list, deadLetter: { maxTries: 2 } } }',
      'namespaces.N.deadLetter',
      /count no tries/,
    ],
    [
      'two patterns of queues that are equally specific',
      'namespaces: { N: { url: "sqlite:x", queues: { "a-*": { lease: 1 }, "*-a": { lease: 2 } } } }',
      'namespaces.N.queues.*-a',
      /as specific as a-\*/,
    ],
    [
      'an option that queues do not have',
      'namespaces: { N: { url: "sqlite:x", queues: { "a-*": { maxQueues: 1 } } } }',
      'namespaces.N.queues.a-*.maxQueues',
      /no such option/,
    ],
    [
      'a pattern of names that no queue can have',
      'namespaces: { N: { url: "sqlite:x", queues: { "a\\u0007*": { lease: 1 } } } }',
      'namespaces.N.queues["a\\u0007*"]',
      /control character/,
    ],
    [
      'a number of elements that is not exact, which stored options of queues cannot have either',
      'namespaces: { N: { url: "sqlite:x", queues: { q: { maxElements: 100000000000000000000 } } } }',
      'namespaces.N.queues.q.maxElements',
      /whole number from 1, not 100000000000000000000/,
    ],
    [
      'a dead-letter queue with a name that no queue can have',
      'namespaces: { N: { url: "sqlite:x", deadLetter: { maxTries: 1, queue: "a\\u0007" } } }',
      'namespaces.N.deadLetter.queue',
      /^The queue name "a\\u0007" contains a control character\. Remove it$/,
    ],
    [
      'a queue that is its own dead-letter queue',
      'namespaces: { N: { url: "sqlite:x", queues: { failed: { deadLetter: { maxTries: 1, queue: failed } } } } }',
      'namespaces.N.queues.failed.deadLetter.queue',
      /the queue itself/,
    ],
    [
      'the default dead-letter queue as its own dead-letter queue',
      'namespaces: { N: { url: "sqlite:x", queues: { __deadletter__: { deadLetter: { maxTries: 1 } } } } }',
      'namespaces.N.queues.__deadletter__.deadLetter.queue',
      /the queue itself/,
    ],
    [
      'a retention of plain queues',
      'namespaces: { N: { url: "sqlite:x", queues: { "a-*": { retention: 1 } } } }',
      'namespaces.N.queues.a-*.retention',
      /streams/,
    ],
    [
      'a retry delay for lists',
      'namespaces: { N: { url: "redis://h", variant: list, retryDelay: { first: 1 } } }',
      'namespaces.N.retryDelay',
      /count no tries/,
    ],
    [
      'a lease for some lists',
      'namespaces: { N: { url: "redis://h", variant: list, queues: { q: { lease: 1 } } } }',
      'namespaces.N.queues.q.lease',
      /not for lists/,
    ],
    [
      'a retry delay without first',
      'namespaces: { N: { url: "sqlite:x", retryDelay: { factor: 2 } } }',
      'namespaces.N.retryDelay.first',
      /missing/,
    ],
    [
      'a retry delay that is longer than its maximum',
      'namespaces: { N: { url: "sqlite:x", queues: { q: { retryDelay: { first: 9, max: 5 } } } } }',
      'namespaces.N.queues.q.retryDelay.max',
      /less than first/,
    ],
    [
      'durability for another engine than SQLite',
      'namespaces: { N: { url: "postgres://:CANARY@h/db", durability: normal } }',
      'namespaces.N.durability',
      /sqlite: only/,
    ],
    [
      'damagedLog for another engine than SQLite',
      'namespaces: { N: { url: "redis://:CANARY@h", damagedLog: drop } }',
      'namespaces.N.damagedLog',
      /sqlite: only/,
    ],
    [
      'a collection of statistics with a slash',
      'namespaces: { N: { url: "sqlite:x", stats: { coll: "a/b" } } }',
      'namespaces.N.stats.coll',
      /^cannot be "a\/b"$/,
    ],
    [
      'one engine with two durabilities',
      'namespaces: { N: { url: "sqlite:x" }, M: { url: "sqlite:x", durability: normal } }',
      'namespaces.M.durability',
      /not given in namespace N/,
    ],
    [
      'one engine with two values of damagedLog',
      'namespaces: { N: { url: "sqlite:x" }, M: { url: "sqlite:x", damagedLog: drop } }',
      'namespaces.M.damagedLog',
      /is drop, but not given in namespace N/,
    ],
    [
      'an origin with a path',
      'http: { allowedOrigins: ["https://a.example/x"] }',
      'http.allowedOrigins.0',
      /^cannot be "https:/,
    ],
    [
      'an origin with the default port of its scheme',
      'http: { allowedOrigins: ["https://a.example:8443", "https://B.example", "https://c.example:443"] }',
      'http.allowedOrigins.2',
      /not what a browser sends/,
    ],
    [
      'an invalid origin',
      'http: { allowedOrigins: ["https://a b"] }',
      'http.allowedOrigins.0',
      /not what a browser sends/,
    ],
    ['listening on all addresses without TLS', 'http: { host: 0.0.0.0 }', 'http.host', /without TLS/],
    ['text that is not YAML', 'http: [1\nx: CANARY', '', /not YAML: .*, at line 2/],
    ['a key twice', 'http: {}\nhttp: {}', '', /not YAML: Map keys must be unique, at line 2, column 1$/],
    ['a key twice in JSON', '{"http":{},"http":{}}', '', /not YAML: .* unique, at line 1, column 12$/],
    [
      'a user twice',
      'http:\n  users:\n    CANARY: a\n    ann: b\n    "CANARY": c',
      '',
      /not YAML: Map keys must be unique, at line 5, column 5$/,
    ],
    [
      'a key twice in a long file',
      `${`# ${'long'.repeat(200)}\n`.repeat(400)}a: 1\na: 1`,
      '',
      /unique, at line 402, /,
    ],
    ['a list instead of options', '- 1', '', /no options/],
    [
      'two listeners on one port',
      'http: { port: 3444 }\nstomp: { port: 0 }\namqp: { port: 3444 }',
      'amqp.port',
      /^is 3444, the port of http as well$/,
    ],
    [
      'a listener on a port that another one uses on all addresses',
      'http: { port: 1, host: 127.0.0.2 }\nstomp: { port: 1, host: 0.0.0.0, insecure: true }',
      'stomp.port',
      /^is 1, the port of http as well$/,
    ],
    [
      'a collector that is no URL',
      'tracing: { otlp: "http://u:CANARY/@x" }',
      'tracing.otlp',
      /^is not a URL$/,
    ],
    [
      'a password of the collector that is not percent-encoded',
      'tracing: { otlp: "http://u:%zzCANARY@x" }',
      'tracing.otlp',
      /^is not a URL$/,
    ],
    [
      'a header for the collector that cannot be sent',
      'tracing: { otlp: "http://x", headers: { "x token": CANARY } }',
      'tracing.headers["x token"]',
      /^is no header that can be sent$/,
    ],
    [
      'a header for the collector that belongs to the connection',
      'tracing: { otlp: "http://x", headers: { Host: CANARY } }',
      'tracing.headers.Host',
      /^is a header that the server sets itself$/,
    ],
    [
      'one SQLite file under two URLs',
      'namespaces: { N: { url: "sqlite:a/N.db" }, M: { url: "sqlite:a/../a/./N.db" } }',
      'namespaces.M.url',
      /^names the file of namespace N by another URL$/,
    ],
    [
      'statistics in the SQLite file of a namespace under another URL',
      'namespaces: { N: { url: "sqlite:N.db", stats: { url: "sqlite:./N.db" } } }',
      'namespaces.N.stats.url',
      /^names the file of namespace N by another URL$/,
    ],
  ];
  for (const [why, text, path, problem] of cases) {
    it(why, async () => {
      const [found, ...more] = await problemsOf(text);
      assert.ok(found);
      assert.deepEqual(more, []);
      assert.match(String(found.source), /quayside\.yaml$/);
      assert.equal(found.path, path);
      assert.match(found.problem, problem);
      assert.notEqual(found.hint, '');
      assert.ok(!JSON.stringify(found).includes('CANARY'));
    });
  }

  it('a missing file', async () => {
    const missing = loadConfig({ file: 'none.yaml', env: {}, cwd: folder });
    await assert.rejects(missing, /none\.yaml: cannot be read \(ENOENT\)\. Name a file/);
  });

  it('a misspelled option, with the name that was meant', async () => {
    const hint = async (text: string) => (await problemsOf(text))[0]?.hint;
    assert.equal(await hint('http: { prot: 1 }'), 'Did you mean "port"?');
    assert.equal(await hint('http: { bodylimit: 1 }'), 'Did you mean "bodyLimit"?');
    assert.equal(await hint('datadir: x'), 'Did you mean "dataDir"?');
    assert.match(String(await hint('http: { frobnicate: 1 }')), /^Allowed here: host, port, /);
  });

  it('an option without a default, with the request to correct it, or to give it if it is missing', async () => {
    const hints = async (text: string) => (await problemsOf(text)).map(({ hint }) => hint);
    const user = (rights: string): string => `http: { users: { u: { password: p, rights: ${rights} } } }`;
    assert.deepEqual(await hints(user('{ N: read }')), ['Correct it']);
    assert.deepEqual(await hints('http: { tls: { cert: 1 } }'), [
      'Correct it: PEM file of the certificate chain',
      'Give it: PEM file of its private key',
    ]);
  });

  it('many unknown keys, each of them', async () => {
    const keys = Array.from({ length: 12 }, (_, i) => `k${i}: 1`).join(', ');
    for (const { problem } of await problemsOf(`http: { ${keys} }`)) assert.match(problem, /no such option/);
  });

  it('several errors, one line each', async () => {
    const problems = await problemsOf('http: { port: x }\nlog: { level: x }');
    assert.deepEqual(
      problems.map(({ path }) => path),
      ['http.port', 'log.level'],
    );
    assert.equal(new ConfigError(problems).message.split('\n').length, 2);
  });

  it('a variable that names no option or has a value of the wrong type, by its name', async () => {
    const [unknown] = await problemsOf(null, { QUAYSIDE_HTTP__PROT: '1' });
    assert.equal(unknown?.source, 'QUAYSIDE_HTTP__PROT');
    const [wrong] = await problemsOf('http: { port: 1 }', { QUAYSIDE_HTTP__PORT: 'abc' });
    assert.equal(wrong?.source, 'QUAYSIDE_HTTP__PORT');
    assert.match(wrong?.problem ?? '', /not "abc"/);
    const [proto] = await problemsOf(null, { QUAYSIDE_HTTP__USERS____proto____PASSWORD: 'x' });
    assert.match(proto?.problem ?? '', /no such option/);
    const inside = { QUAYSIDE_HTTP__USERS: '{"a": "x", "__proto__": {"password": "x"}}' };
    const [name] = await problemsOf(null, inside);
    assert.deepEqual(
      [name?.source, name?.path, name?.problem],
      ['QUAYSIDE_HTTP__USERS', 'http.users.__proto__', 'cannot be a name'],
    );
    const [deep] = await problemsOf(null, {
      QUAYSIDE_NAMESPACES: '{"N": {"url": "sqlite:x", "__proto__": {}}}',
    });
    assert.equal(deep?.path, 'namespaces.N.__proto__');
  });

  it('a secret that is given twice, and a missing secret file', async () => {
    await writeFile(join(folder, 'secret'), 'x', { mode: 0o600 });
    const twice = {
      QUAYSIDE_HTTP__USERS__a__PASSWORD: 'x',
      QUAYSIDE_HTTP__USERS__a__PASSWORD_FILE: 'secret',
    };
    assert.match(
      (await problemsOf(null, twice))[0]?.problem ?? '',
      /given by QUAYSIDE_HTTP__USERS__a__PASSWORD as/,
    );
    const missing = { QUAYSIDE_HTTP__USERS__a__PASSWORD_FILE: 'nowhere' };
    assert.match((await problemsOf(null, missing))[0]?.problem ?? '', /nowhere cannot be read \(ENOENT\)/);
    const notSecret = { QUAYSIDE_HTTP__PORT_FILE: 'secret' };
    assert.match((await problemsOf(null, notSecret))[0]?.problem ?? '', /no such option/);
  });

  it('any error, without quoting a secret', async () => {
    const wrong = [
      'http: { users: { a: { password: [CANARY] } } }',
      'http: { users: { a: { password: { x: CANARY } } } }',
      'http: { users: [CANARY] }',
      'namespaces: { N: { url: CANARY } }',
      'namespaces: { N: { url: "sqlite:x", signaller: { url: "redis://:CANARY@h", cahnnel: x } } }',
      'http: { users: { a: "CANARY" ',
      ...['*', '!', '&', '%', '@', '`', '|', '>', '[', '{', '"', "'", '? ', ': '].map(
        (mark) => `a: ${mark}CANARY`,
      ),
    ];
    for (const text of wrong) {
      const message = new ConfigError(await problemsOf(text)).message;
      assert.ok(!message.includes('CANARY'), message);
    }
  });
});

describe('Listening', () => {
  it('on a loopback address needs no TLS', async () => {
    for (const host of ['127.0.0.1', '127.1.2.3', '::1', 'localhost']) {
      assert.equal((await configOf(`http: { host: "${host}" }`)).http.host, host);
    }
  });

  it('on any other address needs TLS or insecure: true', async () => {
    for (const host of ['0.0.0.0', '::', '192.0.2.1', 'jobs.example', '127.0.0.1.example']) {
      assert.equal((await problemsOf(`http: { host: "${host}" }`))[0]?.path, 'http.host');
      await configOf(`http: { host: "${host}", insecure: true }`);
      await configOf(`http: { host: "${host}", tls: { cert: c, key: k } }`);
    }
  });
});

describe('--print-config', () => {
  it('prints the effective configuration, with secrets masked, as a file that loads to the same', async () => {
    const given = `
      http: { users: { a: "redis://:CANARY@h", b: { password: CANARY } }, tls: { cert: c.pem, key: k.pem } }
      namespaces: { keys: { url: "sqlite:k.db?cipherKey=CANARY" } }
    `;
    const config = await configOf(given);
    const shown = await showConfig(config);
    assert.ok(!shown.includes('CANARY'), shown);
    assert.match(shown, /url: sqlite:k\.db\?cipherKey=\*\*\*/);
    const again = await configOf(shown);
    assert.deepEqual(again.http.tls, config.http.tls);
    assert.deepEqual(Object.keys(again.http.users), ['a', 'b']);
    assert.equal(await showConfig(again), shown);
  });
});

function namespace(given: object): object {
  return {
    variant: 'simple',
    lease: 120,
    maxQueues: 10_000,
    maxGroups: 1000,
    maxExchanges: 1000,
    ...given,
  };
}

function sumOf({ user, system }: NodeJS.CpuUsage): number {
  return user + system;
}
