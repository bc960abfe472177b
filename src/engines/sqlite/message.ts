/**
 * The shape in which calls and answers cross the thread border.
 *
 * One message carries a whole batch as one flat array of primitives and one packed array of small bodies.
 * Measured for 64 small elements: cloning 64 records with a Uint8Array each costs 5 to 7 µs an element, the
 * flat form about 2 µs on both sides together. A Buffer view is never posted: the clone would carry its
 * whole slab along.
 */
export type Value = string | number | null;

/** What is posted, either way. `large` are bodies that travel in their own memory, in order of appearance. */
export interface Packed {
  readonly values: readonly Value[];
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly large: readonly Uint8Array<ArrayBuffer>[];
}

/**
 * Bodies of this size and up travel in their own memory. They need no second copy, and a receiver who keeps
 * a small body does not keep another one's megabyte alive with it.
 */
const LARGE = 16 * 1024;

const NO_BYTES = new Uint8Array(0);

/** Where a call begins within a message. */
export interface Position {
  readonly value: number;
  readonly byte: number;
  readonly large: number;
}

/** Collects values and bodies. A body is copied when the message is packed, not before. */
export class MessageWriter {
  readonly #values: Value[] = [];
  readonly #small: Uint8Array[] = [];
  readonly #large: Uint8Array[] = [];
  #smallBytes = 0;
  #largeBytes = 0;

  /** Bytes of all bodies so far. */
  get byteLength(): number {
    return this.#smallBytes + this.#largeBytes;
  }

  get valueCount(): number {
    return this.#values.length;
  }

  value(value: Value): void {
    this.#values.push(value);
  }

  flag(value: boolean): void {
    this.#values.push(value ? 1 : 0);
  }

  body(body: Uint8Array): void {
    const length = body.byteLength;
    this.#values.push(length);
    if (length >= LARGE) {
      this.#large.push(body);
      this.#largeBytes += length;
    } else if (length > 0) {
      this.#small.push(body);
      this.#smallBytes += length;
    }
  }

  /** Where the next value will stand. */
  position(): Position {
    return { value: this.#values.length, byte: this.#smallBytes, large: this.#large.length };
  }

  /** Forgets everything from `position` on: a call that fails half-way takes its answer back. */
  rewind(position: Position): void {
    this.#values.length = position.value;
    while (this.#smallBytes > position.byte) {
      this.#smallBytes -= this.#small.pop()?.byteLength ?? 0;
    }
    while (this.#large.length > position.large) {
      this.#largeBytes -= this.#large.pop()?.byteLength ?? 0;
    }
  }

  /**
   * The message to be posted and the memory to transfer with it.
   * @param owned whether the bodies' memory may be given away (it is gone on this side afterwards)
   */
  pack(owned: boolean): { message: Packed; transfer: ArrayBuffer[] } {
    // Copies of one element to many queues share a body; so they do on the other side.
    const packed = new Map<Uint8Array, Uint8Array<ArrayBuffer>>();
    for (const body of this.#large) {
      if (!packed.has(body)) packed.set(body, owned && fillsItsMemory(body) ? body : new Uint8Array(body));
    }
    const large = this.#large.map((body) => packed.get(body) ?? NO_BYTES);
    const transfer = [...packed.values()].map((body) => body.buffer);
    const bytes = this.#packSmall();
    if (bytes.byteLength > 0) transfer.push(bytes.buffer);
    return { message: { values: this.#values, bytes, large }, transfer };
  }

  #packSmall(): Uint8Array<ArrayBuffer> {
    if (this.#smallBytes === 0) return NO_BYTES;
    const bytes = new Uint8Array(this.#smallBytes);
    let at = 0;
    for (const body of this.#small) {
      bytes.set(body, at);
      at += body.byteLength;
    }
    return bytes;
  }
}

function fillsItsMemory(body: Uint8Array): body is Uint8Array<ArrayBuffer> {
  return body.buffer instanceof ArrayBuffer && body.byteLength === body.buffer.byteLength;
}

/**
 * Reads what a {@link MessageWriter} wrote, in the same order. The two sides of each operation stand in
 * `storage.ts`, `definitions.ts` or `stats.ts`, and in `worker/verbs/`. Types are taken on trust, as this is the
 * hottest loop of the engine.
 */
export class MessageReader {
  readonly #values: readonly Value[];
  readonly #bytes: Uint8Array<ArrayBuffer>;
  readonly #large: readonly Uint8Array<ArrayBuffer>[];
  #value = 0;
  #byte = 0;
  #nextLarge = 0;

  constructor(message: Packed) {
    this.#values = message.values;
    this.#bytes = message.bytes;
    this.#large = message.large;
  }

  /** Bytes of all bodies. */
  get byteLength(): number {
    let bytes = this.#bytes.byteLength;
    for (const body of this.#large) bytes += body.byteLength;
    return bytes;
  }

  seek(value: number, byte: number, large: number): void {
    this.#value = value;
    this.#byte = byte;
    this.#nextLarge = large;
  }

  number(): number {
    return this.#values[this.#value++] as number;
  }

  numberOrNull(): number | null {
    return this.#values[this.#value++] as number | null;
  }

  text(): string {
    return this.#values[this.#value++] as string;
  }

  textOrNull(): string | null {
    return this.#values[this.#value++] as string | null;
  }

  flag(): boolean {
    return this.#values[this.#value++] === 1;
  }

  body(): Uint8Array {
    const length = this.number();
    if (length >= LARGE) return this.#large[this.#nextLarge++] ?? NO_BYTES;
    const body = this.#bytes.subarray(this.#byte, this.#byte + length);
    this.#byte += length;
    return body;
  }
}
