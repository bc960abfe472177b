import type { Delivery, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer } from '../util/clock.ts';

/** The connection on which a consumer waits, as listings of consumers show it. */
export interface ConsumerOrigin {
  readonly protocol: 'http' | 'stomp' | 'amqp';
  /** The client's address, as reported by trusted proxies; '' for a peer of a Unix socket. */
  readonly address: string;
}

/** A get or reserve. The front end has validated every field. */
export interface GetRequest {
  /** The group to read as; null: the namespace's default. */
  readonly group: GroupName | null;
  /** Reserve for this long, in ms; null: pop. */
  readonly leaseMs: number | null;
  /** Return up to this many elements, 1 to 1000, as soon as there is one. Defaults to 1. */
  readonly count?: number;
  /** Bounds the bytes of all bodies together, see `TakeOptions.maxBytes`. Such a request shares no take with others. */
  readonly maxBytes?: number;
  /** Whether this is a look of a joint take: limits, error metrics and listings include the joint take itself. */
  readonly isLook?: boolean;
  /** How long to wait, in ms; null: forever, 0: not at all. */
  readonly timeoutMs: number | null;
  /** The consumer's name; null: one is generated when it is listed. */
  readonly tid: string | null;
  /**
   * The user on whose behalf it waits: limits count by user, and a cancel may be restricted to a user. Null for loops
   * of this node itself, which no limit rejects.
   */
  readonly owner: string | null;
  /** Omitted for an exchange of this node. */
  readonly from?: ConsumerOrigin;
  /** See `TakeOptions.isTransient`. */
  readonly isTransient?: boolean;
}

/** Receives the outcome of a waiting call: exactly one of the methods is called, once, unless the consumer leaves. */
export interface Sink {
  /**
   * The consumer now owns the element, and those in `more` if it requested several. It must return what it cannot pass
   * on with `queue.returnAllUndelivered(deliveries)`.
   */
  deliver(delivery: Delivery, more: readonly Delivery[]): void;
  /** The call ends without an element: it was cancelled or timed out, the server stops, or the engine failed. */
  end(reason: QuaysideError): void;
}

/**
 * What consumers share: a call that waits in several queues, or the capacity of a session. It decides when they take
 * part in matches.
 */
export interface Claim {
  /**
   * Whether this consumer may take now. If not, the claim must match its wait queue again, or let it join again, as
   * soon as it may. Called again, without a `release`, if the next match follows at once.
   */
  acquire(consumer: Consumer): boolean;
  /** The consumer's match ended without an element for it. */
  release(consumer: Consumer): void;
  /** As many elements became eligible as the consumer watches for; see `Consumer.wakeAt`. Only for those that watch. */
  wake?(consumer: Consumer): void;
}

/**
 * One blocked get or reserve. It costs a small object in the list of its wait queue.
 *
 * States, and what changes them:
 * - `watching`: it is only notified of elements; its claim takes when there are enough. Entered by `WaitQueue.watch`.
 * - `waiting`: in its wait queue. Entered by joining, and again after a match that had nothing for it.
 * - `taking`: a take that may serve it is in flight; it keeps its place. Entered by a match. A timeout that fires now
 *   is only noted, since an element may already be on its way to it.
 * - `gone`: served, ended or left. Final; elements that still arrive for it go to another consumer, or are returned.
 */
export class Consumer {
  static #created = 0;
  readonly request: GetRequest;
  /** The group it waits for: the request's, or the namespace's default. */
  readonly group: GroupName;
  readonly sink: Sink;
  readonly count: number;
  /** Null: not bounded by bytes. */
  readonly maxBytes: number | null;
  readonly claim: Claim | null;
  /** Wall time at which it began to wait, ms. */
  readonly since: number;
  /** Orders consumers that began to wait in the same millisecond. */
  readonly order = Consumer.#created++;
  state: 'watching' | 'waiting' | 'taking' | 'gone' = 'waiting';
  /** While it watches: its claim is woken when `eligible` of the watchers reaches this. */
  wakeAt = 0;
  /** Whether `maxBytes` ended the take that served it. */
  isCut = false;
  /** Whether its time has passed. It ends when it is certain that no element is there for it. */
  hasTimedOut = false;
  /** Whether the limit of blocked calls counts this consumer; otherwise it counts the joint take. */
  isCounted: boolean;
  cancelTimeout: CancelTimer | null = null;
  /** Generated when it is first needed if the request has none. */
  tid: string | null;
  /** Whether it waits until its user may take large elements; see `ParkedConsumers`. */
  isParked = false;
  // The links of its `ConsumerList`.
  previous: Consumer | null = null;
  next: Consumer | null = null;

  constructor(request: GetRequest, group: GroupName, sink: Sink, since: number, claim: Claim | null) {
    this.request = request;
    this.group = group;
    this.sink = sink;
    this.count = request.count ?? 1;
    this.maxBytes = request.maxBytes ?? null;
    this.claim = claim;
    this.since = since;
    this.tid = request.tid;
    this.isCounted = request.isLook !== true;
  }
}

/** A doubly linked list: append, and remove from anywhere, in constant time. */
export class ConsumerList {
  #first: Consumer | null = null;
  #last: Consumer | null = null;
  #size = 0;

  get first(): Consumer | null {
    return this.#first;
  }

  get size(): number {
    return this.#size;
  }

  append(consumer: Consumer): void {
    consumer.previous = this.#last;
    consumer.next = null;
    if (this.#last === null) this.#first = consumer;
    else this.#last.next = consumer;
    this.#last = consumer;
    this.#size += 1;
  }

  /** The consumer must be in this list. */
  remove(consumer: Consumer): void {
    if (consumer.previous === null) this.#first = consumer.next;
    else consumer.previous.next = consumer.next;
    if (consumer.next === null) this.#last = consumer.previous;
    else consumer.next.previous = consumer.previous;
    consumer.previous = null;
    consumer.next = null;
    this.#size -= 1;
  }

  *[Symbol.iterator](): Iterator<Consumer> {
    let consumer = this.#first;
    while (consumer !== null) {
      // The caller may remove the consumer during the `yield`.
      const { next } = consumer;
      yield consumer;
      consumer = next;
    }
  }
}

/** The error of a call that timed out. @param since wall time at which it began to wait */
export function popTimeout(timeoutMs: number | null, tid: string | null, since: number): QuaysideError {
  return new QuaysideError('pop-timeout', `No element became eligible within ${timeoutMs} ms.`, {
    extra: { timeout: true, tid, since: new Date(since).toISOString() },
  });
}
