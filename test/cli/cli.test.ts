import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { PassThrough, Readable, Writable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { after, before, describe, it } from 'node:test';
import { getCACertificates, setDefaultCACertificates } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Command } from 'commander';
import { EXIT_CODES } from '../../src/cli/output.ts';
import { commandTree, runProgram } from '../../src/cli/program.ts';
import { CertificateAuthority, type ClientIdentity, makeCertificate } from '../support/certificate.ts';
import { needDebian } from '../support/debian.ts';
import { freePort } from '../support/free-port.ts';
import { ServerInProcess } from '../support/server-in-process.ts';
import { NO_SERVER } from './no-server.ts';

const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
const run = promisify(execFile);

const PROBLEM = { 'content-type': 'application/problem+json' };

const COMMANDS = [
  ...['serve', 'doctor', 'backup', 'restore', 'hash-password', 'reset-admin', 'user', 'token'],
  ...[
    'put',
    'get',
    'reserve',
    'commit',
    'browse',
    'status',
    'top',
    'dead',
    'redrive',
    'move',
    'purge',
    'export',
    'import',
  ],
  ...['exchange', 'operations', 'nodes', 'bench', 'completion', 'man', 'help'],
];

interface Result {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

describe('The command line', () => {
  let server: ServerInProcess;
  let home: string;
  let env: Record<string, string>;
  before(async () => {
    server = await ServerInProcess.start({
      config: {
        http: { users: { test1: 'test1' } },
        namespaces: { N: { url: 'sqlite::memory:', deadLetter: { maxTries: 1 } } },
        exchanges: {
          'x-configured': {
            src: { ns: 'N', queue: 'x-from' },
            dst: [{ ns: 'N', queue: 'x-to' }],
            consumer: {},
          },
        },
      },
    });
    home = await mkdtemp(path.join(tmpdir(), 'quayside-cli-'));
    env = {
      QUAYSIDE_URL: server.url,
      QUAYSIDE_USER: 'test1',
      QUAYSIDE_PASSWORD: 'test1',
      XDG_CONFIG_HOME: home,
    };
  });
  after(async () => {
    await server?.dispose();
    await rm(home, { recursive: true, force: true });
  });

  /** Runs a command with the given input. Its output is a pipe, or claims to be a terminal if `isTTY`. */
  async function quayside(
    args: readonly string[],
    input: string | Uint8Array = '',
    variables: object = env,
    isTTY = false,
  ): Promise<Result> {
    const [stdout, stderr] = [Object.assign(new PassThrough(), { isTTY }), new PassThrough()];
    const texts = Promise.all([text(stdout), text(stderr)]);
    const io = { stdin: Readable.from([Buffer.from(input)]), stdout, stderr, env: variables as typeof env };
    const code = await runProgram(args, io, NO_SERVER);
    stdout.end();
    stderr.end();
    const [written, errors] = await texts;
    return { code, stdout: written, stderr: errors };
  }

  const json = ({ stdout }: Result): unknown[] =>
    stdout
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line));

  it('inserts, browses, takes and commits elements', async () => {
    const put = await quayside(['put', 'N/orders', '{"order":1}', 'text', '--header', 'lang=en']);
    assert.equal(put.code, 0, put.stderr);
    assert.equal(json(put).length, 2);
    await quayside(['put', 'N/orders', '--lines'], 'a\nb\n');
    const seen = json(await quayside(['browse', 'N/orders', '--limit', '2'])) as {
      data: unknown;
      headers: object;
    }[];
    assert.deepEqual(
      seen.map(({ data, headers }) => [data, headers]),
      [
        [{ order: 1 }, { lang: 'en' }],
        ['text', { lang: 'en' }],
      ],
    );
    const none = await quayside(['browse', 'N/orders', '--where', 'env.msg.nothing.here']);
    assert.deepEqual([none.code, none.stdout], [0, '']);
    assert.match(none.stderr, /^quayside: \d left out, since the selector threw, first for \S+: .*undefined/);
    const [taken] = json(await quayside(['get', 'N/orders'])) as { data: unknown }[];
    assert.deepEqual(taken?.data, { order: 1 });
    const [reserved] = json(await quayside(['reserve', 'N/orders', '--lease', '60'])) as {
      id: string;
      token: string;
    }[];
    const commit = await quayside([
      'commit',
      'N/orders',
      reserved?.id ?? '',
      '--token',
      reserved?.token ?? '',
    ]);
    assert.equal(commit.code, 0, commit.stderr);
    const [{ ready, reserved: left }] = json(await quayside(['status', 'N/orders'])) as [
      Record<string, number>,
    ];
    assert.deepEqual([ready, left], [2, 0]);
    assert.deepEqual(json(await quayside(['status'])), [{ namespace: 'N' }]);
  });

  it('exits with the documented codes', async () => {
    assert.equal((await quayside(['get', 'N/empty'])).code, 3);
    assert.equal((await quayside(['put', 'no namespace', 'x'])).code, 2);
    assert.equal((await quayside(['put', 'N/x', 'x', '--delay', 'soon'])).code, 2);
    assert.equal((await quayside(['put', 'N/x', '--no-such-option'])).code, 2);
    assert.equal((await quayside(['status', 'unknown'])).code, 3);
    assert.equal((await quayside(['status', 'N/x'], '', { ...env, QUAYSIDE_PASSWORD: 'wrong' })).code, 4);
    const { QUAYSIDE_USER: _user, QUAYSIDE_PASSWORD: _password, ...anonymous } = env;
    const unknown = await quayside(['status', 'N/x'], '', anonymous);
    assert.equal(unknown.code, 4);
    assert.match(unknown.stderr, / Set QUAYSIDE_USER and QUAYSIDE_PASSWORD, or QUAYSIDE_TOKEN\.\n$/);
    const noPassword = await quayside(['status', 'N/x', '--user', 'test1'], '', anonymous);
    assert.match(noPassword.stderr, / Set QUAYSIDE_PASSWORD\.\n$/);
    const away = await quayside(['status', 'N/x', '--url', `http://127.0.0.1:${await freePort()}`]);
    assert.equal(away.code, 5);
    assert.match(away.stderr, /cannot be reached/);
    // An expiry that has passed when the request arrives is rejected, so a busy machine retries with more time.
    const expiringIn = (ms: number): Promise<Result> =>
      quayside(['token', 'add', 'short', '--expires', new Date(Date.now() + ms).toISOString()]);
    let ms = 1_000;
    let added = await expiringIn(ms);
    while (added.code !== 0 && ms < 60_000) {
      ms *= 2;
      added = await expiringIn(ms);
    }
    const [{ id, token }] = json(added) as [{ id: string; token: string }];
    const owned = { QUAYSIDE_URL: server.url, QUAYSIDE_TOKEN: token, XDG_CONFIG_HOME: home };
    let expired = await quayside(['status', 'N/x'], '', owned);
    while (expired.code === 0) expired = await quayside(['status', 'N/x'], '', owned);
    assert.equal(expired.code, 4);
    assert.match(expired.stderr, /Token "short" expired at/);
    await quayside(['token', 'revoke', id]);
    assert.equal((await quayside(['get', '--help'])).code, 0);
  });

