import type { QueueRecord } from '../model/records.ts';
import { type BrowsedElement, type BrowseOptions, browsePages } from './browse.ts';
import type { DataCodec } from './codec.ts';
import { decodedBy, type Element, ReceivedBase } from './element.ts';
import { checkedMs, checkNoOthers, jsonIn, roundedMs, TimeoutError } from './errors.ts';
import { insertLine, type TakenLine, takenLines } from './lines.ts';
import type { CallOptions, InsertOptions, ReserveOptions, TakeOptions } from './options.ts';
import { HeldReservation, type LeaseContext, type Reservation } from './reservation.ts';
import { monotonic, wallTime } from './time.ts';
import type { Tracing } from './tracing.ts';
import { type Inserted, type InsertedMany, kindOfKey, type QueueWire } from './wire.ts';

/** What a `Queue` object shares with its client. */
export interface QueueContext {
  readonly name: string;
  readonly wire: QueueWire;
  readonly codec: DataCodec;
  readonly tracing: Tracing;
}

/** The longest wait of one request: proxies close connections that are silent for a minute. */
const MAX_POLL_MS = 25_000;

/** Size and counters of a queue. */
export interface QueueStatus {
  /** `<engine>:<variant>`. */
  readonly type: string;
  readonly isPaused: boolean;
  readonly total: number;
  /** Elements that can be taken now. */
  readonly ready: number;
  readonly scheduled: number;
  readonly reserved: number;
  /** The earliest maturity of the waiting elements. */
  readonly nextMature: Date | null;
  /** For how long the oldest ready element has been ready. */
  readonly oldestReadyMs: number | null;
  /** Counters since the queue was created: `put`, `get`, `reserve`, `commit`, `rollback`, `deadletter`. */
  readonly stats: Readonly<Record<string, number>>;
}

interface TakeRequest extends ReserveOptions {
  readonly count: number;
  readonly isReserve: boolean;
}

/** One queue. Concurrent calls share requests. */
export class Queue<T, In = T> {
  declare readonly name: string;
  readonly #context: QueueContext;

  constructor(context: QueueContext) {
    this.name = context.name;
    this.#context = context;
  }

  /** Stores an element. Resolves when it is as durable as the server's engine guarantees. */
  async insert(data: In, options: InsertOptions = {}): Promise<Inserted> {
    const { codec, wire, tracing } = this.#context;
    wire.transport.checkOpen();
    return wire.transport.during(() =>
      tracing.insert(this.name, options, async (traced) =>
        wire.insert(insertLine(await codec.encode(data), traced), traced),
      ),
    );
  }

  /**
   * Stores up to 10,000 elements with one request: all of them or none. With an idempotency key, the elements have the
   * keys `key-0`, `key-1`, ….
   */
  async insertMany(data: readonly In[], options: InsertOptions = {}): Promise<InsertedMany> {
    const { codec, wire } = this.#context;
    wire.transport.checkOpen();
    if (data.length === 0) return { ids: [], repeated: [] };
    return wire.transport.during(async () => {
      const bodies = await Promise.all(data.map((one) => codec.encode(one)));
      const lines = bodies.map((body, at) => insertLine(body, options, `-${at}`));
      return wire.insertAll(lines, kindOfKey(options), options);
    });
  }

