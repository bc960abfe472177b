import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { after, before, describe, it } from 'node:test';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { Folder, type Program } from './program.ts';

const CONFIG = {
  http: { users: { test1: 'test1', reader: { password: 'reader', rights: { N: ['read'] } } } },
  namespaces: { N: { url: 'sqlite:N.db' } },
};
const AUTHORIZATION = `authorization: Basic ${Buffer.from('test1:test1').toString('base64')}`;

describe('A stop', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create();
    await folder.write('q.json', CONFIG);
  });

  after(() => folder.dispose());

  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    it(`by ${signal} ends blocked gets with 503 and Retry-After, and exits with 0`, async () => {
      const program = await folder.serve(['--config', 'q.json']);
      const client = new QueueClient({ url: program.url });
      const blocked = [
        client.get('N', 'empty'),
        client.reserve('N', 'empty'),
        client.get('N', 'other', { to: 60_000 }),
      ];
      await untilWaiting(client, 3);
      program.signal(signal);
      for (const answer of await Promise.all(blocked)) {
        assert.equal(answer.status, 503);
        assert.equal(answer.headers['retry-after'], '1');
        assert.equal(answer.headers.connection, 'close');
        assert.equal(jsonOf<{ code: string }>(answer).code, 'shutting-down');
      }
      client.close();
      assert.equal(await program.ended, 0);
      assert.deepEqual(
        program
          .logged()
          .map(({ msg }) => msg)
          .slice(-2),
        ['stopping', 'stopped'],
      );
    });
  }

  it('finishes a request in progress and frees the database: the next server starts at once and has the element', async () => {
    const program = await folder.serve(['--config', 'q.json']);
    const upload = await halfUpload(program, 'slow', 'begin-', 10);
    program.signal('SIGTERM');
    await program.untilLogged((lines) => lines.some(({ msg }) => msg === 'stopping'));
    const answer = readToEnd(upload);
    upload.write('end!');
    assert.match(await answer, /^HTTP\/1\.1 200 OK\r\n[\s\S]*connection: close[\s\S]*\{"id":"/i);
    assert.equal(await program.ended, 0);

    const next = await folder.serve(['--config', 'q.json']);
    const client = new QueueClient({ url: next.url });
    assert.equal((await client.get('N', 'slow', { to: 0 })).body.toString(), 'begin-end!');
    client.close();
    assert.equal(await next.stop(), 0);
  });

  it('cuts off unfinished requests at its deadline, and still exits with 0', async () => {
    const env = { QUAYSIDE_SHUTDOWN__DEADLINE: '0.05' };
    const program = await folder.serve(['--config', 'q.json'], { env });
    const upload = await halfUpload(program, 'never', 'begin-', 10);
    const closed = once(upload, 'close');
    program.signal('SIGTERM');
    await closed;
    assert.equal(await program.ended, 0);
    assert.ok(program.logged().some(({ msg }) => /responses took too long/.test(String(msg))));
  });

  it('is immediate on a second signal, but not on an echo of the first', async () => {
    const program = await folder.serve(['--config', 'q.json']);
    const upload = await halfUpload(program, 'never', 'begin-', 10);
    upload.on('error', () => {});
    program.signal('SIGINT');
    program.signal('SIGINT');
    await program.untilLogged((lines) => lines.some(({ msg }) => msg === 'stopping'));
    assert.ok(!program.stderr.includes('exiting immediately'));
    assert.equal(await program.signalUntilEnded('SIGINT'), 1);
    assert.ok(program.stderr.includes('exiting immediately'));
  });

  it('exits with 0 even if another signal arrives when it is complete', async () => {
    const program = await folder.serve(['--config', 'q.json']);
    program.signal('SIGTERM');
    await program.untilLogged((lines) => lines.some(({ msg }) => msg === 'stopped'));
    program.signal('SIGINT');
    assert.equal(await program.ended, 0);
  });

  it('is possible while the server is starting', async () => {
    const program = folder.launch(['--config', 'q.json'], { env: { QUAYSIDE_HTTP__PORT: '0' } });
    await program.untilPrinted(/plain passwords/);
    assert.equal(await program.stop(), 0);
  });
});

