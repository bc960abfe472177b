import type { Consumer, ConsumerOrigin, Sink } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';

/** Where a consumer that goes on takes from, and how. */
export interface FeedOptions {
  readonly namespace: Namespace;
  readonly queue: Queue;
  /** As given; null: the namespace's default. */
  readonly group: GroupName | null;
  /** Reserve for this long, ms; null: pop. */
  readonly leaseMs: number | null;
}

/** The consumer that a feed serves: what it may be given now, and what happens with it. */
export interface FeedHost {
  readonly clock: Clock;
  /** The user's name. */
  readonly owner: string;
  readonly from: ConsumerOrigin;
  /** How many elements the client may hold, and how many of these places are free. */
  readonly window: number;
  readonly free: number;
  /** Fewer free places than this are not worth a take at once. */
  readonly worthwhile: number;
  /** Bytes that may be added to the way out now. */
  readonly room: number;
  /** Passes an element on. Answers how many bytes it was, about. */
  handOut(delivery: Delivery): number;
  /** The queue ended it: cancelled, or the node stops. */
  ended(reason: unknown): void;
}

/** Elements of one take. */
export const LARGEST_TAKE = 256;
/** What an element is taken to be long before the first has come. */
const FIRST_ESTIMATE_BYTES = 64 * 1024;
/** Elements of one take may have this many times the bytes that there was room for: few takes are all alike. */
const TOLERANCE = 2;
/**
 * A window from this size on is filled by halves, so that the engine takes one while the client works on the
 * other: 20 µs an element instead of 26, measured with a window of 256 and a client that acknowledges at once.
 */
const HALVED_FROM = 64;
/** A few free places are left to gather for this long, and then filled however few they are. */
const TOP_UP_MS = 5;
/** When too many consumers wait, one that had its place tries to come back after this long. */
const RETRY_MS = 1000;

/**
 * A consumer that goes on: waits in the queue's line while its host has room, and hands on what it gets.
 *
 * States, and who moves it: `active` from the start; `over` by `stop`. While `active` it is in the line
 * (`#consumer` is set), or its host's window or way out is full, or free places gather, or it waits for a place
 * among too many.
 */
export class Feed implements Sink {
  readonly #options: FeedOptions;
  readonly #host: FeedHost;
  readonly #tid: string;
  #isOver = false;
  #consumer: Consumer | null = null;
  #cancelRetry: CancelTimer | null = null;
  #cancelTopUp: CancelTimer | null = null;
  /** While the host is to be told when nothing is left to hand out. */
  #whenDrained: (() => void) | null = null;
  #estimateBytes = FIRST_ESTIMATE_BYTES;
  /** What is handed out of one take, about. The rest is much larger than was estimated, and goes back. */
  #mostBytes = 0;

  constructor(options: FeedOptions, host: FeedHost) {
    this.#options = options;
    this.#host = host;
    this.#tid = options.namespace.makeTid();
  }

  /** How many elements it waits for in the queue's line. */
  get asked(): number {
    return this.#consumer?.count ?? 0;
  }

  /** Joins the queue's line. @throws what `queue.get` does */
  begin(): void {
    const count = this.#wanted();
    if (count > 0) this.#join(count);
  }

  /** Takes more, if there is room for it; where that is little, a moment later. */
  fill(): void {
    const { free, worthwhile, clock } = this.#host;
    if (free <= 0 && this.#consumer === null) this.#drained();
    else if (free >= worthwhile) this.#take();
    else if (this.#consumer === null && !this.#isOver) {
      this.#cancelTopUp ??= clock.after(TOP_UP_MS, () => {
        this.#cancelTopUp = null;
        this.#take();
      });
    }
  }

  #take(): void {
    if (this.#isOver || this.#consumer !== null || this.#cancelRetry !== null) return;
    const count = this.#wanted();
    if (count === 0) return;
    try {
      this.#join(count);
    } catch (error) {
      if (!(error instanceof QuaysideError) || error.code !== 'too-many-consumers') {
        this.#host.ended(error);
        return;
      }
      this.#cancelRetry = this.#host.clock.after(RETRY_MS, () => {
        this.#cancelRetry = null;
        this.fill();
      });
    }
  }

  deliver(first: Delivery, more: readonly Delivery[]): void {
    this.#consumer = null;
    let bytes = this.#host.handOut(first);
    let handedOut = 0;
    for (const delivery of more) {
      if (bytes >= this.#mostBytes) break;
      bytes += this.#host.handOut(delivery);
      handedOut += 1;
    }
    if (handedOut < more.length) bytes += this.#returnUndelivered(more.slice(handedOut));
    this.#estimateBytes = Math.max(bytes / (1 + more.length), this.#estimateBytes / 4);
    this.fill();
  }

  /** They go back to their places. Answers how many bytes they are, about. */
  #returnUndelivered(deliveries: readonly Delivery[]): number {
    this.#options.queue.returnAllUndelivered(deliveries);
    let bytes = 0;
    for (const { body } of deliveries) bytes += body.byteLength;
    return bytes;
  }

  end(reason: QuaysideError): void {
    this.#consumer = null;
    if (reason.code === 'pop-timeout') this.#drained();
    // What it may have taken was not seen: reserved, it comes back; popped, it is gone. Those to come are neither.
    else if (reason.code === 'outcome-unknown') this.fill();
    else this.#host.ended(reason);
  }

  /**
   * Hands out what there is, and calls `then` when nothing more is, or the host has no place left. It does not
   * wait in line meanwhile.
   */
  drain(then: () => void): void {
    this.rest();
    this.#whenDrained = then;
    this.fill();
  }

  /** Waits in line again, if it had been told to drain. */
  endDrain(): void {
    if (this.#whenDrained === null) return;
    this.#whenDrained = null;
    this.rest();
  }

  /** Leaves the line, to come back when it is filled again. */
  rest(): void {
    if (this.#consumer !== null) this.#options.queue.leave(this.#consumer);
    this.#consumer = null;
  }

  /** Leaves the line for good. Harmless when repeated. */
  stop(): void {
    this.#isOver = true;
    this.rest();
    this.#cancelRetry?.();
    this.#cancelTopUp?.();
  }

  /** How many elements to ask for: none while no place is free, or the way out is full. */
  #wanted(): number {
    const { window, free, room } = this.#host;
    if (free <= 0 || room <= 0) return 0;
    const most = window < HALVED_FROM ? window : Math.min(LARGEST_TAKE, Math.ceil(window / 2));
    return Math.min(most, free, Math.max(1, Math.floor(room / this.#estimateBytes)));
  }

  #join(count: number): void {
    const { queue, group, leaseMs } = this.#options;
    const { owner, from, room } = this.#host;
    this.#mostBytes = room * TOLERANCE;
    const timeoutMs = this.#whenDrained === null ? null : 0;
    const consumer = queue.get({ group, leaseMs, count, timeoutMs, tid: this.#tid, owner, from }, this);
    // One that does not wait may have heard already: on a paused queue there is nothing to ask the engine.
    if (consumer.state !== 'gone') this.#consumer = consumer;
  }

  #drained(): void {
    const then = this.#whenDrained;
    this.#whenDrained = null;
    then?.();
  }
}
