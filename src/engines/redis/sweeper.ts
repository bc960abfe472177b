import type { SweepResult } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Lanes } from './calls/lanes.ts';
import { SWEEP, type Swept } from './calls/look.ts';
import { queueText } from './keys.ts';
import type { Entry, Registry } from './registry.ts';

/** Queues that one call looks at, at most. */
const MOST_QUEUES = 500;
/** Queues asked in one go when the next moment is sought. */
const STEP = 50;

/** Ends leases and keeps house for all queues of the engine, by the registry's lists. */
export class Sweeper {
  readonly #lanes: Lanes;
  readonly #registry: Registry;
  readonly #windowMs: number;
  /** Queues that gained elements outside a sweep, until one reports them. */
  readonly #touched = new Map<string, QueueKey>();

  constructor(lanes: Lanes, registry: Registry, dedupWindowMs: number) {
    this.#lanes = lanes;
    this.#registry = registry;
    this.#windowMs = dedupWindowMs;
  }

  /** The next sweep names this queue. */
  touch(queue: QueueKey): void {
    this.#touched.set(queueText(queue), queue);
  }

  async sweepQueue(queue: QueueKey): Promise<Swept> {
    return this.#lanes.call(queue, SWEEP, this.#windowMs, { kind: 'free' });
  }

  /** See `Storage.sweep`. @throws CarryError */
  async sweep(): Promise<SweepResult> {
    const now = this.#registry.now();
    const [due, tidy] = await Promise.all([
      this.#registry.entriesBefore('due', now, MOST_QUEUES),
      this.#registry.entriesBefore('tidy', now, MOST_QUEUES),
    ]);
    const swept = await this.#sweepAll([...due, ...tidy]);
    const dueTexts = new Set(due.map(({ queue }) => queueText(queue)));
    for (const [text, { queue, found }] of swept) {
      if (found.released || (found.ready && dueTexts.has(text))) this.touch(queue);
    }
    await this.#registerNext(swept);
    await Promise.all([this.#registry.remove('due', due), this.#registry.remove('tidy', tidy)]);
    const more = due.length === MOST_QUEUES || [...swept.values()].some(({ found }) => found.more);
    const nextAt = more ? now : await this.#nextAt(now, swept);
    const touched = [...this.#touched.values()];
    this.#touched.clear();
    return { touched, nextAt };
  }

  async #sweepAll(entries: readonly Entry[]): Promise<Map<string, SweptQueue>> {
    const queues = new Map(entries.map(({ queue }) => [queueText(queue), queue]));
    const swept = [...queues].map(
      async ([text, queue]) => [text, { queue, found: await this.sweepQueue(queue) }] as const,
    );
    return new Map(await Promise.all(swept));
  }

  /** Before the old entries go: a queue that must be looked at is in a list at any moment. */
  async #registerNext(swept: ReadonlyMap<string, SweptQueue>): Promise<void> {
    const adding: Promise<void>[] = [];
    for (const { queue, found } of swept.values()) {
      const nextAt = found.more ? this.#registry.now() : found.nextAt;
      if (nextAt !== null) adding.push(this.#registry.addDue(queue, nextAt));
      if (found.nextTidyAt !== null) adding.push(this.#registry.addTidy(queue, found.nextTidyAt));
    }
    await Promise.all(adding);
  }

  /**
   * The moment at which the next lease ends. Entries only say not before when: a lease that was settled leaves
   * its entry, so the queues themselves are asked, in the order of their entries, until none can be earlier.
   */
  async #nextAt(now: number, known: ReadonlyMap<string, SweptQueue>): Promise<number | null> {
    let next = Number.POSITIVE_INFINITY;
    for (const { found } of known.values()) next = Math.min(next, found.nextAt ?? next);
    const later = await this.#registry.entriesAfter('due', now, MOST_QUEUES);
    const asked = new Set(known.keys());
    for (let from = 0; from < later.length; from += STEP) {
      const step = later.slice(from, from + STEP);
      if ((step[0]?.at ?? 0) >= next) break;
      const found = await this.#sweepAll(step.filter(({ queue }) => !asked.has(queueText(queue))));
      for (const [text, { found: each }] of found) {
        asked.add(text);
        next = Math.min(next, each.nextAt ?? next);
      }
    }
    const last = later.at(-1);
    if (later.length === MOST_QUEUES && last !== undefined) next = Math.min(next, last.at);
    return next === Number.POSITIVE_INFINITY ? null : next;
  }
}

interface SweptQueue {
  readonly queue: QueueKey;
  readonly found: Swept;
}