describe('A fatal error', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create();
    await folder.write('q.json', CONFIG);
  });

  after(() => folder.dispose());

  it('that is not caught is logged, ends waiting calls with 503 and the process with exit code 1', async () => {
    const thrower = "process.on('SIGUSR2', () => { throw new Error('planted'); });";
    const program = await folder.serve(['--config', 'q.json'], preloadOptions(thrower));
    const client = new QueueClient({ url: program.url });
    const blocked = client.get('N', 'empty');
    await untilWaiting(client, 1);
    program.signal('SIGUSR2');
    assert.equal((await blocked).status, 503);
    client.close();
    assert.equal(await program.ended, 1);
    const fatal = program.logged().find(({ level }) => level === 'fatal');
    assert.match(JSON.stringify(fatal), /"planted"/);
  });

  it('in a promise that is not awaited is logged and ends the process with exit code 1', async () => {
    const rejecter = "process.on('SIGUSR2', () => { Promise.reject(new Error('planted')); });";
    const program = await folder.serve(['--config', 'q.json'], preloadOptions(rejecter));
    program.signal('SIGUSR2');
    assert.equal(await program.ended, 1);
    assert.match(program.stderr, /"planted"/);
  });

  it('of an engine stops the server with exit code 1', async () => {
    // Terminates the engine's worker thread, as if it had crashed.
    const killer = `
      import { Worker } from 'node:worker_threads';
      const workers = new Set();
      const post = Worker.prototype.postMessage;
      Worker.prototype.postMessage = function (...args) { workers.add(this); return post.apply(this, args); };
      process.on('SIGUSR2', () => { for (const worker of workers) worker.terminate(); });
    `;
    const program = await folder.serve(['--config', 'q.json'], preloadOptions(killer));
    const client = new QueueClient({ url: program.url });
    assert.equal((await client.insert('N', 'q', 'x')).status, 200);
    client.close();
    program.signal('SIGUSR2');
    assert.equal(await program.ended, 1);
    assert.ok(program.logged().some(({ event }) => event === 'engine-failed'));
  });
});

