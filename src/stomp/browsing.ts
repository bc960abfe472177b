import type { Delivery } from '../model/element.ts';
import { type BrowserOptions, COPY, QueueBrowser } from '../session/queue-browser.ts';
import { bytesOfText } from '../util/byte-text.ts';
import { browserEnd, messageHead, messageStart } from './message.ts';
import type { StompSession } from './session.ts';

/** What a SUBSCRIBE with `browser:true` asks for, checked. */
export interface BrowsingOptions extends BrowserOptions {
  /** As the client wrote them, in bytes; `id` is null if a client of 1.0 gave none. */
  readonly id: string | null;
  readonly destination: string;
}

/** A subscription that shows what is ready once, as ActiveMQ does: then comes a MESSAGE with `browser:end`. */
export class BrowsingSubscription extends QueueBrowser {
  readonly options: BrowsingOptions;
  readonly #session: StompSession;
  readonly #start: string;
  readonly #publicGroup: string | null;
  #hasEnded = false;

  constructor(session: StompSession, options: BrowsingOptions) {
    super(session, options);
    this.options = options;
    this.#session = session;
    this.#start = messageStart(session.rules, options.id, options.destination);
    this.#publicGroup = this.namespace.isStream ? bytesOfText(this.group) : null;
  }

  /** No credit is agreed on: the client takes what it reads. */
  protected override get free(): number {
    return Number.MAX_SAFE_INTEGER;
  }

  protected override get showsBodies(): boolean {
    return this.#session.destinations.maySeeBodies(this.namespace.name);
  }

  protected override show(delivery: Delivery): number {
    const { rules, writer, counts } = this.#session;
    const head = messageHead({ rules, start: this.#start, group: this.#publicGroup, delivery, ack: null });
    counts.messages += 1;
    writer.addMessage(head, delivery.body, COPY);
    return head.length + delivery.body.byteLength;
  }

  protected override onPause(isAtEnd: boolean): void {
    if (!isAtEnd || this.#hasEnded) return;
    this.#hasEnded = true;
    this.#session.writer.add(browserEnd(this.#start));
  }

  protected override onFailed(error: unknown): void {
    this.#session.fail(error, { subscription: this.options.id });
  }
}
