import type { Consumer, GetRequest, Sink } from '../broker/consumer.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Call } from './call.ts';

/**
 * A get or reserve on its way: waits as a consumer, is answered once, and undoes what did not arrive.
 *
 * States, and who moves it:
 * - waiting: `#consumer` is in its line. The client may go: it leaves the line and gets nothing.
 * - delivered: `#delivery` is written, but the kernel does not have all of it. The client may go: it goes back.
 * - over: written, or ended without an element, or gone.
 */
export class Take implements Sink {
  readonly #call: Call;
  readonly #queue: Queue;
  #consumer: Consumer | null = null;
  #delivery: Delivery | null = null;

  constructor(call: Call) {
    this.#call = call;
    this.#queue = call.queue;
  }

  /** Joins the queue's line. @throws what `queue.get` does */
  begin(request: GetRequest): void {
    if (this.#call.isGone) return;
    const consumer = this.#queue.get(request, this);
    // An element or an end may have come at once; the object is kept all the same, leaving twice is harmless.
    this.#consumer = consumer;
    this.#call.answer.on('close', () => this.#closed());
  }

  deliver(delivery: Delivery): void {
    this.#delivery = delivery;
    try {
      this.#call.element(delivery, (error) => {
        if (!error) this.#delivery = null;
      });
    } catch (error) {
      this.#undo();
      this.#call.fail(error);
    }
  }

  end(reason: QuaysideError): void {
    this.#call.fail(reason.code === 'pop-timeout' ? this.#timeout(reason) : reason);
  }

  /** A call that gave no tid has one all the same (decisions, "Get and reserve"); mostly nobody asks for it. */
  #timeout({ code, message, details }: QuaysideError): QuaysideError {
    const tid = details.extra?.tid ?? this.#call.namespace.makeTid();
    return new QuaysideError(code, message, { extra: { ...details.extra, tid } });
  }

  /** The answer was sent, or its connection is lost; whatever was not handed over is undone. */
  #closed(): void {
    if (this.#consumer !== null) this.#queue.leave(this.#consumer);
    this.#undo();
  }

  #undo(): void {
    const delivery = this.#delivery;
    this.#delivery = null;
    if (delivery !== null) this.#queue.giveBack(delivery);
  }
}
