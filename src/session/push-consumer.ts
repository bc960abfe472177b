import type { Claim, Consumer, Sink } from '../broker/consumer.ts';
import { isSettled } from '../broker/meter.ts';
import { bodyBytes, type Delivery } from '../model/element.ts';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import type { SessionConsumerInfo } from '../model/records.ts';
import type { CancelTimer } from '../util/clock.ts';
import type { ClientSession } from './client-session.ts';
import { type ConsumerOptions, MAX_TAKE, SessionConsumer } from './consumer.ts';
import { MAX_SETTLED, Outstanding, returnOutstanding, settleInSteps } from './outstanding.ts';
import type { WriteObserver } from './socket-writer.ts';

/** What a consumer takes, and how, validated. */
export interface PushConsumerOptions extends ConsumerOptions {
  /** Whether it pops; otherwise it reserves. */
  readonly isPop: boolean;
  /**
   * Lease that the client chose, ms: elements not settled by then return to the queue. Null: leases have the queue's
   * default length and are extended as long as the consumer lives.
   */
  readonly leaseMs: number | null;
}

/**
 * Windows of at least this size are filled in halves, so that the engine takes one half while the client works on the
 * other. Measured with a window of 256 and a client that acknowledges immediately: 20 µs per element instead of 26.
 */
const MIN_HALVED_WINDOW = 64;
/** If fewer than `minTake` places are free, the consumer waits this long for more before it takes. */
const TOP_UP_MS = 5;
/**
 * Transient errors, during which a waiting consumer just keeps waiting. A draining one retries after them: otherwise
 * its client would take the queue for empty, or its link would end.
 */
const TRANSIENT: ReadonlySet<ErrorCode> = new Set(['storage-unavailable', 'overloaded']);
/** Lease checks per lease length; with 4, each lease is extended while at least half of it is left. */
const LEASE_CHECKS = 4;

/**
 * A consumer that takes elements as long as its client has capacity, until it is stopped: a STOMP subscription, or an
 * AMQP link on which the client receives. It joins the queue's wait queue while the window and the writer have
 * capacity, sends the elements that it gets, and tracks the outstanding ones.
 *
 * A protocol decides how many elements the client may hold (`setWindow`, `free`, `minTake`), writes them (`send`, which
 * calls `track`), and calls `forget` with the elements that the client has settled. Call `start` first, `fill` when
 * places became free, and `stop` at the end.
 *
 * Unless the client chose the lease, the consumer extends the leases of its outstanding elements as long as it lives. A
 * client that was sent a thousand elements works on them one by one; without this, the last leases would expire before
 * the client gets to their elements. If the node dies, nothing extends the leases, and they expire.
 */
