/**
 * Smaller pieces are copied. A retained buffer costs about 200 bytes in addition to its content, and the client chooses
 * the size of the pieces: 1 MiB received in chunks of one byte took more than 200 MiB.
 */
const SMALL_BYTES = 4096;
/** Initial size of a growing buffer. */
const FIRST_BYTES = 128;

/**
 * Accumulates bytes that arrive in pieces, in about twice their size. Large pieces are stored as they are, and copied
 * only when all are joined.
 */
export class BytePieces {
  #pieces: Buffer[] = [];
  /** The small pieces since the last one in `#pieces`, joined. */
  #small: GrowingBytes | null = null;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  append(piece: Buffer): void {
    this.#length += piece.length;
    if (piece.length >= SMALL_BYTES) {
      this.#endSmall();
      this.#pieces.push(piece);
    } else if (this.#small !== null) this.#small.append(piece);
    else if (piece.length > 0) this.#small = new GrowingBytes(piece);
  }

  /** Returns all bytes and empties this object. */
  take(): Buffer {
    this.#endSmall();
    const [first] = this.#pieces;
    const bytes = this.#pieces.length === 1 && first !== undefined ? first : Buffer.concat(this.#pieces);
    this.#pieces = [];
    this.#length = 0;
    return bytes;
  }

  #endSmall(): void {
    if (this.#small === null) return;
    this.#pieces.push(this.#small.bytes);
    this.#small = null;
  }
}

/** Bytes in one buffer that grows with its content, never to the size that a length header announces. */
export class GrowingBytes {
  readonly #maxBytes: number;
  #bytes: Buffer = Buffer.alloc(0);
  #length = 0;

  /** @param maxBytes the buffer is not larger, unless its content is */
  constructor(first: Uint8Array, maxBytes = Number.POSITIVE_INFINITY) {
    this.#maxBytes = maxBytes;
    this.append(first);
  }

  get length(): number {
    return this.#length;
  }

  append(piece: Uint8Array): void {
    const length = this.#length + piece.length;
    if (length > this.#bytes.length) {
      const capacity = Math.min(this.#maxBytes, Math.max(FIRST_BYTES, 2 * length));
      const larger = Buffer.allocUnsafeSlow(Math.max(length, capacity));
      larger.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = larger;
    }
    this.#bytes.set(piece, this.#length);
    this.#length = length;
  }

  get bytes(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }
}
