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
 * `browser:true`, or an AMQP link whose source has the distribution mode `copy`. It reads one page at a time, while the
 * client has capacity and no other browser of the session is reading. At the end of the queue it stops until
 * `refresh` is called.
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
    const { pageTurns, writer, isFull } = this.session;
    if (this.#isAtEnd || this.free <= 0) {
      pageTurns.skip(this);
      this.onIdle(this.#isAtEnd);
      return;
    }
    if (!pageTurns.isNext(this) || writer.capacity <= 0 || isFull) return;
    pageTurns.startPage(this);
    void this.#read(Math.min(this.free, MAX_TAKE, this.fittingCount(writer.capacity)), this.maxBytes);
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
    this.session.pageTurns.remove(this);
    return Promise.resolve(null);
  }

  async #read(limit: number, maxBytes: number): Promise<void> {
    const { session, queue, group } = this;
    this.#isReading = true;
    session.work.begin(1, 0);
    // Bodies that the user may not see are empty.
    const bodies = session.destinations.maySeeBodies(this.namespace.name);
    try {
      const options = { states: STATES, group, after: this.#cursor, limit, bodies };
      const page = await queue.scan({ ...options, user: session.owner });
      this.#isReading = false;
      session.guard(() => this.#showAll(page, maxBytes));
    } catch (error) {
      this.#isReading = false;
      if (!this.isStopped) session.guard(() => this.fail(error));
    } finally {
      session.work.end(1, 0);
      session.guard(() => session.pageTurns.finishPage());
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
    this.fill();
  }
}

/**
 * Lets the browsers of a session read their pages in turn, one at a time: all elements of a page are in memory, and the
 * size of each page depends on the capacity that earlier pages left.
 */
export class PageTurns {
  /** Browsers in the order of their turns. A browser keeps its place while the client has no capacity. */
  readonly #waiting = new Set<QueueBrowser>();
  #isReading = false;

  /**
   * Appends the browser to the order unless it has a place.
   * @returns whether it may read a page now; if not, its `fill` is called later
   */
  isNext(browser: QueueBrowser): boolean {
    this.#waiting.add(browser);
    const [first] = this.#waiting;
    return first === browser && !this.#isReading;
  }

  /** Call when the next browser starts to read a page. */
  startPage(browser: QueueBrowser): void {
    this.#waiting.delete(browser);
    this.#isReading = true;
  }

  /** Call when the page was shown as far as the capacity allows. */
  finishPage(): void {
    this.#isReading = false;
    this.#callNext();
  }

  /** Gives up the place of a browser that wants no page now. */
  skip(browser: QueueBrowser): void {
    if (this.#waiting.delete(browser) && !this.#isReading) this.#callNext();
  }

  /** Removes a browser that has stopped. */
  remove(browser: QueueBrowser): void {
    this.#waiting.delete(browser);
  }

  #callNext(): void {
    const [first] = this.#waiting;
    first?.fill();
  }
}
