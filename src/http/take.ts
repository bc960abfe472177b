import type { Consumer, GetRequest, Sink } from '../broker/consumer.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { HttpCall } from './call.ts';

/**
 * A get or reserve: waits as a consumer, is answered once, and returns an element that the client did not get.
 *
 * States:
 * - waiting: `#consumer` is in its wait queue. If the client disconnects, it leaves and takes nothing. The end of
 *   the client's half of the connection counts as that: a client that half-closes and one that is gone both send
 *   a FIN, and only the first write after it would show which it was.
 * - delivered: `#unsent` is written, but the kernel does not have all of it. If the connection closes, each of its
 *   elements is returned to its place.
 * - over: written, ended without an element, or disconnected.
 */
export class Take implements Sink {
  readonly #call: HttpCall;
  readonly #queue: Queue;
  #consumer: Consumer | null = null;
  /** Delivered to this request, and not yet handed over to the kernel. */
  #unsent: readonly Delivery[] = [];

  constructor(call: HttpCall) {
    this.#call = call;
    this.#queue = call.queue;
  }

  /** Joins the queue's consumers. @throws QuaysideError `malformed-request` after the client's end, and what `queue.get` throws */
  begin(request: GetRequest): void {
    const { response, request: message, isGone } = this.#call;
    if (isGone) return;
    const { socket } = message;
    if (socket.readableEnded) throw halfClosed();
    const consumer = this.#queue.get(request, this);
    // It may have been answered already; the object is kept all the same, since leaving twice is harmless.
    this.#consumer = consumer;
    const onEnd = (): void => this.#inputEnded();
    socket.on('end', onEnd);
    response.on('close', () => {
      socket.off('end', onEnd);
      this.#closed();
    });
  }

  deliver(delivery: Delivery): void {
    this.#unsent = [delivery];
    try {
      this.#call.element(delivery, (error) => {
        if (!error) this.#unsent = [];
      });
    } catch (error) {
      this.#undo();
      this.#call.fail(error);
    }
  }

  end(reason: QuaysideError): void {
    this.#call.fail(reason.code === 'pop-timeout' ? this.#timeout(reason) : reason);
  }

  /** A call that gave no tid has one all the same (decisions, "Get and reserve"); which is rarely used. */
  #timeout({ code, message, details }: QuaysideError): QuaysideError {
    const tid = details.extra?.tid ?? this.#call.namespace.makeTid();
    return new QuaysideError(code, message, { extra: { ...details.extra, tid } });
  }

  /** Once an element is being written, a client that half-closed still reads: only the connection's end undoes that. */
  #inputEnded(): void {
    if (this.#call.response.headersSent || this.#call.isGone) return;
    if (this.#consumer !== null) this.#queue.leave(this.#consumer);
    this.#call.fail(halfClosed());
  }

  /** The response was sent, or the connection is closed: what was not handed over is undone. */
  #closed(): void {
    if (this.#consumer !== null) this.#queue.leave(this.#consumer);
    this.#undo();
  }

  #undo(): void {
    const unsent = this.#unsent;
    this.#unsent = [];
    for (const delivery of unsent) this.#queue.returnUndelivered(delivery);
  }
}

function halfClosed(): QuaysideError {
  return new QuaysideError(
    'malformed-request',
    'The client closed its sending side before an element was there. Keep it open until the response has come: nothing tells such a client from one that left.',
  );
}
