import type { RequestKey, Usage } from '../engine/storage.ts';
import { contentBytes, type NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { quote } from '../util/quote.ts';
import type { Namespace } from './namespace.ts';

/** Bounds of a namespace or a queue; null: unlimited. */
interface CapacityLimits {
  readonly maxElements: number | null;
  readonly maxBytes: number | null;
}

interface Amount {
  readonly elements: number;
  readonly bytes: number;
}

/** The approximate size of an element without its content, and of each group after the first. */
const ELEMENT_BYTES = 100;
const DELIVERY_BYTES = 60;

const NOTHING: Amount = { elements: 0, bytes: 0 };
/** The minimum time between two reads of usage. */
const REFRESH_MS = 1_000;
/** The same for a queue that seems full: it may be emptied many times a second, and a read of one queue is cheap. */
const FULL_REFRESH_MS = 20;
/** Reads use at most this fraction (1/20) of the time: an engine with many queues needs long for one. */
const REST_FACTOR = 20;
/**
 * An insert into what seems full waits for a read in progress, since elements may have been consumed in the meantime,
 * if the last read took no longer than this.
 */
const SHORT_READ_MS = 250;
/**
 * A read of a namespace may visit each of its queues. With more queues than this, outdated usage is read again
 * immediately only if the last read took no longer than the second bound.
 */
const FEW_QUEUES = 100;
const CHEAP_READ_MS = 20;

/**
 * Rejects inserts into a full namespace or queue. While there are inserts, usage is read again and again. Between two
 * reads, the inserts of this node are added to it, so that an insert costs two comparisons and no round trip.
 *
 * The sum is never too low for this node: inserts without an outcome when a read ends are added, although the engine
 * may have counted them. Consumed elements, and those stored by other nodes, are included at the next read. So a single
 * node never exceeds `maxElements`, and several exceed it by at most what the others store between two reads. Bytes are
 * an estimate, and those that other namespaces add to the same store are included at the next read.
 *
 * An insert that does not fit is rejected only by usage that was read after this node's own last removal: otherwise it
 * would be rejected right after its client consumed an element. Only removals cause these additional reads, and waiting
 * inserts share them, so that rejected inserts do not load the engine.
 */
export class Capacity {
  readonly #limits: CapacityLimits;
  readonly #source: CapacitySource;
  readonly #clock: Pick<Clock, 'monotonic'>;
  #starting: Promise<void> | null = null;
  #isStarted = false;
  #usage = NOTHING;
  /** Inserts that are in flight. */
  #pending = NOTHING;
  /** Inserts admitted since the read in progress began. */
  #admitted = NOTHING;
  #reading: Promise<void> | null = null;
  /** How often this node removed elements, and how often it had when the last successful read began. */
  #removals = 0;
  #removalsRead = 0;
  /** The duration of the last successful read. */
  #readMs = 0;
  #readFrom = Number.NEGATIVE_INFINITY;
  /** The earliest time of the next read if it seems full. */
  #readAgainFrom = Number.NEGATIVE_INFINITY;

  constructor(limits: CapacityLimits, source: CapacitySource, clock: Pick<Clock, 'monotonic'>) {
    this.#limits = limits;
    this.#source = source;
    this.#clock = clock;
  }

  /** This node removed elements; to be called before its client learns of it. */
  noteRemoved(): void {
    this.#removals += 1;
  }

  /** Reads usage before the first insert. */
  start(): Promise<void> {
    this.#starting ??= this.#read().then(
      () => {
        this.#isStarted = true;
      },
      (error: unknown) => {
        this.#starting = null;
        throw error;
      },
    );
    return this.#starting;
  }

  /**
   * Calls `store` if there is capacity for its elements: synchronously, or after one or two reads of usage.
   * @param leaving how many elements the same step removes; a step that adds no more than that is always admitted
   * @param request the key of the whole insert, which is stored once
   * @throws QuaysideError `namespace-full` or `queue-full`; `storage-unavailable` if outdated usage cannot be read
   */
  admit<T>(
    elements: readonly NewElement[],
    store: () => Promise<T>,
    { leaving = 0, request = null }: { leaving?: number; request?: RequestKey | null } = {},
  ): Promise<T> {
    const whole = amountOf(elements, request);
    if (whole.elements <= leaving) return store();
    return this.admitAmount({ elements: whole.elements - leaving, bytes: whole.bytes }, store);
  }

  /**
   * The same for elements that the engine copies.
   * @param amount of deliveries, and the bytes of their content
   * @throws as `admit`
   */
  admitAmount<T>(amount: Amount, store: () => Promise<T>): Promise<T> {
    const reading = this.#readFor(amount);
    return reading === null ? this.#admit(amount, store) : reading.then(() => this.#admit(amount, store));
  }

  /** Returns the reads of usage that must end before it decides about this amount; null: none. */
  #readFor(amount: Amount): Promise<unknown> | null {
    if (!this.#isStarted) return this.start();
    const isFull = !this.#fits(amount);
    const readFrom = isFull ? this.#readAgainFrom : this.#readFrom;
    if (this.#clock.monotonic() >= readFrom && this.#reading === null) this.#read().catch(() => {});
    const waits =
      this.#source.waitsForRead || (isFull && (this.#readMs <= SHORT_READ_MS || this.#mustReadAgain));
    if (!waits || this.#reading === null) return isFull ? this.#readIfOutdated() : null;
    // That read may have begun before elements were removed.
    const next = (): Promise<void> | null =>
      this.#fits(amount) ? null : (this.#reading ?? this.#readIfOutdated());
    return this.#reading.then(next, next);
  }

  #readIfOutdated(): Promise<void> | null {
    return this.#mustReadAgain && this.#reading === null ? this.#read() : null;
  }

  /** Whether elements were removed since the last read began, and a read is cheap enough for each removal. */
  get #mustReadAgain(): boolean {
    return this.#removals !== this.#removalsRead && this.#source.isCheap(this.#readMs);
  }

  #admit<T>(amount: Amount, store: () => Promise<T>): Promise<T> {
    this.#check(amount);
    const stored = store();
    this.#usage = sum(this.#usage, amount);
    this.#pending = sum(this.#pending, amount);
    this.#admitted = sum(this.#admitted, amount);
    const settled = (): void => {
      this.#pending = {
        elements: this.#pending.elements - amount.elements,
        bytes: this.#pending.bytes - amount.bytes,
      };
    };
    stored.then(settled, settled);
    return stored;
  }

  #fits({ elements, bytes }: Amount): boolean {
    const { maxElements, maxBytes } = this.#limits;
    const fits = maxElements === null || this.#usage.elements + elements <= maxElements;
    return fits && (maxBytes === null || this.#usage.bytes + bytes <= maxBytes);
  }

  #check(amount: Amount): void {
    if (this.#fits(amount)) return;
    const { maxElements, maxBytes } = this.#limits;
    const isByElements = maxElements !== null && this.#usage.elements + amount.elements > maxElements;
    throw isByElements
      ? this.#source.rejection(`${maxElements} elements`, 'maxElements')
      : this.#source.rejection(`${maxBytes} bytes`, 'maxBytes');
  }

  #read(): Promise<void> {
    const reading = this.#readNow().finally(() => {
      this.#reading = null;
    });
    this.#reading = reading;
    return reading;
  }

  async #readNow(): Promise<void> {
    const startedAt = this.#clock.monotonic();
    const pending = this.#pending;
    const removals = this.#removals;
    this.#admitted = NOTHING;
    try {
      const { elements, bytes } = await this.#source.read();
      this.#usage = sum({ elements, bytes: bytes ?? 0 }, sum(pending, this.#admitted));
      this.#readMs = this.#clock.monotonic() - startedAt;
      this.#removalsRead = removals;
    } finally {
      const now = this.#clock.monotonic();
      // By the last successful read: after a failure, the engine was unavailable rather than slow.
      const restMs = REST_FACTOR * this.#readMs;
      this.#readFrom = now + Math.max(REFRESH_MS, restMs);
      this.#readAgainFrom = now + Math.max(this.#source.fullRefreshMs, restMs);
    }
  }
}