  /**
   * Takes the next element and removes it, or returns undefined if none arrives within `waitMs`. At most once: an
   * element is lost if its response is, so a pop with an unknown outcome is not repeated.
   */
  async pop(options: TakeOptions = {}): Promise<Element<T> | undefined> {
    const {
      lines: [line],
    } = await takeLines(this.#context, { ...options, count: 1, isReserve: false });
    return line && new ReceivedBase<T>(line, await decodedBy(this.#context.codec, line));
  }

  /** Takes the next element under a lease, or returns undefined if none arrives within `waitMs`. */
  async reserve(options: ReserveOptions = {}): Promise<Reservation<T> | undefined> {
    const [reservation] = await this.reserveMany(1, options);
    return reservation;
  }

  /** Takes up to `count` elements (1 to 1,000) under leases: those that are ready when the first one is. */
  async reserveMany(count: number, options: ReserveOptions = {}): Promise<Reservation<T>[]> {
    return reserveHeld(this.#context, count, options);
  }

  /**
   * Reserves one element after the other until none has arrived for `waitMs`; without it, until `signal` is aborted. If
   * the loop's body has not settled an element, it is rolled back when the loop continues or ends.
   */
  async *elements(options: ReserveOptions = {}): AsyncGenerator<Reservation<T>, void, void> {
    const { waitMs = Number.POSITIVE_INFINITY } = options;
    for (;;) {
      const reservation = await this.reserve({ ...options, waitMs });
      if (reservation) {
        try {
          yield reservation;
        } finally {
          await reservation[Symbol.asyncDispose]();
        }
      } else if (waitMs < Number.POSITIVE_INFINITY) return; // Else somebody cancelled the wait.
    }
  }

  /** Returns elements without taking them, in delivery order within each state. */
  browse(options: BrowseOptions = {}): AsyncIterable<BrowsedElement<T>> {
    const { wire, codec } = this.#context;
    return browsePages<T>(wire, codec, options);
  }

  /** Returns the queue's size and counters. They are zero for a queue that does not exist. */
  async status(options?: CallOptions): Promise<QueueStatus> {
    const { text } = await this.#context.wire.get('/status', options);
    return readStatus(text);
  }

  /** Makes all consumers of the queue wait until `resume`, on all nodes. Inserts and settlements continue. */
  async pause(options?: CallOptions): Promise<void> {
    await this.#context.wire.post('/pause', {}, true, options);
  }

  /** Ends a `pause`. */
  async resume(options?: CallOptions): Promise<void> {
    await this.#context.wire.post('/resume', {}, true, options);
  }

  /** For the worker, which needs more than the public methods. */
  static contextOf(queue: Queue<unknown, never>): QueueContext {
    return queue.#context;
  }
}

function readStatus(text: string): QueueStatus {
  const record = jsonIn<QueueRecord>(text, 'stats');
  const { type, next_mature_t: next, oldestReadyAge: age } = record;
  const counters = Object.entries(record.stats).filter(([, value]) => typeof value === 'number');
  return {
    type,
    isPaused: record.paused,
    total: record.totalSize,
    ready: record.size,
    scheduled: record.schedSize,
    reserved: record.resvSize,
    nextMature: next ? new Date(next) : null,
    oldestReadyMs: age === null ? null : Math.round(age * 1000),
    stats: Object.fromEntries(counters) as Record<string, number>,
  };
}

interface TakenLines extends Pick<LeaseContext, 'sentAt' | 'receivedAt'> {
  readonly lines: readonly TakenLine[];
}

/** Takes up to `count` elements under leases. */
export async function reserveHeld<T>(
  context: QueueContext,
  count: number,
  options: ReserveOptions,
): Promise<HeldReservation<T>[]> {
  const { lines, ...times } = await takeLines(context, { ...options, count, isReserve: true });
  const { wire, codec } = context;
  const lease = { wire, group: options.group, leaseMs: options.leaseMs, ...times };
  return Promise.all(
    lines.map(async (line) => new HeldReservation<T>(line, await decodedBy(codec, line), lease)),
  );
}

async function takeLines(context: QueueContext, request: TakeRequest): Promise<TakenLines> {
  const {
    count,
    isReserve,
    waitMs = 0,
    leaseMs,
    group,
    consumer,
    signal,
    timeoutMs = Number.POSITIVE_INFINITY,
    ...others
  } = request;
  checkNoOthers(others);
  // JSON leaves out what is undefined.
  const body = {
    count,
    reserve: isReserve,
    lease: roundedMs('leaseMs', leaseMs, 1),
    group,
    tid: consumer,
  };
  const startedAt = monotonic();
  const endsAt =
    startedAt + (waitMs === Number.POSITIVE_INFINITY ? waitMs : checkedMs('waitMs', Math.max(0, waitMs)));
  for (;;) {
    context.wire.transport.checkOpen();
    const pollMs = Math.ceil(Math.min(MAX_POLL_MS, Math.max(0, endsAt - monotonic())));
    const leftMs = startedAt + timeoutMs - monotonic();
    // Not `<= 0`: with NaN, the call would give up after a millisecond, and what it reserved would stay reserved.
    if (!(leftMs > 0)) throw new TimeoutError(`No response within ${timeoutMs} ms.`);
    // A reserve may be repeated: an element whose response was lost is delivered again after its lease. A pop may not.
    const response = await context.wire.take(body, pollMs, isReserve, { signal, timeoutMs: leftMs });
    const { code, headers, text, receivedAt } = response;
    const sentAt = Date.parse(headers.get('x-ks-time') ?? '') || wallTime();
    if (code === null) return { lines: takenLines(text), sentAt, receivedAt };
    if (code === 'pop-cancelled' || monotonic() >= endsAt) return { lines: [], sentAt, receivedAt };
  }
}
