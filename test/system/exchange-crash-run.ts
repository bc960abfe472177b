import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, elementHeadersOf, jsonOf, QueueClient } from '../support/http-client.ts';
import { type Random, seededRandom } from '../support/random.ts';
import { Gate } from '../support/recorded-load.ts';
import { ServerProcess } from '../support/server-process.ts';

export interface ExchangeCrashOptions {
  readonly kills: number;
  readonly seed: number;
}

export interface ExchangeCrashReport {
  readonly kills: number;
  readonly inserted: number;
  /** Elements found in the queues to which the selectors send them. */
  readonly arrived: number;
  /** The violations found, one line each; empty if the run passed. */
  readonly faults: readonly string[];
}

/** A final queue, and whether the selectors on the way send the n-th element to it. */
interface End {
  readonly ns: string;
  readonly queue: string;
  readonly source: string;
  readonly takes: (n: number) => boolean;
}

/** A fan-out, an exchange that consumes one of its destinations, and an exchange with destinations in two engines. */
const EXCHANGES = {
  fan: {
    src: { ns: 'N', queue: 'in' },
    dst: [
      { ns: 'N', queue: 'even', selector: 'env => env.msg.hdrs.n % 2 === 0' },
      { ns: 'N', queue: 'all' },
      { ns: 'N', queue: 'link' },
    ],
    consumer: { parallel: 2 },
  },
  chain: {
    src: { ns: 'N', queue: 'link' },
    dst: [{ ns: 'N', queue: 'end', selector: 'env.msg.hdrs.n % 3 === 0' }],
    consumer: {},
  },
  cross: {
    src: { ns: 'N', queue: 'cross' },
    dst: [
      { ns: 'far', queue: 'out' },
      { ns: 'N', queue: 'kept' },
    ],
    consumer: { reserve: true },
  },
};

const ENDS: readonly End[] = [
  { ns: 'N', queue: 'even', source: 'in', takes: (n) => n % 2 === 0 },
  { ns: 'N', queue: 'all', source: 'in', takes: () => true },
  { ns: 'N', queue: 'end', source: 'in', takes: (n) => n % 3 === 0 },
  { ns: 'N', queue: '__no_route__', source: 'in', takes: (n) => n % 3 !== 0 },
  { ns: 'far', queue: 'out', source: 'cross', takes: () => true },
  { ns: 'N', queue: 'kept', source: 'cross', takes: () => true },
];

const PRODUCERS = 4;
const KILL_AFTER_MS = { least: 100, most: 1000 };
/** A lease of 2 s, short enough that elements reserved by a killed server are forwarded during the test. */
const LEASE_S = 2;
const FORWARD_TIMEOUT_MS = 60_000;

/**
 * Repeatedly kills the real server while exchanges forward what producers insert. Then checks every destination against
 * the selectors: each acknowledged element must be exactly in its queues, once each. A consumer drains the queue of the
 * other engine during the run, so that a second copy cannot be merged with the first.
 */
export async function runExchangeCrash({ kills, seed }: ExchangeCrashOptions): Promise<ExchangeCrashReport> {
  await using server = await ServerProcess.create({
    config: {
      http: { users: { test1: 'test1' } },
      namespaces: {
        N: { url: 'sqlite:N.db', lease: LEASE_S },
        far: { url: 'sqlite:far.db', lease: LEASE_S },
      },
      exchanges: EXCHANGES,
    },
  });
  return await new ExchangeCrashRun(server, seededRandom(seed)).run(kills);
}

class ExchangeCrashRun {
  readonly #server: ServerProcess;
  readonly #random: Random;
  readonly #gate = new Gate();
  readonly #inserted: { source: string; n: number }[] = [];
  /** The bodies that the consumer of `far/out` took and whose commit was acknowledged. */
  readonly #committed = new Set<string>();
  readonly #faults: string[] = [];
  #stopping = false;
  #insertCount = 0;

  constructor(server: ServerProcess, random: Random) {
    this.#server = server;
    this.#random = random;
  }

