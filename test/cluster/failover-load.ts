import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, headerOf, QueueClient } from '../support/http-client.ts';
import { Lateness } from '../support/lateness.ts';
import type { Nodes } from './nodes.ts';

export const QUEUES = { here: 'here', there: 'away', work: 'work', dead: 'dead', done: 'arrived' } as const;

/**
 * Elements pass from `here` to `there` and back, twice, then to `done`. Those of `work` are consumed, or fail and reach
 * `done` through the dead-letter queue: batches of each queue send elements to another, in both directions.
 */
export const EXCHANGES: Readonly<Record<string, unknown>> = {
  out: {
    src: { ns: 'N', queue: QUEUES.here },
    dst: [
      { ns: 'N', queue: QUEUES.there, selector: `env => (env.msg.hdrs['x-hop-count'] ?? 0) < 3` },
      { ns: 'N', queue: QUEUES.done, selector: `env => (env.msg.hdrs['x-hop-count'] ?? 0) >= 3` },
    ],
    consumer: { reserve: true },
  },
  back: {
    src: { ns: 'N', queue: QUEUES.there },
    dst: [{ ns: 'N', queue: QUEUES.here }],
    consumer: { reserve: true },
  },
  buried: {
    src: { ns: 'N', queue: QUEUES.dead },
    dst: [{ ns: 'N', queue: QUEUES.done }],
    consumer: { reserve: true },
  },
};

const PACE_MS = 25;
const FAILING = 7;
/** Ends a call without an answer, so that the test fails instead of blocking. */
const GIVEN_UP_MS = 60_000;

/**
 * Producers and consumers on all nodes, which measure the time of each call and record what happens to each element.
 */
export class FailoverLoad {
  /** Numbers whose insert was acknowledged. */
  readonly inserted = new Set<number>();
  /** The ids with which consumers received a number at the end of its path. */
  readonly ids = new Map<number, Set<string>>();
  /** Number of acknowledged commits, by number. */
  readonly commits = new Map<number, number>();
  readonly unexpected: string[] = [];
  answered = 0;
  /** Longest call, without delays caused by a busy machine. */
  longestMs = 0;
  longest = '';
  readonly #nodes: Nodes;
  readonly #clients: QueueClient[] = [];
  readonly #lateness = new Lateness();
  readonly #producing: Promise<void>[] = [];
  readonly #consuming: Promise<void>[] = [];
  #isProducing = true;
  #isConsuming = true;
  #next = 0;

  constructor(nodes: Nodes) {
    this.#nodes = nodes;
  }

  start(): void {
    const { here, work, done } = QUEUES;
    for (const queue of [here, here, here, here, work, work]) this.#producing.push(this.#produce(queue));
    for (const queue of [done, done, done, work, work]) this.#consuming.push(this.#consume(queue));
    for (let node = 0; node < this.#nodes.count; node++) this.#consuming.push(this.#watch(node));
  }

  async stopProducing(): Promise<void> {
    this.#isProducing = false;
    await Promise.all(this.#producing);
  }

  async stop(): Promise<void> {
    await this.stopProducing();
    this.#isConsuming = false;
    await Promise.all(this.#consuming);
    for (const client of this.#clients) client.close();
    this.#lateness.stop();
  }

  /** Acknowledged inserts that no consumer received. */
  get lost(): number[] {
    return [...this.inserted].filter((number) => !this.ids.has(number));
  }

  /** Elements that were copied or committed twice. */
  get duplicated(): number[] {
    const copied = [...this.ids].filter(([, ids]) => ids.size > 1).map(([number]) => number);
    return [...copied, ...[...this.commits].filter(([, times]) => times > 1).map(([number]) => number)];
  }

  async #produce(queue: string): Promise<void> {
    const client = this.#client();
    while (this.#isProducing) {
      const number = this.#next++;
      const headers = { 'idempotency-key': `${number}` };
      for (let stored = false; !stored; ) {
        const answer = await this.#timed(`insert ${queue}`, (signal) =>
          client.insert('N', queue, `${number}`, { headers, contentType: 'text/plain', signal }),
        );
        stored = answer?.status === 200;
        await delay(PACE_MS);
      }
      this.inserted.add(number);
    }
  }

  async #consume(queue: string): Promise<void> {
    const client = this.#client();
    while (this.#isConsuming) {
      const taken = await this.#timed(`reserve ${queue}`, (signal) =>
        client.reserve('N', queue, { to: 0, signal }),
      );
      if (taken?.status !== 200) {
        await delay(PACE_MS);
        continue;
      }
      const number = Number(taken.body);
      const id = headerOf(taken, 'x-ks-id') ?? '';
      const token = headerOf(taken, 'x-ks-lease') ?? '';
      if (queue === QUEUES.work && number % FAILING === 0) {
        await this.#timed(`rollback ${queue}`, (signal) =>
          client.rollback('N', queue, id, { token, signal }),
        );
        continue;
      }
      const ids = this.ids.get(number) ?? new Set();
      this.ids.set(number, ids.add(id));
      const committed = await this.#timed(`commit ${queue}`, (signal) =>
        client.commit('N', queue, id, { token, signal }),
      );
      if (committed?.status === 200) this.commits.set(number, (this.commits.get(number) ?? 0) + 1);
    }
  }

  /** Polls the status of every queue through one node. */
  async #watch(node: number): Promise<void> {
    const client = this.#nodes.client(node);
    while (this.#isConsuming) {
      for (const queue of Object.values(QUEUES)) {
        await this.#timed(`status ${queue}`, (signal) => client.status('N', queue, { signal }));
      }
      await delay(10 * PACE_MS);
    }
  }

  #client(): QueueClient {
    const server = this.#nodes.server(this.#clients.length % this.#nodes.count);
    const client = new QueueClient({ url: () => server.url, maxSockets: 1 });
    this.#clients.push(client);
    return client;
  }

  async #timed(what: string, call: (signal: AbortSignal) => Promise<Answer>): Promise<Answer | null> {
    const startedAt = performance.now();
    const lateBefore = this.#lateness.totalMs;
    let answer: Answer | null = null;
    try {
      answer = await call(AbortSignal.timeout(GIVEN_UP_MS));
      this.answered++;
      if (![200, 404, 409, 503, 504].includes(answer.status)) {
        this.unexpected.push(`${what}: ${answer.status} ${answer.body}`);
      }
    } catch (error) {
      this.unexpected.push(`${what}: ${error}`);
    }
    const ms = performance.now() - startedAt - (this.#lateness.totalMs - lateBefore);
    if (ms > this.longestMs) [this.longestMs, this.longest] = [ms, what];
    return answer;
  }
}
