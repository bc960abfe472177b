import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { after, before, describe, it } from 'node:test';
import { StompClient } from '../stomp/client.ts';
import { QueueClient } from '../support/http-client.ts';
import { SERVER_ARGS } from '../support/server-command.ts';
import { Folder, type Program } from './program.ts';

const CONFIG = {
  http: {
    users: { ann: 'ann', reader: { password: 'p', rights: { N: ['read'] } } },
    trustedProxies: ['127.0.0.1'],
  },
  namespaces: { N: { url: 'sqlite::memory:' } },
};

describe('The log', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
    await folder.write('q.json', CONFIG);
    await folder.write('access.json', { ...CONFIG, stomp: { port: 0 }, log: { access: true } });
    await folder.write('debug.json', { ...CONFIG, stomp: { port: 0 }, log: { level: 'debug' } });
  });

  after(() => folder.dispose());

  it('contains each 403, for a missing right or a foreign page, with the user, the address and the request', async () => {
    const program = await folder.serve(['--config', 'q.json']);
    const from = { 'x-forwarded-for': '198.51.100.7' };
    await request(program, 'reader:p', 'PUT', '/q/N/orders?delay=1', from);
    await request(program, 'ann:ann', 'GET', '/q/N/orders?to=0', { ...from, origin: 'https://evil.example' });
    await request(program, null, 'GET', '/q/N/orders', { 'sec-fetch-site': 'cross-site' });
    await program.untilLogged((lines) => ofEvent(lines, 'forbidden').length === 3);
    const [right, origin, site] = ofEvent(program.logged(), 'forbidden').map(
      ({ time, msg, detail, ...fields }) => fields,
    );
    const common = { level: 'warn', event: 'forbidden' };
    assert.deepEqual(right, {
      ...common,
      namespace: 'N',
      queue: 'orders',
      user: 'reader',
      address: '198.51.100.7',
      action: 'insert',
    });
    const asked = { method: 'GET', path: '/q/N/orders', user: null };
    assert.deepEqual(origin, {
      ...common,
      ...asked,
      address: '198.51.100.7',
      origin: 'https://evil.example',
      fetchSite: null,
      purpose: null,
    });
    assert.deepEqual(site, {
      ...common,
      ...asked,
      address: '127.0.0.1',
      origin: null,
      fetchSite: 'cross-site',
      purpose: null,
    });
    assert.equal(ofEvent(program.logged(), 'access').length, 0);
    assert.equal(await program.stop(), 0);
  });

  it('contains a line for each request and each connection if log.access is on', async () => {
    const program = await folder.serve(['--config', 'access.json']);
    await request(program, 'ann:ann', 'PUT', '/q/N/a?delay=5', { 'x-forwarded-for': '198.51.100.7' });
    await request(program, 'ann:ann', 'GET', '/nowhere');
    await request(program, null, 'GET', '/livez');
    await request(program, null, 'GET', '/q?secret=token');
    const client = await stomp(program, 'ann');
    await client.disconnect();
    await program.untilLogged((lines) => ofEvent(lines, 'access').length === 5);
    const lines = ofEvent(program.logged(), 'access').map(({ time, ms, connection, ...fields }) => {
      assert.ok(Number.isInteger(ms));
      return fields;
    });
    const line = { level: 'info', event: 'access', msg: 'a request ended', address: '127.0.0.1', user: null };
    assert.deepEqual(lines, [
      { ...line, method: 'PUT', path: '/q/N/a', user: 'ann', address: '198.51.100.7', status: 200 },
      { ...line, method: 'GET', path: '/nowhere', user: 'ann', status: 404 },
      { ...line, method: 'GET', path: '/livez', status: 200 },
      { ...line, method: 'GET', path: '/q', status: 401 },
      { level: 'info', event: 'access', msg: 'a connection ended', protocol: 'STOMP', address: '127.0.0.1' },
    ]);
    assert.equal(await program.stop(), 0);
  });

  it('contains logins, rejected requests with their codes, and connections at level debug, but no content', async () => {
    const program = await folder.serve(['--config', 'debug.json'], { ownProcess: true });
    await request(program, 'ann:ann', 'PUT', '/q/N/a?delay=CANARY');
    await request(program, 'ann:ann', 'GET', '/q/N/a?to=0');
    const client = await stomp(program, 'ann');
    await client.disconnect();
    await program.untilLogged((lines) => ofEvent(lines, 'access').length === 1);
    const lines = program.logged().filter(({ level }) => level === 'debug');
    assert.deepEqual(
      lines.map(({ event, code, parameter, user }) => [event, code, parameter, user]),
      [
        ['login', undefined, undefined, 'ann'],
        ['rejected', 'invalid-parameter', 'delay', 'ann'],
        ['access', undefined, undefined, undefined],
      ],
    );
    assert.ok(!program.stderr.includes('CANARY'));
    assert.equal(await program.stop(), 0);
  });

  it('is text in a pipe if log.format is text', async () => {
    const env = { QUAYSIDE_LOG__FORMAT: 'text' };
    const program = await folder.serve(['--config', 'q.json'], { env, ownProcess: true });
    await program.untilPrinted(
      /^\d\d:\d\d:\d\d\.\d{3} INFO {2}listening {2}event=start {2}pid=\d+ {2}url=http:\S+$/m,
    );
    assert.deepEqual(program.logged(), []);
    assert.equal(await program.stop(), 0);
  });

  it('masks a secret in an Origin that ends in an escaped character, in both formats', async () => {
    for (const format of ['text', 'json']) {
      const env = { QUAYSIDE_LOG__FORMAT: format };
      const program = await folder.serve(['--config', 'q.json'], { env, ownProcess: true });
      await request(program, null, 'GET', '/livez', { origin: 'x://h?token=1"' });
      if (format === 'text') await program.untilPrinted(/x:\/\/h\?token=\*\*\*/);
      else {
        await program.untilLogged((lines) => ofEvent(lines, 'forbidden').length === 1);
        assert.equal(ofEvent(program.logged(), 'forbidden')[0]?.origin, 'x://h?token=***"');
      }
      assert.equal(await program.stop(), 0);
    }
  });

  it('is text on a terminal, unless log.format is json', {
    skip: process.platform !== 'linux' && 'script(1) differs',
  }, () => {
    const serve = `exec ${[process.execPath, ...SERVER_ARGS].join(' ')} --config q.json`;
    const stopsAtOnce = {
      ...process.env,
      QUAYSIDE_HTTP__PORT: '0',
      QUAYSIDE_HTTP__HOST: '192.0.2.1',
      QUAYSIDE_HTTP__INSECURE: 'true',
    };
    for (const [format, pattern] of [
      ['auto', /^\d\d:\d\d:\d\d\.\d{3} WARN {2}plain passwords of ann/m],
      ['json', /^\{"level":"warn","time":"/m],
    ] as const) {
      const { stdout } = spawnSync('script', ['-qec', serve, '/dev/null'], {
        cwd: folder.path,
        env: { ...stopsAtOnce, QUAYSIDE_LOG__FORMAT: format },
        encoding: 'utf8',
      });
      assert.match(stdout.replaceAll('\r', ''), pattern);
    }
  });

  it('warns at the start if clients could exhaust the limit of open files', {
    skip: process.platform === 'win32' && 'no such limit',
  }, async () => {
    await folder.write('many.json', { ...CONFIG, http: { ...CONFIG.http, maxSockets: 2_000_000_000 } });
    const program = await folder.serve(['--config', 'many.json']);
    const isWarning = ({ msg }: Record<string, unknown>): boolean => String(msg).includes('may open');
    await program.untilLogged((lines) => lines.some(isWarning));
    const warning = program.logged().find(isWarning);
    assert.match(
      String(warning?.msg),
      /^this process may open \d+ files, no more than .* \(http\.maxSockets: 2000000000\); raise the limit \(ulimit -n/,
    );
    assert.equal(await program.stop(), 0);
  });
});

function ofEvent(lines: Record<string, unknown>[], event: string): Record<string, unknown>[] {
  return lines.filter((line) => line.event === event);
}

async function request(
  program: Program,
  credentials: string | null,
  method: string,
  path: string,
  headers: Record<string, string> = {},
): Promise<void> {
  const client = new QueueClient({ url: program.url, credentials });
  await client.request(method, path, { headers });
  client.close();
}

function stomp(program: Program, user: string): Promise<StompClient> {
  const port = Number(/stomp:\/\/127\.0\.0\.1:(\d+)/.exec(program.stdout)?.[1]);
  return StompClient.login(port, '1.2', { login: user, passcode: user });
}
