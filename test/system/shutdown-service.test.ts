import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { Server } from '../../src/app/server.ts';
import { ConfigError, type ErrorAt } from '../../src/config/errors.ts';
import { loadConfig } from '../../src/config/load.ts';
import type { Config } from '../../src/config/options.ts';
import { ServiceStack } from '../../src/util/service.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';

const SILENT = {
  debug: () => {},
  info: () => {},
  warn: () => {},
  error: () => {},
  isLevelEnabled: () => false,
};
const ENV = { QUAYSIDE_HTTP__PORT: '0', QUAYSIDE_HTTP__USERS: '{"test1": "test1"}' };
const PARTS = { log: SILENT, version: '0.0.0' };

describe('A server embedded in another program', () => {
  let folder: string;
  let config: Config;
  let errorAt: ErrorAt;
  const servers: Server[] = [];

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-service-'));
    const env = {
      ...ENV,
      QUAYSIDE_NAMESPACES:
        '{"N": {"url": "sqlite:N.db"}, "M": {"url": "sqlite:N.db"}, "O": {"url": "sqlite::memory:"}}',
    };
    ({ config, errorAt } = await loadConfig({ file: null, env, cwd: folder }));
  });

  afterEach(async () => {
    await Promise.all(servers.splice(0).map((server) => server.stop()));
  });

  after(() => rm(folder, { recursive: true }));

  function newServer(of = config): Server {
    const server = new Server(of, { ...PARTS, errorAt });
    servers.push(server);
    return server;
  }

  it('starts, serves and stops without leaking resources', async () => {
    const before = activeResources();
    for (let i = 0; i < 3; i++) {
      const server = newServer();
      await server.start();
      const { url } = server;
      const client = new QueueClient({ url });
      assert.equal((await client.insert('N', 'q', 'x')).status, 200);
      client.close();
      await server.stop();
      assert.equal(await connectionErrorCode(url), 'ECONNREFUSED');
    }
    assert.deepEqual(activeResources(), before);
  });

  it('can be stopped before and during its start, and repeatedly', async () => {
    const never = newServer();
    await never.stop();
    await assert.rejects(never.start(), /stopped before/);

    const during = newServer();
    const starting = during.start();
    starting.catch(() => {});
    const first = during.stop();
    assert.equal(during.stop(), first);
    await first;
    await assert.rejects(starting, /stopped before/);

    const after = newServer();
    await after.start();
    assert.equal(after.start(), after.start());
    await Promise.all([after.stop(), after.stop()]);
  });

  it('leaves its files free for the next server if it is stopped at any moment of its start', async () => {
    for (const turns of [1, 4, 10, 20, 40]) {
      const server = newServer();
      const starting = server.start().catch(() => {});
      for (let i = 0; i < turns; i++) await new Promise(setImmediate);
      await server.stop();
      await starting;
    }
    await newServer().start();
  });

  it('does not wait for the server of an engine if it is stopped during its start', async () => {
    const silent = createTcpServer().listen(0, '127.0.0.1').unref();
    await once(silent, 'listening');
    const url = `redis://127.0.0.1:${(silent.address() as AddressInfo).port}`;
    const server = newServer({ ...config, namespaces: { N: { ...config.namespaces.N, url } } as never });
    const connected = once(silent, 'connection');
    const starting = assert.rejects(server.start(), /The engine was stopped while it started/);
    await connected;
    await server.stop();
    await starting;
  });

  it('opens no more files if it is stopped during its start', async () => {
    const names = Array.from({ length: 60 }, (_, i) => `many${i}`);
    const namespaces = Object.fromEntries(names.map((name) => [name, { url: `sqlite:many/${name}.db` }]));
    const env = { ...ENV, QUAYSIDE_NAMESPACES: JSON.stringify(namespaces) };
    const server = newServer((await loadConfig({ file: null, env, cwd: folder })).config);
    const starting = server.start().catch(() => {});
    const files = (): string[] =>
      readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) => /many\d+\.db$/.test(name));
    await until(() => files().length > 0);
    await server.stop();
    await starting;
    assert.ok(files().length <= 32, `${files().length} were opened`);
  });

  it('ends waiting HTTP calls at once if another front end cannot listen', async () => {
    const taken = createTcpServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const free = createTcpServer().listen(0, '127.0.0.1');
    await once(free, 'listening');
    const [stomp, http] = [taken, free].map((server) => (server.address() as AddressInfo).port);
    free.close();
    await once(free, 'close');
    const server = newServer({
      ...config,
      http: { ...config.http, port: http as number },
      stomp: { ...config.stomp, port: stomp as number },
    });
    await assert.rejects(server.start(), /stomp\.port: cannot listen/);
    taken.close();
    const client = new QueueClient({ url: `http://127.0.0.1:${http}` });
    const blocked = client.get('N', 'empty');
    const waits = 'quayside_waiting_consumers{namespace="N"} 1\n';
    await until(async () => (await client.request('GET', '/metrics')).body.toString().includes(waits));
    await server.stop();
    assert.equal(jsonOf<{ code: string }>(await blocked).code, 'shutting-down');
    client.close();
  });

  it('is not ready once it drains, and gives the reason only to authenticated users', async () => {
    const server = newServer();
    await server.start();
    const known = new QueueClient({ url: server.url });
    const stranger = new QueueClient({ url: server.url, credentials: null });
    const ready = await known.request('GET', '/readyz');
    assert.equal(ready.status, 200);
    assert.deepEqual(jsonOf<{ checks: object }>(ready).checks, {
      node: 'ok',
      'sqlite:N.db': 'ok',
      'sqlite::memory:': 'ok',
    });
    server.drain();
    const drained = await known.request('GET', '/readyz');
    assert.equal(drained.status, 503);
    assert.equal(jsonOf<{ checks: { node: string } }>(drained).checks.node, 'draining');
    assert.deepEqual(Object.keys(jsonOf<object>(await stranger.request('GET', '/readyz'))), ['status']);
    assert.equal((await stranger.request('GET', '/livez')).status, 200);
    assert.equal((await known.insert('N', 'q', 'x')).status, 200, 'calls that do not wait still succeed');
    known.close();
    stranger.close();
  });

  it('shows a user on /readyz only the engines of namespaces in which they have a right', async () => {
    const namespaces = {
      N: { url: 'sqlite:N.db', stats: { url: 'sqlite:stats.db' } },
      M: { url: 'sqlite:M.db', stats: { url: 'sqlite:stats.db' } },
    };
    const guests = { writer: { N: ['write'] }, nobody: {} };
    const users = Object.entries(guests).map(([name, rights]) => [name, { password: 'pw', rights }]);
    const env = {
      QUAYSIDE_HTTP__PORT: '0',
      QUAYSIDE_HTTP__USERS: JSON.stringify({ ...Object.fromEntries(users), all: 'pw' }),
      QUAYSIDE_NAMESPACES: JSON.stringify(namespaces),
    };
    const server = newServer((await loadConfig({ file: null, env, cwd: folder })).config);
    await server.start();
    const parts = async (user: string): Promise<string[]> => {
      const client = new QueueClient({ url: server.url, credentials: `${user}:pw` });
      const answer = await client.request('GET', '/readyz');
      client.close();
      assert.equal(answer.status, 200);
      return Object.keys(jsonOf<{ checks: object }>(answer).checks).toSorted();
    };
    const ofN = ['node', 'sqlite:N.db', 'sqlite:stats.db'];
    assert.deepEqual(await parts('all'), [...ofN, 'sqlite:M.db'].toSorted());
    assert.deepEqual(await parts('writer'), ofN);
    assert.deepEqual(await parts('nobody'), ['node']);
  });

  it('shares one engine among namespaces with the same URL, and shows the configuration in queue records', async () => {
    const server = newServer();
    await server.start();
    const client = new QueueClient({ url: server.url });
    const { type, factory } = jsonOf<{ type: string; factory: unknown }>(await client.status('M', 'q'));
    client.close();
    assert.equal(type, 'sqlite:simple');
    assert.deepEqual(factory, {
      name: 'M',
      type: 'sqlite:simple',
      opts: { name: 'M', url: 'sqlite:N.db' },
      signaller: { type: 'local', opts: { url: 'sqlite:N.db', mongo_opts: {}, channel: 'namespace:M' } },
      stats: { type: 'sqlite', opts: { url: 'sqlite:N.db', coll: 'stats' } },
    });
  });

  it('applies the users of a reloaded configuration, and rejects one without users', async () => {
    const server = newServer();
    await server.start();
    const old = new QueueClient({ url: server.url });
    const renamed = new QueueClient({ url: server.url, credentials: 'test2:test2' });
    assert.equal((await old.namespaces()).status, 200);
    await server.reload({ ...config, http: { ...config.http, users: { test2: { password: 'test2' } } } });
    assert.equal((await old.namespaces()).status, 401);
    assert.equal((await renamed.namespaces()).status, 200);
    await assert.rejects(server.reload({ ...config, http: { ...config.http, users: {} } }), ConfigError);
    assert.equal((await renamed.namespaces()).status, 200);
    old.close();
    renamed.close();
  });

  it('exempts a recent login from the rate limit after a reload, but applies new rights', async () => {
    const server = newServer();
    await server.start();
    const known = new QueueClient({ url: server.url });
    assert.equal((await known.insert('N', 'q', 'x')).status, 200);
    for (let i = 0; i < 10; i++) {
      const guesser = new QueueClient({ url: server.url, credentials: `test1:guess ${i}` });
      assert.equal((await guesser.namespaces()).status, 401);
      guesser.close();
    }
    const users = { test1: { password: 'test1', rights: { N: ['read'] } } } satisfies Config['http']['users'];
    await server.reload({ ...config, http: { ...config.http, users } });
    assert.equal((await known.status('N', 'q')).status, 200);
    assert.equal((await known.insert('N', 'q', 'x')).status, 403);
    known.close();
  });
});

