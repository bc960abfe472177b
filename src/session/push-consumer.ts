import type { Consumer, SessionConsumerInfo, Sink } from '../broker/consumer.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery, ElementId, GroupName } from '../model/element.ts';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import type { CancelTimer } from '../util/clock.ts';
import type { ClientSession } from './client-session.ts';
import { type ConsumerOptions, MAX_TAKE, SessionConsumer } from './consumer.ts';
import { settleInSteps } from './settle-steps.ts';
import type { WriteObserver } from './socket-writer.ts';

/** What a consumer takes, checked, and how. */
export interface PushConsumerOptions extends ConsumerOptions {
  /** Whether it pops; otherwise it reserves. */
  readonly isPop: boolean;
  /**
   * As given, ms: what is not settled by then returns to the queue. Null: reservations last as long as the
   * session, by leases of the namespace's length that are renewed.
   */
  readonly leaseMs: number | null;
}

/**
 * A window from this size on is filled by halves, so that the engine takes one while the client works on the
 * other: 20 µs an element instead of 26, measured with a window of 256 and a client that acknowledges at once.
 */
const HALVED_FROM = 64;
/** A few free places are left to gather for this long, and then filled however few they are. */
const TOP_UP_MS = 5;
/** A consumer that could not take for a reason that passes by itself tries again after this long. */
export const RETRY_MS = 1000;
/**
 * What passes by itself, and a consumer that waits does not notice. One that drains looks again: its client learns
 * neither that there is nothing more nor that its link is over.
 */
const PASSING: ReadonlySet<ErrorCode> = new Set(['storage-unavailable', 'overloaded']);
/** Checks in each lease, so that every lease is extended while at least half of it is left. */
const LEASE_CHECKS = 4;

/**
 * A consumer that takes from its queue for as long as its client has room, until it is stopped: a STOMP subscription,
 * or an AMQP link by which a client receives. It waits in the queue's wait queue while the window and the writer have
 * capacity, sends what it gets, and knows what is outstanding.
 *
 * A protocol decides how many elements the client may hold (`setWindow`, `free`, `minTake`), writes them (`send`,
 * which calls `track`), and calls `forget` with what the client has settled. `start` begins; `fill` is to be called
 * when places became free; `stop` ends it.
 *
 * It extends the leases of its outstanding elements for as long as it lives, unless the client chose their length. A
 * client that was sent a thousand elements works on them one by one; without this the leases of the last ones would
 * have expired by the time that it comes to them. A node that dies extends nothing, and its leases expire.
 */
