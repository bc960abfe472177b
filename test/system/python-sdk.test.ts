import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdtemp, readdir, rm } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import { before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { freshSchema } from '../engines/postgres.ts';
import { freshPrefix } from '../engines/redis.ts';
import { freePort } from '../support/redis-servers.ts';
import { RUN_SERVERS, startSharedPostgres, startSharedRedis, urlOfShared } from '../support/run-servers.ts';
import { ServerProcess } from '../support/server-process.ts';

const INSTALL = fileURLToPath(new URL('../../scripts/debian-packages.sh', import.meta.url));
const PACKAGE = fileURLToPath(new URL('../../clients/python/', import.meta.url));
/** Debian's modules belong to Debian's Python; another one may come first in PATH. */
const PYTHON = '/usr/bin/python3';
const NEEDED = ['mypy', 'python3', 'python3-build', 'python3-setuptools', 'python3-venv', 'python3-wheel'];

const redisUrl = urlOfShared(RUN_SERVERS.redis, async () => (await startSharedRedis()).url);
const postgresUrl = urlOfShared(RUN_SERVERS.postgres, async () => (await startSharedPostgres()).url());
const ENGINES: readonly {
  readonly name: string;
  url(): Promise<string>;
  readonly tests: readonly string[];
}[] = [
  { name: 'SQLite', url: async () => 'sqlite:sdk.db', tests: [] },
  {
    name: 'Redis',
    url: async () => withParameter(await redisUrl(), 'prefix', freshPrefix()),
    tests: ['tests.test_client', 'tests.test_restart'],
  },
  {
    name: 'PostgreSQL',
    url: async () => withParameter(await postgresUrl(), 'schema', freshSchema()),
    tests: ['tests.test_client', 'tests.test_restart'],
  },
];

describe('The Python SDK', () => {
  before(() => execFileSync('sh', [INSTALL, ...NEEDED], { stdio: ['ignore', 'ignore', 'inherit'] }));

  // What workers and asyncio add does not depend on the engine: all of it runs on SQLite.
  for (const { name, url, tests } of ENGINES) {
    it(`passes its tests on ${name}, the server killed while it is used`, async () => {
      await using server = await startServer(await url());
      await using control = await Control.start(server);
      await runPython(['-m', 'unittest', ...tests], {
        QUAYSIDE_URL: server.url,
        QUAYSIDE_USER: 'test1',
        QUAYSIDE_PASSWORD: 'test1',
        QUAYSIDE_TEST_CONTROL: control.url,
      });
    });
  }

  it('has types that mypy accepts in its strict mode', async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-mypy-'));
    try {
      await run('/usr/bin/mypy', ['--strict', '--cache-dir', folder], {});
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it('is built offline into a wheel and an sdist, and the wheel can be imported', async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-wheel-'));
    try {
      // setuptools writes next to the sources.
      await cp(PACKAGE, path.join(folder, 'source'), { recursive: true });
      const dist = path.join(folder, 'dist');
      const offline = { PIP_NO_INDEX: '1' };
      await runPython(
        ['-m', 'build', '--no-isolation', '--outdir', dist, path.join(folder, 'source')],
        offline,
      );
      const files = (await readdir(dist)).sort();
      assert.deepEqual(files, ['quayside-0.1.0-py3-none-any.whl', 'quayside-0.1.0.tar.gz']);
      const wheel = path.join(dist, files[0] ?? '');
      const listed = await runPython(['-m', 'zipfile', '--list', wheel], {});
      assert.match(listed, /quayside\/py\.typed/);
      await runPython(['-c', 'import quayside; quayside.Quayside().close()'], { PYTHONPATH: wheel });
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});

/** On a port of its own, so that it has the same address after a restart. */
async function startServer(url: string): Promise<ServerProcess> {
  return ServerProcess.start({
    config: {
      http: { port: await freePort(), users: { test1: 'test1' } },
      namespaces: {
        N: { url, deadLetter: { maxTries: 100 } },
        events: { url, variant: 'stream', groups: ['default'] },
      },
    },
  });
}

/** `POST /restart`, `/kill` and `/start`: a test in another language kills and starts its server. */
class Control {
  readonly #http: Server;

  private constructor(http: Server) {
    this.#http = http;
  }

  static async start(server: ServerProcess): Promise<Control> {
    const http = createServer((request, response) => {
      const act = async (): Promise<void> => {
        if (request.url !== '/start') await server.kill();
        if (request.url !== '/kill') await server.start();
      };
      act().then(
        () => response.end(),
        (error: unknown) => response.writeHead(500).end(String(error)),
      );
    });
    http.listen(0, '127.0.0.1');
    await once(http, 'listening');
    return new Control(http);
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#http.address() as AddressInfo).port}/`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#http.close();
    this.#http.closeAllConnections();
    await once(this.#http, 'close');
  }
}

function withParameter(url: string, name: string, value: string): string {
  return `${url}${url.includes('?') ? '&' : '?'}${name}=${value}`;
}

function runPython(args: readonly string[], env: Readonly<Record<string, string>>): Promise<string> {
  return run(PYTHON, args, { PYTHONPATH: path.join(PACKAGE, 'src'), ...env });
}

/** Resolves with what the program printed. @throws Error with its output if it failed */
async function run(
  program: string,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<string> {
  const child = spawn(program, args, {
    cwd: PACKAGE,
    env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', PYTHONWARNINGS: 'error::ResourceWarning', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [printed, errors, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ]);
  assert.equal(code, 0, `${printed}${errors}`);
  return printed;
}
