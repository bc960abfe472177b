import { setTimeout as delay } from 'node:timers/promises';
import { linesOf, type TakenLine } from '../http/takes.ts';
import { type Answer, jsonOf, QueueClient, queuePath } from '../support/http-client.ts';
import { type Random, seededRandom } from '../support/random.ts';
import { Gate } from '../support/recorded-load.ts';
import { ServerProcess } from '../support/server-process.ts';

export interface BatchCrashReport {
  /** The violations found, one line each; empty if the run passed. */
  readonly faults: readonly string[];
  readonly inserted: number;
  readonly committed: number;
}

/** Two queues in different SQLite files. */
const QUEUES = [
  { ns: 'N', queue: 'work' },
  { ns: 'M', queue: 'work' },
] as const;
type Place = (typeof QUEUES)[number];

const PRODUCERS = 3;
const WORKERS = 6;
/** Producers pause while more elements than this are uncommitted. */
const BACKLOG = 2000;
const LEASE_MS = 1000;
/** A lease is certainly valid for so long after its take was sent. The server's clock has whole milliseconds. */
const SURELY_HELD_MS = LEASE_MS - 2;
const MAX_COUNT = 50;
/** The server is killed at a random moment up to `mostMs` after it has answered a random number of worker requests. */
const KILL_AFTER = { least: 3, most: 60, mostMs: 20 };

/** Errors of a commit whose lease expired before it arrived: another worker has reserved or committed the element. */
const OVERTAKEN: ReadonlySet<string> = new Set(['lease-lost', 'not-reserved', 'not-found', 'token-required']);

