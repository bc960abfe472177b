import { setTimeout as delay } from 'node:timers/promises';
import type { OperationRecord } from '../../src/model/records.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { type Random, seededRandom } from '../support/random.ts';
import { ServerProcess } from '../support/server-process.ts';

export interface OperationCrashOptions {
  /** The URL of the source's engine. */
  readonly url: string;
  readonly kills: number;
  readonly seed: number;
}

export interface OperationCrashReport {
  /** Kills that interrupted a running operation. */
  readonly cut: number;
  /** The number of elements processed by operations. */
  readonly elements: number;
  /** The violations found, one line each; empty if the run passed. */
  readonly faults: readonly string[];
}

/** An operation on the elements of `N/from`, and the expected result. */
interface Kind {
  readonly request: object;
  readonly stays: boolean;
  /** The queue in which the elements or their copies arrive; null if there is none. */
  readonly target: { readonly ns: string; readonly queue: string } | null;
  readonly reserves?: true;
}

const SOURCE = { ns: 'N', queue: 'from' };
const NEAR = { ns: 'N', queue: 'to' };
const FAR = { ns: 'far', queue: 'to' };

const KINDS: readonly Kind[] = [
  { request: { action: 'delete' }, stays: false, target: null },
  { request: { action: 'move', to: NEAR }, stays: false, target: NEAR },
  { request: { action: 'move', to: FAR }, stays: false, target: FAR },
  { request: { action: 'copy', to: NEAR }, stays: true, target: NEAR },
  { request: { action: 'copy', to: FAR }, stays: true, target: FAR },
  { request: { action: 'redrive' }, stays: false, target: NEAR },
  { request: { action: 'delay', delay: 0 }, stays: true, target: null },
  { request: { action: 'set', set: { headers: { changed: 'yes' } } }, stays: true, target: null },
  { request: { action: 'release' }, stays: true, target: null, reserves: true },
];

const ELEMENTS = 600;
/** A rate limit, elements per second, for operations that would otherwise end before the kill. */
const RATE = 2_000;
const KILL_AFTER_MS = { least: 0, most: 250 };
const END_TIMEOUT_MS = 60_000;
const JSON_TYPE = { 'content-type': 'application/json' };

/**
 * Repeatedly kills the real server while it runs an operation, restarts it, waits until the operation has ended, and
 * compares: each element must be exactly in the queues where it belongs, once each, and be counted once.
 */
export async function runOperationCrash({
  url,
  kills,
  seed,
}: OperationCrashOptions): Promise<OperationCrashReport> {
  await using server = await ServerProcess.start({
    config: {
      http: { users: { test1: 'test1' } },
      namespaces: { N: { url }, far: { url: 'sqlite:far.db' } },
    },
  });
  const random = seededRandom(seed);
  const run = new OperationCrashRun(server, random);
  const first = random.between(0, KINDS.length - 1);
  for (let kill = 0; kill < kills; kill += 1) await run.round(KINDS[(first + kill) % KINDS.length] as Kind);
  return run.report();
}

class OperationCrashRun {
  readonly #server: ServerProcess;
  readonly #random: Random;
  readonly #faults: string[] = [];
  #cut = 0;
  #elements = 0;

  constructor(server: ServerProcess, random: Random) {
    this.#server = server;
    this.#random = random;
  }

  report(): OperationCrashReport {
    return { cut: this.#cut, elements: this.#elements, faults: this.#faults };
  }

  async round(kind: Kind): Promise<void> {
    const before = this.#client();
    const bodies = await this.#fill(before, kind);
    const request = { ...kind.request, source: SOURCE, ...(this.#random.chance(0.8) && { rate: RATE }) };
    const started = await before.request('POST', '/operations', {
      body: JSON.stringify(request),
      headers: JSON_TYPE,
    });
    const { id } = jsonOf<OperationRecord>(started);
    await delay(this.#random.between(KILL_AFTER_MS.least, KILL_AFTER_MS.most));
    await this.#server.kill();
    before.close();
    await this.#server.start();
    const client = this.#client();
    const record = await this.#ended(client, id);
    const name = `${record.action} to ${kind.target?.ns ?? 'nowhere'}`;
    if (record.state !== 'done') this.#faults.push(`${name}: ${record.state}, ${record.error}`);
    if (record.changed !== ELEMENTS) this.#faults.push(`${name}: ${record.changed} changed`);
    await this.#compare(client, kind.stays ? bodies : [], SOURCE, `${name}, source`, record);
    if (kind.target !== null) await this.#compare(client, bodies, kind.target, `${name}, target`, record);
    this.#elements += ELEMENTS;
    client.close();
  }

  #client(): QueueClient {
    return new QueueClient({ url: () => this.#server.url });
  }

  async #fill(client: QueueClient, kind: Kind): Promise<string[]> {
    const bodies = Array.from({ length: ELEMENTS }, (_, i) => `${this.#elements + i}`);
    const lines = bodies.map((text) => ({ text, headers: { 'x-dl-from-queue': NEAR.queue } }));
    const answer = await client.insertLines(SOURCE.ns, SOURCE.queue, lines);
    if (answer.status !== 200)
      throw new Error(`the inserts were answered with ${answer.status}: ${answer.body}`);
    if (kind.reserves) await this.#take(client, SOURCE, ELEMENTS, { reserve: 1, lease: 3_600_000 });
    return bodies;
  }

  /** Takes at most `count` elements; a reserve leaves them in the queue. */
  async #take(
    client: QueueClient,
    { ns, queue }: typeof SOURCE,
    count: number,
    more: Readonly<Record<string, number>> = {},
  ): Promise<{ text: string; headers: Readonly<Record<string, string>> }[]> {
    const query = { count, to: 0, ...more };
    const answer = await client.request('POST', `/q/${ns}/${queue}/take`, { query });
    if (answer.status === 504) return [];
    if (answer.status !== 200) throw new Error(`a take was answered with ${answer.status}: ${answer.body}`);
    const lines = answer.body.toString().trimEnd().split('\n');
    return lines.map((line) => JSON.parse(line));
  }

  async #ended(client: QueueClient, id: string): Promise<OperationRecord> {
    const deadline = performance.now() + END_TIMEOUT_MS;
    for (let isFirst = true; ; isFirst = false) {
      const record = jsonOf<OperationRecord>(await client.request('GET', `/operations/${id}`));
      if (record.state !== 'running' || performance.now() > deadline) return record;
      if (isFirst) this.#cut += 1;
      // With a shared engine this takes seven seconds, and each poll costs processor time in two processes.
      await delay(50);
    }
  }

  async #compare(
    client: QueueClient,
    expected: readonly string[],
    queue: typeof SOURCE,
    name: string,
    { action }: OperationRecord,
  ): Promise<void> {
    const left = new Set(expected);
    for (let taken = await this.#take(client, queue, 1000); taken.length > 0; ) {
      for (const { text, headers } of taken) {
        if (!left.delete(text)) this.#faults.push(`${name}: ${text} was found twice, or was not expected`);
        if (action === 'set' && headers.changed !== 'yes')
          this.#faults.push(`${name}: ${text} was not changed`);
      }
      taken = await this.#take(client, queue, 1000);
    }
    for (const text of left) this.#faults.push(`${name}: ${text} is lost`);
  }
}
