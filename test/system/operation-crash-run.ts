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
  /** Operations that a kill interrupted. */
  readonly cut: number;
  /** The number of elements processed by operations. */
  readonly elements: number;
  /** The violations found, one line each; empty if the run passed. */
  readonly faults: readonly string[];
}

interface Place {
  readonly ns: string;
  readonly queue: string;
}

/** An operation on the elements of a source queue, and the expected result. */
interface Kind {
  readonly request: { readonly action: string; readonly [name: string]: unknown };
  readonly stays: boolean;
  /** The namespace in which the elements or their copies arrive; null if there is none. */
  readonly target: 'N' | 'far' | null;
  readonly reserves?: true;
}

const KINDS: readonly Kind[] = [
  { request: { action: 'delete' }, stays: false, target: null },
  { request: { action: 'move' }, stays: false, target: 'N' },
  { request: { action: 'move' }, stays: false, target: 'far' },
  { request: { action: 'copy' }, stays: true, target: 'N' },
  { request: { action: 'copy' }, stays: true, target: 'far' },
  { request: { action: 'redrive' }, stays: false, target: 'N' },
  { request: { action: 'delay', delay: 0 }, stays: true, target: null },
  { request: { action: 'set', set: { headers: { changed: 'yes' } } }, stays: true, target: null },
  { request: { action: 'release' }, stays: true, target: null, reserves: true },
];

/** A running operation with queues of its own. */
interface Running {
  readonly kind: Kind;
  readonly id: string;
  readonly bodies: readonly string[];
  readonly source: Place;
  readonly target: Place | null;
}

/** Operations that one kill interrupts: a start of the server takes more processor time than an operation. */
const OPERATIONS_PER_KILL = 3;
const ELEMENTS = 600;
/** A rate limit, elements per second, for operations that would otherwise end before the kill. */
const RATE = 2_000;
const KILL_AFTER_MS = { least: 0, most: 250 };
const END_TIMEOUT_MS = 60_000;
const JSON_TYPE = { 'content-type': 'application/json' };

/**
 * Repeatedly kills the real server while it runs operations, restarts it, waits until they have ended, and compares:
 * each element must be exactly in the queues where it belongs, once each, and be counted once.
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
  for (let kill = 0; kill < kills; kill += 1) {
    const from = first + kill * OPERATIONS_PER_KILL;
    await run.round(
      Array.from({ length: OPERATIONS_PER_KILL }, (_, i) => KINDS[(from + i) % KINDS.length] as Kind),
    );
  }
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

  /** Kills the server once while it runs an operation of each of these kinds. */
  async round(kinds: readonly Kind[]): Promise<void> {
    const before = this.#client();
    const prepared: Omit<Running, 'id'>[] = [];
    for (const [at, kind] of kinds.entries()) prepared.push(await this.#prepare(before, kind, at));
    const running: Running[] = [];
    for (const each of prepared) running.push({ ...each, id: await this.#start(before, each) });
    await delay(this.#random.between(KILL_AFTER_MS.least, KILL_AFTER_MS.most));
    await this.#server.kill();
    before.close();
    await this.#server.start();
    const client = this.#client();
    const records = await Promise.all(running.map(({ id }) => this.#ended(client, id)));
    for (const [at, { kind, bodies, source, target }] of running.entries()) {
      const record = records[at] as OperationRecord;
      const name = `${record.action} to ${target?.ns ?? 'nowhere'}`;
      if (record.state !== 'done') this.#faults.push(`${name}: ${record.state}, ${record.error}`);
      if (record.changed !== ELEMENTS) this.#faults.push(`${name}: ${record.changed} changed`);
      await this.#compare(client, kind.stays ? bodies : [], source, `${name}, source`, record);
      if (target !== null) await this.#compare(client, bodies, target, `${name}, target`, record);
    }
    client.close();
  }

  async #prepare(client: QueueClient, kind: Kind, at: number): Promise<Omit<Running, 'id'>> {
    const source = { ns: 'N', queue: `from-${at}` };
    const target = kind.target === null ? null : { ns: kind.target, queue: `to-${at}` };
    const bodies = Array.from({ length: ELEMENTS }, (_, i) => `${this.#elements + i}`);
    this.#elements += ELEMENTS;
    // A redrive moves the elements to the queue that this header names.
    const headers = { 'x-dl-from-queue': `to-${at}` };
    const answer = await client.insertLines(
      source.ns,
      source.queue,
      bodies.map((text) => ({ text, headers })),
    );
    if (answer.status !== 200)
      throw new Error(`the inserts were answered with ${answer.status}: ${answer.body}`);
    if (kind.reserves) await this.#take(client, source, ELEMENTS, { reserve: 1, lease: 3_600_000 });
    return { kind, bodies, source, target };
  }

  /** Returns the id of the operation. */
  async #start(client: QueueClient, { kind, source, target }: Omit<Running, 'id'>): Promise<string> {
    const { action } = kind.request;
    const request = {
      ...kind.request,
      source,
      ...((action === 'move' || action === 'copy') && { to: target }),
      ...(this.#random.chance(0.8) && { rate: RATE }),
    };
    const started = await client.request('POST', '/operations', {
      body: JSON.stringify(request),
      headers: JSON_TYPE,
    });
    return jsonOf<OperationRecord>(started).id;
  }

  #client(): QueueClient {
    return new QueueClient({ url: () => this.#server.url });
  }

  /** Takes at most `count` elements; a reserve leaves them in the queue. */
  async #take(
    client: QueueClient,
    { ns, queue }: Place,
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
    queue: Place,
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
