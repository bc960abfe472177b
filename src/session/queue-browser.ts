import type { Queue } from '../broker/queue.ts';
import type { Delivery, DeliveryState } from '../model/element.ts';
import type { SessionConsumerInfo } from '../model/records.ts';
import type { ClientSession } from './client-session.ts';
import { MAX_TAKE, SessionConsumer } from './consumer.ts';

type BrowsedPage = Awaited<ReturnType<Queue['scan']>>;

/** Browsers show the elements that a consumer would get now. */
const STATES: readonly DeliveryState[] = ['ready'];

/**
 * Shows the ready elements of a queue to a client in delivery order, and changes nothing: a STOMP subscription with
 * `browser:true`, or an AMQP link whose source has the distribution mode `copy`. The browsers of a session read pages
 * in turn, one page at a time, while the client has capacity. At the end of the queue a browser stops until `refresh`
 * is called.
 *
 * A protocol implements `free`, how many elements the client accepts now, and `show`, which writes one.
 */
export abstract class QueueBrowser<
  Session extends ClientSession = ClientSession,
> extends SessionConsumer<Session> {
  readonly right = 'browse';
  /** The cursor after the last element shown; null at the start of the queue. */
  #cursor: string | null = null;
  #isReading = false;
  #isAtEnd = false;
  /** `refresh` was called during the read of a page, which may miss newer elements: read again after it. */
  #isRefreshDue = false;

  /**
   * Writes an element. Its write needs no observer, since the element stays in its queue.
   * @returns its approximate size in bytes
   */
  protected abstract show(delivery: Delivery): number;
  /** Called when no further page is read for now: all elements were shown (`isAtEnd`), or `free` is 0. */
  protected abstract onIdle(isAtEnd: boolean): void;

  /** Shows more elements if the client has capacity. */
  override fill(): void {
    if (this.#isReading || this.isStopped) return;
    const { session, free } = this;
    const { writer } = session;
    if (this.#isAtEnd || free <= 0) this.onIdle(this.#isAtEnd);
    else if (!session.isReadingPage && !session.isFull && writer.capacity > 0) {
      void this.#read(Math.min(free, MAX_TAKE, this.fittingCount(writer.capacity)), this.maxBytes);
    }
  }

  /** Browsers read one after the other. */
  override get canTake(): boolean {
    return false;
  }

  override describe(): SessionConsumerInfo {
    return this.describeAs('browse', null, 0);
  }

  /** Checks for new elements after those already shown. */
  refresh(): void {
    this.#isAtEnd = false;
    this.#isRefreshDue = this.#isReading;
    this.fill();
  }

  protected override onStop(): Promise<unknown> {
    return Promise.resolve(null);
  }

  async #read(limit: number, maxBytes: number): Promise<void> {
    const { session, queue, group } = this;
    this.#isReading = true;
    session.isReadingPage = true;
    session.work.begin(1, 0);
    // Bodies that the user may not see are empty.
    const bodies = session.destinations.user.maySeeBodies(this.namespace.name);
    try {
      const options = { states: STATES, group, after: this.#cursor, limit, bodies };
      const page = await queue.scan({ ...options, user: session.owner });
      session.guard(() => this.#showAll(page, maxBytes));
    } catch (error) {
      if (!this.isStopped) session.guard(() => this.fail(error));
    } finally {
      this.#isReading = false;
      session.endPage(this);
      session.work.end(1, 0);
    }
  }

  #showAll({ deliveries, next }: BrowsedPage, maxBytes: number): void {
    let bytes = 0;
    let shown = 0;
    for (const delivery of deliveries) {
      // The rest of the page is read again when there is capacity.
      if (this.isStopped || this.session.isFull || this.free <= 0 || bytes >= maxBytes) break;
      bytes += this.show(delivery);
      shown += 1;
      this.#cursor = delivery.cursor;
    }
    if (this.isStopped) return;
    if (shown > 0) this.updateSizeEstimate(bytes, shown);
    if (shown === deliveries.length) {
      if (next === null) this.#isAtEnd = !this.#isRefreshDue;
      else this.#cursor = next;
    }
    this.#isRefreshDue = false;
  }
}
