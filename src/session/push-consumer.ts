import type { Consumer, ConsumerOrigin, SessionConsumerInfo, Sink } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { type Delivery, type GroupName, PLAIN_GROUP } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { SessionCounts } from './counts.ts';
import { LeaseRenewer } from './lease-renewer.ts';
import { Outstanding, PoppedDelivery, returnOutstanding } from './outstanding.ts';
import type { PageTurns } from './page-turns.ts';
import type { PendingWork } from './pending-work.ts';

/** What a consumer takes, checked, and how. */
export interface ConsumerOptions {
  readonly namespace: Namespace;
  readonly queue: Queue;
  /** As given; null: the namespace's default. */
  readonly group: GroupName | null;
  /** Whether it pops; otherwise it reserves. */
  readonly isPop: boolean;
  /**
   * As given, ms: what is not settled by then returns to the queue. Null: reservations last as long as the
   * session, by leases of the namespace's length that are renewed.
   */
  readonly leaseMs: number | null;
}

/** Sends elements of a queue to the session's client, for as long as there is room. */
export interface SessionConsumer {
  /** There may be room for more. */
  fill(): void;
  /**
   * Sends nothing more, and returns what it holds. Harmless when repeated.
   * @param countTries whether it is a failed try of each element that the client can have seen
   */
  stop(countTries: boolean): Promise<void>;
  /** As listings show it. */
  describe(): SessionConsumerInfo;
}

/** The session that a consumer belongs to. */
export interface ConsumerSession {
  /** Its name in the log, which clients know, too. */
  readonly id: string;
  readonly clock: Clock;
  readonly counts: SessionCounts;
  readonly work: PendingWork;
  /** Of its consumers that browse. */
  readonly pageTurns: PageTurns;
  /** The user's name. */
  readonly owner: string;
  readonly origin: ConsumerOrigin;
  /** Bytes of elements that may be written now. */
  readonly capacity: number;
  /** So much waits for the client that no element may be added, by whichever of its consumers. */
  readonly isFull: boolean;
  /** All consumers of the session that have not stopped. */
  readonly consumers: Set<SessionConsumer>;
  warn(error: unknown, message: string): void;
  /** Runs a step whose failure ends the session. */
  guard(step: () => void): void;
}

/** Elements of one take. */
export const MAX_TAKE = 256;
/** The size that an element is assumed to have before the first has come. */
const FIRST_ESTIMATE_BYTES = 64 * 1024;
/** Elements of one take may have this many times the bytes that there was capacity for: few takes are all alike. */
const TOLERANCE = 2;
/**
 * A window from this size on is filled by halves, so that the engine takes one while the client works on the
 * other: 20 µs an element instead of 26, measured with a window of 256 and a client that acknowledges at once.
 */
const HALVED_FROM = 64;
/** A few free places are left to gather for this long, and then filled however few they are. */
const TOP_UP_MS = 5;
/** If too many consumers wait, one that had its place tries to come back after this long. */
const RETRY_MS = 1000;

/**
 * A consumer that takes from its queue for as long as its client has room, until it is stopped: a STOMP subscription,
 * or an AMQP link by which a client receives. It waits in the queue's wait queue while the window and the writer have
 * capacity, sends what it gets, and knows what is outstanding.
 *
 * The protocol says how many elements the client may hold (`setWindow`, `free`, `minTake`), writes them (`send`,
 * which calls `track`), and calls `settle` with what the client has settled. `start` begins; `fill` is to be called
 * when places became free; `stop` ends it.
 */
export abstract class PushConsumer<Key = unknown> implements Sink, SessionConsumer {
  readonly namespace: Namespace;
  readonly queue: Queue;
  /** How long it reserves, ms; null: it pops. */
  readonly leaseMs: number | null;
  protected readonly session: ConsumerSession;
  /** Reserved elements that the client has not settled, in the order of sending. */
  protected readonly outstanding = new Map<Key, Outstanding<Key>>();
  readonly #group: GroupName | null;
  readonly #tid: string;
  readonly #leases: LeaseRenewer | null;
  #isStopped = false;
  #consumer: Consumer | null = null;
  #cancelRetry: CancelTimer | null = null;
  #cancelTopUp: CancelTimer | null = null;
  /** Set while it drains. */
  #onDrained: (() => void) | null = null;
  #estimateBytes = FIRST_ESTIMATE_BYTES;
  /** What is sent of one take, about. The rest is much larger than was estimated, and returns to the queue. */
  #maxBytes = 0;
  #unwritten = 0;
  #window = 0;