  it('says what to do if TLS fails', async () => {
    const servers: ReturnType<typeof createHttpsServer>[] = [];
    /** What a command prints if the server has this certificate. */
    const status = async (identity: ClientIdentity, { host = '127.0.0.1', protocol = 'https' } = {}) => {
      const https = createHttpsServer(identity, (_, response) => response.end());
      servers.push(https);
      await once(https.listen(0, host), 'listening');
      const { port } = https.address() as AddressInfo;
      return quayside(['status', '--url', `${protocol}://${host}:${port}`]);
    };
    const authorities = getCACertificates();
    try {
      const untrusted = await status(makeCertificate());
      assert.equal(untrusted.code, 5);
      assert.match(
        untrusted.stderr,
        /certificate\S* .*\. If the certificate is from a CA of your own, set NODE_EXTRA_CA_CERTS to the file of that CA\.\n$/,
      );
      const expired = await status(new CertificateAuthority().sign('/CN=localhost', { days: -1 }));
      assert.equal(expired.code, 5);
      assert.match(
        expired.stderr,
        /: certificate has expired\. Renew the certificate of the server, or correct the clock of this machine\.\n$/,
      );
      const ofLocalhost = makeCertificate();
      setDefaultCACertificates([ofLocalhost.cert]);
      const elsewhere = await status(ofLocalhost, { host: '127.0.0.2' });
      assert.equal(elsewhere.code, 5);
      assert.match(
        elsewhere.stderr,
        /127\.0\.0\.1\. Give the server's address with a name of its certificate, or have a certificate issued for this one\.\n$/,
      );
      const withoutTls = await status(ofLocalhost, { protocol: 'http' });
      assert.equal(withoutTls.code, 6);
      assert.match(
        withoutTls.stderr,
        /: other side closed\. If the server speaks TLS, give its address with https:\/\/\.\n$/,
      );
      const plain = await quayside(['status', '--url', server.url.replace('http:', 'https:')]);
      assert.equal(plain.code, 5);
      assert.match(
        plain.stderr,
        /: wrong version number\. The server does not speak TLS: give its address with http:\/\/\.\n$/,
      );
    } finally {
      setDefaultCACertificates(authorities);
      for (const https of servers) {
        https.close();
        https.closeAllConnections();
      }
    }
  });

  it('rejects arguments that a command does not take, and does nothing', async () => {
    await quayside(['put', 'N/kept', 'x']);
    for (const command of [
      'get N/kept N/other',
      'purge N/kept N/other --yes',
      'token list all',
      'man page',
    ]) {
      const { code, stdout, stderr } = await quayside(command.split(' '));
      assert.deepEqual([code, stdout], [2, ''], command);
      assert.match(stderr, /^quayside: The command \w+ takes no further argument\.\n$/, command);
    }
    assert.equal(json(await quayside(['browse', 'N/kept'])).length, 1);
  });

  it('rejects an option with an empty value, as of an unset variable of a shell, and does nothing', async () => {
    await quayside(['put', 'N/guarded', 'x']);
    const [{ id }] = json(await quayside(['reserve', 'N/guarded'])) as [{ id: string }];
    for (const [command, option] of [
      [`commit N/guarded ${id}`, '--token'],
      [`commit N/guarded ${id}`, '--group'],
      ['move N/guarded N/elsewhere', '--where'],
      ['move N/guarded N/elsewhere', '--state'],
      ['move N/guarded N/elsewhere', '--group'],
      ['redrive N/guarded', '--where'],
      ['put N/guarded x', '--type'],
      ['browse N/guarded', '--where'],
      ['browse N/guarded', '--state'],
    ] as const) {
      const { code, stdout, stderr } = await quayside([...command.split(' '), option, '']);
      assert.deepEqual([code, stdout], [2, ''], `${command} ${option}`);
      assert.match(stderr, /^quayside: .*""/, `${command} ${option}`);
    }
    const [{ reserved }] = json(await quayside(['status', 'N/guarded'])) as [{ reserved: number }];
    assert.equal(reserved, 1);
  });

  it('rejects an element header that is given twice', async () => {
    for (const again of ['lang=de', 'Lang=de']) {
      const command = ['put', 'N/bilingual', 'x', '--header', 'lang=en', '--header', again];
      const { code, stdout, stderr } = await quayside(command);
      assert.deepEqual([code, stdout], [2, ''], again);
      assert.match(stderr, /^quayside: .*lang\b.* given twice/i, again);
    }
  });

  it('names the limits of an option in the unit of the option', async () => {
    for (const [command, allowed] of [
      ['put N/x y --delay 1e10', 'from 0 to 315360000.'],
      ['put N/x y --ttl 0', 'from 0.001 to 315360000.'],
      ['reserve N/x --lease 0', 'from 0.001 to 315360000.'],
      ['get N/x --wait never', 'from 0 to 315360000.'],
    ] as const) {
      const { code, stderr } = await quayside(command.split(' '));
      assert.equal(code, 2);
      assert.ok(stderr.endsWith(`Allowed: seconds, a number ${allowed}\n`), stderr);
    }
    const { stderr } = await quayside(['exchange', 'restart']);
    assert.match(stderr, /^quayside: exchange "restart" is not known\. Allowed: /);
  });