/** What a `Capacity` bounds. */
interface CapacitySource {
  /** Reads usage from the engine. */
  read(): Promise<Usage>;
  /** The minimum time between two reads if it seems full, ms. */
  readonly fullRefreshMs: number;
  /** Whether inserts wait for a read in progress. Otherwise they use the one before, unless it seems full. */
  readonly waitsForRead: boolean;
  /** Whether a read costs little. Its duration does not always show that: it is long, too, on a busy machine. */
  isCheap(readMs: number): boolean;
  /** The error of a rejected insert. @param limit in words */
  rejection(limit: string, option: string): QuaysideError;
}

// Both read `storage` of the namespace at each call: it changes if a migration starts.

export function namespaceCapacity(namespace: Namespace): Capacity {
  const { name, setup, clock } = namespace;
  const { maxBytes } = setup;
  const source: CapacitySource = {
    read: () => namespace.storage.usage(name, maxBytes !== null),
    fullRefreshMs: REFRESH_MS,
    waitsForRead: false,
    isCheap: (readMs) => readMs <= CHEAP_READ_MS || namespace.knownNames.size <= FEW_QUEUES,
    rejection: (limit, option) =>
      new QuaysideError(
        'namespace-full',
        `Namespace ${quote(name)} is full (${limit}). Consume elements, or raise ${option}.`,
      ),
  };
  return new Capacity(setup, source, clock);
}

