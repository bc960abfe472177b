import type { EventFilter } from '../events/pictures.ts';
import type { EventPublisher, EventSink, EventSubscription } from '../events/publisher.ts';
import { QuaysideError } from '../model/errors.ts';
import type { HttpCall } from './call.ts';
import { onSessionEnd } from './console-cookie.ts';

/** A response of server-sent events: what one subscriber is sent, until the client disconnects or the subscription ends. */
export class EventStream implements EventSink {
  readonly #call: HttpCall;
  #subscription: EventSubscription | null = null;

  constructor(call: HttpCall) {
    this.#call = call;
  }

  /**
   * The end of the client's half of the connection ends the stream: proxies whose client left send just that.
   * @throws QuaysideError `too-many-subscribers`, `shutting-down`, `malformed-request` after the client's end
   */
  begin(events: EventPublisher, filter: EventFilter): void {
    const { user, head, request, response, isGone } = this.#call;
    if (isGone) return;
    const { socket } = request;
    if (socket.readableEnded) {
      throw new QuaysideError(
        'malformed-request',
        'The client closed its sending side. Keep it open while you listen: nothing tells such a client from one that left.',
      );
    }
    this.#subscription = events.subscribe({
      user,
      filter,
      lastEventId: head.lastEventId,
      sink: this,
    });
    const onEnd = (): void => {
      this.#subscription?.close();
      response.end();
    };
    socket.on('end', onEnd);
    const forget = onSessionEnd(this.#call, onEnd);
    response.once('close', () => {
      forget();
      socket.off('end', onEnd);
      this.#subscription?.close();
    });
  }

  write(bytes: Buffer, taken: () => void): void {
    if (!this.#call.response.headersSent) this.#call.beginStream('text/event-stream; charset=utf-8');
    this.#call.write(bytes, taken);
  }

  end(bytes: Buffer): void {
    this.#call.response.end(bytes);
  }
}
