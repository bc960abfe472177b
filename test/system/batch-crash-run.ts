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

const PRODUCERS = 3;
const WORKERS = 6;
/** Above this many elements that nobody has committed, producers rest. */
const BACKLOG = 2000;
const LEASE_MS = 1000;
/** From when a take was sent. The server's clock has whole milliseconds. */
const SURELY_HELD_MS = LEASE_MS - 2;
const MAX_COUNT = 50;
/** The server is killed when so many requests of workers were answered since its start, and a moment later. */
const KILL_AFTER = { least: 3, most: 60, mostMs: 20 };

/** How a commit ends whose lease ran out before it came: another worker has the element, or has committed it. */
const OVERTAKEN: ReadonlySet<string> = new Set(['lease-lost', 'not-reserved', 'not-found', 'token-required']);

/**
 * Kills the server again and again while producers insert many elements with one request, and workers take many
 * elements under leases, from one queue and from both, and settle them with one request. What was inserted and not
 * committed must be there at the end; what was committed must never come again.
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
  /** The id under which a value first came. */
  readonly #ids = new Map<string, string>();
  /** The last delivery of each value that no worker has begun to settle. */
  readonly #held = new Map<string, { readonly startedAt: number; readonly endedAt: number }>();
  /** When the commit of a value was acknowledged. */
  readonly #committed = new Map<string, number>();
  /** Values of which a commit has no known outcome. */
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
      await this.#answered(this.#random.between(KILL_AFTER.least, KILL_AFTER.most));
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
      // Under keys, so that a request whose answer was lost can be repeated.
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

  /** Resolves when so many more requests of workers were answered. */
  #answered(count: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#countdown = { left: count, resolve };
    return promise;
  }

  #noteAnswer(): void {
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

  /** @param place null: from both queues */
  async #takeAndSettle(place: Place | null, to: number): Promise<void> {
    const startedAt = performance.now();
    const count = this.#random.between(1, MAX_COUNT);
    const min = this.#random.chance(0.3) ? Math.ceil(count / 2) : 1;
    const options = { count, min, to, reserve: true, lease: LEASE_MS };
    const answer =
      place === null
        ? await this.#send('/take', JSON.stringify({ from: QUEUES, order: 'fair', ...options }))
        : await this.#send(`${queuePath(place.ns, place.queue)}/take`, JSON.stringify(options));
    this.#noteAnswer();
    if (answer?.status !== 200) return;
    const lines = linesOf(answer);
    if (lines.length > count) this.#faults.push(`${lines.length} elements of ${count}`);
    for (const line of lines) this.#checkDelivery(line, startedAt);
    for (const each of QUEUES) {
      const own = lines.filter(({ ns = place?.ns }) => ns === each.ns);
      if (own.length > 0) await this.#settle(each, own);
    }
  }

  /** @param startedAt when the take was sent that handed it out */
  #checkDelivery({ id, text = '' }: TakenLine, startedAt: number): void {
    if (!this.#attempted.has(text)) this.#faults.push(`nobody inserted: ${text}`);
    const firstId = this.#ids.get(text) ?? id;
    this.#ids.set(text, firstId);
    if (id !== firstId) this.#faults.push(`stored as ${firstId} and ${id}: ${text}`);
    const committedAt = this.#committed.get(text);
    if (committedAt !== undefined && committedAt < startedAt) this.#faults.push(`twice: ${text}`);
    const held = this.#held.get(text);
    const now = performance.now();
    // Whichever of the two takes was the earlier one, its lease still lasted when the other one was answered.
    if (
      held !== undefined &&
      now < held.startedAt + SURELY_HELD_MS &&
      held.endedAt < startedAt + SURELY_HELD_MS
    )
      this.#faults.push(`reserved twice at the same time: ${text}`);
    this.#held.set(text, { startedAt, endedAt: now });
  }

  async #settle({ ns, queue }: Place, lines: readonly TakenLine[]): Promise<void> {
    // Some are left to their leases, and some rolled back.
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
  async #send(path: string, body: string, contentType = 'application/json'): Promise<Answer | null> {
    try {
      return await this.#client.request('POST', path, { body, headers: { 'content-type': contentType } });
    } catch {
      return null;
    }
  }
}
