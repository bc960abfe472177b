import type { EventFilter } from '../events/picture.ts';
import type { EventPublisher, EventSink, EventSubscription } from '../events/publisher.ts';
import type { HttpCall } from './call.ts';

/** A response of server-sent events: what one subscriber is told, until the client disconnects or the subscription ends. */
export class EventStream implements EventSink {
  readonly #call: HttpCall;
  #subscription: EventSubscription | null = null;

  constructor(call: HttpCall) {
    this.#call = call;
  }

  /** @throws QuaysideError `too-many-subscribers`, `shutting-down` */
  begin(events: EventPublisher, filter: EventFilter): void {
    const { user, head, response, isGone } = this.#call;
    if (isGone) return;
    this.#subscription = events.subscribe({
      user,
      filter,
      lastEventId: head.lastEventId,
      sink: this,
    });
    response.once('close', () => this.#subscription?.close());
  }

  write(bytes: Buffer, taken: () => void): void {
    if (!this.#call.response.headersSent) this.#call.beginStream('text/event-stream; charset=utf-8');
    this.#call.write(bytes, taken);
  }

  end(bytes: Buffer): void {
    this.#call.response.end(bytes);
  }
}
