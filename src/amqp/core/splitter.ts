import { GrowingBytes } from '../../util/byte-pieces.ts';
import { HEADER_BYTES } from './frames.ts';
import { framingError } from './protocol-error.ts';

const EMPTY: Buffer = Buffer.alloc(0);

/**
 * Splits a stream of bytes into frames. Frames that are complete within a chunk are not copied. A frame that spans
 * chunks is copied to a buffer of at most twice its received bytes.
 */
export class FrameSplitter {
  /** Maximum size of a frame. */
  maxBytes: number;
  #chunk: Buffer = EMPTY;
  #at = 0;
  /** The received bytes of an incomplete frame; null if there are none. */
  #part: GrowingBytes | null = null;
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
    if (this.#part !== null) return this.#finishPart(this.#part);
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
    if (left > 0) this.#part = new GrowingBytes(this.#take(left), this.maxBytes);
    this.#release();
    return false;
  }

  /** The next `count` bytes; null if they have not all arrived. */
  raw(count: number): Buffer | null {
    return this.#chunk.length - this.#at < count ? null : this.#take(count);
  }

  #finishPart(part: GrowingBytes): boolean {
    this.#growTo(4, part);
    if (part.length >= 4) {
      const size = this.#checkSize(part.bytes.readUInt32BE(0));
      this.#growTo(size, part);
      if (part.length === size) {
        this.bytes = part.bytes;
        this.start = 0;
        this.end = size;
        this.#part = null;
        return true;
      }
    }
    this.#release();
    return false;
  }

  /** Appends bytes of the chunk until `part` has `length`, or the chunk ends. */
  #growTo(length: number, part: GrowingBytes): void {
    if (part.length < length) part.append(this.#take(length - part.length));
  }

  /** The next bytes of the chunk, at most `count`. */
  #take(count: number): Buffer {
    const bytes = this.#chunk.subarray(this.#at, this.#at + count);
    this.#at += bytes.length;
    return bytes;
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