export abstract class PushConsumer<Session extends ClientSession = ClientSession, Key = unknown>
  extends SessionConsumer<Session>
  implements Sink
{
  readonly right = 'read';
  /** Lease of its reservations, ms; null if it pops. */
  readonly leaseMs: number | null;
  /** Reserved elements that the client has not settled, in the order of sending. */
  protected readonly outstanding = new Map<Key, Outstanding<Key>>();
  readonly #tid: string;
  readonly #extendsLeases: boolean;
  #consumer: Consumer | null = null;
  #cancelTopUp: CancelTimer | null = null;
  #cancelLeaseCheck: CancelTimer | null = null;
  /** About how many bytes of the pending take will be sent. */
  #maxTakeBytes = 0;
  #unwritten = 0;
  /** Popped elements whose writes were lost in this turn. */
  #lostPops: Delivery[] = [];
  #window = 0;

  constructor(session: Session, options: PushConsumerOptions) {
    super(session, options);
    const { queue, isPop, leaseMs } = options;
    this.leaseMs = isPop ? null : (leaseMs ?? queue.settings.leaseMs);
    this.#extendsLeases = !isPop && leaseMs === null;
    // The session's id comes first, so that listings of consumers and of reserved elements show it.
    this.#tid = `${session.id}.${queue.namespace.makeTid()}`;
  }

  /** Whether the client drains: it gets the elements that are ready, without waiting for more. */
  protected get isDraining(): boolean {
    return false;
  }
  /**
   * Whether a drain ends because no place is free. False if places will become free although the client sends nothing.
   */
  protected get isUsedUp(): boolean {
    return this.free <= 0;
  }
  /** No element is ready, or no place is free: the drain has ended. */
  protected onDrained(): void {}
  /** How many more elements all consumers of the session together may be sent. */
  protected get sharedFree(): number {
    return Number.POSITIVE_INFINITY;
  }
  /** What it shares with other consumers of the session, which decides when it may take; null: nothing. */
  protected get claim(): Claim | null {
    return null;
  }
  /** Whether an element that was taken may be sent. */
  protected get canSend(): boolean {
    return !this.isStopped;
  }
  /** With fewer free places than this, `fill` waits `TOP_UP_MS` for more before it takes. */
  protected abstract get minTake(): number;
  /**
   * Writes an element, with the observer that `track` returns.
   * @returns its approximate size in bytes
   */
  protected abstract send(delivery: Delivery): number;

  /** How many elements the client may hold; 0 before `setWindow`. */
  get window(): number {
    return this.#window;
  }

  /** How many popped elements the kernel does not have yet. */
  get unwritten(): number {
    return this.#unwritten;
  }

  override get taking(): number {
    return this.#consumer?.state === 'taking' ? this.#consumer.count : 0;
  }

  override get canTake(): boolean {
    return this.#consumer === null && this.free > 0;
  }

  override describe(): SessionConsumerInfo {
    return this.describeAs('take', this.#window, this.outstanding.size);
  }

  /** No effect after `stop`, of which the client may not know yet. */
  setWindow(window: number): void {
    if (this.isStopped) return;
    this.session.counts.window += window - this.#window;
    this.#window = window;
  }

  /** Joins the wait queue. @throws what `queue.get` throws; then call `stop` */
  start(): void {
    const count = this.#wanted();
    if (count > 0) this.#join(count);
  }

  /** Takes more elements if places are free; if they are few, after `TOP_UP_MS`. */
  override fill(): void {
    const { free, minTake } = this;
    if (free <= 0 && this.#consumer === null) {
      if (this.isDraining && this.isUsedUp) this.onDrained();
    } else if (free >= minTake) this.#take();
    else if (this.#consumer === null && !this.isStopped) {
      this.#cancelTopUp ??= this.session.clock.after(TOP_UP_MS, () => {
        this.#cancelTopUp = null;
        this.session.guard(() => this.#take());
      });
    }
  }

  /**
   * Leaves the wait queue, until `fill` is called, if the pending take does not fit any more: the client started or
   * ended a drain, or has fewer free places than elements were asked for.
   */
  protected reviseTake(): void {
    if (this.#consumer === null) return;
    const { count, request } = this.#consumer;
    if (this.isDraining || request.timeoutMs !== null || count > this.free) this.leaveWaitQueue();
  }

  /** Leaves the wait queue until `fill` is called. */
  protected leaveWaitQueue(): void {
    const consumer = this.#consumer;
    if (consumer === null) return;
    this.#consumer = null;
    this.queue.leave(consumer);
    consumer.claim?.release(consumer);
  }

  /** Stops tracking elements that the client has settled; the caller settles them in the engine. */
  forget(settled: readonly Outstanding<Key>[]): void {
    for (const delivery of settled) {
      // An element of a transaction may have been delivered again since, in STOMP 1.1 under the same key.
      if (this.outstanding.get(delivery.key) !== delivery) continue;
      this.outstanding.delete(delivery.key);
      this.session.counts.unacknowledged -= 1;
    }
  }

  /** Leaves the wait queue for good, and returns the outstanding elements. */
  protected override async onStop(countTries: boolean): Promise<unknown> {
    this.session.counts.window -= this.#window;
    this.#window = 0;
    this.session.guard(() => this.leaveWaitQueue());
    this.#cancelTopUp?.();
    this.#cancelLeaseCheck?.();
    const unsettled = [...this.outstanding.values()];
    this.forget(unsettled);
    return unsettled.length === 0 ? null : returnOutstanding(this.queue, unsettled, countTries, this.session);
  }

  deliver(first: Delivery, more: readonly Delivery[]): void {
    this.#consumer = null;
    // Other consumers of the session may have used up its capacity since. A drain may end with that.
    if (this.session.isFull || !this.canSend) {
      this.#returnUndelivered([first, ...more]);
      if (!this.isStopped) this.session.passedOver.add(this);
      this.fill();
      return;
    }
    let bytes = this.send(first);
    this.session.passedOver.delete(this);
    let sent = 0;
    for (const delivery of more) {
      if (bytes >= this.#maxTakeBytes || !this.canSend) break;
      bytes += this.send(delivery);
      sent += 1;
    }
    if (sent < more.length) bytes += this.#returnUndelivered(more.slice(sent));
    this.updateSizeEstimate(bytes, 1 + more.length);
    this.fill();
  }

  end(reason: QuaysideError): void {
    this.#consumer = null;
    if (reason.code === 'pop-timeout') this.onDrained();
    // Elements may have been taken although the reply was lost: reserved ones return when their leases expire, popped
    // ones are lost.
    else if (reason.code === 'outcome-unknown') this.fill();
    else if (this.isDraining && TRANSIENT.has(reason.code)) this.session.fillLater(this);
    else this.fail(reason);
  }

  /**
   * Counts an element as sent and returns the observer of its write. If it is reserved, it is outstanding from now on.
   * @param key identifies the delivery when the client settles it
   */
  protected track(key: Key, delivery: Delivery): Outstanding<Key> | WriteObserver {
    const { counts, clock } = this.session;
    counts.messages += 1;
    if (delivery.lease === null) {
      this.#unwritten += 1;
      return {
        written: () => {
          this.#unwritten -= 1;
        },
        lost: () => this.#onPopLost(delivery),
      };
    }
    const outstanding = new Outstanding(key, delivery, clock.monotonic());
    this.outstanding.set(key, outstanding);
    counts.unacknowledged += 1;
    if (this.#extendsLeases) this.#planLeaseCheck();
    return outstanding;
  }

  /**
   * Returns the element to the queue, together with others: thousands may wait for one client, and each call is
   * repeated every second while the engine is unavailable.
   */
  #onPopLost(delivery: Delivery): void {
    if (this.#lostPops.push(delivery) > 1) return;
    queueMicrotask(() => {
      const lost = this.#lostPops;
      this.#lostPops = [];
      for (let from = 0; from < lost.length; from += MAX_SETTLED)
        this.queue.returnAllUndelivered(lost.slice(from, from + MAX_SETTLED));
    });
  }

  #take(): void {
    if (this.isStopped || this.#consumer !== null || this.isRetrying) return;
    const count = this.#wanted();
    if (count === 0) return;
    try {
      this.#join(count);
    } catch (error) {
      if (error instanceof QuaysideError && error.code === 'too-many-consumers') this.session.fillLater(this);
      else this.fail(error);
    }
  }

  /** How many elements to take: none if no place is free, or the client is behind. */
  #wanted(): number {
    const { window, free } = this;
    const { writer, isFull, takers } = this.session;
    if (free <= 0 || writer.capacity <= 0 || isFull) return 0;
    const max = window < MIN_HALVED_WINDOW ? window : Math.min(MAX_TAKE, Math.ceil(window / 2));
    const fitting = this.fittingCount(Math.min(writer.capacity, this.session.spareBytes / takers));
    return Math.min(max, free, fitting, Math.max(1, Math.floor(this.sharedFree / takers)));
  }

  #join(count: number): void {
    const { owner, origin } = this.session;
    this.#maxTakeBytes = this.maxBytes;
    const timeoutMs = this.isDraining ? 0 : null;
    const { leaseMs, group } = this;
    const consumer = this.queue.get(
      { group, leaseMs, count, timeoutMs, tid: this.#tid, owner, from: origin },
      this,
      this.claim,
    );
    // A take without waiting may have ended already: on a paused queue, the engine need not be called.
    if (consumer.state !== 'gone') this.#consumer = consumer;
  }

  /** @returns their approximate size in bytes */
  #returnUndelivered(deliveries: readonly Delivery[]): number {
    this.queue.returnAllUndelivered(deliveries);
    return bodyBytes(deliveries);
  }

  #planLeaseCheck(): void {
    if (this.#cancelLeaseCheck !== null || this.isStopped || this.leaseMs === null) return;
    const { leaseMs } = this;
    this.#cancelLeaseCheck = this.session.clock.after(leaseMs / LEASE_CHECKS, () => {
      this.#cancelLeaseCheck = null;
      void this.#extendOldLeases(leaseMs);
      if (this.outstanding.size > 0) this.#planLeaseCheck();
    });
  }

  async #extendOldLeases(leaseMs: number): Promise<void> {
    const now = this.session.clock.monotonic();
    const expiring = [...this.outstanding.values()].filter(
      ({ leasedAt }) => now - leasedAt >= leaseMs / LEASE_CHECKS,
    );
    if (expiring.length === 0) return;
    const action = { kind: 'extend', leaseMs } as const;
    const items = expiring.map((delivery) => this.queue.item(delivery, action));
    let settled = 0;
    try {
      await settleInSteps(this.queue, items, (_item, outcome) => {
        const delivery = expiring[settled];
        settled += 1;
        if (delivery !== undefined) delivery.leasedAt = isSettled(outcome) ? now : Number.POSITIVE_INFINITY;
      });
    } catch (error) {
      this.session.warn(error, 'leases could not be extended; the next check tries again');
    }
  }
}
