const FIRST_BYTES = 4096;

/**
 * Gathers a body that comes in pieces. It holds about twice what came so far at most, never what a length
 * header promises, and small pieces cost no object each.
 */
export class BodyBuffer {
  #bytes: Buffer;
  #length = 0;

  constructor(first: Uint8Array) {
    this.#bytes = Buffer.allocUnsafeSlow(Math.max(FIRST_BYTES, 2 * first.length));
    this.append(first);
  }

  get length(): number {
    return this.#length;
  }

  append(piece: Uint8Array): void {
    const length = this.#length + piece.length;
    if (length > this.#bytes.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(length, 2 * this.#bytes.length));
      larger.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = larger;
    }
    this.#bytes.set(piece, this.#length);
    this.#length = length;
  }

  /** The first `length` bytes. */
  take(length: number): Buffer {
    return this.#bytes.subarray(0, length);
  }
}