export abstract class PushConsumer<Session extends ClientSession = ClientSession, Key = unknown>
  extends SessionConsumer<Session>
  implements Sink
{
  readonly right = 'read';
  /** How long it reserves, ms; null: it pops. */
  readonly leaseMs: number | null;
  /** Reserved elements that the client has not settled, in the order of sending. */
  protected readonly outstanding = new Map<Key, Outstanding<Key>>();
  readonly #tid: string;
  readonly #extendsLeases: boolean;
  #consumer: Consumer | null = null;
  #cancelRetry: CancelTimer | null = null;
  #cancelTopUp: CancelTimer | null = null;
  #cancelLeaseCheck: CancelTimer | null = null;
  /** Set while it drains. */
  #onDrained: (() => void) | null = null;
  /** What is sent of the take that it waits for, about. */
  #takeBytes = 0;
  #unwritten = 0;
  #window = 0;

  constructor(session: Session, options: PushConsumerOptions) {
    super(session, options);
    const { queue, namespace, isPop, leaseMs } = options;
    this.leaseMs = isPop ? null : (leaseMs ?? queue.settings.leaseMs);
    this.#extendsLeases = !isPop && leaseMs === null;
    // It begins with the session's name: listings of consumers and of reserved elements show whose it is.
    this.#tid = `${session.id}.${namespace.makeTid()}`;
  }

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

  /** How many elements the client may hold; 0 before `setWindow`. */
  get window(): number {
    return this.#window;
  }

  /** Popped elements that the kernel does not have yet. */
  get unwritten(): number {
    return this.#unwritten;
  }

  /** How many elements it asks the queue for now. */
  get asked(): number {
    return this.#consumer?.count ?? 0;
  }

  override describe(): SessionConsumerInfo {
    return this.describeAs('take', this.#window, this.outstanding.size);
  }

  /** Harmless if it is stopped: its client may not know yet. */
  setWindow(window: number): void {
    if (this.isStopped) return;
    this.session.counts.window += window - this.#window;
    this.#window = window;
  }

  /** Joins the wait queue. @throws what `queue.get` does; then call `stop` */
  start(): void {
    const count = this.#wanted();
    if (count > 0) this.#join(count);
  }

  /** Takes more if there is room; if that is little, a moment later. */
  override fill(): void {
    const { free, minTake } = this;
    if (free <= 0 && this.#consumer === null) {
      if (this.isUsedUp) this.#drained();
    } else if (free >= minTake) this.#take();
    else if (this.#consumer === null && !this.isStopped) {
      this.#cancelTopUp ??= this.session.clock.after(TOP_UP_MS, () => {
        this.#cancelTopUp = null;
        this.session.guard(() => this.#take());
      });
    }
  }

  /** Sends what there is, and calls `then` when there is nothing more, or no free place. It does not wait for more. */
  drain(then: () => void): void {
    this.leaveWaitQueue();
    this.#onDrained = then;
    this.fill();
  }

  /** Waits again for elements to come, if it drained. */
  endDrain(): void {
    if (this.#onDrained === null) return;
    this.#onDrained = null;
    this.leaveWaitQueue();
  }

  /** Leaves the wait queue of its queue until `fill` is called. */
  leaveWaitQueue(): void {
    if (this.#consumer !== null) this.queue.leave(this.#consumer);
    this.#consumer = null;
  }

  /** Forgets elements that the client has settled; what the engine does with them is up to the caller. */
  forget(settled: readonly Outstanding<Key>[]): void {
    for (const one of settled) {
      // A transaction may end with an element that was sent again since, by STOMP 1.1 under the same key.
      if (this.outstanding.get(one.key) !== one) continue;
      this.outstanding.delete(one.key);
      this.session.counts.unacknowledged -= 1;
    }
  }

  /** Leaves the wait queue for good and returns what is outstanding. */
  protected override async onStop(countTries: boolean): Promise<unknown> {
    this.session.counts.window -= this.#window;
    this.#window = 0;
    this.session.guard(() => this.leaveWaitQueue());
    this.#cancelRetry?.();
    this.#cancelTopUp?.();
    this.#cancelLeaseCheck?.();
    const left = [...this.outstanding.values()];
    this.forget(left);
    return left.length === 0 ? null : returnOutstanding(this.queue, left, countTries, this.session);
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
      if (bytes >= this.#takeBytes) break;
      bytes += this.send(delivery);
      sent += 1;
    }
    if (sent < more.length) bytes += this.#returnUndelivered(more.slice(sent));
    this.learnSize(bytes, 1 + more.length);
    this.fill();
  }

  end(reason: QuaysideError): void {
    this.#consumer = null;
    if (reason.code === 'pop-timeout') this.#drained();
    // What it may have taken is unknown: reservations return when their leases expire, popped elements are gone.
    else if (reason.code === 'outcome-unknown') this.fill();
    else if (this.#onDrained !== null && PASSING.has(reason.code)) this.#fillLater();
    else this.fail(reason);
  }

  /**
   * What observes the write of an element: if it is reserved, it is outstanding from now on.
   * @param key by which the client will settle it
   */
  protected track(key: Key, delivery: Delivery): Outstanding<Key> | WriteObserver {
    const { counts, clock } = this.session;
    counts.messages += 1;
    if (delivery.lease === null) {
      this.#unwritten += 1;
      return new PoppedDelivery(this.queue, delivery, this.#onPopWritten);
    }
    const outstanding = new Outstanding(key, delivery, clock.monotonic());
    this.outstanding.set(key, outstanding);
    counts.unacknowledged += 1;
    if (this.#extendsLeases) this.#planLeaseCheck();
    return outstanding;
  }

  readonly #onPopWritten = (): void => {
    this.#unwritten -= 1;
  };

  #take(): void {
    if (this.isStopped || this.#consumer !== null || this.#cancelRetry !== null) return;
    const count = this.#wanted();
    if (count === 0) return;
    try {
      this.#join(count);
    } catch (error) {
      if (error instanceof QuaysideError && error.code === 'too-many-consumers') this.#fillLater();
      else this.fail(error);
    }
  }

  #fillLater(): void {
    this.#cancelRetry = this.session.clock.after(RETRY_MS, () => {
      this.#cancelRetry = null;
      this.session.guard(() => this.fill());
    });
  }

  /** How many elements to ask for: none if no place is free, or the client is behind. */
  #wanted(): number {
    const { window, free } = this;
    const { writer, isFull } = this.session;
    if (free <= 0 || writer.capacity <= 0 || isFull) return 0;
    const max = window < HALVED_FROM ? window : Math.min(MAX_TAKE, Math.ceil(window / 2));
    return Math.min(max, free, this.fitting);
  }

  #join(count: number): void {
    const { owner, origin } = this.session;
    this.#takeBytes = this.maxBytes;
    const timeoutMs = this.#onDrained === null ? null : 0;
    const { leaseMs, group } = this;
    const consumer = this.queue.get(
      { group, leaseMs, count, timeoutMs, tid: this.#tid, owner, from: origin },
      this,
    );
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
    const old = [...this.outstanding.values()].filter(
      ({ leasedAt }) => now - leasedAt >= leaseMs / LEASE_CHECKS,
    );
    if (old.length === 0) return;
    const action = { kind: 'extend', leaseMs } as const;
    const items = old.map((one) => this.queue.item(one, action));
    let settled = 0;
    try {
      await settleInSteps(this.queue, items, (_item, outcome) => {
        const one = old[settled];
        settled += 1;
        if (one !== undefined && outcome === 'done') one.leasedAt = now;
      });
    } catch (error) {
      this.session.warn(error, 'leases could not be extended; the next check tries again');
    }
  }
}

