import assert from 'node:assert/strict';
import type { Storage } from '../../src/engine/storage.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { commit } from '../support/settle.ts';

const PRODUCERS = 8;
const RESERVERS = 6;
const POPPERS = 3;
/** How many elements a consumer takes at a time. */
const COUNT = 4;
/** Short, so that elements that a fault left reserved become ready within the test. */
const LEASE_MS = 1500;

/** The result of the traffic. */
export interface Verdict {
  /** Elements whose insert was acknowledged and that no consumer received. */
  readonly lost: string[];
  /** How many of these may have been lost with pops whose reply was lost. */
  readonly unknownPops: number;
  /** Elements that were delivered after they were finished, or finished twice. */
  readonly twice: string[];
  /** Bodies that were received and never inserted. */
  readonly changed: string[];
  /** Calls whose outcome is unknown. */
  readonly unknown: number;
}

/**
 * Producers and consumers on some queues of an engine; a third of the consumers pop, the others reserve. Records what
 * happens to every element, while servers of the engine fail.
 */
export class Traffic {
  readonly #storages: readonly Storage[];
  readonly #queues: readonly QueueKey[];
  readonly #running: Promise<void>[];
  readonly #attempted = new Set<string>();
  readonly #acknowledged = new Set<string>();
  /** Popped, or committed with the outcome `done`. */
  readonly #finished = new Set<string>();
  /** Delivered under a lease, with a commit of unknown outcome. */
  readonly #unsure = new Set<string>();
  readonly #twice = new Set<string>();
  #unknownPops = 0;
  #unknown = 0;
  #isProducing = true;
  #isConsuming = true;
  #numbers = 0;
  #onProgress: (() => void)[] = [];

  /** @param storages of the nodes that share the work */
  constructor(storages: readonly Storage[], queues: readonly QueueKey[]) {
    this.#storages = storages;
    this.#queues = queues;
    this.#running = [
      ...Array.from({ length: PRODUCERS }, (_, index) => this.#produce(index)),
      ...Array.from({ length: RESERVERS }, (_, index) => this.#consume(index, LEASE_MS)),
      ...Array.from({ length: POPPERS }, (_, index) => this.#consume(index, null)),
      this.#sweep(),
    ];
  }

  /** Resolves when `more` further inserts were acknowledged. */
  async acknowledged(more: number): Promise<void> {
    const goal = this.#acknowledged.size + more;
    while (this.#acknowledged.size < goal)
      await new Promise<void>((resolve) => this.#onProgress.push(resolve));
  }

  /** Stops producing, drains the queues, and returns the result. */
  async end(): Promise<Verdict> {
    this.#isProducing = false;
    await Promise.all(this.#running.slice(0, PRODUCERS));
    while (!(await this.#isDrained())) await pause();
    this.#isConsuming = false;
    await Promise.all(this.#running);
    return {
      lost: [...this.#acknowledged].filter((body) => !this.#finished.has(body) && !this.#unsure.has(body)),
      unknownPops: this.#unknownPops,
      twice: [...this.#twice],
      changed: [...this.#finished].filter((body) => !this.#attempted.has(body)),
      unknown: this.#unknown,
    };
  }

  async #produce(index: number): Promise<void> {
    while (this.#isProducing) {
      const number = this.#numbers++;
      const body = `element ${number}`;
      this.#attempted.add(body);
      const ids = await this.#allowed(this.#node(index).insert(this.#queue(number), [newElement({ body })]));
      if (ids === null) continue;
      this.#acknowledged.add(body);
      for (const resolve of this.#onProgress.splice(0)) resolve();
    }
  }

  async #consume(index: number, leaseMs: number | null): Promise<void> {
    const storage = this.#node(index);
    for (let turn = index; this.#isConsuming; turn++) {
      const queue = this.#queue(turn);
      const taken = await this.#allowed(storage.take(queue, { group: '', count: COUNT, leaseMs }), () => {
        if (leaseMs === null) this.#unknownPops += COUNT;
      });
      if (taken === null || taken.deliveries.length === 0) {
        await pause();
        continue;
      }
      const bodies = taken.deliveries.map(bodyText);
      for (const body of bodies) if (this.#finished.has(body)) this.#twice.add(body);
      if (leaseMs === null) for (const body of bodies) this.#finish(body);
      else
        await this.#commit(
          storage,
          queue,
          taken.deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null })),
          bodies,
        );
    }
  }

  async #commit(
    storage: Storage,
    queue: QueueKey,
    refs: Parameters<typeof commit>[2],
    bodies: readonly string[],
  ): Promise<void> {
    const outcomes = await this.#allowed(commit(storage, queue, refs));
    for (const [index, body] of bodies.entries()) {
      if (outcomes === null) this.#unsure.add(body);
      else if (outcomes[index] === 'done') this.#finish(body);
    }
  }

  #finish(body: string): void {
    if (this.#finished.has(body)) this.#twice.add(body);
    this.#finished.add(body);
  }

  /** Sweeps as a node's broker does, so that leases expire in time. */
  async #sweep(): Promise<void> {
    while (this.#isConsuming) {
      await this.#allowed(this.#node(0).sweep());
      await pause(100);
    }
  }

  async #isDrained(): Promise<boolean> {
    const sizes = await this.#allowed(Promise.all(this.#queues.map((queue) => this.#node(0).counts(queue))));
    return sizes?.every(({ ready, scheduled, reserved }) => ready + scheduled + reserved === 0) ?? false;
  }

  /** Returns the result of a call; null if it was rejected as the port allows while the store is unavailable. */
  async #allowed<T>(call: Promise<T>, onUnknown = (): void => {}): Promise<T | null> {
    try {
      return await call;
    } catch (error) {
      if (
        !(error instanceof QuaysideError) ||
        !['storage-unavailable', 'outcome-unknown'].includes(error.code)
      )
        throw error;
      if (error.code === 'outcome-unknown') {
        this.#unknown += 1;
        onUnknown();
      }
      await pause();
      return null;
    }
  }

  #node(index: number): Storage {
    return at(this.#storages, index);
  }

  #queue(turn: number): QueueKey {
    return at(this.#queues, turn);
  }
}

/** The value at an index that may be larger than the array. */
function at<T>(values: readonly T[], index: number): T {
  const value = values[index % values.length];
  assert.ok(value !== undefined);
  return value;
}

function pause(ms = 10): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
