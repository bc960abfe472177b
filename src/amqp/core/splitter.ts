import { HEADER_BYTES } from './frames.ts';
import { framingError } from './protocol-error.ts';

const EMPTY: Buffer = Buffer.alloc(0);
/** Initial size of the buffer of an incomplete frame; it grows with the received bytes. */
const FIRST_BUFFER_BYTES = 512;

/**
 * Splits a stream of bytes into frames. Frames that are complete within a chunk are not copied. A frame that spans
 * chunks is copied to a buffer of at most twice its received bytes.
 */
export class FrameSplitter {
  /** Maximum size of a frame. */
  maxBytes: number;
  #chunk: Buffer = EMPTY;
  #at = 0;
  /** The received bytes of an incomplete frame; only the first `#partBytes` are used. */
  #part: Buffer = EMPTY;
  #partBytes = 0;
  /** The frame found by `next`: `bytes` from `start` to `end`. */
  bytes: Buffer = EMPTY;
  start = 0;
  end = 0;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  push(chunk: Buffer): void {
    const isUsedUp = this.#at === this.#chunk.length;
    this.#chunk = isUsedUp ? chunk : Buffer.concat([this.#chunk.subarray(this.#at), chunk]);
    this.#at = 0;
  }

  /**
   * Finds the next whole frame; false if there is none yet.
   * @throws ProtocolError `amqp:connection:framing-error`, as soon as an invalid frame size is read
   */
  next(): boolean {
    if (this.#partBytes > 0) return this.#finishPart();
    const left = this.#chunk.length - this.#at;
    if (left >= 4) {
      const size = this.#checkSize(this.#chunk.readUInt32BE(this.#at));
      if (size <= left) {
        this.bytes = this.#chunk;
        this.start = this.#at;
        this.end = this.#at + size;
        this.#at = this.end;
        return true;
      }
    }
    if (left > 0) this.#copyToPart(left);
    this.#release();
    return false;
  }

  /** The next `count` bytes; null if they have not all arrived. */
  raw(count: number): Buffer | null {
    if (this.#chunk.length - this.#at < count) return null;
    this.#at += count;
    return this.#chunk.subarray(this.#at - count, this.#at);
  }

  #finishPart(): boolean {
    if (this.#partBytes < 4) this.#copyToPart(Math.min(4 - this.#partBytes, this.#chunk.length - this.#at));
    if (this.#partBytes >= 4) {
      const size = this.#checkSize(this.#part.readUInt32BE(0));
      this.#copyToPart(Math.min(size - this.#partBytes, this.#chunk.length - this.#at));
      if (this.#partBytes === size) {
        this.bytes = this.#part;
        this.start = 0;
        this.end = size;
        this.#part = EMPTY;
        this.#partBytes = 0;
        return true;
      }
    }
    this.#release();
    return false;
  }

  #copyToPart(count: number): void {
    const needed = this.#partBytes + count;
    if (needed > this.#part.length) {
      const capacity = Math.min(this.maxBytes, Math.max(FIRST_BUFFER_BYTES, 2 * needed));
      const larger = Buffer.allocUnsafeSlow(Math.max(needed, capacity));
      this.#part.copy(larger, 0, 0, this.#partBytes);
      this.#part = larger;
    }
    this.#chunk.copy(this.#part, this.#partBytes, this.#at, this.#at + count);
    this.#partBytes = needed;
    this.#at += count;
  }

  /** Releases a chunk that was read to its end. */
  #release(): void {
    this.#chunk = EMPTY;
    this.bytes = EMPTY;
    this.#at = 0;
  }

  #checkSize(size: number): number {
    if (size < HEADER_BYTES) throw framingError(`A frame has ${size} bytes, less than its header.`);
    if (size > this.maxBytes) {
      throw framingError(`A frame has ${size} bytes. Allowed: at most ${this.maxBytes}.`);
    }
    return size;
  }
}
