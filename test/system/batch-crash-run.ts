import { setTimeout as delay } from 'node:timers/promises';
import { linesOf, type TakenLine } from '../http/takes.ts';
import { type Answer, jsonOf, QueueClient, queuePath } from '../support/http-client.ts';
import { type Random, seededRandom } from '../support/random.ts';
import { Gate } from '../support/recorded-load.ts';
import { ServerProcess } from '../support/server-process.ts';

export interface BatchCrashReport {
  /** Everything that is wrong, one line each; empty where the run passed. */
  readonly faults: readonly string[];
  readonly inserted: number;
  readonly committed: number;
}

/** Two queues, each in a file of its own. */
const QUEUES = [
  { ns: 'N', queue: 'work' },
  { ns: 'M', queue: 'work' },
] as const;
type Place = (typeof QUEUES)[number];

const PRODUCERS = 12;
const WORKERS = 6;
const LEASE_MS = 1000;
const MAX_COUNT = 50;
const KILL_AFTER_MS = { least: 50, most: 600 };

/** How a commit ends whose lease ran out before it came: another worker has the element, or has committed it. */
const OVERTAKEN: ReadonlySet<string> = new Set(['lease-lost', 'not-reserved', 'not-found', 'token-required']);

/**
 * Kills the server again and again while workers take many elements under leases, from one queue and from both, and settle them with
 * one request. What was inserted and not committed must be there at the end; what was committed must never come again.
 */
export async function runBatchCrash(kills: number, seed: number): Promise<BatchCrashReport> {
  const namespaces = { N: { url: 'sqlite:N.db' }, M: { url: 'sqlite:M.db' } };
  const config = { http: { users: { test1: 'test1' } }, namespaces };
  await using server = await ServerProcess.create({ config });
  return await new BatchCrashRun(server, seededRandom(seed)).run(kills);
}

class BatchCrashRun {
  readonly #server: ServerProcess;
  readonly #random: Random;
  readonly #gate = new Gate();
  readonly #client: QueueClient;
  readonly #faults: string[] = [];
  readonly #inserted = new Set<string>();
  /** When the commit of a value was acknowledged. */
  readonly #committed = new Map<string, number>();
  /** Values of which a commit has no known outcome. */
  readonly #unknown = new Set<string>();
  #isStopping = false;

  constructor(server: ServerProcess, random: Random) {
    this.#server = server;
    this.#random = random;
    this.#client = new QueueClient({ url: () => server.url });
  }

  async run(kills: number): Promise<BatchCrashReport> {
    const running = [
      ...Array.from({ length: PRODUCERS }, (_, i) => this.#produce(i)),
      ...Array.from({ length: WORKERS }, () => this.#work()),
    ];
    for (let kill = 1; kill <= kills; kill++) {
      await this.#server.start();
      this.#gate.open();
      await delay(this.#random.between(KILL_AFTER_MS.least, KILL_AFTER_MS.most));
      this.#gate.close();
      await this.#server.kill();
    }
    await this.#server.start();
    this.#isStopping = true;
    this.#gate.open();
    await Promise.all(running);
    await this.#drain();
    this.#client.close();
    await this.#server.stop();
    for (const value of this.#inserted) {
      if (!this.#committed.has(value) && !this.#unknown.has(value)) this.#faults.push(`lost: ${value}`);
    }
    return { faults: this.#faults, inserted: this.#inserted.size, committed: this.#committed.size };
  }

  async #produce(producer: number): Promise<void> {
    for (let i = 0; !this.#isStopping; i++) {
      const place = this.#random.pick(QUEUES);
      const value = `${place.ns}-${producer}-${i}`;
      let answer: Answer | null = null;
      while (answer?.status !== 200) {
        await this.#gate.passed();
        answer = await this.#send('PUT', queuePath(place.ns, place.queue), value, value);
      }
      this.#inserted.add(value);
    }
  }

  async #work(): Promise<void> {
    while (!this.#isStopping) {
      await this.#gate.passed();
      await this.#takeAndSettle(this.#random.pick([...QUEUES, null]), 200);
    }
  }

  /** @param place null: from both queues @returns whether anything was there */
  async #takeAndSettle(place: Place | null, to: number): Promise<boolean> {
    const startedAt = performance.now();
    const count = this.#random.between(1, MAX_COUNT);
    const min = this.#random.chance(0.3) ? Math.ceil(count / 2) : 1;
    const options = { count, min, to, reserve: true, lease: LEASE_MS };
    const answer =
      place === null
        ? await this.#send('POST', '/take', JSON.stringify({ from: QUEUES, order: 'fair', ...options }))
        : await this.#send('POST', `${queuePath(place.ns, place.queue)}/take`, JSON.stringify(options));
    if (answer?.status !== 200) return false;
    const lines = linesOf(answer);
    if (lines.length > count) this.#faults.push(`${lines.length} elements of ${count}`);
    for (const { text = '' } of lines) {
      const committedAt = this.#committed.get(text);
      if (committedAt !== undefined && committedAt < startedAt) this.#faults.push(`twice: ${text}`);
    }
    for (const each of QUEUES) {
      const own = lines.filter(({ ns = place?.ns }) => ns === each.ns);
      if (own.length > 0) await this.#settle(each, own);
    }
    return true;
  }

  async #settle({ ns, queue }: Place, lines: readonly TakenLine[]): Promise<void> {
    // Some are left to their leases, and some rolled back.
    const isForgotten = this.#random.chance(0.05);
    if (isForgotten) return;
    const rolledBack = lines.filter(() => this.#random.chance(0.05));
    const committed = lines.filter((one) => !rolledBack.includes(one));
    const items = (some: readonly TakenLine[]): object[] =>
      some.map(({ id, lease }) => ({ id, token: lease }));
    const body = JSON.stringify({ commit: items(committed), rollback: items(rolledBack) });
    const answer = await this.#send('POST', `${queuePath(ns, queue)}/settle`, body);
    if (answer?.status !== 200) {
      for (const { text = '' } of committed) this.#unknown.add(text);
      return;
    }
    const { results } = jsonOf<{ results: { id: string; action: string; outcome: string }[] }>(answer);
    const outcomes = new Map(results.map(({ id, outcome }) => [id, outcome]));
    for (const { id, text = '' } of committed) {
      if (outcomes.get(id) === 'done') this.#committed.set(text, performance.now());
      else if (!OVERTAKEN.has(outcomes.get(id) ?? '')) {
        this.#faults.push(`commit of ${text}: ${outcomes.get(id)}`);
      }
    }
  }

  /** Takes and commits until both queues are empty, leases that were left included. */
  async #drain(): Promise<void> {
    for (;;) {
      const sizes = await Promise.all(
        QUEUES.map(async ({ ns, queue }) =>
          jsonOf<{ totalSize: number }>(await this.#client.status(ns, queue)),
        ),
      );
      if (sizes.every(({ totalSize }) => totalSize === 0)) return;
      await this.#takeAndSettle(null, 500);
    }
  }

  /** Null if the server was killed before it had answered. */
  async #send(method: string, path: string, body: string, key: string | null = null): Promise<Answer | null> {
    const headers = key === null ? {} : { 'idempotency-key': key };
    try {
      return await this.#client.request(method, path, { body, headers });
    } catch {
      return null;
    }
  }
}
