import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { before, describe, it } from 'node:test';
import { freshSchema } from '../engines/postgres.ts';
import { freshPrefix } from '../engines/redis.ts';
import { needDebian } from '../support/debian.ts';
import { freePort } from '../support/free-port.ts';
import { runPython } from '../support/python.ts';
import { RUN_SERVERS, startSharedPostgres, startSharedRedis, urlOfShared } from '../support/run-servers.ts';
import { ServerProcess } from '../support/server-process.ts';

const redisUrl = urlOfShared(RUN_SERVERS.redis, async () => (await startSharedRedis()).url);
const postgresUrl = urlOfShared(RUN_SERVERS.postgres, async () => (await startSharedPostgres()).url());
/**
 * The tests of all engines. The SDK knows no engine, and tests of HTTP show that these respond alike, so `npm test`
 * runs here those during which the server is killed.
 */
const ON_EACH_ENGINE =
  process.env.PYTHON_KILLS === undefined
    ? ['tests.test_restart']
    : ['tests.test_client', 'tests.test_restart'];
const ENGINES: readonly {
  readonly name: string;
  url(): Promise<string>;
  readonly tests: readonly string[];
}[] = [
  { name: 'SQLite', url: async () => 'sqlite:sdk.db', tests: [] },
  {
    name: 'Redis',
    url: async () => withParameter(await redisUrl(), 'prefix', freshPrefix()),
    tests: ON_EACH_ENGINE,
  },
  {
    name: 'PostgreSQL',
    url: async () => withParameter(await postgresUrl(), 'schema', freshSchema()),
    tests: ON_EACH_ENGINE,
  },
];

describe('The Python SDK', () => {
  before(() => needDebian('python3'));

  for (const { name, url, tests } of ENGINES) {
    it(`passes its tests on ${name}, some of which kill the server`, async (t) => {
      await using server = await startServer(await url());
      await using control = await Control.start(server);
      const printed = await runPython(['-m', 'unittest', ...tests], {
        QUAYSIDE_URL: server.url,
        QUAYSIDE_USER: 'test1',
        QUAYSIDE_PASSWORD: 'test1',
        QUAYSIDE_TEST_CONTROL: control.url,
      });
      t.diagnostic(printed.trim());
    });
  }
});

/** Starts a server on a fixed port, so that it has the same address after a restart. */
async function startServer(url: string): Promise<ServerProcess> {
  return ServerProcess.start({
    config: {
      http: { port: await freePort(), users: { test1: 'test1' } },
      namespaces: {
        N: { url, deadLetter: { maxTries: 100 } },
        events: { url, variant: 'stream', groups: ['default'], maxGroups: 64 },
      },
    },
  });
}

/** An HTTP server whose `POST /restart` kills and restarts the server under test, for tests in other languages. */
class Control {
  readonly #http: Server;

  private constructor(http: Server) {
    this.#http = http;
  }

  static async start(server: ServerProcess): Promise<Control> {
    const http = createServer((_, response) => {
      const restart = async (): Promise<void> => {
        await server.kill();
        await server.start();
      };
      restart().then(
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
