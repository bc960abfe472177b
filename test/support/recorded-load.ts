import { setTimeout as delay } from 'node:timers/promises';
import { type SampleBody, sampleBodies } from './bodies.ts';
import type { Handed, History } from './history.ts';
import { QueueClient } from './http-client.ts';
import type { Random } from './random.ts';
import { type QueueGroup, RecordedClient } from './recorded-client.ts';

/**
 * The stream's consumer groups; every element of the stream is for both. No client pops for the second one, so a
 * missing element cannot be attributed to a pop that was lost in a crash: there, every loss is detected.
 */
const GROUPS = ['a', 'b'];
const NEVER_POPS = 'b';
const PLAIN: QueueGroup = { ns: 'N', queue: 'crash', group: '' };
const STREAM: QueueGroup = { ns: 'events', queue: 'crash', group: 'a' };

/** Each queue, once per group that reads it. */
export const TARGETS: readonly QueueGroup[] = [PLAIN, ...GROUPS.map((group) => ({ ...STREAM, group }))];

const PRODUCERS: readonly QueueGroup[] = [PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, STREAM, STREAM];
const CONSUMERS: readonly QueueGroup[] = [
  PLAIN,
  PLAIN,
  PLAIN,
  PLAIN,
  ...TARGETS.slice(1),
  ...TARGETS.slice(1),
];

/** Producers pause above this many unfinished deliveries, so that both idle and backed-up queues occur. */
const BACKLOG = 1500;
const LEASE_MS = 1500;
const [SMALLEST_BODY, LARGEST_BODY] = [200, 65_536];

/** Blocks clients while the server is down. */
export class Gate {
  #opened = Promise.withResolvers<void>();

  open(): void {
    this.#opened.resolve();
  }

  close(): void {
    this.#opened.resolve();
    this.#opened = Promise.withResolvers();
  }

  passed(): Promise<void> {
    return this.#opened.promise;
  }
}

export interface LoadOptions {
  /** The current addresses of the servers; clients are distributed over them in turn. */
  readonly urls: readonly (() => string)[];
  readonly gate: Gate;
  readonly history: History;
  readonly random: Random;
  /** Makes values and keys different from those of other loads on the same queues. */
  readonly name?: string;
  /** How long each client pauses before an operation, ms; default: not at all. */
  readonly pauseMs?: number;
}

/** 8 producers and 8 consumers, each with its own connection, which run until they are stopped. */
export class Load {
  readonly #options: LoadOptions;
  readonly #clients: QueueClient[] = [];
  readonly #running: Promise<void>[] = [];
  #backlog = 0;
  #stopping = false;

  constructor(options: LoadOptions) {
    this.#options = options;
  }

  start(): void {
    for (const [at, target] of PRODUCERS.entries())
      this.#running.push(this.#produce(this.#client(`p${at}`), target, at));
    for (const [at, target] of CONSUMERS.entries())
      this.#running.push(this.#consume(this.#client(`c${at}`), target));
  }

  /** Resolves when every client has finished its last operation. The gate must be open. */
  async stop(): Promise<void> {
    this.#stopping = true;
    await Promise.all(this.#running);
    for (const client of this.#clients) client.close();
  }

  #client(name: string): RecordedClient {
    const { urls, history, name: load = '' } = this.#options;
    const url = urls[this.#clients.length % urls.length];
    if (url === undefined) throw new Error('A load needs a server.');
    const http = new QueueClient({ url, maxSockets: 1 });
    this.#clients.push(http);
    return new RecordedClient(`${load}${name}`, http, history);
  }

  async #rest(): Promise<void> {
    const { pauseMs = 0 } = this.#options;
    if (pauseMs > 0) await delay(pauseMs);
  }

  async #produce(client: RecordedClient, target: QueueGroup, at: number): Promise<void> {
    const { gate, random } = this.#options;
    for (let number = 0; !this.#stopping; number++) {
      await this.#rest();
      await gate.passed();
      if (this.#backlog > BACKLOG) {
        await delay(5);
        continue;
      }
      await this.#insert(client, target, `${client.name}-${number}`, at % 2 === 0);
      if (random.chance(0.02)) await delay(random.between(1, 100));
    }
  }

  async #insert(client: RecordedClient, target: QueueGroup, value: string, repeats: boolean): Promise<void> {
    const { gate, random } = this.#options;
    const insert = {
      value,
      sample: randomBody(random),
      headers: randomHeaders(random),
      ...randomMaturity(random),
      ...(target.group === '' ? {} : { groups: GROUPS }),
      ...(repeats ? { idempotencyKey: value } : {}),
    };
    let outcome = await client.insert(target, insert);
    // Half of the producers repeat an insert until they know its outcome; the key prevents a second copy.
    while (repeats && outcome === 'unknown') {
      await gate.passed();
      outcome = await client.insert(target, insert);
    }
    if (outcome === 'ok') this.#backlog += insert.groups?.length ?? 1;
  }

  async #consume(client: RecordedClient, target: QueueGroup): Promise<void> {
    const { gate, random } = this.#options;
    while (!this.#stopping) {
      await this.#rest();
      await gate.passed();
      const toMs = random.pick([0, 50, 500]);
      if (target.group !== NEVER_POPS && random.chance(0.5)) {
        if ((await client.pop(target, toMs)) !== null) this.#backlog--;
        continue;
      }
      const handed = await client.reserve(target, toMs, LEASE_MS);
      if (handed !== null) await this.#settle(client, target, handed);
      else if (toMs === 0) await delay(random.between(0, 20));
    }
  }

  /**
   * Settles a reservation: 5 % roll back, 2 % do nothing; some work for a moment first, and some settle by the id only.
   */
  async #settle(client: RecordedClient, target: QueueGroup, handed: Handed): Promise<void> {
    const { random } = this.#options;
    if (random.chance(0.1)) await delay(random.between(1, 50));
    const fenced = random.chance(0.75);
    if (random.chance(0.05)) {
      await client.rollback(target, { handed, delayMs: random.pick([0, random.between(1, 300)]) }, fenced);
    } else if (random.chance(0.98)) {
      if ((await client.commit(target, handed, fenced)) === 'ok') this.#backlog--;
    }
  }
}

/** A part of a sample body, from a random place; short and long parts are equally frequent. */
function randomBody(random: Random): SampleBody {
  const sample = random.pick(sampleBodies().filter(({ bytes }) => bytes.length > 0));
  const length = Math.round(SMALLEST_BODY * (LARGEST_BODY / SMALLEST_BODY) ** random.next());
  const from = random.between(0, sample.bytes.length - 1);
  return { ...sample, bytes: Buffer.alloc(length, sample.bytes.subarray(from)) };
}

function randomHeaders(random: Random): Record<string, string> {
  const headers: Record<string, string> = { trace: random.bytes(8).toString('hex') };
  if (random.chance(0.2)) headers.note = 'Gr\u00fc\u00dfe, \u00a3 5';
  if (random.chance(0.1)) headers.pad = 'x'.repeat(random.between(1, 500));
  return headers;
}

/** One in twenty elements is scheduled: half by delay, half by maturity. */
function randomMaturity(random: Random): { delayMs?: number; matureWallAt?: number } {
  if (!random.chance(0.05)) return {};
  const delayMs = random.between(10, 400);
  return random.chance(0.5) ? { delayMs } : { matureWallAt: Date.now() + delayMs };
}
