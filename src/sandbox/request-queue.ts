/**
 * The user whose share of the worker's time a request uses: the owner of an exchange, or the caller of a check. The
 * empty string is the node itself; user names are not empty.
 */
export type Payer = string;

/** The payer and program of a waiting request; checks have program 0. */
export interface QueuedRequest {
  readonly payer: Payer;
  readonly program: number;
}

/** Processor time of all requests of a key, and of its last request, ms. */
interface KeyUsage {
  used: number;
  readonly last: number;
}

/**
 * Self-clocked fair queueing. The next key is the one that will have used the least time if its request takes as long
 * as its last one. A key without waiting requests restarts with the least time used by any waiting key, so that idle
 * time gives no credit. Among keys with equal use, the one with quick requests is next.
 */
class FairQueue<K, V> {
  readonly #waiting = new Map<K, V>();
  readonly #usage = new Map<K, KeyUsage>();
  /** The least time used by a waiting key, ms; never decreases. */
  #leastUsedMs = 0;

  get isEmpty(): boolean {
    return this.#waiting.size === 0;
  }

  get values(): IterableIterator<V> {
    return this.#waiting.values();
  }

  get(key: K): V | undefined {
    return this.#waiting.get(key);
  }

  add(key: K, value: V): void {
    this.#waiting.set(key, value);
    const usage = this.#usage.get(key);
    if (usage === undefined) this.#usage.set(key, { used: this.#leastUsedMs, last: 0 });
    else usage.used = Math.max(usage.used, this.#leastUsedMs);
  }

  remove(key: K): void {
    this.#waiting.delete(key);
  }

  has(accepts: (key: K) => boolean): boolean {
    for (const key of this.#waiting.keys()) if (accepts(key)) return true;
    return false;
  }

  /** The next of the keys that `accepts` accepts (null: all); among equal keys, the first in the queue. */
  next(accepts: ((key: K, value: V) => boolean) | null): [K, V] | null {
    let next: [K, V] | null = null;
    let nextEnd = Infinity;
    let leastUsedMs = Infinity;
    for (const [key, value] of this.#waiting) {
      const { used, last } = this.#usage.get(key) ?? NOT_USED;
      leastUsedMs = Math.min(leastUsedMs, used);
      if (used + last >= nextEnd || accepts?.(key, value) === false) continue;
      nextEnd = used + last;
      next = [key, value];
    }
    if (next === null) return null;
    this.#leastUsedMs = Math.max(this.#leastUsedMs, leastUsedMs);
    // Move it behind the keys that are equal to it.
    this.#waiting.delete(next[0]);
    this.#waiting.set(...next);
    return next;
  }

  charge(key: K, ms: number): void {
    const used = Math.max(this.#usage.get(key)?.used ?? 0, this.#leastUsedMs) + ms;
    this.#usage.set(key, { used, last: ms });
    if (this.isEmpty) this.#leastUsedMs = Math.max(this.#leastUsedMs, used);
    if (this.#usage.size <= 2 * this.#waiting.size + MAX_IDLE_KEYS) return;
    for (const [idle, usage] of this.#usage) {
      if (usage.used <= this.#leastUsedMs && !this.#waiting.has(idle)) this.#usage.delete(idle);
    }
  }
}

const NOT_USED: KeyUsage = { used: 0, last: 0 };
/** Maximum keys without waiting requests, before those without effect are removed. */
const MAX_IDLE_KEYS = 1000;

/**
 * Requests that wait for the only worker. Its time is shared fairly among payers, and among the programs of each payer.
 * However much a user runs and however slow it is, it delays a request of another user by one request only; the same
 * holds for a slow and a quick exchange of one user.
 */
export class RequestQueue<T extends QueuedRequest> {
  readonly #payers = new FairQueue<Payer, FairQueue<number, T[]>>();
  /** By payer; retained without waiting requests, because it knows how much time each program has used. */
  readonly #programs = new Map<Payer, FairQueue<number, T[]>>();
  /** Requests sent to a worker that ended before it started them. */
  #resumed: T[] = [];

  get isEmpty(): boolean {
    return this.#payers.isEmpty && this.#resumed.length === 0;
  }

  push(item: T): void {
    const { payer, program } = item;
    const programs = this.#programs.get(payer) ?? new FairQueue<number, T[]>();
    this.#programs.set(payer, programs);
    const items = programs.get(program);
    if (items === undefined) programs.add(program, [item]);
    else items.push(item);
    if (this.#payers.get(payer) === undefined) this.#payers.add(payer, programs);
  }

  /** Queues a request before all others, because it already had its turn. */
  putFirst(item: T): void {
    this.#resumed.unshift(item);
  }

  /** Removes and returns the next of the requests that `accepts` accepts; null: any. */
  next(accepts: ((request: QueuedRequest) => boolean) | null = null): T | null {
    if (this.#resumed.length > 0) {
      const first = accepts === null ? 0 : this.#resumed.findIndex(accepts);
      if (first >= 0) return this.#resumed.splice(first, 1)[0] ?? null;
    }
    const [payer, programs] =
      this.#payers.next(accepts && ((key, own) => own.has((program) => accepts({ payer: key, program })))) ??
      [];
    if (payer === undefined || programs === undefined) return null;
    const [program, items] = programs.next(accepts && ((each) => accepts({ payer, program: each }))) ?? [];
    if (program === undefined || items === undefined) return null;
    const item = items.shift() ?? null;
    if (items.length === 0) programs.remove(program);
    if (programs.isEmpty) this.#payers.remove(payer);
    return item;
  }

  /** Records the processor time of a request. */
  charge({ payer, program }: QueuedRequest, ms: number): void {
    this.#payers.charge(payer, ms);
    this.#programs.get(payer)?.charge(program, ms);
  }

  /** Removes and returns all requests. */
  clear(): T[] {
    const waiting = [...this.#payers.values].flatMap((programs) => [...programs.values].flat());
    const all = [...this.#resumed, ...waiting];
    this.#resumed = [];
    for (const { payer, program } of waiting) {
      this.#programs.get(payer)?.remove(program);
      this.#payers.remove(payer);
    }
    return all;
  }
}
