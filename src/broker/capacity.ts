import type { RequestKey, Storage, Usage } from '../engine/storage.ts';
import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { quote } from '../util/quote.ts';

/** What a namespace, or a queue, may hold; null: no bound. */
interface CapacityLimits {
  readonly maxElements: number | null;
  readonly maxBytes: number | null;
}

interface Amount {
  readonly elements: number;
  readonly bytes: number;
}

/** The size of an element of one group without its content, and of each further group, about. */
const ELEMENT_BYTES = 100;
const DELIVERY_BYTES = 60;

const NOTHING: Amount = { elements: 0, bytes: 0 };
/** While inserts come, usage is read at most this often. */
const REFRESH_MS = 1_000;
/** And that of a queue that seems full, for which one read is cheap: a small one may be emptied many times a second. */
const FULL_REFRESH_MS = 20;
/** And for no larger part of the time than one in so many: an engine with many queues takes a while. */
const REST_FACTOR = 20;

/**
 * Rejects inserts into a namespace, or a queue, that holds as much as it may. The engine's count is read again while inserts come;
 * between two reads, what this node stores is added to it, so an insert costs two comparisons and no round trip.
 *
 * What is added is never too little: inserts whose end is not known at a reading are added to it, although the engine
 * may have counted them. What was consumed, and what other nodes stored, shows at the next reading. So one node alone
 * never exceeds `maxElements`, and several exceed it by at most what the others store between two reads. Bytes are an
 * estimate between two reads, and those of other namespaces of the same store show at the next one.
 */
export class Capacity {
  readonly #limits: CapacityLimits;
  readonly #source: CapacitySource;
  readonly #clock: Pick<Clock, 'monotonic'>;
  #starting: Promise<void> | null = null;
  #isStarted = false;
  #held = NOTHING;
  /** Of inserts that the engine has not answered yet. */
  #pending = NOTHING;
  /** Admitted since the reading in progress began. */
  #since = NOTHING;
  #reading: Promise<void> | null = null;
  #readFrom = Number.NEGATIVE_INFINITY;
  /** The same if it seems full. */
  #readAgainFrom = Number.NEGATIVE_INFINITY;

  constructor(limits: CapacityLimits, source: CapacitySource, clock: Pick<Clock, 'monotonic'>) {
    this.#limits = limits;
    this.#source = source;
    this.#clock = clock;
  }

