import type { Consumer, GetRequest, Sink } from '../broker/consumer.ts';
import { type JointRequest, type JointSink, JointTake, type Portion } from '../broker/joint-take.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { type HttpCall, PIECE_LENGTH } from './call.ts';
import { elementPart, multipartEnd, multipartType, newBoundary } from './multipart.ts';
import { elementLine, NDJSON } from './ndjson.ts';
import { linkInsert } from './traced-request.ts';

/**
 * A call that waits for elements: is answered once, and returns what the client did not get.
 *
 * States:
 * - waiting: it waits in one queue or several. If the client disconnects, it leaves and takes nothing. The end of
 *   the client's half of the connection counts as that: a client that half-closes and one that is gone both send
 *   a FIN, and only the first write after it would show which it was.
 * - delivered: the response is written, but the kernel does not have all of it. If the connection closes, each of its
 *   elements is returned to its place.
 * - over: written, ended without an element, or disconnected.
 */
abstract class BlockedCall {
  protected readonly call: HttpCall;

  constructor(call: HttpCall) {
    this.call = call;
  }

  /** Begins to wait. @throws QuaysideError `malformed-request` after the client's end, and what joining throws */
  begin(): void {
    const { response, request: message, isGone } = this.call;
    if (isGone) return;
    const { socket } = message;
    if (socket.readableEnded) throw halfClosed();
    this.join();
    const onEnd = (): void => this.#inputEnded();
    socket.on('end', onEnd);
    response.on('close', () => {
      socket.off('end', onEnd);
      this.leave();
      this.undo();
    });
  }

  /** Joins the consumers of its queues. */
  protected abstract join(): void;
  /** Stops waiting. Harmless if it does not. */
  protected abstract leave(): void;
  /** Returns what was delivered and not handed over to the kernel. */
  protected abstract undo(): void;

  end(reason: QuaysideError): void {
    this.call.fail(reason.code === 'pop-timeout' ? this.#timeout(reason) : reason);
  }

  /** A call that gave no tid has one all the same (decisions, "Get and reserve"); which is rarely used. */
  #timeout(error: QuaysideError): QuaysideError {
    const { extra } = error.details;
    return error.with({ extra: { ...extra, tid: extra?.tid ?? this.call.namespace.makeTid() } });
  }

  /** Once elements are being written, a client that half-closed still reads: only the connection's end undoes that. */
  #inputEnded(): void {
    if (this.call.response.headersSent || this.call.isGone) return;
    this.leave();
    this.undo();
    this.call.fail(halfClosed());
  }
}

/** A get or reserve of one element. */
export class Take extends BlockedCall implements Sink {
  readonly #queue: Queue;
  readonly #request: GetRequest;
  #consumer: Consumer | null = null;
  /** Delivered to this request, and not yet handed over to the kernel. */
  #unsent: Delivery | null = null;

  constructor(call: HttpCall, request: GetRequest) {
    super(call);
    this.#queue = call.queue;
    this.#request = request;
  }

  protected join(): void {
    // It may have been answered already; the object is kept all the same, since leaving twice is harmless.
    this.#consumer = this.#queue.get(this.#request, this);
  }

  protected leave(): void {
    if (this.#consumer !== null) this.#queue.leave(this.#consumer);
  }

  protected undo(): void {
    const unsent = this.#unsent;
    this.#unsent = null;
    if (unsent !== null) this.#queue.returnUndelivered(unsent);
  }

  deliver(delivery: Delivery): void {
    this.#unsent = delivery;
    try {
      this.call.element(delivery, (error) => {
        if (!error) this.#unsent = null;
      });
    } catch (error) {
      this.undo();
      this.call.fail(error);
    }
  }
}

/** How the elements of a take of many are written. */
export interface ManyFormat {
  readonly isMultipart: boolean;
  /** Whether bodies of JSON types are values; for lines only. */
  readonly asJson: boolean;
  /** Whether each element says which queue it is from. */
  readonly namesSource: boolean;
}

/**
 * A get or reserve of many elements, from one queue or several. Its response is whole or nothing: if the connection ends before the
 * kernel has taken over all of it, all elements go back.
 */
export class TakeMany extends BlockedCall implements JointSink {
  readonly #request: JointRequest;
  readonly #format: ManyFormat;
  #leave: () => void = () => {};
  #unsent: readonly Portion[] = [];

  constructor(call: HttpCall, request: JointRequest, format: ManyFormat) {
    super(call);
    this.#request = request;
    this.#format = format;
  }

  protected join(): void {
    const { sources, min, order: _, ...rest } = this.#request;
    const [source] = sources;
    if (source === undefined || sources.length > 1 || min > 1) {
      const take = new JointTake(this.#request, this);
      this.#leave = () => take.leave();
      return;
    }
    const { queue, group, leaseMs } = source;
    const consumer = queue.get(
      { ...rest, group, leaseMs },
      {
        deliver: (first, more) => this.deliver([{ queue, deliveries: [first, ...more] }]),
        end: (reason) => this.end(reason),
      },
    );
    this.#leave = () => queue.leave(consumer);
  }

  protected leave(): void {
    this.#leave();
  }

  protected undo(): void {
    const unsent = this.#unsent;
    this.#unsent = [];
    for (const { queue, deliveries } of unsent) queue.returnAllUndelivered(deliveries);
  }

  deliver(portions: readonly Portion[]): void {
    this.#unsent = portions;
    if (this.call.span !== null) {
      for (const { deliveries } of portions)
        for (const delivery of deliveries) linkInsert(this.call, delivery);
    }
    const written = (error?: Error | null): void => {
      if (!error) this.#unsent = [];
    };
    this.#write(written).catch((error: unknown) => {
      this.undo();
      this.call.fail(error);
    });
  }

  #write(written: (error?: Error | null) => void): Promise<void> {
    const { isMultipart } = this.#format;
    if (!isMultipart) return this.call.pieces(NDJSON, this.#lines(), { written });
    const boundary = newBoundary();
    return this.call.pieces(multipartType(boundary), this.#parts(boundary), { written });
  }

  *#lines(): Iterable<string> {
    const { asJson, namesSource } = this.#format;
    let text = '';
    for (const { queue, deliveries } of this.#unsent) {
      const source = namesSource ? { ns: queue.key.ns, queue: queue.key.name } : null;
      for (const delivery of deliveries) {
        text += elementLine(delivery, asJson, source);
        if (text.length < PIECE_LENGTH) continue;
        yield text;
        text = '';
      }
    }
    if (text !== '') yield text;
  }

  *#parts(boundary: string): Iterable<Buffer> {
    let parts: Buffer[] = [];
    let length = 0;
    for (const { queue, deliveries } of this.#unsent) {
      const source = this.#format.namesSource ? sourceHeaders(queue) : [];
      for (const delivery of deliveries) {
        const part = elementPart(boundary, delivery, source);
        parts.push(part);
        length += part.length;
        if (length < PIECE_LENGTH) continue;
        yield Buffer.concat(parts, length);
        [parts, length] = [[], 0];
      }
    }
    yield Buffer.concat([...parts, multipartEnd(boundary)]);
  }
}

/** Names may have any character, and header values may not: they are percent-encoded as in paths. */
function sourceHeaders({ key: { ns, name } }: Queue): readonly string[] {
  return ['x-ks-ns', encodeURIComponent(ns), 'x-ks-queue', encodeURIComponent(name)];
}

function halfClosed(): QuaysideError {
  return new QuaysideError(
    'malformed-request',
    'The client closed its sending side before an element was there. Keep it open until the response has come: nothing tells such a client from one that left.',
  );
}