describe('The log', () => {
  let folder: Folder;
  let program: Program;

  before(async () => {
    folder = await Folder.create();
    await folder.write('q.json', CONFIG);
    program = await folder.serve(['--config', 'q.json']);
  });

  after(() => folder.dispose());

  it('records who paused, resumed, removed and canceled what, and whose requests were rejected', async () => {
    const client = new QueueClient({ url: program.url });
    const reader = new QueueClient({ url: program.url, credentials: 'reader:reader' });
    const { id } = jsonOf<{ id: string }>(await client.insert('N', 'q', 'x'));
    await client.pause('N', 'q');
    await client.resume('N', 'q');
    await client.remove('N', 'q', id);
    await client.remove('N', 'q', id);
    const waiting = reader.get('N', 'q', { tid: 'T1' });
    await until(async () => jsonOf<unknown[]>(await client.consumers('N', 'q')).length === 1);
    await client.cancel('N', 'q', 'T1');
    assert.equal((await waiting).status, 410);
    const [src, dst] = [{ ns: 'N', queue: 'q' }, [{ ns: 'N', queue: 'r' }]];
    const body = JSON.stringify({ src, dst, consumer: {} });
    await client.request('PUT', '/x/x', { body });
    await client.request('PUT', '/x/x/stop');
    await client.request('PUT', '/x/x/start');
    await client.request('DELETE', '/x/x');
    await client.request('DELETE', '/x/x');
    await reader.pause('N', 'q');
    await reader.request('PUT', '/x/x', { body });
    client.close();
    reader.close();
    await program.untilLogged((lines) => lines.filter(({ user }) => user === 'reader').length === 2);
    const noted = program.logged().filter(({ action }) => action !== undefined);
    assert.deepEqual(
      noted.map(({ level, event, action, user, namespace, queue, id: of, tid, detail }) =>
        [level, event, action, user, namespace, queue, of ?? tid, detail]
          .filter((one) => one !== undefined)
          .join(' '),
      ),
      [
        'info admin pause test1 N q',
        'info admin resume test1 N q',
        `info admin remove test1 N q ${id}`,
        'info admin cancel test1 N q T1',
        'info admin createExchange test1 x',
        'info admin stopExchange test1 x',
        'info admin startExchange test1 x',
        'info admin deleteExchange test1 x',
        'warn forbidden pause reader N q User "reader" does not have the right manage in namespace N.',
        'warn forbidden createExchange reader x User "reader" does not have the right exchange in namespace N.',
      ],
    );
  });

  it('contains the output of libraries and Node, once and masked', async () => {
    // Split, because the stack of a warning contains its source text.
    const speaker = `
      const canary = 'CAN' + 'ARY';
      process.on('SIGUSR2', () => {
        console.warn('[WARN] no password at %s', 'redis://:' + canary + '@h', { password: canary });
        console.warn('[WARN] no password at %s', 'redis://:' + canary + '@h', { password: canary });
        console.log('not for standard output');
        process.emitWarning('old', 'DeprecationWarning');
        setImmediate(() => process.emit('SIGTERM', 'SIGTERM'));
      });
    `;
    const env = { QUAYSIDE_NAMESPACES__N__URL: 'sqlite::memory:' };
    const talking = await folder.serve(['--config', 'q.json'], { env, ...preloadOptions(speaker) });
    talking.signal('SIGUSR2');
    assert.equal(await talking.ended, 0);
    const said = talking.stderr.trimEnd().split('\n');
    const lines = said.map((line) => JSON.parse(line)).filter(({ event }) => event === 'library');
    assert.deepEqual(
      lines.map(({ level, msg, err }) => [level, msg, err?.message]),
      [
        ['warn', "[WARN] no password at redis://***@h { password: '***' }", undefined],
        ['info', 'not for standard output', undefined],
        ['warn', 'warning from Node', 'old'],
      ],
    );
    assert.doesNotMatch(talking.stdout, /not for/);
    assert.ok(!talking.stderr.includes('CANARY'));
  });

  it('is JSON lines with UTC times on standard error, and standard output has only the start message', async () => {
    await program.stop();
    const lines = program.stderr.trimEnd().split('\n');
    for (const line of lines) {
      const { time, level } = JSON.parse(line);
      assert.match(time, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
      assert.match(level, /^(info|warn)$/);
    }
    const { version } = JSON.parse(await readFile(new URL('../../package.json', import.meta.url), 'utf8'));
    assert.equal(program.stdout.split('\n')[0], `Quayside ${version} listens on ${program.url}`);
  });
});

/** Starts an upload of `length` bytes and sends only the first ones. Resolves when the server reads it. */
async function halfUpload(program: Program, queue: string, start: string, length: number): Promise<Socket> {
  const { hostname, port } = new URL(program.url);
  const socket = connect(Number(port), hostname);
  const head = [
    `PUT /q/N/${queue} HTTP/1.1`,
    `host: ${hostname}`,
    AUTHORIZATION,
    `content-length: ${length}`,
  ];
  // The response to `expect: 100-continue` shows that the server has read the head.
  socket.write(`${head.join('\r\n')}\r\nexpect: 100-continue\r\n\r\n`);
  const [answer] = await once(socket.setEncoding('latin1'), 'data');
  assert.match(String(answer), /^HTTP\/1\.1 100 Continue/);
  socket.write(start);
  return socket;
}

/** Resolves with everything received until the other side closes the connection. */
async function readToEnd(socket: Socket): Promise<string> {
  let text = '';
  for await (const piece of socket) text += piece;
  return text;
}

function untilWaiting(client: QueueClient, count: number): Promise<void> {
  return until(async () => {
    const { body } = await client.request('GET', '/metrics');
    return body.toString().includes(`quayside_waiting_consumers{namespace="N"} ${count}\n`);
  });
}

function preloadOptions(code: string): { nodeArgs: string[] } {
  return { nodeArgs: ['--import', `data:text/javascript,${encodeURIComponent(code)}`] };
}
