import type { Delivery, ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { type ConsumerOptions, MAX_TAKE } from '../session/consumer.ts';
import { Outstanding, PushConsumer, type PushConsumerOptions } from '../session/push-consumer.ts';
import { COPY, QueueBrowser } from '../session/queue-browser.ts';
import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec/frame.ts';
import { browserEnd, messageHead, messageStart } from './message.ts';
import { STOMP_LIMITS } from './options.ts';
import type { StompSession } from './session.ts';
import { unknown } from './values.ts';

/** `auto` pops; `client` and `client-individual` reserve, the first with acknowledgements that are cumulative. */
export const ACK_MODES = ['auto', 'client', 'client-individual'] as const;
export type AckMode = (typeof ACK_MODES)[number];

/** How a client names its subscription, in bytes as it wrote them. */
interface SubscriptionName {
  /** Null if a client of 1.0 gave none. */
  readonly id: string | null;
  readonly destination: string;
}

/** What SUBSCRIBE asks for, checked. */
export interface SubscriptionOptions extends PushConsumerOptions, SubscriptionName {
  readonly mode: AckMode;
  readonly window: number;
}

/** What a SUBSCRIBE with `browser:true` asks for, checked. */
interface BrowsingOptions extends ConsumerOptions, SubscriptionName {}

/** A consumer from its SUBSCRIBE until UNSUBSCRIBE or the end of its session. */
export class Subscription extends PushConsumer<StompSession, string> {
  readonly options: SubscriptionOptions;
  /** Names it in `ack` headers; unique in the session. */
  readonly number: string;
  readonly #start: string;
  readonly #byElement = new Map<ElementId, Outstanding<string>>();
  #sent = 0;

  constructor(session: StompSession, number: string, options: SubscriptionOptions) {
    super(session, options);
    this.options = options;
    this.number = number;
    this.#start = messageStart(session.rules, options.id, options.destination);
    this.setWindow(options.window);
  }

  /**
   * The elements that an ACK or NACK of `key` is about, oldest first; none if no such element is outstanding, or a
   * transaction has claimed it.
   */
  select(key: string): Outstanding<string>[] {
    const named = this.outstanding.get(key);
    if (named === undefined || named.isClaimed) return [];
    if (this.options.mode !== 'client') return [named];
    const selected: Outstanding<string>[] = [];
    for (const one of this.outstanding.values()) {
      if (!one.isClaimed) selected.push(one);
      if (one === named) break;
    }
    return selected;
  }

  override settle(settled: readonly Outstanding<string>[]): void {
    super.settle(settled);
    for (const one of settled) if (this.#byElement.get(one.id) === one) this.#byElement.delete(one.id);
  }

  protected override get free(): number {
    return this.window - this.outstanding.size - this.unwritten;
  }

  /** The window is filled again when half of it is free. */
  protected override get minTake(): number {
    return Math.min(MAX_TAKE, Math.max(1, Math.floor(this.window / 2)));
  }

  protected override send(delivery: Delivery): number {
    const { rules, writer, acksByHeader } = this.session;
    this.#sent += 1;
    const key = acksByHeader ? this.#sent.toString(36) : delivery.id;
    // If its lease expired and it is sent again, the client holds it by the new delivery only.
    const older = this.#byElement.get(delivery.id);
    if (older !== undefined) this.settle([older]);
    const tracked = this.track(key, delivery);
    const isReserved = tracked instanceof Outstanding;
    if (isReserved) this.#byElement.set(delivery.id, tracked);
    const ack = isReserved && acksByHeader ? `${this.number}-${key}` : null;
    const head = messageHead({ rules, start: this.#start, group: this.publicGroup, delivery, ack });
    writer.addMessage(head, delivery.body, tracked);
    return head.length + delivery.body.byteLength;
  }

  protected override onEnded(reason: unknown): void {
    this.session.fail(reason, { subscription: this.options.id });
  }
}

/** The subscriptions of one session. */
export class Subscriptions {
  readonly #session: StompSession;
  /** By the id that the client gave it; in 1.0 that may be its destination. */
  readonly #byId = new Map<string, Subscription | BrowsingSubscription>();
  /** Those that do not browse, by the number that `ack` headers begin with. */
  readonly #byNumber = new Map<string, Subscription>();
  #numbers = 0;

  constructor(session: StompSession) {
    this.#session = session;
  }

  /** Starts one. @throws QuaysideError `malformed-request`, `overloaded`, what `queue.get` does */
  open(options: SubscriptionOptions): void {
    const key = this.#newKey(options);
    this.#numbers += 1;
    const subscription = new Subscription(this.#session, this.#numbers.toString(36), options);
    this.#byId.set(key, subscription);
    this.#byNumber.set(subscription.number, subscription);
    subscription.start();
  }

  /** Starts one that browses. @throws QuaysideError `malformed-request`, `overloaded` */
  browse(options: BrowsingOptions): void {
    const key = this.#newKey(options);
    const subscription = new BrowsingSubscription(this.#session, options);
    this.#byId.set(key, subscription);
    subscription.fill();
  }

  /** Undefined also for one that browses. */
  find(key: string): Subscription | undefined {
    const found = this.#byId.get(key);
    return found instanceof Subscription ? found : undefined;
  }

  numbered(number: string): Subscription | undefined {
    return this.#byNumber.get(number);
  }

  /** All that do not browse. */
  consuming(): Iterable<Subscription> {
    return this.#byNumber.values();
  }

  all(): Iterable<Subscription | BrowsingSubscription> {
    return this.#byId.values();
  }

  /** Ends one; resolves when what it held has returned. @throws QuaysideError `malformed-request` */
  close(key: string): Promise<void> {
    const subscription = this.#byId.get(key);
    if (subscription === undefined) {
      throw malformed(unknown('subscription', key, this.#byId.keys()), 'id');
    }
    this.#byId.delete(key);
    if (subscription instanceof Subscription) this.#byNumber.delete(subscription.number);
    return subscription.stop(true);
  }

  /** @throws QuaysideError if it is in use, or one more subscription would be too many */
  #newKey({ id, destination }: SubscriptionName): string {
    const key = id ?? destination;
    if (this.#byId.has(key)) {
      throw malformed(
        `Subscription ${quoteBytes(key)} exists already. Choose another id, or UNSUBSCRIBE first.`,
        'id',
      );
    }
    if (this.#byId.size >= STOMP_LIMITS.subscriptions) {
      throw new QuaysideError(
        'overloaded',
        `This session has ${STOMP_LIMITS.subscriptions} subscriptions, the most that are allowed.`,
      );
    }
    return key;
  }
}

/** A subscription that shows what is ready once, as ActiveMQ does: then comes a MESSAGE with `browser:end`. */
class BrowsingSubscription extends QueueBrowser<StompSession> {
  readonly options: BrowsingOptions;
  readonly #start: string;
  #hasEnded = false;

  constructor(session: StompSession, options: BrowsingOptions) {
    super(session, options);
    this.options = options;
    this.#start = messageStart(session.rules, options.id, options.destination);
  }

  /** No credit is agreed on: the client takes what it reads. */
  protected override get free(): number {
    return Number.MAX_SAFE_INTEGER;
  }

  protected override show(delivery: Delivery): number {
    const { rules, writer, counts } = this.session;
    const head = messageHead({ rules, start: this.#start, group: this.publicGroup, delivery, ack: null });
    counts.messages += 1;
    writer.addMessage(head, delivery.body, COPY);
    return head.length + delivery.body.byteLength;
  }

  protected override onPause(isAtEnd: boolean): void {
    if (!isAtEnd || this.#hasEnded) return;
    this.#hasEnded = true;
    this.session.writer.add(browserEnd(this.#start));
  }

  protected override onFailed(error: unknown): void {
    this.session.fail(error, { subscription: this.options.id });
  }
}