  constructor(session: ConsumerSession, { namespace, queue, group, isPop, leaseMs }: ConsumerOptions) {
    this.session = session;
    this.namespace = namespace;
    this.queue = queue;
    this.leaseMs = isPop ? null : (leaseMs ?? queue.settings.leaseMs);
    this.#group = group;
    // It begins with the session's name: listings of consumers and of reserved elements show whose it is.
    this.#tid = `${session.id}.${namespace.makeTid()}`;
    this.#leases =
      this.leaseMs === null || leaseMs !== null
        ? null
        : new LeaseRenewer(queue, this.leaseMs, session, this.outstanding);
    session.counts.subscriptions += 1;
    session.consumers.add(this);
  }

  /** How many elements the client may be sent now; 0 or less: none. */
  protected abstract get free(): number;
  /** Whether a drain ends because no place is free; otherwise places become free without the client's doing more. */
  protected get isUsedUp(): boolean {
    return this.free <= 0;
  }
  /** Fewer free places than this are not worth a take at once. */
  protected abstract get minTake(): number;
  /**
   * Writes an element, with the observer that `track` returns.
   * @returns how many bytes it was, about
   */
  protected abstract send(delivery: Delivery): number;
  /** The queue ended it: it was cancelled, or the node stops. */
  protected abstract onEnded(reason: unknown): void;

  /** How many elements the client may hold; 0 before `setWindow`. */
  get window(): number {
    return this.#window;
  }

  /** The group that it reads as; on a plain queue the one without a name. */
  get group(): GroupName {
    return this.#group ?? this.namespace.defaultGroup;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  describe(): SessionConsumerInfo {
    return {
      ns: this.namespace.name,
      queue: this.queue.key.name,
      group: this.group === PLAIN_GROUP ? null : this.group,
      kind: 'take',
      window: this.#window,
      unacknowledged: this.outstanding.size,
    };
  }

  /** Popped elements that the kernel does not have yet. */
  get unwritten(): number {
    return this.#unwritten;
  }

  /** How many elements it asks the queue for now. */
  get asked(): number {
    return this.#consumer?.count ?? 0;
  }

  /** Harmless if it is stopped: its client may not know yet. */
  setWindow(window: number): void {
    if (this.#isStopped) return;
    this.session.counts.window += window - this.#window;
    this.#window = window;
  }

  /** Joins the wait queue. @throws what `queue.get` does; then call `stop` */
  start(): void {
    const count = this.#wanted();
    if (count > 0) this.#join(count);
  }

  /** Takes more if there is room; if that is little, a moment later. */
  fill(): void {
    const { free, minTake } = this;
    if (free <= 0 && this.#consumer === null) {
      if (this.isUsedUp) this.#drained();
    } else if (free >= minTake) this.#take();
    else if (this.#consumer === null && !this.#isStopped) {
      this.#cancelTopUp ??= this.session.clock.after(TOP_UP_MS, () => {
        this.#cancelTopUp = null;
        this.session.guard(() => this.#take());
      });
    }
  }

  /** Sends what there is, and calls `then` when there is nothing more, or no free place. It does not wait for more. */
  drain(then: () => void): void {
    this.leave();
    this.#onDrained = then;
    this.fill();
  }

