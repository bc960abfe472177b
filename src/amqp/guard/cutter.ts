import { framingError } from './refusal.ts';

const HEADER_BYTES = 8;
const EMPTY: Buffer = Buffer.alloc(0);
/** A frame that came in part gets this much room at first; more when more of it has come. */
const FIRST_ROOM_BYTES = 512;

/**
 * Cuts a stream of bytes into frames. Whole ones stay where they came; only one that came in parts is put
 * together elsewhere, in no more than twice the room of what has come of it.
 */
export class FrameCutter {
  /** Of one frame. */
  mostBytes: number;
  #chunk: Buffer = EMPTY;
  #at = 0;
  /** The beginning of a frame whose end is not there yet. */
  #part: Buffer = EMPTY;
  #partBytes = 0;
  /** The frame that `next` found. */
  bytes: Buffer = EMPTY;
  start = 0;
  end = 0;

  constructor(mostBytes: number) {
    this.mostBytes = mostBytes;
  }

  push(chunk: Buffer): void {
    const isUsedUp = this.#at === this.#chunk.length;
    this.#chunk = isUsedUp ? chunk : Buffer.concat([this.#chunk.subarray(this.#at), chunk]);
    this.#at = 0;
  }

  /**
   * Finds the next whole frame; false where there is none yet.
   * @throws Breach `amqp:connection:framing-error`, as soon as a size is seen that no frame may have
   */
  next(): boolean {
    if (this.#partBytes > 0) return this.#finishPart();
    const left = this.#chunk.length - this.#at;
    if (left >= 4) {
      const size = this.#checked(this.#chunk.readUInt32BE(this.#at));
      if (size <= left) {
        this.bytes = this.#chunk;
        this.start = this.#at;
        this.end = this.#at + size;
        this.#at = this.end;
        return true;
      }
    }
    if (left > 0) this.#keep(left);
    this.#forget();
    return false;
  }

  /** The next `count` bytes, whatever they are; null where they have not all come. */
  raw(count: number): Buffer | null {
    if (this.#chunk.length - this.#at < count) return null;
    this.#at += count;
    return this.#chunk.subarray(this.#at - count, this.#at);
  }

  #finishPart(): boolean {
    if (this.#partBytes < 4) this.#keep(Math.min(4 - this.#partBytes, this.#chunk.length - this.#at));
    if (this.#partBytes >= 4) {
      const size = this.#checked(this.#part.readUInt32BE(0));
      this.#keep(Math.min(size - this.#partBytes, this.#chunk.length - this.#at));
      if (this.#partBytes === size) {
        this.bytes = this.#part;
        this.start = 0;
        this.end = size;
        this.#part = EMPTY;
        this.#partBytes = 0;
        return true;
      }
    }
    this.#forget();
    return false;
  }

  #keep(count: number): void {
    const needed = this.#partBytes + count;
    if (needed > this.#part.length) {
      const room = Math.min(this.mostBytes, Math.max(FIRST_ROOM_BYTES, 2 * needed));
      const larger = Buffer.allocUnsafeSlow(Math.max(needed, room));
      this.#part.copy(larger, 0, 0, this.#partBytes);
      this.#part = larger;
    }
    this.#chunk.copy(this.#part, this.#partBytes, this.#at, this.#at + count);
    this.#partBytes = needed;
    this.#at += count;
  }

  /** Lets go of a chunk that has nothing left. */
  #forget(): void {
    this.#chunk = EMPTY;
    this.bytes = EMPTY;
    this.#at = 0;
  }

  #checked(size: number): number {
    if (size < HEADER_BYTES) throw framingError(`A frame has ${size} bytes, less than its header.`);
    if (size > this.mostBytes) {
      throw framingError(`A frame has ${size} bytes. Allowed: at most ${this.mostBytes}.`);
    }
    return size;
  }
}