/**
 * Kills the server repeatedly while producers insert many elements per request, and workers reserve many elements per
 * request, from one queue or both, and settle them with one request. All inserted elements that were not committed must
 * exist at the end; committed elements must not be delivered again.
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
  readonly #attempted = new Set<string>();
  readonly #inserted = new Set<string>();
  /** The id with which a value was first delivered. */
  readonly #ids = new Map<string, string>();
  /** The last delivery of each value that no worker has started to settle. */
  readonly #held = new Map<string, { readonly startedAt: number; readonly endedAt: number }>();
  /** When the commit of a value was acknowledged. */
  readonly #committed = new Map<string, number>();
  /** Values with a commit whose outcome is unknown. */
  readonly #unknown = new Set<string>();
  #isStopping = false;
  #countdown = { left: 0, resolve: (): void => {} };

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
      await this.#untilAnswered(this.#random.between(KILL_AFTER.least, KILL_AFTER.most));
      await delay(this.#random.between(0, KILL_AFTER.mostMs));
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
      await this.#gate.passed();
      if (this.#inserted.size - this.#committed.size > BACKLOG) {
        await delay(5);
        continue;
      }
      const { ns, queue } = this.#random.pick(QUEUES);
      const count = this.#random.between(1, 2 * MAX_COUNT);
      const values = Array.from({ length: count }, (_, n) => `${ns}-${producer}-${i}-${n}`);
      // Deduplication keys allow repeating a request whose response was lost.
      for (const value of values) this.#attempted.add(value);
      const body = values.map((text) => `${JSON.stringify({ text, key: text })}\n`).join('');
      let answer: Answer | null = null;
      while (answer?.status !== 200) {
        await this.#gate.passed();
        answer = await this.#send(`${queuePath(ns, queue)}/elements`, body, 'application/x-ndjson');
      }
      for (const value of values) this.#inserted.add(value);
    }
  }

  /** Resolves when `count` more requests of workers were answered. */
  #untilAnswered(count: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#countdown = { left: count, resolve };
    return promise;
  }

  #countAnswer(): void {
    const { left, resolve } = this.#countdown;
    this.#countdown = { left: left - 1, resolve };
    if (left === 1) resolve();
  }

  async #work(): Promise<void> {
    while (!this.#isStopping) {
      await this.#gate.passed();
      await this.#takeAndSettle(this.#random.pick([...QUEUES, null]), 200);
    }
  }

  /** @param place null takes from both queues */
  async #takeAndSettle(place: Place | null, to: number): Promise<void> {
    const startedAt = performance.now();
    const count = this.#random.between(1, MAX_COUNT);
    const min = this.#random.chance(0.3) ? Math.ceil(count / 2) : 1;
    const options = { count, min, to, reserve: true, lease: LEASE_MS };
    const answer =
      place === null
        ? await this.#send('/take', JSON.stringify({ from: QUEUES, order: 'fair', ...options }))
        : await this.#send(`${queuePath(place.ns, place.queue)}/take`, JSON.stringify(options));
    this.#countAnswer();
    if (answer?.status !== 200) return;
    const lines = linesOf(answer);
    if (lines.length > count)
      this.#faults.push(`${lines.length} elements returned by a take of at most ${count}`);
    for (const line of lines) this.#checkDelivery(line, startedAt);
    for (const each of QUEUES) {
      const own = lines.filter(({ ns = place?.ns }) => ns === each.ns);
      if (own.length > 0) await this.#settle(each, own);
    }
  }

  /** @param startedAt when the take that delivered the element was sent */
  #checkDelivery({ id, text = '' }: TakenLine, startedAt: number): void {
    if (!this.#attempted.has(text)) this.#faults.push(`never inserted: ${text}`);
    const firstId = this.#ids.get(text) ?? id;
    this.#ids.set(text, firstId);
    if (id !== firstId) this.#faults.push(`delivered with the ids ${firstId} and ${id}: ${text}`);
    const committedAt = this.#committed.get(text);
    if (committedAt !== undefined && committedAt < startedAt)
      this.#faults.push(`delivered after its commit: ${text}`);
    const held = this.#held.get(text);
    const now = performance.now();
    // Whichever take was earlier, its lease was still valid when the other take was answered.
    if (
      held !== undefined &&
      now < held.startedAt + SURELY_HELD_MS &&
      held.endedAt < startedAt + SURELY_HELD_MS
    )
      this.#faults.push(`reserved twice at the same time: ${text}`);
    this.#held.set(text, { startedAt, endedAt: now });
  }

  async #settle({ ns, queue }: Place, lines: readonly TakenLine[]): Promise<void> {
    // Some deliveries are abandoned until their leases expire, and some are rolled back.
    const isForgotten = this.#random.chance(0.05);
    if (isForgotten) return;
    for (const { text = '' } of lines) this.#held.delete(text);
    const rolledBack = lines.filter(() => this.#random.chance(0.05));
    const committed = lines.filter((one) => !rolledBack.includes(one));
    const items = (some: readonly TakenLine[]): object[] =>
      some.map(({ id, lease }) => ({ id, token: lease }));
    const body = JSON.stringify({ commit: items(committed), rollback: items(rolledBack) });
    const answer = await this.#send(`${queuePath(ns, queue)}/settle`, body);
    if (answer?.status !== 200) {
      for (const { text = '' } of committed) this.#unknown.add(text);
      return;
    }
    const { results } = jsonOf<{ results: { id: string; action: string; outcome: string }[] }>(answer);
    const outcomes = new Map(results.map(({ id, outcome }) => [id, outcome]));
    for (const { id, text = '' } of committed) {
      if (outcomes.get(id) === 'done') this.#committed.set(text, performance.now());
      else if (!OVERTAKEN.has(outcomes.get(id) ?? '')) {
        this.#faults.push(`unexpected outcome of the commit of ${text}: ${outcomes.get(id)}`);
      }
    }
  }

  /** Takes and commits until both queues are empty, including abandoned deliveries. */
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

  /** Null if the server was killed before it answered. */
  async #send(path: string, body: string, contentType = 'application/json'): Promise<Answer | null> {
    try {
      return await this.#client.request('POST', path, { body, headers: { 'content-type': contentType } });
    } catch {
      return null;
    }
  }
}