/** In a stream, an element counts once per group, as in a namespace. */
export function queueCapacity(namespace: Namespace, key: QueueKey, maxElements: number): Capacity {
  const source: CapacitySource = {
    read: async () => {
      const counts = await namespace.storage.counts(key);
      const groups = counts.groups.size === 0 ? [counts] : [...counts.groups.values()];
      const elements = groups.reduce(
        (sum, { ready, scheduled, reserved }) => sum + ready + scheduled + reserved,
        0,
      );
      return { elements, bytes: null };
    },
    fullRefreshMs: FULL_REFRESH_MS,
    waitsForRead: true,
    isCheap: () => true,
    rejection: (limit, option) =>
      new QuaysideError(
        'queue-full',
        `Queue ${quote(key.name)} is full (${limit}). Consume elements, or raise ${option} of its options.`,
      ),
  };
  return new Capacity({ maxElements, maxBytes: null }, source, namespace.clock);
}

/** The usage of new elements, as `Storage.usage` counts it: in a stream, an element counts once per group. */
function amountOf(elements: readonly NewElement[], request: RequestKey | null): Amount {
  let deliveries = 0;
  let bytes = request === null ? 0 : keyBytes(request.key);
  for (const element of elements) {
    const { groups, contentType, dedupKey } = element;
    const count = groups.length === 1 ? 1 : new Set(groups).size;
    deliveries += count;
    bytes += ELEMENT_BYTES + (count - 1) * DELIVERY_BYTES + (contentType?.length ?? 0);
    bytes += contentBytes(element);
    if (dedupKey !== null) bytes += keyBytes(dedupKey);
  }
  return { elements: deliveries, bytes };
}

/** A key is stored in a table and in an index. */
function keyBytes(key: string): number {
  return 2 * key.length + DELIVERY_BYTES;
}

function sum(a: Amount, b: Amount): Amount {
  return { elements: a.elements + b.elements, bytes: a.bytes + b.bytes };
}

/** Whether a call stored nothing because the queue, or its namespace, is full. */
export function isFullError(error: unknown): boolean {
  return error instanceof QuaysideError && (error.code === 'queue-full' || error.code === 'namespace-full');
}
