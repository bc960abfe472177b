import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { OperationRecord } from '../../src/model/records.ts';
import { freshSchema } from '../engines/postgres.ts';
import { type Answer, jsonOf, QueueClient } from '../support/http-client.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { startRedis } from '../support/redis-servers.ts';
import { ServerProcess } from '../support/server-process.ts';

/** Elements in each half of the run; long runs use many. */
const ELEMENTS = Number(process.env.MIGRATION_ELEMENTS ?? 200);
const PRODUCERS = 8;
const CONSUMERS = 8;
const RETRY_MS = 20;
const USER = { http: { users: { test1: 'test1' } } };
const JSON_TYPE = { 'content-type': 'application/json' };
const QUEUE = 'work';
/** Lease of the reservations, so that one whose response was lost ends soon. */
const LEASE_MS = 1_000;

describe('A namespace that is migrated to another engine under load while its server is killed', {
  concurrency: true,
}, () => {
  const redis = startRedis();
  const postgres = PostgresServer.start({ settings: { fsync: 'off' } });
  after(async () => {
    await (await redis).stop();
    await (await postgres).stop('fast');
  });

  it('loses nothing and commits nothing twice, from SQLite to Redis', async (t) => {
    await move((await redis).url, (line) => t.diagnostic(line));
  });

  it('loses nothing and commits nothing twice, from SQLite to PostgreSQL', async (t) => {
    const url = new URL((await postgres).url());
    url.searchParams.set('schema', freshSchema());
    await move(url.href, (line) => t.diagnostic(line));
  });
});

/**
 * Fills the old engine, migrates the namespace while producers and consumers run and the server is killed, and
 * compares.
 */
async function move(url: string, report: (line: string) => void): Promise<void> {
  const namespaces = { A: { url: 'sqlite:A.db' }, B: { url } };
  await using server = await ServerProcess.start({ config: { ...USER, namespaces } });
  const load = new Load(server);
  try {
    await load.produce('before', ELEMENTS);
    const body = JSON.stringify({ action: 'migrate', source: { ns: 'A' }, to: { ns: 'B' } });
    const started = await load.client.request('POST', '/operations', { body, headers: JSON_TYPE });
    assert.equal(started.status, 202);
    const { id } = jsonOf<OperationRecord>(started);
    const consuming = load.consume();
    const producing = load.produce('during', ELEMENTS);
    await load.committed(ELEMENTS / 4);
    await server.kill();
    await server.start();
    await producing;
    await load.committed(2 * ELEMENTS);
    load.end();
    await consuming;
    const record = await load.ended(id);
    assert.deepEqual([record.state, record.error], ['done', null]);
    const left = jsonOf<{ totalSize: number }>(await load.again((client) => client.status('A', QUEUE)));
    assert.equal(left.totalSize, 0);
    assert.deepEqual(load.faults(), []);
    report(`elements=${2 * ELEMENTS} repeated requests=${load.repeated}`);
  } finally {
    load.close();
  }
}

/** Producers and consumers that retry unanswered requests; each insert has its own idempotency key. */
class Load {
  readonly client: QueueClient;
  /** Number of retried requests. */
  repeated = 0;
  readonly #inserted = new Set<string>();
  /** Confirmed commits by body. */
  readonly #commits = new Map<string, number>();
  /** Bodies with a commit whose response was lost. */
  readonly #uncertain = new Set<string>();
  /** Bodies whose commit was answered with 404 at the first attempt: another consumer must have committed them. */
  readonly #overtaken = new Set<string>();
  readonly #faults: string[] = [];
  #isEnding = false;

  constructor(server: ServerProcess) {
    this.client = new QueueClient({ url: () => server.url, maxSockets: PRODUCERS + CONSUMERS + 2 });
  }

  close(): void {
    this.client.close();
  }

  end(): void {
    this.#isEnding = true;
  }

  /** Retries until the response is neither a failure of the server nor of its connection. */
  async again(request: (client: QueueClient) => Promise<Answer>): Promise<Answer> {
    for (;;) {
      const answer = await this.#attempt(request).catch(() => null);
      if (answer !== null && (answer.status < 500 || answer.status === 504)) return answer;
      this.repeated += 1;
      await delay(RETRY_MS);
    }
  }

  /** Declared async because reading the address of a server that is restarting throws. */
  async #attempt(request: (client: QueueClient) => Promise<Answer>): Promise<Answer> {
    return request(this.client);
  }

  async produce(name: string, count: number): Promise<void> {
    let made = 0;
    const one = async (): Promise<void> => {
      while (made < count) {
        made += 1;
        const body = `${name} ${made}`;
        const headers = { 'idempotency-key': body };
        const answer = await this.again((client) => client.insert('A', QUEUE, body, { headers }));
        assert.equal(answer.status, 200);
        this.#inserted.add(body);
      }
    };
    await Promise.all(Array.from({ length: PRODUCERS }, one));
  }

  /** Reserves and commits until {@link end}. */
  async consume(): Promise<void> {
    const one = async (): Promise<void> => {
      while (!this.#isEnding) {
        const answer = await this.again((client) => client.reserve('A', QUEUE, { to: 200, lease: LEASE_MS }));
        if (answer.status === 504) continue;
        assert.equal(answer.status, 200);
        const id = answer.headers['x-ks-id'] ?? '';
        const token = answer.headers['x-ks-lease'] ?? '';
        let tries = 0;
        const { status } = await this.again((client) => {
          tries += 1;
          return client.commit('A', QUEUE, id, { token });
        });
        const body = answer.body.toString();
        if (status === 200) this.#commits.set(body, (this.#commits.get(body) ?? 0) + 1);
        // The commit whose response was lost was applied, or the lease expired and another consumer has committed.
        else if (status === 404 && tries > 1) this.#uncertain.add(body);
        // On a busy machine, the lease may have expired and another consumer has committed.
        else if (status === 404) this.#overtaken.add(body);
        // 409: the lease expired and another consumer holds the element.
        else if (status !== 409) this.#faults.push(`a commit of ${body} was answered ${status}`);
      }
    };
    await Promise.all(Array.from({ length: CONSUMERS }, one));
  }

  /** Resolves once this many elements have been committed. */
  async committed(count: number): Promise<void> {
    while (new Set([...this.#commits.keys(), ...this.#uncertain]).size < count) await delay(RETRY_MS);
  }

  async ended(id: string): Promise<OperationRecord> {
    for (;;) {
      const record = jsonOf<OperationRecord>(
        await this.again((client) => client.request('GET', `/operations/${id}`)),
      );
      if (record.state !== 'running') return record;
      await delay(RETRY_MS);
    }
  }

  faults(): string[] {
    const isCommitted = (body: string): boolean => this.#commits.has(body) || this.#uncertain.has(body);
    const lost = [...this.#inserted].filter((body) => !isCommitted(body));
    const gone = [...this.#overtaken].filter((body) => !isCommitted(body));
    const twice = [...this.#commits].filter(([, count]) => count > 1).map(([body]) => body);
    const unknown = [...this.#commits.keys()].filter((body) => !this.#inserted.has(body));
    return [
      ...this.#faults,
      ...lost.map((body) => `lost: ${body}`),
      ...gone.map((body) => `gone before its commit: ${body}`),
      ...twice.map((body) => `committed twice: ${body}`),
      ...unknown.map((body) => `never inserted: ${body}`),
    ];
  }
}
