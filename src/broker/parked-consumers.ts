import type { QuaysideError } from '../model/errors.ts';
import { type Consumer, ConsumerList } from './consumer.ts';
import type { Namespace } from './namespace.ts';

/** A user's permit to take large elements from the engine; see `EnginePermits`. */
export interface TakePermit {
  /** How long the user waited for it, ms. */
  readonly waitedMs: number;
  /** Gives it back. */
  end(): void;
}

/** How a wait queue reacts when a user gets a permit, or does not get one in time. */
interface PermitListener {
  /** There is a permit, which the next match must use, or release. */
  onPermit(): void;
  /** @param consumers those of the user that are parked; each may be removed */
  onRejected(consumers: Iterable<Consumer>, error: QuaysideError): void;
}

/**
 * The consumers of one wait queue that needed a permit to take large elements, and had to wait for one. They can leave
 * or time out like all others. A match serves them in the order of arrival if it needs no permit for them. Once it
 * needs one and the user waits for it, it visits no further ones of that user, however many there are.
 */
export class ParkedConsumers {
  readonly #ns: Namespace;
  readonly #listener: PermitListener;
  /** By user, while a permit is awaited. */
  readonly #awaiting = new Map<string, ConsumerList>();
  /** By user, after that. */
  readonly #resumed = new Map<string, ConsumerList>();
  /** Permits that no take uses yet. */
  readonly #permits = new Map<string, TakePermit>();
  /** Users for whom the match in progress has no permit. */
  readonly #refused = new Set<string>();
  #size = 0;

  constructor(namespace: Namespace, listener: PermitListener) {
    this.#ns = namespace;
    this.#listener = listener;
  }

  get size(): number {
    return this.#size;
  }

  *[Symbol.iterator](): Iterator<Consumer> {
    for (const list of [...this.#awaiting.values(), ...this.#resumed.values()]) yield* list;
  }

  /** Whether the user waits for a permit. */
  isAwaitedBy(user: string | null): boolean {
    return user !== null && this.#awaiting.has(user);
  }

  /**
   * Returns the user's permit for a take of about this many bytes. Null if the user has to wait for it; the listener is
   * notified of it. The consumer must then be {@link park}ed.
   */
  permitFor(user: string, bytes: number): TakePermit | null {
    const kept = this.#permits.get(user);
    if (kept !== undefined) {
      this.#permits.delete(user);
      return kept;
    }
    const isAwaited = this.#awaiting.has(user);
    const end = isAwaited ? null : this.#ns.permits.reads.tryEnter(user, { size: bytes });
    if (end !== null) return { waitedMs: 0, end };
    this.#refused.add(user);
    if (!isAwaited) void this.#await(user, bytes);
    return null;
  }

  /** Keeps a permit for the user's next take, since this one does not need it. */
  keep(user: string, permit: TakePermit): void {
    this.#permits.set(user, permit);
  }

  /** Gives back the permits that no take uses. */
  releasePermits(): void {
    for (const permit of this.#permits.values()) permit.end();
    this.#permits.clear();
  }

  /** Adds a consumer whose user waits for a permit. */
  park(user: string, consumer: Consumer): void {
    consumer.isParked = true;
    this.#awaiting.get(user)?.append(consumer);
    this.#size += 1;
  }

  /** The consumer must be parked. */
  remove(consumer: Consumer): void {
    const user = consumer.request.owner ?? '';
    const list = this.#awaiting.get(user) ?? this.#resumed.get(user);
    consumer.isParked = false;
    list?.remove(consumer);
    this.#size -= 1;
    if (list?.size === 0) this.#resumed.delete(user);
  }

  /** For a match: the consumers of a list, and the parked ones, in the order of arrival. */
  *withParked(ready: ConsumerList): Generator<Consumer> {
    this.#refused.clear();
    const lists = [...this.#awaiting, ...this.#resumed].map(([user, list]) => ({ user, next: list.first }));
    let next = ready.first;
    for (;;) {
      let first: (typeof lists)[number] | null = null;
      for (const list of lists) {
        if (list.next === null || this.#refused.has(list.user)) continue;
        if (list.next.order < (first?.next ?? next ?? AFTER_ALL).order) first = list;
      }
      const consumer = first === null ? next : first.next;
      if (consumer === null) return;
      if (first === null) next = consumer.next;
      else first.next = consumer.next;
      yield consumer;
    }
  }

  async #await(user: string, bytes: number): Promise<void> {
    const { clock } = this.#ns;
    const startedAt = clock.monotonic();
    const consumers = this.#resumed.get(user) ?? new ConsumerList();
    this.#resumed.delete(user);
    this.#awaiting.set(user, consumers);
    const resume = (): void => {
      this.#awaiting.delete(user);
      if (consumers.size > 0) this.#resumed.set(user, consumers);
    };
    let end: () => void;
    try {
      end = await this.#ns.permits.reads.enter(user, { size: bytes });
    } catch (error) {
      resume();
      this.#listener.onRejected(consumers, error as QuaysideError);
      return;
    }
    resume();
    this.#permits.set(user, { waitedMs: clock.monotonic() - startedAt, end });
    this.#listener.onPermit();
  }
}

/** Where no consumer is left. */
const AFTER_ALL = { order: Number.POSITIVE_INFINITY };
