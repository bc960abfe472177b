import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { Quayside } from '../../src/client/index.ts';
import { AUTH } from '../client/server.ts';
import { eventually } from '../cluster/nodes.ts';
import { freePort } from '../support/free-port.ts';
import { spawnOwned } from '../support/owned-process.ts';
import { type Random, seededRandom } from '../support/random.ts';
import { COMPILE_CACHE } from '../support/server-command.ts';
import { ServerProcess } from '../support/server-process.ts';

export interface ClientCrashReport {
  /** The violations found, one line each. */
  readonly faults: readonly string[];
  readonly inserted: number;
  /** Values handled more than once because a worker or the server was killed before the commit. */
  readonly repeated: number;
}

const WORKER = fileURLToPath(new URL('client-crash-worker.ts', import.meta.url));
const QUEUE = 'work';
const PRODUCERS = 4;
/** Producers pause while more elements than this are unhandled. */
const MAX_BACKLOG = 500;
const LEASE_MS = 1_500;
/** The number of commits between two kills. */
const COMMITS = { least: 1, most: 60 };
const KILLED = ['server', 'worker', 'both'] as const;

/**
 * Repeatedly kills the server, the worker or both, while a client inserts and a worker process handles elements. Only
 * the client library retries. Each acknowledged insert must be stored as one element and be handled, and no element may
 * be handled after its commit was acknowledged.
 */
export async function runClientCrash(url: string, kills: number, seed: number): Promise<ClientCrashReport> {
  const port = await freePort();
  const config = { http: { port, users: { test1: 'test1' } }, namespaces: { N: { url } } };
  await using server = await ServerProcess.create({ config });
  await using run = new ClientCrashRun(server, `http://127.0.0.1:${port}`, seededRandom(seed));
  return await run.run(kills);
}

class ClientCrashRun implements AsyncDisposable {
  readonly #server: ServerProcess;
  readonly #url: string;
  readonly #random: Random;
  readonly #client: Quayside;
  readonly #inserted = new Set<string>();
  readonly #handled = new Map<string, number>();
  readonly #committed = new Set<string>();
  /** The id with which a value was first handled. */
  readonly #ids = new Map<string, string>();
  readonly #faults: string[] = [];
  readonly #waiting = new Set<() => void>();
  #worker: ChildProcess | null = null;
  #isStopping = false;

  constructor(server: ServerProcess, url: string, random: Random) {
    this.#server = server;
    this.#url = url;
    this.#random = random;
    // A busy machine may need long to start a server; the client's retry limits are tested elsewhere.
    this.#client = new Quayside({ url, auth: AUTH, retry: { attempts: 1_000, maxMs: 200 } });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#worker?.kill('SIGKILL');
    await this.#client.close();
  }

  async run(kills: number): Promise<ClientCrashReport> {
    await this.#server.start();
    this.#startWorker();
    const producing = Array.from({ length: PRODUCERS }, (_, producer) => this.#produce(producer));
    for (let kill = 0; kill < kills; kill += 1) {
      const { size } = this.#committed;
      const more = this.#random.between(COMMITS.least, COMMITS.most);
      await this.#until(() => this.#committed.size >= size + more);
      const victim = KILLED[kill % KILLED.length];
      if (victim !== 'server') await this.#killWorker();
      if (victim !== 'worker') await this.#server.kill();
      if (victim !== 'worker') await this.#server.start();
      if (victim !== 'server') this.#startWorker();
    }
    this.#isStopping = true;
    this.#notify();
    await Promise.all(producing);
    const queue = this.#client.queue(`N/${QUEUE}`);
    await eventually('an empty queue', async () => (await queue.status()).total === 0);
    await this.#stopWorker();
    for (const value of this.#handled.keys()) {
      if (!this.#inserted.has(value)) this.#faults.push(`never inserted: ${value}`);
    }
    for (const value of this.#inserted) if (!this.#handled.has(value)) this.#faults.push(`lost: ${value}`);
    const repeated = [...this.#handled.values()].filter((times) => times > 1).length;
    return { faults: this.#faults, inserted: this.#inserted.size, repeated };
  }

  async #produce(producer: number): Promise<void> {
    const queue = this.#client.queue(`N/${QUEUE}`);
    for (let i = 0; !this.#isStopping; i += 1) {
      const value = `${producer}-${i}`;
      await queue.insert(value);
      this.#inserted.add(value);
      await this.#until(() => this.#isStopping || this.#inserted.size - this.#handled.size < MAX_BACKLOG);
    }
  }

  #startWorker(): void {
    const worker = spawnOwned(process.execPath, [WORKER, this.#url, QUEUE, String(LEASE_MS)], {
      env: { NODE_COMPILE_CACHE: COMPILE_CACHE, ...process.env },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    this.#worker = worker;
    createInterface({ input: worker.stdout }).on('line', (line) => {
      const [what = '', id = '', value = ''] = line.split(' ');
      const firstId = this.#ids.get(value) ?? id;
      this.#ids.set(value, firstId);
      if (id !== firstId) this.#faults.push(`delivered with the ids ${firstId} and ${id}: ${value}`);
      if (what === 'committed') this.#committed.add(value);
      else {
        if (this.#committed.has(value)) this.#faults.push(`handled after its commit: ${value}`);
        this.#handled.set(value, (this.#handled.get(value) ?? 0) + 1);
      }
      this.#notify();
    });
  }

  async #killWorker(): Promise<void> {
    const worker = this.#worker;
    if (worker === null) return;
    const closed = once(worker, 'close');
    worker.kill('SIGKILL');
    await closed;
  }

  async #stopWorker(): Promise<void> {
    const worker = this.#worker;
    if (worker === null) return;
    const closed = once(worker, 'close');
    worker.kill('SIGTERM');
    const [code] = await closed;
    this.#worker = null;
    if (code !== 0) this.#faults.push(`the worker exited with ${code}`);
  }

  async #until(isSo: () => boolean): Promise<void> {
    while (!isSo()) await new Promise<void>((resolve) => this.#waiting.add(resolve));
  }

  #notify(): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const resolve of waiting) resolve();
  }
}
