import { Quayside } from '../../src/client/index.ts';
import type { ClientOptions } from '../../src/client/options.ts';
import { freshSchema } from '../engines/postgres.ts';
import { freshPrefix } from '../engines/redis.ts';
import { RUN_SERVERS, startSharedPostgres, startSharedRedis, urlOfShared } from '../support/run-servers.ts';

const redisUrl = urlOfShared(RUN_SERVERS.redis, async () => (await startSharedRedis()).url);
const postgresUrl = urlOfShared(RUN_SERVERS.postgres, async () => (await startSharedPostgres()).url());

interface ClientEngine {
  readonly name: string;
  /** The URL of a namespace that no other test uses. */
  url(): Promise<string>;
}

/** One mode of each engine: clients cannot observe the differences between modes. */
export const CLIENT_ENGINES: readonly ClientEngine[] = [
  { name: 'SQLite', url: async () => 'sqlite:N.db' },
  { name: 'Redis', url: async () => withParameter(await redisUrl(), 'prefix', freshPrefix()) },
  { name: 'PostgreSQL', url: async () => withParameter(await postgresUrl(), 'schema', freshSchema()) },
];

function withParameter(url: string, name: string, value: string): string {
  return `${url}${url.includes('?') ? '&' : '?'}${name}=${value}`;
}

/** A configuration with the namespace `N`, whose queues have dead letters after three tries. */
export function clientConfig(url: string): Record<string, unknown> {
  return {
    http: { users: { test1: 'test1' } },
    namespaces: { N: { url, deadLetter: { maxTries: 3 } } },
  };
}

export const AUTH = { user: 'test1', password: 'test1' };

/** A client that records its requests, and loses requests or responses if a test wants it to. */
export class WatchedClient {
  readonly client: Quayside;
  /** `METHOD /path` of each request that was sent. */
  readonly requests: string[] = [];
  /** The `Idempotency-Key` of each request. */
  readonly keys: (string | null)[] = [];
  #lostResponses = 0;
  #lostRequests = 0;

  constructor(url: string, options: ClientOptions = {}) {
    this.client = new Quayside({ url, auth: AUTH, fetch: (...given) => this.#fetch(...given), ...options });
  }

  /** Loses the responses of the next requests, which the server has executed. */
  loseResponses(count: number): void {
    this.#lostResponses = count;
  }

  /** Loses the next requests on their way to the server. */
  loseRequests(count: number): void {
    this.#lostRequests = count;
  }

  async #fetch(...[input, init]: Parameters<typeof fetch>): Promise<Response> {
    const { pathname } = new URL(String(input));
    this.requests.push(`${init?.method} ${pathname}`);
    this.keys.push(new Headers(init?.headers).get('idempotency-key'));
    if (this.#lostRequests > 0) {
      this.#lostRequests -= 1;
      throw new TypeError('fetch failed', { cause: new Error('the request was lost') });
    }
    const response = await fetch(input, init);
    if (this.#lostResponses === 0) return response;
    this.#lostResponses -= 1;
    await response.text();
    throw new TypeError('fetch failed', { cause: new Error('the response was lost') });
  }
}