describe('A service stack', () => {
  const service = (name: string, did: string[], fault?: string) => ({
    start: async () => void did.push(`start ${name}`),
    stop: async () => {
      did.push(`stop ${name}`);
      if (fault !== undefined) throw new Error(fault);
    },
  });

  it('stops its services in reverse order, once', async () => {
    const did: string[] = [];
    const stack = new ServiceStack();
    await stack.start([service('a', did)]);
    await stack.start([service('b', did), service('c', did)]);
    await stack.stop();
    await stack.stop();
    assert.deepEqual(did, ['start a', 'start b', 'start c', 'stop c', 'stop b', 'stop a']);
  });

  it('stops all services even if one fails, and rejects with all errors', async () => {
    const did: string[] = [];
    const stack = new ServiceStack();
    await stack.start([service('a', did, 'first'), service('b', did), service('c', did, 'last')]);
    await assert.rejects(stack.stop(), (error) => {
      assert.ok(error instanceof AggregateError);
      assert.deepEqual(
        error.errors.map(({ message }) => message),
        ['last', 'first'],
      );
      return true;
    });
    assert.deepEqual(did.slice(3), ['stop c', 'stop b', 'stop a']);
  });

  it('also stops a service that could not be started', async () => {
    const did: string[] = [];
    const stack = new ServiceStack();
    const broken = { ...service('b', did), start: () => Promise.reject(new Error('broken')) };
    await assert.rejects(stack.start([service('a', did), broken]), /broken/);
    await stack.stop();
    assert.deepEqual(did, ['start a', 'stop b', 'stop a']);
  });
});

/** The error code of a connection attempt; null if it succeeds. */
async function connectionErrorCode(url: string): Promise<string | null> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  let fault: string | null = null;
  socket.on('error', (error: NodeJS.ErrnoException) => {
    fault = error.code ?? error.message;
  });
  socket.on('connect', () => socket.destroy());
  await new Promise((resolve) => socket.on('close', resolve));
  return fault;
}

/** The resources that keep the process alive, except those of the test runner. */
function activeResources(): string[] {
  return process.getActiveResourcesInfo().filter((name) => /Worker|MessagePort|TCP|TLS|Timeout/.test(name));
}