  /** Reads what is held, before the first insert. */
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
   * Calls `store` if there is capacity for the elements that it adds: at once, or if that is to be read first, afterwards.
   * @param leaving how many leave in the same step; what does not grow may be full
   * @param request the key of all elements, which is stored once
   * @throws QuaysideError `namespace-full` or `queue-full`
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
   * @throws QuaysideError `namespace-full` or `queue-full`
   */
  admitAmount<T>(amount: Amount, store: () => Promise<T>): Promise<T> {
    if (!this.#isStarted) return this.start().then(() => this.#admit(amount, store));
    const isFull = !this.#fits(amount);
    const readFrom = isFull ? this.#readAgainFrom : this.#readFrom;
    if (this.#clock.monotonic() >= readFrom && this.#reading === null) this.#read().catch(() => {});
    if (this.#source.waitsForRead && this.#reading !== null) {
      const admit = (): Promise<T> => this.#admit(amount, store);
      return this.#reading.then(admit, admit);
    }
    return this.#admit(amount, store);
  }

  #admit<T>(amount: Amount, store: () => Promise<T>): Promise<T> {
    this.#check(amount);
    const stored = store();
    this.#held = sum(this.#held, amount);
    this.#pending = sum(this.#pending, amount);
    this.#since = sum(this.#since, amount);
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
    const fits = maxElements === null || this.#held.elements + elements <= maxElements;
    return fits && (maxBytes === null || this.#held.bytes + bytes <= maxBytes);
  }

  #check(amount: Amount): void {
    if (this.#fits(amount)) return;
    const { maxElements, maxBytes } = this.#limits;
    const isByElements = maxElements !== null && this.#held.elements + amount.elements > maxElements;
    throw isByElements
      ? this.#source.full(`${maxElements} elements`, 'maxElements')
      : this.#source.full(`${maxBytes} bytes`, 'maxBytes');
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
    this.#since = NOTHING;
    try {
      const { elements, bytes } = await this.#source.read();
      this.#held = sum({ elements, bytes: bytes ?? 0 }, sum(pending, this.#since));
    } finally {
      const now = this.#clock.monotonic();
      const restMs = REST_FACTOR * (now - startedAt);
      this.#readFrom = now + Math.max(REFRESH_MS, restMs);
      this.#readAgainFrom = now + Math.max(this.#source.fullRefreshMs, restMs);
    }
  }
}

/** What a bound is about. */
interface CapacitySource {
  /** What it holds. */
  read(): Promise<Usage>;
  /** How often that is read at most if it seems full. */
  readonly fullRefreshMs: number;
  /** Whether inserts wait for a read in progress; else they go by the one before. */
  readonly waitsForRead: boolean;
  /** @param limit in words */
  full(limit: string, option: string): QuaysideError;
}

/** @param storage the namespace's, which changes if it moves to another engine */
export function namespaceCapacity(
  setup: CapacityLimits & { readonly policy: { readonly name: string } },
  storage: () => Storage,
  clock: Pick<Clock, 'monotonic'>,
): Capacity {
  const { policy, maxBytes } = setup;
  const source: CapacitySource = {
    read: () => storage().usage(policy.name, maxBytes !== null),
    fullRefreshMs: REFRESH_MS,
    waitsForRead: false,
    full: (limit, option) =>
      new QuaysideError(
        'namespace-full',
        `Namespace ${quote(policy.name)} holds as much as it may (${limit}). Consume elements, or raise ${option}.`,
      ),
  };
  return new Capacity(setup, source, clock);
}

/** In a stream an element counts once for each of its groups, as in a namespace. */
export function queueCapacity(
  key: QueueKey,
  maxElements: number,
  storage: () => Storage,
  clock: Pick<Clock, 'monotonic'>,
): Capacity {
  const source: CapacitySource = {
    read: async () => {
      const counts = await storage().counts(key);
      const groups = counts.groups.size === 0 ? [counts] : [...counts.groups.values()];
      const elements = groups.reduce(
        (sum, { ready, scheduled, reserved }) => sum + ready + scheduled + reserved,
        0,
      );
      return { elements, bytes: null };
    },
    fullRefreshMs: FULL_REFRESH_MS,
    waitsForRead: true,
    full: (limit, option) =>
      new QuaysideError(
        'queue-full',
        `Queue ${quote(key.name)} holds as much as it may (${limit}). Consume elements, or raise ${option} of its options.`,
      ),
  };
  return new Capacity({ maxElements, maxBytes: null }, source, clock);
}

/** What some elements add, as `Storage.usage` counts it: in a stream an element counts once for each group. */
function amountOf(elements: readonly NewElement[], request: RequestKey | null): Amount {
  let deliveries = 0;
  let bytes = request === null ? 0 : keyBytes(request.key);
  for (const { body, headers, groups, contentType, dedupKey } of elements) {
    const count = groups.length === 1 ? 1 : new Set(groups).size;
    deliveries += count;
    bytes += ELEMENT_BYTES + (count - 1) * DELIVERY_BYTES + body.byteLength + (contentType?.length ?? 0);
    for (const text of headers) bytes += text.length;
    if (dedupKey !== null) bytes += keyBytes(dedupKey);
  }
  return { elements: deliveries, bytes };
}

/** A key stands in a table and in its index. */
function keyBytes(key: string): number {
  return 2 * key.length + DELIVERY_BYTES;
}

function sum(a: Amount, b: Amount): Amount {
  return { elements: a.elements + b.elements, bytes: a.bytes + b.bytes };
}
