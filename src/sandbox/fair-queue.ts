/** Who pays for what the worker does: a user, or the node itself with an empty name. No user has an empty name. */
export type Payer = string;

/** What waits: who pays for it, and of which program it is. Checks are of program 0. */
export interface QueuedRequest {
  readonly payer: Payer;
  readonly program: number;
}

/** Time that a key has used, ms, and its last request of that. */
interface Usage {
  used: number;
  readonly last: number;
}

/**
 * Self-clocked fair queueing: next goes the key that will have used least, if its request takes as long as its last one
 * did. A key that had nothing waiting starts at what those who wait have used at least, so that nobody saves up time
 * for later; and of those that start level, the quick ones go first.
 */
class FairQueue<K, V> {
  readonly #waiting = new Map<K, V>();
  readonly #usage = new Map<K, Usage>();
  /** No key that waits has used less. */
  #least = 0;

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
    if (usage === undefined) this.#usage.set(key, { used: this.#least, last: 0 });
    else usage.used = Math.max(usage.used, this.#least);
  }

  remove(key: K): void {
    this.#waiting.delete(key);
  }

  has(mayGo: (key: K) => boolean): boolean {
    for (const key of this.#waiting.keys()) if (mayGo(key)) return true;
    return false;
  }

  /** The key whose turn it is among those that may go (null: all); of equal ones the first that came. */
  next(mayGo: ((key: K, value: V) => boolean) | null): [K, V] | null {
    let next: [K, V] | null = null;
    let nextEnd = Infinity;
    let least = Infinity;
    for (const [key, value] of this.#waiting) {
      const { used, last } = this.#usage.get(key) ?? NOT_USED;
      least = Math.min(least, used);
      if (used + last >= nextEnd || mayGo?.(key, value) === false) continue;
      nextEnd = used + last;
      next = [key, value];
    }
    if (next === null) return null;
    this.#least = Math.max(this.#least, least);
    // The last among those that are equal.
    this.#waiting.delete(next[0]);
    this.#waiting.set(...next);
    return next;
  }

  charge(key: K, ms: number): void {
    const used = Math.max(this.#usage.get(key)?.used ?? 0, this.#least) + ms;
    this.#usage.set(key, { used, last: ms });
    if (this.isEmpty) this.#least = Math.max(this.#least, used);
    if (this.#usage.size <= 2 * this.#waiting.size + MAX_IDLE_KEYS) return;
    for (const [idle, usage] of this.#usage) {
      if (usage.used <= this.#least && !this.#waiting.has(idle)) this.#usage.delete(idle);
    }
  }
}

const NOT_USED: Usage = { used: 0, last: 0 };
/** Keys with nothing waiting that are remembered before those that no longer matter are dropped. */
const MAX_IDLE_KEYS = 1000;

/**
 * Requests that wait for the one worker, shared by time used: first among those who pay, and among the programs of
 * each in the same way. So what one user runs, however much and however slow, holds up a request of another by one
 * request, and a slow exchange holds up a quick one of the same user no more than that.
 */
export class RequestQueue<T extends QueuedRequest> {
  readonly #payers = new FairQueue<Payer, FairQueue<number, T[]>>();
  /** Kept while the payer has nothing waiting: it knows what each program used. */
  readonly #programs = new Map<Payer, FairQueue<number, T[]>>();
  /** What had been sent and came back. */
  #first: T[] = [];

  get isEmpty(): boolean {
    return this.#payers.isEmpty && this.#first.length === 0;
  }

  push(item: T): void {
    const { payer, program } = item;
    const own = this.#programs.get(payer) ?? new FairQueue<number, T[]>();
    this.#programs.set(payer, own);
    const items = own.get(program);
    if (items === undefined) own.add(program, [item]);
    else items.push(item);
    if (this.#payers.get(payer) === undefined) this.#payers.add(payer, own);
  }

  /** Before everything else: for what was its turn already. */
  putFirst(item: T): void {
    this.#first.unshift(item);
  }

  /** The request whose turn it is, of those that may go; null: any may. */
  next(mayGo: ((request: QueuedRequest) => boolean) | null = null): T | null {
    if (this.#first.length > 0) {
      const first = mayGo === null ? 0 : this.#first.findIndex(mayGo);
      if (first >= 0) return this.#first.splice(first, 1)[0] ?? null;
    }
    const [payer, programs] =
      this.#payers.next(mayGo && ((key, own) => own.has((program) => mayGo({ payer: key, program })))) ?? [];
    if (payer === undefined || programs === undefined) return null;
    const [program, items] = programs.next(mayGo && ((each) => mayGo({ payer, program: each }))) ?? [];
    if (program === undefined || items === undefined) return null;
    const item = items.shift() ?? null;
    if (items.length === 0) programs.remove(program);
    if (programs.isEmpty) this.#payers.remove(payer);
    return item;
  }

  /** A request took so long. */
  charge({ payer, program }: QueuedRequest, ms: number): void {
    this.#payers.charge(payer, ms);
    this.#programs.get(payer)?.charge(program, ms);
  }

  /** Everything that waits, which then waits no more. */
  clear(): T[] {
    const waiting = [...this.#payers.values].flatMap((programs) => [...programs.values].flat());
    const all = [...this.#first, ...waiting];
    this.#first = [];
    for (const { payer, program } of waiting) {
      this.#programs.get(payer)?.remove(program);
      this.#payers.remove(payer);
    }
    return all;
  }
}
