import { cutText } from '../../util/cut-text.ts';
import { CODE, DESCRIBED, PERFORMATIVE } from './codes.ts';
import type { AmqpError } from './protocol-error.ts';
import { Writer } from './writer.ts';

export const FRAME_TYPE = { amqp: 0, sasl: 1 } as const;
export const HEADER_BYTES = 8;

/** In units of 4 bytes: no extended header. */
const DATA_OFFSET = 2;
/** One for all connections: no frame is begun before the one before it is finished. */
export const writer = new Writer();

/** A frame whose body is one described list. `write` returns the number of fields. */
export function frame(type: number, channel: number, code: number, write: () => number): Buffer {
  try {
    writer.list(code, write);
    const bytes = writer.finish(HEADER_BYTES);
    writeHeader(bytes, 0, bytes.length, type, channel);
    return bytes;
  } finally {
    writer.reset();
  }
}

function writeHeader(bytes: Buffer, at: number, size: number, type: number, channel: number): void {
  bytes.writeUInt32BE(size, at);
  bytes[at + 4] = DATA_OFFSET;
  bytes[at + 5] = type;
  bytes.writeUInt16BE(channel, at + 6);
}

/**
 * A frame with an error that is at most `maxBytes` long: otherwise without its `info`, and with a shorter description.
 * The smallest `max-frame-size` has room for the rest of each frame that carries one.
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
    description: cutText(description, Buffer.byteLength(description) - Math.max(0, excess)),
  });
}

/** Returns 1, the number of fields that an error is. */
export function writeError(error: AmqpError | null): number {
  if (error === null) {
    writer.null();
    return 1;
  }
  writer.list(DESCRIBED.error, () => {
    writer.symbol(error.condition);
    writer.text(error.description);
    const info = Object.entries(error.info ?? {});
    if (info.length === 0) return 2;
    writer.plain('map', () => {
      for (const [name, value] of info) {
        writer.symbol(name);
        writer.text(value);
      }
      return info.length * 2;
    });
    return 3;
  });
  return 1;
}

/** Of the list that a transfer is: count, handle, delivery-id, delivery-tag, message-format, settled, more. */
const TRANSFER_LIST_BYTES = 1 + 5 + 5 + 6 + 1 + 1 + 1;
/** The head of a transfer; a message has this much room in front of it, so that it need not be copied behind it. */
export const TRANSFER_HEAD_BYTES = HEADER_BYTES + 5 + TRANSFER_LIST_BYTES;

/**
 * Writes the head of a transfer (transport, 2.7.5) in front of its payload, which ends at `end`. The delivery's id is
 * its tag, too.
 */
export function writeTransferHead(
  bytes: Buffer,
  end: number,
  { channel, handle, deliveryId }: { channel: number; handle: number; deliveryId: number },
  isSettled: boolean,
  hasMore: boolean,
): void {
  writeHeader(bytes, 0, end, FRAME_TYPE.amqp, channel);
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
