import type { Storage } from '../engine/storage.ts';
import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { quote } from '../util/quote.ts';

/** What a namespace may hold; null: no bound. */
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
/** And for no larger part of the time than one in so many: an engine with many queues takes a while. */
const REST_FACTOR = 20;

/**
 * Rejects inserts into a namespace that holds as much as it may. The engine's count is read again while inserts come;
 * between two reads, what this node stores is added to it, so an insert costs two comparisons and no round trip.
 *
 * What is added is never too little: inserts whose end is not known at a reading are added to it, although the engine
 * may have counted them. What was consumed, and what other nodes stored, shows at the next reading. So one node alone
 * never exceeds `maxElements`, and several exceed it by at most what the others store between two reads. Bytes are an
 * estimate between two reads, and those of other namespaces of the same store show at the next one.
 */
export class Capacity {
  readonly #limits: CapacityLimits;
  readonly #ns: string;
  readonly #storage: Storage;
  readonly #clock: Pick<Clock, 'monotonic'>;
  #held = NOTHING;
  /** Of inserts that the engine has not answered yet. */
  #pending = NOTHING;
  /** Admitted since the reading in progress began. */
  #since = NOTHING;
  #isReading = false;
  #readFrom = Number.NEGATIVE_INFINITY;

  constructor(limits: CapacityLimits, ns: string, storage: Storage, clock: Pick<Clock, 'monotonic'>) {
    this.#limits = limits;
    this.#ns = ns;
    this.#storage = storage;
    this.#clock = clock;
  }

  /** Reads what the namespace holds, before the first insert. */
  start(): Promise<void> {
    return this.#read();
  }

  /**
   * Calls `store` if there is capacity for the elements that it adds.
   * @param leaving how many leave in the same step; a namespace that does not grow may be full
   * @throws QuaysideError `namespace-full`
   */
  admit<T>(elements: readonly NewElement[], store: () => Promise<T>, leaving = 0): Promise<T> {
    const whole = amountOf(elements);
    if (whole.elements <= leaving) return store();
    return this.admitAmount({ elements: whole.elements - leaving, bytes: whole.bytes }, store);
  }

  /**
   * The same for elements that the engine copies.
   * @param amount of deliveries, and the bytes of their content
   * @throws QuaysideError `namespace-full`
   */
  admitAmount<T>(amount: Amount, store: () => Promise<T>): Promise<T> {
    if (this.#clock.monotonic() >= this.#readFrom && !this.#isReading) this.#read().catch(() => {});
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

  #check({ elements, bytes }: Amount): void {
    const { maxElements, maxBytes } = this.#limits;
    if (maxElements !== null && this.#held.elements + elements > maxElements) {
      throw this.#full(`${maxElements} elements`, 'maxElements');
    }
    if (maxBytes !== null && this.#held.bytes + bytes > maxBytes)
      throw this.#full(`${maxBytes} bytes`, 'maxBytes');
  }

  async #read(): Promise<void> {
    const startedAt = this.#clock.monotonic();
    const pending = this.#pending;
    this.#isReading = true;
    this.#since = NOTHING;
    try {
      const { elements, bytes } = await this.#storage.usage(this.#ns, this.#limits.maxBytes !== null);
      this.#held = sum({ elements, bytes: bytes ?? 0 }, sum(pending, this.#since));
    } finally {
      const now = this.#clock.monotonic();
      this.#readFrom = now + Math.max(REFRESH_MS, REST_FACTOR * (now - startedAt));
      this.#isReading = false;
    }
  }

  #full(limit: string, option: string): QuaysideError {
    return new QuaysideError(
      'namespace-full',
      `Namespace ${quote(this.#ns)} holds as much as it may (${limit}). Consume elements, or raise ${option}.`,
    );
  }
}

/** What some elements add, as `Storage.usage` counts it: in a stream an element counts once for each group. */
function amountOf(elements: readonly NewElement[]): Amount {
  let deliveries = 0;
  let bytes = 0;
  for (const { body, headers, groups, contentType, dedupKey } of elements) {
    const count = groups.length === 1 ? 1 : new Set(groups).size;
    deliveries += count;
    bytes += ELEMENT_BYTES + (count - 1) * DELIVERY_BYTES + body.byteLength + (contentType?.length ?? 0);
    for (const text of headers) bytes += text.length;
    // The key stands in a table and in its index.
    if (dedupKey !== null) bytes += 2 * dedupKey.length + DELIVERY_BYTES;
  }
  return { elements: deliveries, bytes };
}

function sum(a: Amount, b: Amount): Amount {
  return { elements: a.elements + b.elements, bytes: a.bytes + b.bytes };
}