  /** Waits again for elements to come, if it drained. */
  endDrain(): void {
    if (this.#onDrained === null) return;
    this.#onDrained = null;
    this.leave();
  }

  /** Leaves the wait queue until `fill` is called. */
  leave(): void {
    if (this.#consumer !== null) this.queue.leave(this.#consumer);
    this.#consumer = null;
  }

  /** Forgets elements that the client has settled; what the engine does with them is up to the caller. */
  settle(settled: readonly Outstanding<Key>[]): void {
    for (const one of settled) {
      // A transaction may end with an element that was sent again since, by STOMP 1.1 under the same key.
      if (this.outstanding.get(one.key) !== one) continue;
      this.outstanding.delete(one.key);
      this.session.counts.unacknowledged -= 1;
    }
  }

  /**
   * Leaves the wait queue for good and returns what is outstanding. Harmless when repeated.
   * @param countTries whether it is a failed try of each element that the client can have seen
   * @returns a promise that resolves when the engine has the elements, or failed to; it never rejects
   */
  async stop(countTries: boolean): Promise<void> {
    if (this.#isStopped) return;
    this.setWindow(0);
    this.#isStopped = true;
    this.session.counts.subscriptions -= 1;
    this.session.consumers.delete(this);
    this.session.guard(() => this.leave());
    this.#cancelRetry?.();
    this.#cancelTopUp?.();
    this.#leases?.stop();
    const left = [...this.outstanding.values()];
    this.settle(left);
    if (left.length > 0) await returnOutstanding(this.queue, left, countTries, this.session);
  }

  deliver(first: Delivery, more: readonly Delivery[]): void {
    this.#consumer = null;
    // Other consumers of the session have filled it since this one asked. It continues when there is capacity again.
    if (this.session.isFull) {
      this.#returnUndelivered([first, ...more]);
      return;
    }
    let bytes = this.send(first);
    let sent = 0;
    for (const delivery of more) {
      if (bytes >= this.#maxBytes) break;
      bytes += this.send(delivery);
      sent += 1;
    }
    if (sent < more.length) bytes += this.#returnUndelivered(more.slice(sent));
    this.#estimateBytes = Math.max(bytes / (1 + more.length), this.#estimateBytes / 4);
    this.fill();
  }

  end(reason: QuaysideError): void {
    this.#consumer = null;
    if (reason.code === 'pop-timeout') this.#drained();
    // What it may have taken is unknown: reservations return when their leases expire, popped elements are gone.
    else if (reason.code === 'outcome-unknown') this.fill();
    else this.onEnded(reason);
  }

  /**
   * What observes the write of an element: if it is reserved, it is outstanding from now on.
   * @param key by which the client will settle it
   */
  protected track(key: Key, delivery: Delivery): Outstanding<Key> | PoppedDelivery {
    const { counts, clock } = this.session;
    counts.messages += 1;
    if (delivery.lease === null) {
      this.#unwritten += 1;
      return new PoppedDelivery(this.queue, delivery, this.#onPopWritten);
    }
    const outstanding = new Outstanding(key, delivery, clock.monotonic());
    this.outstanding.set(key, outstanding);
    counts.unacknowledged += 1;
    this.#leases?.watch();
    return outstanding;
  }

  readonly #onPopWritten = (): void => {
    this.#unwritten -= 1;
  };

  #take(): void {
    if (this.#isStopped || this.#consumer !== null || this.#cancelRetry !== null) return;
    const count = this.#wanted();
    if (count === 0) return;
    try {
      this.#join(count);
    } catch (error) {
      if (!(error instanceof QuaysideError) || error.code !== 'too-many-consumers') {
        this.onEnded(error);
        return;
      }
      this.#cancelRetry = this.session.clock.after(RETRY_MS, () => {
        this.#cancelRetry = null;
        this.session.guard(() => this.fill());
      });
    }
  }

  /** How many elements to ask for: none if no place is free, or the client is behind. */
  #wanted(): number {
    const { window, free } = this;
    const { capacity, isFull } = this.session;
    if (free <= 0 || capacity <= 0 || isFull) return 0;
    const max = window < HALVED_FROM ? window : Math.min(MAX_TAKE, Math.ceil(window / 2));
    return Math.min(max, free, Math.max(1, Math.floor(capacity / this.#estimateBytes)));
  }

  #join(count: number): void {
    const { owner, origin, capacity } = this.session;
    this.#maxBytes = capacity * TOLERANCE;
    const timeoutMs = this.#onDrained === null ? null : 0;
    const { leaseMs } = this;
    const request = { group: this.#group, leaseMs, count, timeoutMs, tid: this.#tid, owner, from: origin };
    const consumer = this.queue.get(request, this);
    // One that does not wait may be done already: on a paused queue there is nothing to ask of the engine.
    if (consumer.state !== 'gone') this.#consumer = consumer;
  }

  /** @returns how many bytes they are, about */
  #returnUndelivered(deliveries: readonly Delivery[]): number {
    this.queue.returnAllUndelivered(deliveries);
    let bytes = 0;
    for (const { body } of deliveries) bytes += body.byteLength;
    return bytes;
  }

  #drained(): void {
    const then = this.#onDrained;
    this.#onDrained = null;
    then?.();
  }
}