/**
 * A reserved element that was sent to a client and is not settled yet.
 *
 * - `isSeen`: the client can have seen it, so its return is a failed try.
 * - `isClaimed`: a settlement of an open transaction is about it; no other may be.
 */
export class Outstanding<Key = unknown> implements WriteObserver {
  /** By which its consumer knows it. */
  readonly key: Key;
  readonly id: ElementId;
  readonly group: GroupName;
  readonly token: string | null;
  /** Failed tries before this delivery. */
  readonly tries: number;
  /** When its lease began or was last extended, on the monotonic clock. */
  leasedAt: number;
  isSeen = false;
  isClaimed = false;

  constructor(key: Key, { id, group, lease, tries }: Delivery, leasedAt: number) {
    this.key = key;
    this.id = id;
    this.group = group;
    this.token = lease?.token ?? null;
    this.tries = tries;
    this.leasedAt = leasedAt;
  }

  written(): void {
    this.isSeen = true;
  }

  /** Its consumer returns it with everything else that is outstanding. */
  lost(): void {}
}

/** A popped element on its way to the client; it is gone from the queue unless it is lost. */
class PoppedDelivery implements WriteObserver {
  readonly #queue: Queue;
  readonly #delivery: Delivery;
  readonly #onWritten: () => void;

  constructor(queue: Queue, delivery: Delivery, onWritten: () => void) {
    this.#queue = queue;
    this.#delivery = delivery;
    this.#onWritten = onWritten;
  }

  written(): void {
    this.#onWritten();
  }

  lost(): void {
    this.#queue.returnUndelivered(this.#delivery);
  }
}

/**
 * Returns elements that a client holds, because it is gone or has ended their consumer: at once, or if a try counts and
 * the queue has a retry delay, after that.
 * @param countTries whether it is a failed try of each that the client can have seen
 * @returns a promise that never rejects, since leases end by themselves: it resolves with null when the engine has
 * them, or with why it has not
 */
export async function returnOutstanding(
  queue: Queue,
  outstanding: readonly Outstanding[],
  countTries: boolean,
  session: ClientSession,
): Promise<unknown> {
  const { work } = session;
  work.begin(outstanding.length, 0);
  try {
    const items = outstanding.map((one) =>
      queue.item(one, {
        kind: 'release',
        delayMs: 0,
        isDefaultDelay: true,
        countTry: countTries && one.isSeen,
      }),
    );
    await settleInSteps(queue, items, () => {});
    return null;
  } catch (error) {
    session.warn(
      error,
      'elements of a client that let go of them could not be returned; their leases will end',
    );
    return error;
  } finally {
    work.end(outstanding.length, 0);
  }
}
