import type { Storage } from '../../src/engine/storage.ts';
import { slotOf } from '../../src/engines/redis/client/topology.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { commit } from '../support/settle.ts';

/** The result of the traffic. All three lists must be empty. */
export interface Verdict {
  /** Elements whose insert was acknowledged and that were never delivered. */
  readonly lost: string[];
  /** Elements that two pops returned, or two commits finished. */
  readonly twice: string[];
  /** Bodies that were received and never inserted. */
  readonly changed: string[];
}

const PRODUCERS = 4;
const CONSUMERS = 6;

/** Producers and consumers on several queues; half of the consumers reserve. Records what happens to every element. */
export class Traffic {
  readonly slots: readonly number[];
  readonly #storage: Storage;
  readonly #queues: readonly QueueKey[];
  readonly #running: Promise<void>[];
  readonly #acknowledged = new Set<string>();
  readonly #attempted = new Set<string>();
  readonly #finished = new Map<string, number>();
  /** Delivered under a lease, with a commit of unknown outcome. */
  readonly #unsure = new Set<string>();
  #producing = true;
  #consuming = true;
  #numbers = 0;
  #progress: (() => void)[] = [];

  constructor(storage: Storage, queues: number) {
    this.#storage = storage;
    this.#queues = Array.from({ length: queues }, (_, index) => ({ ns: 'plain', name: `traffic ${index}` }));
    const keys = new Keys('any');
    this.slots = this.#queues.map((queue) => slotOf(keys.queue(queue).hash));
    this.#running = [
      ...Array.from({ length: PRODUCERS }, () => this.#produce()),
      ...Array.from({ length: CONSUMERS }, (_, index) => this.#consume(index)),
    ];
  }

  /** Resolves when `more` further inserts were acknowledged. */
  async acknowledged(more: number): Promise<void> {
    const goal = this.#acknowledged.size + more;
    while (this.#acknowledged.size < goal) await new Promise<void>((resolve) => this.#progress.push(resolve));
  }

  /** Stops producing, drains the queues, and returns the result. */
  async end(): Promise<Verdict> {
    this.#producing = false;
    await Promise.all(this.#running.slice(0, PRODUCERS));
    while (!(await this.#isDrained().catch(() => false))) await pause();
    this.#consuming = false;
    await Promise.all(this.#running);
    return {
      lost: [...this.#acknowledged].filter((body) => !this.#finished.has(body) && !this.#unsure.has(body)),
      twice: [...this.#finished].filter(([, times]) => times > 1).map(([body]) => body),
      changed: [...this.#finished.keys()].filter((body) => !this.#attempted.has(body)),
    };
  }

  async #produce(): Promise<void> {
    while (this.#producing) {
      const body = `element ${this.#numbers++}`;
      this.#attempted.add(body);
      try {
        await this.#storage.insert(this.#queue(this.#numbers), [newElement({ body })]);
        this.#acknowledged.add(body);
        for (const resolve of this.#progress.splice(0)) resolve();
      } catch (error) {
        await expected(error);
      }
    }
  }

  async #consume(index: number): Promise<void> {
    for (let turn = index; this.#consuming; turn++) {
      try {
        const found =
          index % 2 === 0 ? await this.#pop(this.#queue(turn)) : await this.#reserve(this.#queue(turn));
        if (found === 0) await pause();
      } catch (error) {
        await expected(error);
      }
    }
  }

  async #pop(queue: QueueKey): Promise<number> {
    const { deliveries } = await this.#storage.take(queue, { group: '', count: 5, leaseMs: null });
    for (const delivery of deliveries) this.#finish(bodyText(delivery));
    return deliveries.length;
  }

  async #reserve(queue: QueueKey): Promise<number> {
    const { deliveries } = await this.#storage.take(queue, { group: '', count: 5, leaseMs: 30_000 });
    const refs = deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null }));
    try {
      const outcomes = await commit(this.#storage, queue, refs);
      for (const [i, delivery] of deliveries.entries()) {
        if (outcomes[i] === 'done') this.#finish(bodyText(delivery));
        else this.#unsure.add(bodyText(delivery));
      }
    } catch (error) {
      for (const delivery of deliveries) this.#unsure.add(bodyText(delivery));
      throw error;
    }
    return deliveries.length;
  }

  #finish(body: string): void {
    this.#finished.set(body, (this.#finished.get(body) ?? 0) + 1);
  }

  #queue(turn: number): QueueKey {
    return this.#queues[turn % this.#queues.length] ?? { ns: 'plain', name: 'none' };
  }

  /** Elements whose commit failed stay reserved until their leases expire, and count as unsure. */
  async #isDrained(): Promise<boolean> {
    const sizes = await Promise.all(this.#queues.map((queue) => this.#storage.counts(queue)));
    return sizes.every(({ ready, reserved }) => ready === 0 && reserved <= this.#unsure.size);
  }
}

/** Rethrows errors that the port does not allow while servers are unavailable. */
async function expected(error: unknown): Promise<void> {
  const codes = ['storage-unavailable', 'outcome-unknown'];
  if (!(error instanceof QuaysideError && codes.includes(error.code))) throw error;
  await pause();
}

function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 10));
}
