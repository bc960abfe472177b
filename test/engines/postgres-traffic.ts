import type { Storage } from '../../src/engine/storage.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { commit } from '../support/settle.ts';

const PRODUCERS = 8;
const RESERVERS = 6;
const POPPERS = 2;
/** Short, so that elements that a fault left reserved become ready within the test. */
const LEASE_MS = 1500;

/** The result of the traffic. */
export interface Verdict {
  /** Number of elements whose insert was acknowledged and that no consumer received. */
  readonly lost: number;
  /** How many of these may have been lost with pops whose reply was lost. */
  readonly unknownPops: number;
  /** Elements that were delivered after they were finished. */
  readonly twice: string[];
  /** Bodies that were received and never inserted. */
  readonly changed: string[];
  readonly unknown: number;
}

/**
 * Producers and consumers on one queue (two of eight consumers pop, the others reserve); records what happens to every
 * element.
 */
export class Traffic {
  readonly #storage: readonly Storage[];
  readonly #queue: QueueKey;
  readonly #running: Promise<void>[];
  readonly #attempted = new Set<string>();
  readonly #acknowledged = new Set<string>();
  /** Popped, or committed with the outcome `done`. */
  readonly #finished = new Set<string>();
  /** Delivered under a lease, with a commit of unknown outcome. */
  readonly #unsure = new Set<string>();
  readonly #twice: string[] = [];
  #unknownPops = 0;
  #unknown = 0;
  #isProducing = true;
  #isConsuming = true;
  #numbers = 0;

  /** @param storage of the nodes that share the work */
  constructor(storage: readonly Storage[], queue: QueueKey) {
    this.#storage = storage;
    this.#queue = queue;
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
    while (this.#acknowledged.size < goal) await pause();
  }

  /** Stops producing, drains the queue, and returns the result. */
  async end(): Promise<Verdict> {
    this.#isProducing = false;
    await Promise.all(this.#running.slice(0, PRODUCERS));
    while (!(await this.#isDrained())) await pause();
    this.#isConsuming = false;
    await Promise.all(this.#running);
    const lost = [...this.#acknowledged].filter(
      (body) => !this.#finished.has(body) && !this.#unsure.has(body),
    );
    return {
      lost: lost.length,
      unknownPops: this.#unknownPops,
      twice: this.#twice,
      changed: [...this.#finished].filter((body) => !this.#attempted.has(body)),
      unknown: this.#unknown,
    };
  }

  async #produce(index: number): Promise<void> {
    while (this.#isProducing) {
      const body = `element ${this.#numbers++}`;
      this.#attempted.add(body);
      const ids = await this.#allowed(this.#node(index).insert(this.#queue, [newElement({ body })]));
      if (ids !== null) this.#acknowledged.add(body);
    }
  }

  async #consume(index: number, leaseMs: number | null): Promise<void> {
    while (this.#isConsuming) {
      const storage = this.#node(index);
      const taking = storage.take(this.#queue, { group: '', count: 4, leaseMs });
      const taken = await this.#allowed(taking, () => {
        if (leaseMs === null) this.#unknownPops += 4;
      });
      if (taken === null || taken.deliveries.length === 0) {
        await pause();
        continue;
      }
      const bodies = taken.deliveries.map(bodyText);
      this.#twice.push(...bodies.filter((body) => this.#finished.has(body)));
      if (leaseMs === null) for (const body of bodies) this.#finished.add(body);
      else
        await this.#commit(
          storage,
          taken.deliveries.map(({ id, lease }) => ({ id, token: lease?.token ?? null })),
          bodies,
        );
    }
  }

  async #commit(
    storage: Storage,
    held: readonly { id: string; token: string | null }[],
    bodies: readonly string[],
  ): Promise<void> {
    const refs = held.map((ref) => ({ ...ref, group: '' }));
    const outcomes = await this.#allowed(commit(storage, this.#queue, refs));
    for (const [index, body] of bodies.entries()) {
      if (outcomes === null) this.#unsure.add(body);
      else if (outcomes[index] === 'done') this.#finished.add(body);
    }
  }

  /** Sweeps as a node's broker does, so that leases expire in time. */
  async #sweep(): Promise<void> {
    while (this.#isConsuming) {
      await this.#allowed(this.#node(0).sweep());
      await pause(100);
    }
  }

  async #isDrained(): Promise<boolean> {
    const sizes = await this.#allowed(this.#node(0).counts(this.#queue));
    return sizes !== null && sizes.ready + sizes.scheduled + sizes.reserved === 0;
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
    const storage = this.#storage[index % this.#storage.length];
    if (storage === undefined) throw new Error('there is no node');
    return storage;
  }
}

function pause(ms = 10): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
