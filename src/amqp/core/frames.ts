import { GrowingBytes } from '../../util/byte-pieces.ts';
import { truncateUtf8 } from '../../util/truncate-utf8.ts';
import { CODE, DESCRIBED, PERFORMATIVE } from './codes.ts';
import { NOTHING } from './fields.ts';
import { type AmqpError, framingError } from './protocol-error.ts';
import { Writer } from './writer.ts';

export const FRAME_TYPE = { amqp: 0, sasl: 1 } as const;
const HEADER_BYTES = 8;

/**
 * Splits a stream of bytes into frames. Frames that are complete within a chunk are not copied. A frame that spans
 * chunks is copied to a buffer of at most twice its received bytes.
 */
export class FrameSplitter {
  /** Maximum size of a frame. */
  maxBytes: number;
  #chunk: Buffer = NOTHING;
  #at = 0;
  /** The received bytes of an incomplete frame; null if there are none. */
  #part: GrowingBytes | null = null;
  /** The frame found by `next`: `bytes` from `start` to `end`. */
  bytes: Buffer = NOTHING;
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
    this.#chunk = NOTHING;
    this.bytes = NOTHING;
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

/**
 * Where the body of a received frame starts.
 * @param type the type that frames must have now
 * @throws ProtocolError `amqp:connection:framing-error`
 */
export function bodyStart(bytes: Buffer, start: number, end: number, type: number): number {
  const at = start + 4 * (bytes[start + 4] ?? 0);
  if (at < start + HEADER_BYTES || at > end) {
    throw framingError(`The data offset ${at - start} is outside the frame of ${end - start} bytes.`);
  }
  if (bytes[start + 5] !== type) {
    const allowed = type === FRAME_TYPE.sasl ? '1 (SASL) before the login' : '0 (AMQP) after the login';
    throw framingError(`Frame type ${bytes[start + 5]} is not allowed here. Allowed: ${allowed}.`);
  }
  return at;
}

/** In units of 4 bytes: no extended header. */
const DATA_OFFSET = 2;
/** Shared by all connections, since each frame and each message is written synchronously. Reset it before. */
export const writer = new Writer();

/** Encodes a frame whose body is one described list. `write` writes its fields. */
export function frame(type: number, channel: number, code: number, write: () => void): Buffer {
  writer.reset();
  writer.list(code, write);
  const bytes = writer.finish(HEADER_BYTES);
  writeHeader(bytes, bytes.length, type, channel);
  return bytes;
}

function writeHeader(bytes: Buffer, size: number, type: number, channel: number): void {
  bytes.writeUInt32BE(size, 0);
  bytes[4] = DATA_OFFSET;
  bytes[5] = type;
  bytes.writeUInt16BE(channel, 6);
}

/**
 * Encodes a frame with an error in at most `maxBytes`, if necessary without `info` and with a shorter description. The
 * rest of any such frame fits in the smallest `max-frame-size`.
 */
export function frameWithError(
  error: AmqpError | null,
  maxBytes: number,
  write: (error: AmqpError | null) => Buffer,
): Buffer {
  const whole = write(error);
  if (error === null || whole.length <= maxBytes) return whole;
  const { condition, description } = error;
  const excess = write({ condition, description }).length - maxBytes;
  return write({
    condition,
    description: truncateUtf8(description, Buffer.byteLength(description) - Math.max(0, excess)),
  });
}

/** Writes an error, or null, as one field. */
export function writeError(error: AmqpError | null): void {
  if (error === null) {
    writer.null();
    return;
  }
  writer.list(DESCRIBED.error, () => {
    writer.symbol(error.condition);
    writer.text(error.description);
    const info = Object.entries(error.info ?? {});
    if (info.length === 0) return;
    writer.plain('map', () => {
      for (const [name, value] of info) {
        writer.symbol(name);
        writer.text(value);
      }
    });
  });
}

/** Size of a transfer's list: count, handle, delivery-id, delivery-tag, message-format, settled, more. */
const TRANSFER_LIST_BYTES = 1 + 5 + 5 + 6 + 1 + 1 + 1;
/** Size of a transfer's head. Messages are encoded with this headroom, so that they need not be copied. */
export const TRANSFER_HEAD_BYTES = HEADER_BYTES + 5 + TRANSFER_LIST_BYTES;

/**
 * Writes the head of a transfer (transport, 2.7.5) to the first bytes of a buffer whose payload ends at `end`. The
 * delivery's id is also its tag.
 */
export function writeTransferHead(
  bytes: Buffer,
  end: number,
  { channel, handle, deliveryId }: { channel: number; handle: number; deliveryId: number },
  isSettled: boolean,
  hasMore: boolean,
): void {
  writeHeader(bytes, end, FRAME_TYPE.amqp, channel);
  let next = HEADER_BYTES;
  bytes[next++] = CODE.described;
  bytes[next++] = CODE.smallUlong;
  bytes[next++] = PERFORMATIVE.transfer;
  bytes[next++] = CODE.list8;
  bytes[next++] = TRANSFER_LIST_BYTES;
  bytes[next++] = 6;
  bytes[next++] = CODE.uint;
  next = bytes.writeUInt32BE(handle, next);
  bytes[next++] = CODE.uint;
  next = bytes.writeUInt32BE(deliveryId, next);
  bytes[next++] = CODE.binary8;
  bytes[next++] = 4;
  next = bytes.writeUInt32BE(deliveryId, next);
  bytes[next++] = CODE.uint0;
  bytes[next++] = isSettled ? CODE.true : CODE.false;
  bytes[next++] = hasMore ? CODE.true : CODE.false;
}
