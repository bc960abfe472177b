import type { Consumer, Sink } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { bytesOfText } from '../model/byte-text.ts';
import type { CancelTimer, Clock } from '../model/clock.ts';
import type { Delivery, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { HeadRules } from './codec/version.ts';
import type { StompCounts } from './counts.ts';
import { Held, Popped } from './handout.ts';
import { LeaseKeeper } from './lease-keeper.ts';
import { messageHead, messageStart } from './message.ts';
import type { Outbox } from './outbox.ts';

/** `auto` pops; `client` and `client-individual` reserve, the first with acknowledgements that are cumulative. */
export const ACK_MODES = ['auto', 'client', 'client-individual'] as const;
export type AckMode = (typeof ACK_MODES)[number];

/** What SUBSCRIBE asks for, checked. */
export interface SubscriptionOptions {
  /** As the client wrote them, in bytes; `id` is null where a client of 1.0 gave none. */
  readonly id: string | null;
  readonly destination: string;
  readonly namespace: Namespace;
  readonly queue: Queue;
  readonly mode: AckMode;
  /** As given; null: the namespace's default. */
  readonly group: GroupName | null;
  readonly window: number;
  /** As given: what is not acknowledged by then goes back. Null: the session keeps what it holds. */
  readonly leaseMs: number | null;
}

/** The session that a subscription belongs to. */
export interface SubscriptionHost {
  readonly rules: HeadRules;
  /** Whether ACK names a message by the `ack` header of its MESSAGE (1.2), or by its id. */
  readonly acksByHeader: boolean;
  readonly outbox: Outbox;
  readonly clock: Clock;
  readonly counts: StompCounts;
  /** The user's name. */
  readonly owner: string;
  /** The queue ended it: cancelled, or the node stops. */
  ended(subscription: Subscription, reason: unknown): void;
  /** Gives elements back; resolves when the engine has them, or has failed to. */
  giveBack(queue: Queue, held: readonly Held[], countSeen: boolean): Promise<void>;
  warn(error: unknown, message: string): void;
}

/** Elements of one take. */
const LARGEST_TAKE = 256;
/** What an element is taken to be long before the first has come. */
const FIRST_ESTIMATE_BYTES = 64 * 1024;
/**
 * A window from this size on that is half free is not filled at once, but after this many ms: a client that is
 * quick acknowledges the other half meanwhile, and one take of twice the size costs the engine a third less. A
 * slow client still has half a window to work on.
 */
const GATHERED_FROM = 64;
const GATHER_MS = 2;
/** When too many consumers wait, one that had its place tries to come back after this long. */
const RETRY_MS = 1000;

/**
 * A consumer that goes on: waits in the queue's line while its window has room, hands out what it gets, and
 * knows what the client holds.
 *
 * States, and who moves it: `active` from the start; `over` by `end`, which UNSUBSCRIBE, the end of the session
 * and the queue's own end of it lead to. While `active` it is in the line (`#consumer` is set), or its
 * window or the way out is full, or it waits for a place among too many.
 */
export class Subscription implements Sink {
  readonly options: SubscriptionOptions;
  /** Names it in `ack` headers; unique in the session. */
  readonly number: string;
  readonly #host: SubscriptionHost;
  readonly #tid: string;
  readonly #takeLeaseMs: number | null;
  readonly #start: string;
  readonly #shownGroup: string | null;
  /** Unsettled, in the order of hand-out. */
  readonly #held = new Map<string, Held>();
  readonly #leases: LeaseKeeper | null;
  #isOver = false;
  #consumer: Consumer | null = null;
  #cancelRetry: CancelTimer | null = null;
  #cancelGather: CancelTimer | null = null;
  #handedOut = 0;
  /** Popped elements that the kernel does not have yet. */
  #unwritten = 0;
  #estimateBytes = FIRST_ESTIMATE_BYTES;

  constructor(host: SubscriptionHost, number: string, options: SubscriptionOptions) {
    const { id, destination, namespace, mode, leaseMs } = options;
    this.options = options;
    this.number = number;
    this.#host = host;
    this.#tid = namespace.makeTid();
    this.#takeLeaseMs = mode === 'auto' ? null : (leaseMs ?? namespace.leaseMs);
    this.#start = messageStart(host.rules, id, destination);
    this.#shownGroup = namespace.isStream ? bytesOfText(this.group) : null;
    this.#leases =
      this.#takeLeaseMs === null || leaseMs !== null
        ? null
        : new LeaseKeeper(options.queue, this.#takeLeaseMs, host, this.#held);
    host.counts.subscriptions += 1;
    host.counts.window += options.window;
  }

  /** The group that it reads as; on a plain queue the one without a name. */
  get group(): GroupName {
    return this.options.group ?? this.options.namespace.defaultGroup;
  }

  /** The length of its leases; null where it pops. */
  get leaseMs(): number | null {
    return this.#takeLeaseMs;
  }

  /** Joins the queue's line. @throws what `queue.get` does; then call `end` */
  begin(): void {
    const count = this.#wanted();
    if (count > 0) this.#join(count);
  }

  /** Takes more, if there is room for it. */
  fill(): void {
    if (this.#isOver || this.#consumer !== null || this.#cancelRetry !== null) return;
    const count = this.#wanted();
    if (count === 0) return;
    this.#cancelGather?.();
    this.#cancelGather = null;
    try {
      this.#join(count);
    } catch (error) {
      if (!(error instanceof QuaysideError) || error.code !== 'too-many-consumers') {
        this.#host.ended(this, error);
        return;
      }
      this.#cancelRetry = this.#host.clock.after(RETRY_MS, () => {
        this.#cancelRetry = null;
        this.fill();
      });
    }
  }

  /** As `fill`, after acknowledgements: more of them may be on their way. */
  refill(): void {
    const { window } = this.options;
    if (window < GATHERED_FROM || this.#free >= Math.min(window, LARGEST_TAKE)) {
      this.fill();
    } else if (this.#cancelGather === null && !this.#isOver && this.#wanted() > 0) {
      this.#cancelGather = this.#host.clock.after(GATHER_MS, () => {
        this.#cancelGather = null;
        this.fill();
      });
    }
  }

  deliver(first: Delivery, more: readonly Delivery[]): void {
    this.#consumer = null;
    let bytes = this.#handOut(first);
    for (const delivery of more) bytes += this.#handOut(delivery);
    this.#estimateBytes = Math.max(bytes / (1 + more.length), this.#estimateBytes / 4);
    this.fill();
  }

  end(reason: QuaysideError): void {
    this.#consumer = null;
    this.#host.ended(this, reason);
  }

  /**
   * The elements that an ACK or NACK of `key` is about, oldest first; none where the client holds no such
   * one, or a transaction has claimed it.
   */
  select(key: string): Held[] {
    const named = this.#held.get(key);
    if (named === undefined || named.isClaimed) return [];
    if (this.options.mode !== 'client') return [named];
    const selected: Held[] = [];
    for (const held of this.#held.values()) {
      if (!held.isClaimed) selected.push(held);
      if (held === named) break;
    }
    return selected;
  }

  /** The client holds these no longer; what becomes of them is the caller's to see to. */
  settle(settled: readonly Held[]): void {
    for (const { key } of settled) {
      if (this.#held.delete(key)) this.#host.counts.unacknowledged -= 1;
    }
  }

  /** Leaves the line and gives back what the client holds. Harmless when repeated. */
  async stop(countSeen: boolean): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    const { counts } = this.#host;
    const { queue, window } = this.options;
    counts.subscriptions -= 1;
    counts.window -= window;
    if (this.#consumer !== null) queue.leave(this.#consumer);
    this.#cancelRetry?.();
    this.#cancelGather?.();
    this.#leases?.stop();
    const held = [...this.#held.values()];
    this.settle(held);
    if (held.length > 0) await this.#host.giveBack(queue, held, countSeen);
  }

  get #free(): number {
    return this.options.window - this.#held.size - this.#unwritten;
  }

  /** How many elements to ask for: none while the window is more than half full, or the way out is. */
  #wanted(): number {
    const { window } = this.options;
    const free = this.#free;
    if (free < Math.min(LARGEST_TAKE, Math.max(1, Math.floor(window / 2)))) return 0;
    const { room } = this.#host.outbox;
    if (room <= 0) return 0;
    return Math.min(LARGEST_TAKE, free, Math.max(1, Math.floor(room / this.#estimateBytes)));
  }

  #join(count: number): void {
    const { queue, group } = this.options;
    const owner = this.#host.owner;
    const request = { group, leaseMs: this.#takeLeaseMs, count, timeoutMs: null, tid: this.#tid, owner };
    this.#consumer = queue.get(request, this);
  }

  /** Answers how many bytes it was, about. */
  #handOut(delivery: Delivery): number {
    const { rules, outbox, counts } = this.#host;
    counts.messages += 1;
    const isPop = delivery.lease === null;
    const held = isPop ? null : this.#hold(delivery);
    const ack = held !== null && this.#host.acksByHeader ? `${this.number}-${held.key}` : null;
    const head = messageHead({ rules, start: this.#start, group: this.#shownGroup, delivery, ack });
    outbox.addMessage(head, delivery.body, held ?? this.#pop(delivery));
    return head.length + delivery.body.byteLength;
  }

  #hold(delivery: Delivery): Held {
    this.#handedOut += 1;
    const key = this.#host.acksByHeader ? this.#handedOut.toString(36) : delivery.id;
    const held = new Held(key, delivery, this.#host.clock.monotonic());
    // Where a lease ran out, the same element may come again under the id that the client holds already.
    if (!this.#held.delete(key)) this.#host.counts.unacknowledged += 1;
    this.#held.set(key, held);
    this.#leases?.watch();
    return held;
  }

  #pop(delivery: Delivery): Popped {
    this.#unwritten += 1;
    return new Popped(this.options.queue, delivery, this.#popWritten);
  }

  readonly #popWritten = (): void => {
    this.#unwritten -= 1;
  };
}
