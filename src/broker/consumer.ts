import type { Delivery, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer } from '../util/clock.ts';

/** The connection on which a consumer waits, as listings of consumers show it. */
export interface ConsumerOrigin {
  readonly protocol: 'http' | 'stomp' | 'amqp';
  /** The client's, as reported by trusted proxies; '' for a peer of a Unix socket. */
  readonly address: string;
}

/** A client session of STOMP or AMQP, as listings show it. */
export interface SessionInfo {
  /** As in the log. */
  readonly id: string;
  readonly protocol: ConsumerOrigin['protocol'];
  readonly user: string;
  readonly address: string;
  /** When it logged in, ISO 8601. */
  readonly since: string;
  readonly consumers: readonly SessionConsumerInfo[];
}

/** A consumer of a session. */
export interface SessionConsumerInfo {
  readonly ns: string;
  readonly queue: string;
  /** Null on a plain queue. */
  readonly group: GroupName | null;
  readonly kind: 'take' | 'browse';
  /** How many elements the client may hold; null if it browses. */
  readonly window: number | null;
  /** Reserved elements that were sent and are not settled. */
  readonly unacknowledged: number;
}

/** How a get or reserve is to be served. Its front end has checked every field. */
export interface GetRequest {
  /** The group to read as; null: the namespace's default. */
  readonly group: GroupName | null;
  /** Reserve for this long, in ms; null: pop. */
  readonly leaseMs: number | null;
  /** Take up to this many at once, 1 to 1000; answered as soon as there is one. Defaults to 1. */
  readonly count?: number;
  /**
   * The bodies of several come to no more than this; see `TakeOptions.maxBytes`. It then shares no take with others.
   */
  readonly maxBytes?: number;
  /** Whether it is one look on behalf of a call whose consumers wait already: no limit, metric or listing shows it. */
  readonly isLook?: boolean;
  /** How long to wait, in ms: null for ever, 0 answers at once. */
  readonly timeoutMs: number | null;
  /** The consumer's own name, or null: one is made when it is listed. */
  readonly tid: string | null;
  /**
   * The user on whose behalf it waits: limits are counted, and cancels allowed, by it. Null for loops of
   * this node itself, which no limit rejects.
   */
  readonly owner: string | null;
  /** Not given: an exchange of this node. */
  readonly from?: ConsumerOrigin;
}

/** Where a waiting call is answered. Exactly one of the two is called, once, unless the consumer leaves. */
export interface Sink {
  /**
   * The consumer now owns the element; `more` holds those beyond the first of a call that requested several. What
   * cannot be passed on goes back by `queue.returnUndelivered(delivery)`.
   */
  deliver(delivery: Delivery, more: readonly Delivery[]): void;
  /** No element: cancelled, timed out, the server stops, or the engine failed. */
  end(reason: QuaysideError): void;
}

/**
 * A call that has several consumers, or waits for several elements at once. It decides when its consumers take part in
 * matches, and is counted as a whole.
 */
export interface Claim {
  /** Whether this consumer may take now. If not, its wait queue is to be matched again as soon as it may. */
  acquire(consumer: Consumer): boolean;
  /** Its match has ended and brought it nothing. */
  release(consumer: Consumer): void;
  /** As many elements became eligible as it watches for: see `Consumer.wakeAt`. */
  wake(consumer: Consumer): void;
}

/**
 * One blocked get or reserve: a small object, a link in its wait queue, and nothing else.
 *
 * States, and what changes them:
 * - `watching`: only notified of elements; its call takes when enough are there. Entered by `WaitQueue.watch`.
 * - `waiting`: in its wait queue. Entered by joining, and again after a match that brought too little.
 * - `taking`: a take that may serve it is in flight; it is out of the wait queue. Entered by a match. A timeout that
 *   fires now is only noted, since an element may already be on its way to it.
 * - `gone`: served, ended or left. Final; whatever still arrives for it goes to another consumer or back.
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
  /** The order of those that began in one millisecond. */
  readonly order = Consumer.#created++;
  state: 'watching' | 'waiting' | 'taking' | 'gone' = 'waiting';
  /** While it watches: the count of eligible elements of its wait queue at which its claim is woken. */
  wakeAt = 0;
  /** Whether `maxBytes` ended the take that served it. */
  isCut = false;
  timedOut = false;
  /** Whether the limit of blocked calls counts it by itself. */
  readonly isCounted: boolean;
  cancelTimeout: CancelTimer | null = null;
  /** Made on demand if the request gave none. */
  tid: string | null;
  // The wait queue's links; only ConsumerList touches them.
  previous: Consumer | null = null;
  next: Consumer | null = null;

  constructor(request: GetRequest, group: GroupName, sink: Sink, since: number, claim: Claim | null = null) {
    this.request = request;
    this.group = group;
    this.sink = sink;
    this.count = request.count ?? 1;
    this.maxBytes = request.maxBytes ?? null;
    this.claim = claim;
    this.since = since;
    this.tid = request.tid;
    this.isCounted = claim === null && request.isLook !== true;
  }
}

/** How a call ends that waited for nothing. @param since wall time at which it began */
export function popTimeout(timeoutMs: number | null, tid: string | null, since: number): QuaysideError {
  return new QuaysideError('pop-timeout', `No element became eligible within ${timeoutMs} ms.`, {
    extra: { timeout: true, tid, since: new Date(since).toISOString() },
  });
}

/** A consumer that waits, as the spec shows it (2.3). */
export interface PendingConsumer {
  readonly tid: string;
  readonly since: string;
  readonly callback: 'set' | 'unset';
  readonly cleanup_timeout: 'set' | 'unset';
  readonly wakeup_timeout: 'set' | 'unset';
  /** Null: an exchange. */
  readonly user: string | null;
  readonly protocol: ConsumerOrigin['protocol'] | 'exchange';
  readonly address: string | null;
  /** On a stream, the group that it reads as. */
  readonly group: GroupName | null;
}
