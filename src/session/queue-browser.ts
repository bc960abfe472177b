import type { SessionConsumerInfo } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { type Delivery, type DeliveryState, type GroupName, PLAIN_GROUP } from '../model/element.ts';
import type { WriteObserver } from './outstanding.ts';
import { type ConsumerSession, MAX_TAKE, type SessionConsumer } from './push-consumer.ts';

/** What a client browses, checked. */
export interface BrowserOptions {
  readonly namespace: Namespace;
  readonly queue: Queue;
  /** As given; null: the namespace's default. */
  readonly group: GroupName | null;
}

type BrowsedPage = Awaited<ReturnType<Queue['scan']>>;

/** A copy that is lost costs nothing: the element is in its queue. */
export const COPY: WriteObserver = { written: () => {}, lost: () => {} };

/** What a consumer would get now. */
const STATES: readonly DeliveryState[] = ['ready'];
/** The size that an element is assumed to have before the first has come. */
const FIRST_ESTIMATE_BYTES = 64 * 1024;
/** Of one page is sent this many times what there was capacity for: few pages are all alike. */
const TOLERANCE = 2;

/**
 * Shows the ready elements of a queue to a client in delivery order, and changes nothing: a STOMP subscription with
 * `browser:true`, or an AMQP link whose source has the distribution mode `copy`. It reads a page at a time, as the client has
 * room, and no page if it has none or another browser of the session reads one. At the end of the queue it stops until `lookAgain`.
 *
 * The protocol says how many elements the client takes (`free`), and writes them (`show`).
 */
export abstract class QueueBrowser implements SessionConsumer {
  readonly namespace: Namespace;
  readonly queue: Queue;
  protected readonly session: ConsumerSession;
  readonly #group: GroupName | null;
  /** Behind the last element that was shown. */
  #cursor: string | null = null;
  #isReading = false;
  #isAtEnd = false;
  #isStopped = false;
  #estimateBytes = FIRST_ESTIMATE_BYTES;

  constructor(session: ConsumerSession, { namespace, queue, group }: BrowserOptions) {
    this.session = session;
    this.namespace = namespace;
    this.queue = queue;
    this.#group = group;
    session.counts.subscriptions += 1;
    session.consumers.add(this);
  }

  /** How many elements the client may be shown now. */
  protected abstract get free(): number;
  /** Whether the user may see bodies; if not, they are empty. */
  protected abstract get showsBodies(): boolean;
  /** Writes an element. @returns how many bytes it was, about */
  protected abstract show(delivery: Delivery): number;
  /** All elements that there are were shown, or none of them can be now: `free` is 0. */
  protected abstract onPause(isAtEnd: boolean): void;
  protected abstract onFailed(error: unknown): void;

  /** The group that it looks as; on a plain queue the one without a name. */
  get group(): GroupName {
    return this.#group ?? this.namespace.defaultGroup;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  /** Shows more, as far as the client has room. */
  fill(): void {
    if (this.#isReading || this.#isStopped) return;
    const { pageTurns, capacity, isFull } = this.session;
    if (this.#isAtEnd || this.free <= 0) {
      pageTurns.skip(this);
      this.onPause(this.#isAtEnd);
      return;
    }
    if (!pageTurns.isNext(this) || capacity <= 0 || isFull) return;
    pageTurns.begin(this);
    const limit = Math.min(this.free, MAX_TAKE, Math.max(1, Math.floor(capacity / this.#estimateBytes)));
    void this.#read(limit, capacity * TOLERANCE);
  }

  describe(): SessionConsumerInfo {
    return {
      ns: this.namespace.name,
      queue: this.queue.key.name,
      group: this.group === PLAIN_GROUP ? null : this.group,
      kind: 'browse',
      window: null,
      unacknowledged: 0,
    };
  }

  /** Looks whether elements have come behind those that were shown. */
  lookAgain(): void {
    this.#isAtEnd = false;
    this.fill();
  }

  /** Shows no more. Harmless when repeated. */
  stop(): Promise<void> {
    if (!this.#isStopped) {
      this.#isStopped = true;
      this.session.pageTurns.leave(this);
      this.session.counts.subscriptions -= 1;
      this.session.consumers.delete(this);
    }
    return Promise.resolve();
  }

  async #read(limit: number, maxBytes: number): Promise<void> {
    const { session, queue } = this;
    this.#isReading = true;
    session.work.begin(1, 0);
    const wanted = {
      states: STATES,
      group: this.#group,
      after: this.#cursor,
      limit,
      bodies: this.showsBodies,
    };
    try {
      const page = await queue.scan(wanted);
      this.#isReading = false;
      session.guard(() => this.#showAll(page, maxBytes));
    } catch (error) {
      this.#isReading = false;
      if (!this.#isStopped) session.guard(() => this.onFailed(error));
    } finally {
      session.work.end(1, 0);
      session.guard(() => session.pageTurns.end());
    }
  }

  #showAll({ deliveries, next }: BrowsedPage, maxBytes: number): void {
    let bytes = 0;
    let shown = 0;
    for (const delivery of deliveries) {
      // What is left is read again, once there is room.
      if (this.#isStopped || this.session.isFull || this.free <= 0 || bytes >= maxBytes) break;
      bytes += this.show(delivery);
      shown += 1;
      this.#cursor = delivery.cursor;
    }
    if (this.#isStopped) return;
    if (shown > 0) this.#estimateBytes = Math.max(bytes / shown, this.#estimateBytes / 4);
    if (shown === deliveries.length) {
      if (next === null) this.#isAtEnd = true;
      else this.#cursor = next;
    }
    this.fill();
  }
}
