import type { SessionConsumerInfo } from '../broker/consumer.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery, DeliveryState } from '../model/element.ts';
import type { ClientSession } from './client-session.ts';
import { MAX_TAKE, SessionConsumer } from './consumer.ts';

type BrowsedPage = Awaited<ReturnType<Queue['scan']>>;

/** What a consumer would get now. */
const STATES: readonly DeliveryState[] = ['ready'];

/**
 * Shows the ready elements of a queue to a client in delivery order, and changes nothing: a STOMP subscription with
 * `browser:true`, or an AMQP link whose source has the distribution mode `copy`. It reads a page at a time, as the
 * client has room, and no page if it has none or another browser of the session reads one. At the end of the queue it
 * stops until `lookAgain`.
 *
 * A protocol implements `free`, the number of elements that the client takes now, and `show`, which writes one.
 */
export abstract class QueueBrowser<
  Session extends ClientSession = ClientSession,
> extends SessionConsumer<Session> {
  readonly right = 'browse';
  /** Behind the last element that was shown. */
  #cursor: string | null = null;
  #isReading = false;
  #isAtEnd = false;
  /** It is to look again after the page that is being read, which may not show what has come since. */
  #looksAgain = false;

  /**
   * Writes an element, of which nobody observes the write: it is in its queue.
   * @returns how many bytes it was, about
   */
  protected abstract show(delivery: Delivery): number;
  /** It reads no further page for now: all elements that there are were shown, or `free` is 0. */
  protected abstract onIdle(isAtEnd: boolean): void;

  /** Shows more, as far as the client has room. */
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
    void this.#read(Math.min(this.free, MAX_TAKE, this.fitting), this.maxBytes);
  }

  override describe(): SessionConsumerInfo {
    return this.describeAs('browse', null, 0);
  }

  /** Looks whether elements have come behind those that were shown. */
  lookAgain(): void {
    this.#isAtEnd = false;
    this.#looksAgain = this.#isReading;
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
    // If the user may not see bodies, they are empty.
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
      // What is left is read again, once there is room.
      if (this.isStopped || this.session.isFull || this.free <= 0 || bytes >= maxBytes) break;
      bytes += this.show(delivery);
      shown += 1;
      this.#cursor = delivery.cursor;
    }
    if (this.isStopped) return;
    if (shown > 0) this.learnSize(bytes, shown);
    if (shown === deliveries.length) {
      if (next === null) this.#isAtEnd = !this.#looksAgain;
      else this.#cursor = next;
    }
    this.#looksAgain = false;
    this.fill();
  }
}

/**
 * Lets the browsers of a session read one page at a time, in turn: the elements of a page are in memory together, and
 * the size of each page depends on the capacity that those before it left.
 */
export class PageTurns {
  /** In the order of their turns. One whose client has no capacity keeps its place. */
  readonly #waiting = new Set<QueueBrowser>();
  #isReading = false;

  /**
   * Gives the browser a place in the order, if it has none.
   * @returns whether it may begin; if not, its `fill` is called later
   */
  isNext(browser: QueueBrowser): boolean {
    this.#waiting.add(browser);
    const [first] = this.#waiting;
    return first === browser && !this.#isReading;
  }

  /** The browser that is next reads a page. */
  startPage(browser: QueueBrowser): void {
    this.#waiting.delete(browser);
    this.#isReading = true;
  }

  /** The page was sent, as far as it can be. */
  finishPage(): void {
    this.#isReading = false;
    this.#callNext();
  }

  /** The browser wants no page now. */
  skip(browser: QueueBrowser): void {
    if (this.#waiting.delete(browser) && !this.#isReading) this.#callNext();
  }

  /** The browser has stopped. */
  remove(browser: QueueBrowser): void {
    this.#waiting.delete(browser);
  }

  #callNext(): void {
    const [first] = this.#waiting;
    first?.fill();
  }
}