  it('exits with "outcome unknown" if an operation is cancelled and its progress cannot be read', async () => {
    const going = createHttpServer((request, response) => {
      if (request.method === 'DELETE') response.end();
      else response.writeHead(503, PROBLEM).end('{"code":"shutting-down"}');
    });
    await once(going.listen(0, '127.0.0.1'), 'listening');
    try {
      const url = `http://127.0.0.1:${(going.address() as AddressInfo).port}`;
      assert.equal((await quayside(['operations', 'ID', '--cancel', '--url', url])).code, 6);
    } finally {
      going.close();
    }
  });

  it('inserts into a stream for the given groups', async (t) => {
    const streams = await ServerInProcess.start({
      config: {
        http: { users: { test1: 'test1' } },
        namespaces: { S: { url: 'sqlite::memory:', variant: 'stream' } },
      },
    });
    t.after(() => streams.dispose());
    const onStreams = (args: readonly string[]): Promise<Result> => quayside([...args, '--url', streams.url]);
    assert.equal((await onStreams(['put', 'S/grouped', 'x', '--groups', 'mail, audit'])).code, 0);
    for (const [group, count] of [
      ['mail', 1],
      ['audit', 1],
      ['default', 0],
    ] as const)
      assert.equal(json(await onStreams(['get', 'S/grouped', '--group', group])).length, count, group);
  });

  it('inserts each line as soon as it has arrived, while the pipe stays open', async () => {
    async function* lines(): AsyncGenerator<Buffer, void, void> {
      for (const line of ['1', '2']) {
        yield Buffer.from(`${line}\r\n`);
        const [element] = json(await quayside(['get', 'N/followed', '--wait', '30'])) as [{ data: number }?];
        assert.equal(element?.data, Number(line));
      }
    }
    const [stdin, stdout, stderr] = [Readable.from(lines()), new PassThrough(), new PassThrough()];
    const io = { stdin, stdout, stderr, env };
    assert.equal(await runProgram(['put', 'N/followed', '--lines'], io, NO_SERVER), 0);
    assert.equal((await text(stdout.end())).trim().split('\n').length, 2);
  });

  it('rejects a key for several lines, and inserts none of them', async () => {
    const { code, stderr } = await quayside(['put', 'N/keyed', '--lines', '--key', 'k'], 'a\nb\n');
    assert.equal(code, 2);
    assert.match(stderr, /^quayside: --key names one element, and there are more\./);
    assert.equal(json(await quayside(['browse', 'N/keyed'])).length, 0);
    assert.equal(json(await quayside(['put', 'N/keyed', '--lines', '--key', 'k'], 'a\n')).length, 1);
    // Not only at the end of the input.
    const [stdin, none] = [new PassThrough(), new PassThrough()];
    stdin.write('a\nb\n');
    const io = { stdin, stdout: none, stderr: none, env };
    assert.equal(await runProgram(['put', 'N/keyed', '--lines', '--key', 'k'], io, NO_SERVER), 2);
  });

