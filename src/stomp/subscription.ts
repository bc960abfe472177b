import type { ConsumerOrigin } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery, ElementId, GroupName } from '../model/element.ts';
import type { SessionCounts } from '../session/counts.ts';
import { Feed, type FeedHost, LARGEST_TAKE } from '../session/feed.ts';
import { Held, Popped } from '../session/handout.ts';
import { LeaseKeeper } from '../session/lease-keeper.ts';
import { bytesOfText } from '../util/byte-text.ts';
import type { Clock } from '../util/clock.ts';
import type { HeadRules } from './codec/version.ts';
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
  readonly counts: SessionCounts;
  /** The user's name. */
  readonly owner: string;
  readonly from: ConsumerOrigin;
  /** The queue ended it: cancelled, or the node stops. */
  ended(subscription: Subscription, reason: unknown): void;
  /** Gives elements back; resolves when the engine has them, or has failed to. */
  releaseHeld(queue: Queue, held: readonly Held[], countSeen: boolean): Promise<void>;
  warn(error: unknown, message: string): void;
}

/**
 * A consumer that goes on until UNSUBSCRIBE or the end of its session: hands out what its feed brings, and knows
 * what the client holds. `active` from the start; `over` by `stop`, which also the queue's own end of it
 * leads to.
 */
export class Subscription implements FeedHost {
  readonly options: SubscriptionOptions;
  /** Names it in `ack` headers; unique in the session. */
  readonly number: string;
  readonly #host: SubscriptionHost;
  readonly #feed: Feed;
  readonly #takeLeaseMs: number | null;
  readonly #start: string;
  readonly #shownGroup: string | null;
  /** Unsettled, in the order of hand-out. */
  readonly #held = new Map<string, Held>();
  readonly #byElement = new Map<ElementId, Held>();
  readonly #leases: LeaseKeeper | null;
  #isOver = false;
  #handedOut = 0;
  /** Popped elements that the kernel does not have yet. */
  #unwritten = 0;

  constructor(host: SubscriptionHost, number: string, options: SubscriptionOptions) {
    const { id, destination, namespace, queue, group, mode, leaseMs } = options;
    this.options = options;
    this.number = number;
    this.#host = host;
    this.#takeLeaseMs = mode === 'auto' ? null : (leaseMs ?? namespace.leaseMs);
    this.#feed = new Feed({ namespace, queue, group, leaseMs: this.#takeLeaseMs }, this);
    this.#start = messageStart(host.rules, id, destination);
    this.#shownGroup = namespace.isStream ? bytesOfText(this.group) : null;
    this.#leases =
      this.#takeLeaseMs === null || leaseMs !== null
        ? null
        : new LeaseKeeper(queue, this.#takeLeaseMs, host, this.#held);
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

  get clock(): Clock {
    return this.#host.clock;
  }

  get owner(): string {
    return this.#host.owner;
  }

  get from(): ConsumerOrigin {
    return this.#host.from;
  }

  get window(): number {
    return this.options.window;
  }

  get free(): number {
    return this.options.window - this.#held.size - this.#unwritten;
  }

  /** The window is filled again when half of it is free. */
  get worthwhile(): number {
    return Math.min(LARGEST_TAKE, Math.max(1, Math.floor(this.options.window / 2)));
  }

  get room(): number {
    return this.#host.outbox.room;
  }

  /** Joins the queue's line. @throws what `queue.get` does; then call `stop` */
  begin(): void {
    this.#feed.begin();
  }

  /** Takes more, if there is room for it. */
  fill(): void {
    this.#feed.fill();
  }

  ended(reason: unknown): void {
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
    for (const held of settled) {
      const { key, id } = held;
      // A transaction may end with what has come again meanwhile, by 1.1 under the same key.
      if (this.#held.get(key) !== held) continue;
      this.#held.delete(key);
      this.#byElement.delete(id);
      this.#host.counts.unacknowledged -= 1;
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
    this.#feed.stop();
    this.#leases?.stop();
    const held = [...this.#held.values()];
    this.settle(held);
    if (held.length > 0) await this.#host.releaseHeld(queue, held, countSeen);
  }

  /** Answers how many bytes it was, about. */
  handOut(delivery: Delivery): number {
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
    // Where its lease ran out and it comes again, the client holds it by this one and not by the one before.
    const older = this.#byElement.get(delivery.id);
    if (older !== undefined) this.settle([older]);
    this.#held.set(key, held);
    this.#byElement.set(delivery.id, held);
    this.#host.counts.unacknowledged += 1;
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
