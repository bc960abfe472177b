import type { GroupCounts } from '../engine/storage.ts';
import type { GroupName } from '../model/element.ts';
import type { Consumer } from './consumer.ts';
import type { Queue } from './queue.ts';

/** An unknown number of elements wakes all who watch: none watches for more than a take returns. */
const UNKNOWN = 1_000_000;

/** The consumers of one wait queue that only watch it. What becomes eligible costs them one comparison together. */
export class Watchers {
  readonly #queue: Queue;
  readonly #group: GroupName;
  readonly #consumers = new Set<Consumer>();
  #eligible = 0;
  /** The least `wakeAt` of all. */
  #wakeAt = Number.POSITIVE_INFINITY;
  #counting: Promise<GroupCounts> | null = null;
  /** What `eligible` was when the engine was asked to count. */
  #countedAt = 0;

  constructor(queue: Queue, group: GroupName) {
    this.#queue = queue;
    this.#group = group;
  }

  get size(): number {
    return this.#consumers.size;
  }

  /** How many elements have become eligible; only differences mean something. */
  get eligible(): number {
    return this.#eligible;
  }

  consumers(): Iterable<Consumer> {
    return this.#consumers;
  }

  /** It is woken by the next element. */
  add(consumer: Consumer): void {
    this.#consumers.add(consumer);
    this.wakeWhen(consumer, this.#eligible + 1);
  }

  remove(consumer: Consumer): void {
    this.#consumers.delete(consumer);
    // Without consumers nothing is noted: those that come later must not share a count that began before.
    if (this.#consumers.size === 0) this.#counting = null;
  }

  wakeWhen(consumer: Consumer, wakeAt: number): void {
    consumer.wakeAt = wakeAt;
    this.#wakeAt = Math.min(this.#wakeAt, wakeAt);
    if (wakeAt <= this.#eligible) this.#wake();
  }

  /** `count` elements became eligible; Infinity if nobody knows how many. */
  note(count: number): void {
    this.#eligible += Math.min(count, UNKNOWN);
    if (this.#eligible >= this.#wakeAt) this.#wake();
  }

  #wake(): void {
    this.#wakeAt = Number.POSITIVE_INFINITY;
    const woken: Consumer[] = [];
    for (const consumer of this.#consumers) {
      if (consumer.wakeAt <= this.#eligible) {
        consumer.wakeAt = Number.POSITIVE_INFINITY;
        woken.push(consumer);
      } else this.#wakeAt = Math.min(this.#wakeAt, consumer.wakeAt);
    }
    for (const consumer of woken) consumer.claim?.wake(consumer);
  }

  /** What the engine counts. Callers share a call as long as nothing became eligible since it was made, and consumers watched all the time. */
  counts(): Promise<GroupCounts> {
    if (this.#counting !== null && this.#countedAt === this.#eligible) return this.#counting;
    const { key, namespace } = this.#queue;
    const counting: Promise<GroupCounts> = namespace.storage.counts(key, this.#group).finally(() => {
      if (this.#counting === counting) this.#counting = null;
    });
    this.#countedAt = this.#eligible;
    this.#counting = counting;
    return counting;
  }
}