  async run(kills: number): Promise<ExchangeCrashReport> {
    const clients = Array.from({ length: PRODUCERS + 1 }, () => this.#client());
    const [consumer, ...producers] = clients;
    const load = [
      ...producers.map((client) => this.#produce(client)),
      this.#consumeFar(consumer as QueueClient),
    ];
    for (let kill = 0; kill < kills; kill += 1) {
      await this.#server.start();
      this.#gate.open();
      await delay(this.#random.between(KILL_AFTER_MS.least, KILL_AFTER_MS.most));
      this.#gate.close();
      await this.#server.kill();
    }
    await this.#server.start();
    this.#stopping = true;
    this.#gate.open();
    await Promise.all(load);
    const client = this.#client();
    await this.#untilForwarded(client);
    let arrived = 0;
    for (const end of ENDS) arrived += await this.#compare(client, end);
    for (const own of [...clients, client]) own.close();
    const { code } = await this.#server.stop();
    if (code !== 0) this.#faults.push(`the server exited with ${code}`);
    return { kills, inserted: this.#inserted.length, arrived, faults: this.#faults };
  }

  #client(): QueueClient {
    return new QueueClient({ url: () => this.#server.url, maxSockets: 1 });
  }

  /** Inserts elements with different idempotency keys, and repeats each insert until it is acknowledged. */
  async #produce(client: QueueClient): Promise<void> {
    while (!this.#stopping) {
      this.#insertCount += 1;
      const n = this.#insertCount;
      const source = this.#random.chance(0.7) ? 'in' : 'cross';
      const headers = { 'x-ks-hdr-n': String(n), 'idempotency-key': String(n) };
      while (
        (await this.#attempt(() => client.insert('N', source, `${source}-${n}`, { headers })))?.status !== 200
      );
      this.#inserted.push({ source, n });
    }
  }

  async #consumeFar(client: QueueClient): Promise<void> {
    while (!this.#stopping) {
      const delivery = await this.#attempt(() => client.reserve('far', 'out', { to: 100, lease: 1000 }));
      if (delivery?.status !== 200) continue;
      const body = delivery.body.toString();
      if (this.#committed.has(body)) this.#faults.push(`far/out: ${body} was delivered after its commit`);
      const id = delivery.headers['x-ks-id'] ?? '';
      const done = await this.#attempt(() => client.commit('far', 'out', id));
      if (done?.status === 200) this.#committed.add(body);
      // The server was killed before it answered the commit: the element may be finished or be delivered again.
      else if (done === null) this.#unknown.add(body);
    }
  }

  readonly #unknown = new Set<string>();

  /** Resolves with the response, or null if the server was killed. Waits while it is down. */
  async #attempt(call: () => Promise<Answer>): Promise<Answer | null> {
    await this.#gate.passed();
    try {
      return await call();
    } catch {
      await delay(5);
      return null;
    }
  }

  /** Resolves when the sources are empty, so that everything was forwarded. */
  async #untilForwarded(client: QueueClient): Promise<void> {
    const deadline = performance.now() + FORWARD_TIMEOUT_MS;
    for (const queue of ['in', 'link', 'cross']) {
      while ((await total(client, 'N', queue)) > 0) {
        if (performance.now() > deadline) {
          this.#faults.push(
            `N/${queue} was not forwarded within ${FORWARD_TIMEOUT_MS} ms: ${(await client.status('N', queue)).body}`,
          );
          return;
        }
        await delay(50);
      }
    }
  }

  async #compare(client: QueueClient, { ns, queue, source, takes }: End): Promise<number> {
    const found = new Map<string, number>();
    for (let got = await take(client, ns, queue); got !== null; got = await take(client, ns, queue)) {
      const n = Number(elementHeadersOf(got).get('n'));
      if (got.body.toString() !== `${source}-${n}`)
        this.#faults.push(`${ns}/${queue}: changed bytes ${got.body}`);
      found.set(`${source}-${n}`, (found.get(`${source}-${n}`) ?? 0) + 1);
    }
    if (queue === 'out') for (const body of this.#committed) found.set(body, (found.get(body) ?? 0) + 1);
    for (const { source: from, n } of this.#inserted) {
      if (from !== source) continue;
      const body = `${source}-${n}`;
      const count = found.get(body) ?? 0;
      found.delete(body);
      if (count === 0 && queue === 'out' && this.#unknown.has(body)) continue;
      const expected = takes(n) ? 1 : 0;
      if (count !== expected)
        this.#faults.push(`${ns}/${queue}: ${body} was found ${count} times, not ${expected}`);
    }
    for (const [body, count] of found)
      this.#faults.push(`${ns}/${queue}: ${body} was found ${count} times, but was not expected`);
    return this.#inserted.filter(({ source: from, n }) => from === source && takes(n)).length;
  }
}

async function take(client: QueueClient, ns: string, queue: string): Promise<Answer | null> {
  const answer = await client.get(ns, queue, { to: 0 });
  if (answer.status === 504) return null;
  if (answer.status !== 200)
    throw new Error(`GET ${ns}/${queue} was answered with ${answer.status}: ${answer.body}`);
  return answer;
}

async function total(client: QueueClient, ns: string, queue: string): Promise<number> {
  return jsonOf<{ totalSize: number }>(await client.status(ns, queue)).totalSize;
}