  it('prints the ids of inserted elements if another element is rejected', async () => {
    const { code, stdout, stderr } = await quayside(['put', 'N/partly', 'a', 'x'.repeat(1_100_000), 'b']);
    assert.match(stderr, /^quayside: Element 2: The body has 1100000 bytes\./);
    assert.equal(code, 1);
    const alone = await quayside(['put', 'N/partly', 'x'.repeat(1_100_000)]);
    assert.match(alone.stderr, /^quayside: The body has 1100000 bytes\./);
    const large = await quayside(['put', 'N/partly'], Buffer.alloc(2_000_000));
    assert.match(large.stderr, /^quayside: The line of the element has \d+ bytes or more\. /);
    const shown = json(await quayside(['browse', 'N/partly'])) as { id: string }[];
    assert.deepEqual(
      stdout
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line)),
      shown.map(({ id }) => ({ id })),
    );
    assert.equal(shown.length, 2);
  });

  it('exits with "outcome unknown" if the server shuts down after a part of the elements is inserted', async () => {
    let requests = 0;
    const going = createHttpServer((request, response) => {
      requests += 1;
      request.resume().on('end', () => {
        if (requests === 1) response.end(JSON.stringify({ ids: Array.from({ length: 1_000 }, String) }));
        else response.writeHead(503, PROBLEM).end('{"code":"shutting-down"}');
      });
    });
    await once(going.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(going.address() as AddressInfo).port}`;
    try {
      const lines = Array.from({ length: 1_001 }, String).join('\n');
      const { code, stdout } = await quayside(['put', 'N/x', '--lines', '--url', url], lines);
      assert.equal(code, 6);
      assert.equal(stdout.trim().split('\n').length, 1_000);
      assert.equal((await quayside(['put', 'N/x', 'y', '--url', url])).code, 5);
    } finally {
      going.close();
    }
  });

  it("rejects a proxy's HTML page as a response to any command", async () => {
    const proxy = createHttpServer((request, response) => {
      const page = (): unknown =>
        response.writeHead(200, { 'content-type': 'text/html' }).end('<p>Log in</p>');
      request.resume().on('end', page);
    });
    await once(proxy.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
    const commands = [
      'put N/x y',
      'get N/x',
      'reserve N/x',
      'commit N/x ID --token T',
      'browse N/x',
      'status',
      'status N',
      'status N/x',
      'top',
      'dead',
      'redrive N/dead',
      'move N/x N/y',
      'purge N/x --yes',
      'export N/x',
      'import N/x',
      'exchange list',
      'exchange show x',
      'exchange create x',
      'exchange stop x',
      'exchange delete x',
      'operations',
      'operations ID --cancel',
      'token add name',
      'token list',
      'token revoke ID',
      'nodes',
      'bench N/x --count 1 --callers 1',
    ];
    try {
      for (const command of commands) {
        const { code, stdout, stderr } = await quayside([...command.split(' '), '--url', url], '{}');
        assert.deepEqual([code, stdout], [6, ''], command);
        const repeat = 'Elements may have been stored; the whole input can be imported again.';
        const next = command.startsWith('import') ? ` ${repeat}` : '';
        assert.equal(
          stderr,
          `quayside: The server, or a proxy in front of it, answered "<p>Log in</p>".${next}\n`,
          command,
        );
      }
    } finally {
      proxy.close();
    }
  });

  it('prints a table of 200,000 rows', async () => {
    const record = { size: 1, schedSize: 0, resvSize: 0, paused: false };
    const queues = Object.fromEntries(Array.from({ length: 200_000 }, (_, i) => [`q${i}`, record]));
    const body = JSON.stringify(queues);
    const large = createHttpServer((_, response) => response.end(body));
    await once(large.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(large.address() as AddressInfo).port}`;
    try {
      const { code, stdout, stderr } = await quayside(['status', 'N', '--url', url], '', env, true);
      assert.equal(code, 0, stderr);
      assert.equal(stdout.trimEnd().split('\n').length, 200_001);
    } finally {
      large.close();
    }
  });

  it('moves, redrives and purges elements', async () => {
    await quayside(['put', 'N/from', '1', '2', '3']);
    const [counted] = json(await quayside(['move', 'N/from', 'N/to', '--dry-run'])) as Record<
      string,
      unknown
    >[];
    assert.deepEqual([counted?.matched, counted?.changed], [3, 0]);
    const [moved] = json(
      await quayside(['move', 'N/from', 'N/to', '--where', 'env.msg.payload > 1']),
    ) as Record<string, unknown>[];
    assert.deepEqual([moved?.state, moved?.changed], ['done', 2]);
    assert.equal((json(await quayside(['operations'])) as unknown[]).length, 2);
    const listed = await quayside(['operations'], '', env, true);
    assert.match(listed.stdout, / move +done +2 .*\n.* move \(dry run\) +done +3 /);
    const redriven = await quayside(['redrive', 'N/to']);
    assert.match(redriven.stdout, /"failed":2/);
    assert.equal(redriven.code, 1, 'the elements are not dead letters of a queue');
    const refused = await quayside(['purge', 'N/to']);
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /holds 2 ready, 0 scheduled and 0 reserved\..* ready or scheduled\.$/m);
    for (const flags of [[], ['--yes']]) {
      const misspelt = await quayside(['purge', 'N/to', '--state', 'foo', ...flags]);
      assert.deepEqual(
        [misspelt.code, misspelt.stderr],
        [2, 'quayside: --state "foo" is not a state. Allowed: ready, scheduled, reserved, all.\n'],
      );
    }
    await quayside(['reserve', 'N/to']);
    const reserved = await quayside(['purge', 'N/to', '--state', 'reserved']);
    assert.match(reserved.stderr, /1 ready, 0 scheduled and 1 reserved\..* are reserved\.$/m);
    assert.deepEqual(json(await quayside(['purge', 'N/to', '--yes'])), [{ removed: 1 }]);
    assert.deepEqual(json(await quayside(['purge', 'N/to', '--state', 'all', '--yes'])), [{ removed: 1 }]);
  });

  it('sets no time limit for a purge', async (t) => {
    await quayside(['put', 'N/purged', 'a']);
    const timeouts = t.mock.method(globalThis, 'setTimeout');
    const limitsOf = async (args: readonly string[]): Promise<number> => {
      timeouts.mock.resetCalls();
      assert.equal((await quayside(args)).code, 0);
      return timeouts.mock.calls.filter((call) => call.arguments[1] === 20_000).length;
    };
    assert.equal(await limitsOf(['status', 'N/purged']), 1);
    assert.equal(await limitsOf(['purge', 'N/purged', '--yes']), 0);
  });

  it('exports and imports a queue', async () => {
    await quayside(['put', 'N/exported', 'a', 'b']);
    const exported = await quayside(['export', 'N/exported']);
    assert.equal(json(exported).length, 2);
    assert.deepEqual(json(await quayside(['import', 'N/imported'], exported.stdout)), [
      { imported: 2, repeated: 0 },
    ]);
    assert.deepEqual(json(await quayside(['import', 'N/imported'], exported.stdout)), [
      { imported: 0, repeated: 2 },
    ]);
  });

  it('says that a part of an import may be stored if the server is killed', async () => {
    const killed = createHttpServer((request) => {
      killed.close();
      request.socket.destroy();
    });
    await once(killed.listen(0, '127.0.0.1'), 'listening');
    const { port } = killed.address() as AddressInfo;
    const { code, stderr } = await quayside(['import', 'N/x', '--url', `http://127.0.0.1:${port}`], '{}\n');
    assert.equal(code, 6);
    assert.match(
      stderr,
      /127\.0\.0\.1:\d+\. Elements may have been stored; the whole input can be imported again\.\n$/,
    );
  });

  it('says that a part of an import may be stored if the engine becomes unavailable', async () => {
    // The first attempt stores a part; the second one, which the client sends by itself, nothing.
    const problems = [
      { code: 'storage-unavailable', detail: 'Line 501: Away.', line: 501, imported: 500, repeated: 0 },
      { code: 'storage-unavailable', detail: 'Away.', imported: 0, repeated: 0 },
      { code: 'storage-unavailable', detail: 'Line 9: Away.', line: 9, imported: 0, repeated: 0 },
      { code: 'storage-unavailable', detail: 'Line 502: Away.', line: 502, imported: 1, repeated: 500 },
    ];
    const failing = createHttpServer((request, response) => {
      request
        .resume()
        .on('end', () => response.writeHead(503, PROBLEM).end(JSON.stringify(problems.shift())));
    });
    await once(failing.listen(0, '127.0.0.1'), 'listening');
    try {
      const { port } = failing.address() as AddressInfo;
      const command = ['import', 'N/x', '--url', `http://127.0.0.1:${port}`];
      const [first, second] = [await quayside(command, '{}\n'), await quayside(command, '{}\n')];
      const mayBeStored = 'Elements may have been stored; the whole input can be imported again.';
      assert.deepEqual([first.code, first.stderr], [6, `quayside: Away. ${mayBeStored}\n`]);
      assert.equal(second.code, 6);
      assert.equal(
        second.stderr,
        'quayside: Line 502: Away. At least 501 elements were stored; the whole input can be imported again.\n',
      );
    } finally {
      failing.close();
    }
  });

  it('reports an invalid import line by its number in the whole input', async () => {
    await quayside(['put', 'N/long', 'a']);
    const [line] = json(await quayside(['export', 'N/long'])) as object[];
    const lines = Array.from({ length: 5_010 }, (_, i) => JSON.stringify({ ...line, id: `e${i}` }));
    lines[0] = '';
    lines[5_007] = '{"id": 1}';
    const { code, stderr } = await quayside(['import', 'N/long import'], lines.join('\n'));
    assert.match(stderr, /^quayside: Line 5008: .* At least 4999 elements were stored; /);
    assert.equal(code, 2);
    const [status] = json(await quayside(['status', 'N/long import'])) as { total: number }[];
    assert.equal(status?.total, 4_999);
  });

  it('rejects input that is not UTF-8 instead of storing replacement characters', async () => {
    const latin = Buffer.from('{"a":1}\n{"name":"J\xfcrgen"}\n', 'latin1');
    for (const args of [
      ['put', 'N/latin', '--lines'],
      ['import', 'N/latin'],
    ]) {
      const { code, stderr } = await quayside(args, latin);
      assert.match(stderr, /^quayside: .* is not UTF-8/);
      assert.equal(code, 2);
    }
    const marked = await quayside(['put', 'N/latin', '--lines'], '\ufeff{"a":1}\n');
    assert.equal(marked.code, 0);
    const [element] = json(await quayside(['get', 'N/latin'])) as { contentType: string; data: unknown }[];
    assert.deepEqual([element?.contentType, element?.data], ['application/json', { a: 1 }]);
  });

  it('shows on a terminal that an export ends within a character', async () => {
    const broken = createHttpServer((_, response) => {
      response.writeHead(200, { 'content-type': 'application/x-ndjson' });
      response.end(Buffer.from('{"id": "1"}\n€').subarray(0, -1));
    });
    await once(broken.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(broken.address() as AddressInfo).port}`;
    const { stdout } = await quayside(['export', 'N/x', '--url', url], '', env, true);
    broken.close();
    assert.equal(stdout, '{"id": "1"}\n\ufffd');
  });

  it('reports an incomplete export if the connection breaks', async () => {
    const breaking = createHttpServer((_, response) => {
      response.writeHead(200, { 'content-type': 'application/x-ndjson' });
      response.write('{"id": "1"}\n', () => response.destroy());
    });
    await once(breaking.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(breaking.address() as AddressInfo).port}`;
    const { code, stderr } = await quayside(['export', 'N/x', '--url', url]);
    breaking.close();
    assert.deepEqual(
      [code, stderr],
      [5, 'quayside: The connection ended before the whole export had arrived. The output is incomplete.\n'],
    );
  });

  it('reports a closed output pipe only if the command has changed something', async () => {
    await quayside(['put', 'N/unread', '--lines'], 'a\nb\n');
    const [{ id }] = json(await quayside(['reserve', 'N/unread'])) as [{ id: string }];
    const declaration = '{"src":{"ns":"N","queue":"a"},"dst":[{"ns":"N","queue":"b"}],"consumer":{}}';
    const reported =
      'quayside: The reader of the output disconnected (write EPIPE). What the command had changed by then stays changed.\n';
    for (const [command, expected] of [
      ['browse N/unread', ''],
      ['export N/unread', ''],
      ['get N/unread', reported],
      [`commit N/unread ${id}`, reported],
      ['purge N/unread --yes', reported],
      ['token add unread', reported],
      ['exchange create unread', reported],
      ['exchange delete unread', reported],
    ] as const) {
      const gone = Object.assign(new Error('write EPIPE'), { code: 'EPIPE' });
      const stdout = new Writable({ write: (_chunk, _encoding, done) => done(gone) });
      stdout.on('error', () => {});
      const stderr = new PassThrough();
      const io = { stdin: Readable.from([Buffer.from(declaration)]), stdout, stderr, env };
      assert.equal(await runProgram(command.split(' '), io, NO_SERVER), 1, command);
      assert.equal(await text(stderr.end()), expected, command);
    }
    const tokens = json(await quayside(['token', 'list'])) as { id: string; name: string }[];
    for (const token of tokens) if (token.name === 'unread') await quayside(['token', 'revoke', token.id]);
  });

  it('fails if its output cannot be written, but is silent if the reader closed the pipe', async () => {
    const script = (command: string, to: string): string =>
      `set -o pipefail; ${process.execPath} ${MAIN} ${command} ${to}`;
    for (const command of ['--print-config', 'man', 'completion bash', 'status']) {
      const full = run('bash', ['-c', script(command, '> /dev/full')], { env: { ...process.env, ...env } });
      await assert.rejects(full, { code: 1, stderr: /^quayside: .*ENOSPC/ }, command);
      // `true` may exit before anything is written; the command must treat that as if `true` had read everything.
      const gone = run('bash', ['-c', script(command, '| true')], { env: { ...process.env, ...env } });
      const { stderr } = await gone.catch((error: { stderr: string }) => error);
      assert.equal(stderr, '', command);
    }
  });

  it('creates, lists, stops and deletes an exchange', async () => {
    const declaration = { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'N', queue: 'b' }], consumer: {} };
    const created = await quayside(['exchange', 'create', 'x1'], JSON.stringify(declaration));
    assert.equal(created.code, 0, created.stderr);
    await quayside(['exchange', 'stop', 'x1']);
    const listed = json(await quayside(['exchange', 'list'])) as Record<string, unknown>[];
    assert.equal(listed.find((one) => one.id === 'x1')?.stopped, true);
    await quayside(['exchange', 'delete', 'x1']);
    assert.equal((await quayside(['exchange', 'show', 'x1'])).code, 3);
    const one = await quayside(['exchange', 'list', 'x1']);
    assert.deepEqual([one.code, one.stdout], [2, '']);
    assert.match(one.stderr, /exchange list takes no id\./);
    for (const verb of ['rename', 'constructor', '__proto__']) {
      const { code, stderr } = await quayside(['exchange', verb, 'x1']);
      assert.equal(code, 2);
      assert.match(stderr, /is not known. Allowed: list, show, create, start, stop, delete\./);
    }
  });

  it('says that a restart restores an exchange of the configuration file when it deletes it', async () => {
    const { code, stderr } = await quayside(['exchange', 'delete', 'x-configured']);
    assert.deepEqual(
      [code, stderr],
      [0, 'quayside: the configuration file declares this exchange; a restart restores that declaration\n'],
    );
  });

  it('creates, lists and revokes tokens, and authenticates with one', async () => {
    const [created] = json(await quayside(['token', 'add', 'ci', '--rights', 'N=write'])) as Record<
      string,
      string
    >[];
    const { QUAYSIDE_USER: _user, QUAYSIDE_PASSWORD: _password, ...bare } = env;
    const own = { ...bare, QUAYSIDE_TOKEN: created?.token ?? '' };
    assert.equal((await quayside(['put', 'N/by-token', 'x'], '', own)).code, 0);
    assert.equal((await quayside(['get', 'N/by-token'], '', own)).code, 4);
    const [listed] = json(await quayside(['token', 'list'])) as Record<string, unknown>[];
    assert.deepEqual([listed?.name, listed?.rights, listed?.token], ['ci', { N: ['write'] }, undefined]);
    assert.equal((await quayside(['token', 'revoke', created?.id ?? ''])).code, 0);
    assert.equal((await quayside(['put', 'N/by-token', 'x'], '', own)).code, 4);
  });

  it('summarizes dead letters, lists nodes and runs a benchmark', async () => {
    assert.equal((await quayside(['dead', 'N'])).code, 0);
    assert.equal(json(await quayside(['nodes'])).length, 1);
    const measured = json(await quayside(['bench', 'N/bench', '--count', '100', '--callers', '8'])) as {
      count: number;
    }[];
    assert.deepEqual(
      measured.map(({ count }) => count),
      [100, 100],
    );
  });

  describe('prints a completion script', () => {
    /** How a shell that has read the script lists completions of a line. */
    const LISTED = {
      bash: (words: string[]) =>
        `COMP_WORDS=(${words.join(' ')}); COMP_CWORD=${words.length - 1}; _quayside; printf '%s\\n' "\${COMPREPLY[@]}"`,
      // compgen leaves it to the line editor to select those that begin with the last word.
      zsh: (words: string[]) =>
        `COMP_WORDS=(${words.join(' ')}); COMP_CWORD=${words.length - 1}; compgen -F _quayside | grep -e "^${words.at(-1)}"`,
      fish: (words: string[]) => `complete -C "${words.join(' ')}"`,
    };
    const FLAGS = { bash: ['--norc'], zsh: ['-f'], fish: ['--no-config'] };
    before(() => needDebian('zsh', 'fish'));

    for (const shell of ['bash', 'zsh', 'fish'] as const) {
      it(`for ${shell}`, async () => {
        const { stdout: script } = await quayside(['completion', shell]);
        for (const command of COMMANDS) assert.ok(script.includes(command), command);
        for (const [words, completed] of [
          [['quayside', 'pu'], 'purge put'],
          [['quayside', '--p'], '--print-config'],
          [['quayside', '--config', 'N.yaml', 'pu'], 'purge put'],
          [['quayside', '--config', 'N.yaml', 'exchange', 's'], 'show start stop'],
          [['quayside', '--config', 'get', 'token', 'add', '--r'], '--rights'],
          [['quayside', 'exchange', 's'], 'show start stop'],
          [['quayside', 'token', 'add', '--r'], '--rights'],
          [['quayside', 'completion', 'z'], 'zsh'],
          [['quayside', 'help', 'pu'], 'purge put'],
        ] as const) {
          const commands = `${script}\n${LISTED[shell]([...words])}`;
          const args = [...FLAGS[shell], '-c', commands];
          const { stdout, stderr } = await run(shell, args, { env: { ...process.env, HOME: home } });
          assert.deepEqual([stdout.trim().split('\n').sort().join(' '), stderr], [completed, '']);
        }
      });
    }
  });

  it('prints the help of a command by "help", too', async () => {
    for (const words of [['put'], ['token', 'add'], []]) {
      const help = await quayside(['help', ...words]);
      assert.deepEqual(help, await quayside([...words, '--help']));
      assert.equal(help.code, 0);
    }
    const misspelt = await quayside(['help', 'putt']);
    assert.deepEqual(
      [misspelt.code, misspelt.stderr],
      [2, 'quayside: Unknown command "putt". Did you mean "put"?\n'],
    );
  });

  it('browses 50 elements unless --limit says otherwise, and says that there are more', async () => {
    await quayside(['put', 'N/deep', '--lines'], 'x\n'.repeat(51));
    const some = await quayside(['browse', 'N/deep']);
    assert.equal(json(some).length, 50);
    assert.equal(some.stderr, 'quayside: Only the first 50 elements are shown. --limit COUNT shows more.\n');
    const all = await quayside(['browse', 'N/deep', '--limit', '51']);
    assert.deepEqual([json(all).length, all.stderr], [51, '']);
    await quayside(['get', 'N/deep']);
    assert.equal((await quayside(['browse', 'N/deep'])).stderr, '');
  });

  it('says that dead-letter queues are missing in the list', async () => {
    const proxy = createHttpServer((_, response) => {
      response.setHeader('content-type', 'application/json');
      response.end('{"queues": [], "complete": false, "unavailable": []}');
    }).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
    const { code, stderr } = await quayside(['dead', '--url', url]);
    assert.equal(code, 0);
    assert.match(stderr, /^quayside: Not all dead-letter queues are listed/);
    proxy.close();
    proxy.closeAllConnections();
  });

  it('describes each argument of a command in its help', async () => {
    const describe = async (command: Command, parents: readonly string[]): Promise<void> => {
      const words = [...parents, command.name()];
      for (const one of command.commands) await describe(one, words);
      if (command.registeredArguments.length === 0) return;
      const { code, stdout } = await quayside([...words, '--help']);
      assert.equal(code, 0);
      for (const argument of command.registeredArguments)
        assert.match(stdout, new RegExp(`^  ${argument.name()} +\\w`, 'm'), words.join(' '));
    };
    for (const command of commandTree(process).commands) await describe(command, []);
    const { stdout } = await quayside(['put', '--help']);
    assert.match(stdout, /^ {2}queue +namespace and name of the queue, such as N\/orders$/m);
    assert.doesNotMatch(stdout, /\[\]/);
  });

  it('inserts arguments, lines and standard input with the documented content type', async () => {
    const types = async (args: readonly string[], input = ''): Promise<unknown[]> => {
      await quayside(['purge', 'N/types', '--yes']);
      assert.equal((await quayside(['put', 'N/types', ...args], input)).code, 0);
      const shown = json(await quayside(['browse', 'N/types'])) as { contentType: string }[];
      return shown.map(({ contentType }) => contentType);
    };
    const text = 'text/plain; charset=utf-8';
    assert.deepEqual(await types(['{"a": 1}', 'word']), ['application/json', text]);
    assert.deepEqual(await types(['--lines'], '[1]\nword\n'), ['application/json', text]);
    assert.deepEqual(await types([], '{"a": 1}'), ['application/octet-stream']);
    assert.deepEqual(await types(['--type', 'text/csv'], 'a,b'), ['text/csv']);
    const both = await quayside(['put', 'N/types', 'a', '--lines'], 'b\n');
    assert.deepEqual([both.code, both.stdout], [2, '']);
    assert.match(
      both.stderr,
      /--lines reads elements from standard input\. Leave it out, or the arguments\./,
    );
  });

  it('prints a body in UTF-8 as text, whatever its type, and other bytes as base64', async () => {
    for (const [input, type, printed] of [
      ['later', 'application/x-www-form-urlencoded', { data: 'later' }],
      ['not JSON', 'application/json', { data: 'not JSON' }],
      ['[1]', 'application/json', { data: [1] }],
      [new Uint8Array([0xff]), 'text/plain', { base64: '/w==' }],
    ] as const) {
      await quayside(['put', 'N/typed', '--type', type], input);
      const table = await quayside(['browse', 'N/typed'], '', env, true);
      assert.ok(table.stdout.endsWith(`  ${typeof input === 'string' ? input : '-'}\n`), table.stdout);
      const [browsed] = json(await quayside(['browse', 'N/typed'])) as { data?: unknown; base64?: string }[];
      const [taken] = json(await quayside(['get', 'N/typed'])) as { data?: unknown; base64?: string }[];
      for (const one of [browsed, taken]) assert.partialDeepStrictEqual(one, printed);
    }
  });

  it('prints a man page with all commands and options', async () => {
    const { code, stdout } = await quayside(['man']);
    assert.equal(code, 0);
    for (const command of COMMANDS) {
      assert.match(stdout, new RegExp(`^\\.SS ${command.replace('-', '\\\\-')}\\b`, 'm'));
    }
    assert.match(stdout, /^\.SS user passwd name$/m);
    assert.match(stdout, /^\.SS put queue \[data\.\.\.\]$/m);
    assert.match(stdout, /^\.B \\-\\-dry\\-run$/m);
    for (const code of Object.values(EXIT_CODES)) assert.match(stdout, new RegExp(`^\\.B ${code}$`, 'm'));
    // A text line that starts like a troff request would not be shown.
    const requests = new Set([...stdout.matchAll(/^[.']\S*/gm)].map(([request]) => request));
    assert.deepEqual([...requests].sort(), ['.B', '.I', '.SH', '.SS', '.TH', '.TP']);
  });

  it('rejects "." and ".." as queue names: the URL would address another resource', async () => {
    await quayside(['put', 'N/export', 'kept']);
    for (const args of [
      ['export', 'N/.'],
      ['purge', 'N/.', '--yes'],
      ['import', 'N/..'],
      ['commit', 'N/.', 'x'],
    ]) {
      const { code, stderr } = await quayside(args, '{}');
      assert.equal(code, EXIT_CODES.usage, args.join(' '));
      assert.match(stderr, /is not a queue\. Allowed: "namespace\/queue", neither/, args.join(' '));
    }
    assert.equal(json(await quayside(['browse', 'N/export'])).length, 1);
  });

  it('uses the credentials of its file only for the server and the user of that file', async () => {
    await mkdir(path.join(home, 'quayside'));
    const file = { url: server.url, user: 'test1', password: 'test1' };
    await writeFile(path.join(home, 'quayside', 'client.json'), JSON.stringify(file));
    const bare = { XDG_CONFIG_HOME: home };
    assert.equal((await quayside(['status', 'N'], '', bare)).code, 0);
    assert.equal((await quayside(['status', 'N', '--user', 'other'], '', bare)).code, 4);
    assert.equal((await quayside(['status', 'N', '--url', `${server.url}/`], '', bare)).code, 4);
    const withUser = server.url.replace('//', '//test1:test1@');
    assert.equal((await quayside(['status', 'N', '--url', withUser], '', bare)).code, 0);
    assert.equal((await quayside(['status', 'N'], '', { ...bare, QUAYSIDE_URL: withUser })).code, 0);
    const other = { ...bare, QUAYSIDE_USER: 'other', QUAYSIDE_PASSWORD: 'x', QUAYSIDE_TOKEN: 'x' };
    assert.equal((await quayside(['status', 'N', '--url', withUser], '', other)).code, 0);
    assert.equal((await quayside(['status', 'N', '--url', withUser, '--user', 'other'], '', other)).code, 4);
  });

  it('reports an invalid credentials file without quoting secrets', async () => {
    const folder = path.join(home, 'wrong');
    await mkdir(path.join(folder, 'quayside'), { recursive: true });
    const file = path.join(folder, 'quayside', 'client.json');
    const secret = 'hunter2secret';
    for (const content of [
      'null',
      '[]',
      '"http://127.0.0.1"',
      '{"url": 5}',
      '{',
      `{"password": ${secret}}`,
      `{"password": '${secret}'}`,
      Buffer.from(`{"password": "${secret}ä"}`, 'latin1'),
    ]) {
      await writeFile(file, content);
      const { code, stderr } = await quayside(['status'], '', { XDG_CONFIG_HOME: folder });
      assert.equal(code, 2, stderr);
      assert.ok(stderr.startsWith(`quayside: ${file} `), stderr);
      assert.doesNotMatch(stderr, /hunter|secret/);
    }
    await rm(file);
    await mkdir(file);
    const unread = await quayside(['status'], '', { XDG_CONFIG_HOME: folder });
    assert.deepEqual([unread.code, unread.stderr], [2, `quayside: ${file} cannot be read (EISDIR).\n`]);
  });

  it('reports an empty queue on a terminal and prints nothing into a pipe', async () => {
    for (const command of ['get', 'reserve']) {
      const shown = await quayside([command, 'N/nothing'], '', env, true);
      assert.deepEqual(shown, {
        code: 3,
        stdout: '',
        stderr: 'quayside: There is no element to take in N/nothing.\n',
      });
      assert.deepEqual(await quayside([command, 'N/nothing']), { code: 3, stdout: '', stderr: '' });
    }
  });

  it('prints a JSON body on one line, otherwise unchanged: no rounded numbers, any depth', async () => {
    const deep = `${'['.repeat(20_000)}${']'.repeat(20_000)}`;
    const written = '\ufeff{\n\t"id": 12345678901234567891,\r\n\t"price": 1.50, "text": "a\\tb"\n}\n';
    const shown = '{  "id": 12345678901234567891,   "price": 1.50, "text": "a\\tb" }';
    for (const [body, expected] of [
      [written, shown],
      [deep, deep],
    ] as const) {
      for (const command of ['browse', 'reserve', 'get']) {
        const put = await quayside(['put', 'N/as-written', '--type', 'application/json'], body);
        assert.equal(put.code, 0, put.stderr);
        const { code, stdout, stderr } = await quayside([command, 'N/as-written']);
        assert.equal(code, 0, stderr);
        assert.ok(stdout.includes(`"data":${expected}`), stdout.slice(0, 300));
        assert.equal(stdout.trimEnd().split('\n').length, 1);
        await quayside(['purge', 'N/as-written', '--state', 'all', '--yes']);
      }
    }
    await quayside(['put', 'N/as-written', '--type', 'application/json'], written);
    const table = await quayside(['browse', 'N/as-written'], '', env, true);
    assert.match(table.stdout, /"id": 12345678901234567891/);
    await quayside(['get', 'N/as-written']);
    for (const [body, type, data] of [
      ['12345678901234567891', 'text/plain', '"12345678901234567891"'],
      ['"quoted"', 'application/json', '"quoted"'],
      ['"quoted"', 'text/plain', '"\\"quoted\\""'],
    ] as const) {
      await quayside(['put', 'N/as-written', '--type', type], body);
      assert.ok((await quayside(['get', 'N/as-written'])).stdout.includes(`"data":${data}`));
    }
  });

  it('prints a shell command that commits the reserved element, for any queue name and group', async (t) => {
    const stream = { url: 'sqlite::memory:', variant: 'stream', groups: ['first', 'second'] };
    const other = await ServerInProcess.start({
      config: { http: { users: { test1: 'test1' } }, namespaces: { events: stream } },
    });
    t.after(() => other.dispose());
    const own = { ...env, QUAYSIDE_URL: other.url };
    for (const name of ['events/plain', "events/it's $(echo odd); exit"]) {
      await quayside(['put', name, 'x'], '', own);
      const shown = await quayside(['reserve', name, '--group', 'second'], '', own, true);
      const command = shown.stdout.trimEnd().split('\n').at(-1) ?? '';
      const script = `quayside() { printf '%s\\n' "$@"; }\n${command}`;
      const words = (await run('sh', ['-c', script])).stdout.trimEnd().split('\n');
      const { code, stderr } = await quayside(words, '', own);
      assert.equal(code, 0, stderr);
      assert.equal(words[1], name);
    }
  });

  it('prints tables without control characters on a terminal, and JSON into a pipe', async () => {
    await quayside(['put', 'N/shown', 'red \u001b[31m']);
    const command = `${process.execPath} ${MAIN} browse N/shown`;
    const { stdout } = await run('script', ['-qec', command, '/dev/null'], {
      env: { ...process.env, ...env },
    });
    const [head = '', row = ''] = stdout.split('\r\n');
    assert.match(head, /^ID +STATE +TRIES +MATURE +REASON +DATA$/);
    assert.match(row, / ready +0 .* red \ufffd\[31m$/);
    assert.ok(!stdout.includes('\u001b'));
    const piped = await run(process.execPath, [MAIN, 'browse', 'N/shown'], {
      env: { ...process.env, ...env },
    });
    assert.equal(JSON.parse(piped.stdout).data, 'red \u001b[31m');
  });

  it('escapes C0 and C1 controls and bidirectional marks of data on a terminal', async () => {
    const acting = 'esc \u001b[31m csi \u009b31m turned \u202e';
    const body = JSON.stringify({ text: acting });
    await quayside(['put', 'N/acting', body, '--type', 'application/json']);
    const selector = `env => { throw new Error(env.msg.payload.text) } // ${acting}`;
    const declaration = {
      src: { ns: 'N', queue: 'from' },
      dst: [{ ns: 'N', queue: 'to', selector }],
      consumer: {},
    };
    assert.equal((await quayside(['exchange', 'create', 'acting'], JSON.stringify(declaration))).code, 0);
    const move = ['move', 'N/acting', 'N/to', '--where', selector];
    const [moved] = json(await quayside(move)) as { id: string; error: string }[];
    assert.ok(moved?.error.includes('esc'), moved?.error);
    for (const args of [
      ['exchange', 'show', 'acting'],
      ['operations', moved?.id ?? ''],
      ['browse', 'N/acting'],
      ['browse', 'N/acting', '--json'],
      ['export', 'N/acting'],
    ]) {
      const { code, stdout } = await quayside(args, '', env, true);
      assert.equal(code, 0, args.join(' '));
      assert.match(stdout, /turned/, args.join(' '));
      assert.doesNotMatch(stdout, /[^\n\P{Cc}]|\p{Bidi_Control}/u, args.join(' '));
    }
    // The escaped JSON parses to the same value.
    const [shown] = json(await quayside(['browse', 'N/acting', '--json'], '', env, true)) as {
      data: object;
    }[];
    assert.deepEqual(shown?.data, { text: acting });
    const exported = await quayside(['export', 'N/acting'], '', env, true);
    assert.deepEqual(
      (json(exported) as { text: string }[]).map((line) => line.text),
      [body],
    );
    await quayside(['exchange', 'delete', 'acting']);
  });
});
