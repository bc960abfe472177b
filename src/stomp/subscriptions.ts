import { QuaysideError } from '../model/errors.ts';
import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec/malformed.ts';
import { STOMP_LIMITS } from './limits.ts';
import { Subscription, type SubscriptionHost, type SubscriptionOptions } from './subscription.ts';
import { unknown } from './values.ts';

/** The subscriptions of one session. */
export class Subscriptions {
  readonly #host: SubscriptionHost;
  readonly #byId = new Map<string, Subscription>();
  readonly #byNumber = new Map<string, Subscription>();
  /** Those whose window got room in this turn. */
  readonly #withRoom = new Set<Subscription>();
  #numbers = 0;

  constructor(host: SubscriptionHost) {
    this.#host = host;
  }

  /** Makes one and lets it wait. @throws QuaysideError `malformed-request`, `overloaded`, what `queue.get` does */
  open(options: SubscriptionOptions): void {
    const key = options.id ?? options.destination;
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
    this.#numbers += 1;
    const subscription = new Subscription(this.#host, this.#numbers.toString(36), options);
    this.#byId.set(key, subscription);
    this.#byNumber.set(subscription.number, subscription);
    subscription.begin();
  }

  /** By the id that the client gave it; in 1.0 that may be its destination. */
  find(key: string): Subscription | undefined {
    return this.#byId.get(key);
  }

  /** By the number that `ack` headers begin with. */
  numbered(number: string): Subscription | undefined {
    return this.#byNumber.get(number);
  }

  all(): Iterable<Subscription> {
    return this.#byNumber.values();
  }

  /** Ends one; resolves when what it held has gone back. @throws QuaysideError `malformed-request` */
  close(key: string): Promise<void> {
    const subscription = this.#byId.get(key);
    if (subscription === undefined) throw malformed(unknown('subscription', key, this.#byId.keys()), 'id');
    this.#byId.delete(key);
    this.#byNumber.delete(subscription.number);
    this.#withRoom.delete(subscription);
    return subscription.stop(true);
  }

  closeAll(countSeen: boolean): void {
    for (const subscription of this.#byNumber.values()) void subscription.stop(countSeen);
    this.#byId.clear();
    this.#byNumber.clear();
    this.#withRoom.clear();
  }

  /** The window of this one has room: it takes more when the turn ends. */
  roomIn(subscription: Subscription): void {
    this.#withRoom.add(subscription);
  }

  endTurn(): void {
    if (this.#withRoom.size === 0) return;
    for (const subscription of this.#withRoom) subscription.fill();
    this.#withRoom.clear();
  }

  /** There may be room for all of them. */
  fillAll(): void {
    for (const subscription of this.#byNumber.values()) subscription.fill();
  }
}
