import { cutText } from '../../util/cut-text.ts';
import { CODE } from './codes.ts';
import { DESCRIBED, PERFORMATIVE, SASL } from './descriptors.ts';
import type { AmqpError } from './protocol-error.ts';
import { Writer } from './writer.ts';

export const FRAME_TYPE = { amqp: 0, sasl: 1 } as const;
export const HEADER_BYTES = 8;

/** The protocol headers of AMQP 1.0.0, bare and with SASL. */
export const AMQP_HEADER = Buffer.from('AMQP\0\x01\0\0', 'latin1');
export const SASL_HEADER = Buffer.from('AMQP\x03\x01\0\0', 'latin1');

/** In units of 4 bytes: no extended header. */
const DATA_OFFSET = 2;
/** A frame without a body (transport, 2.4.5). */
export const HEART_BEAT = Buffer.from([0, 0, 0, HEADER_BYTES, DATA_OFFSET, FRAME_TYPE.amqp, 0, 0]);

/** One for all connections: no frame is begun before the one before it is finished. */
const writer = new Writer();

/** A frame whose body is one described list. `write` returns the number of fields. */
function frame(type: number, channel: number, code: number, write: () => number): Buffer {
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
  error: AmqpError,
  maxBytes: number,
  write: (error: AmqpError) => Buffer,
): Buffer {
  const whole = write(error);
  if (whole.length <= maxBytes) return whole;
  const { condition, description } = error;
  const excess = write({ condition, description }).length - maxBytes;
  return write({
    condition,
    description: cutText(description, Buffer.byteLength(description) - Math.max(0, excess)),
  });
}

/** Returns 1, the number of fields that an error is. */
function writeError(error: AmqpError | null): number {
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

export interface OpenFields {
  readonly containerId: string;
  readonly frameBytes: number;
  readonly channelMax: number;
  /** 0: the client may be silent. */
  readonly idleTimeoutMs: number;
  readonly capabilities: readonly string[];
  readonly version: string;
}

/** Transport, 2.7.1. */
export function openFrame(fields: OpenFields): Buffer {
  const { containerId, frameBytes, channelMax, idleTimeoutMs, capabilities, version } = fields;
  return frame(FRAME_TYPE.amqp, 0, PERFORMATIVE.open, () => {
    writer.text(containerId);
    writer.null();
    writer.uint(frameBytes);
    writer.ushort(channelMax);
    if (idleTimeoutMs > 0) writer.uint(idleTimeoutMs);
    else writer.null();
    writer.null();
    writer.null();
    writer.symbols(capabilities);
    writer.null();
    writer.plain('map', () => {
      writer.symbol('product');
      writer.text('Quayside');
      writer.symbol('version');
      writer.text(version);
      return 4;
    });
    return 10;
  });
}

/** Transport, 2.7.9. */
export function closeFrame(error: AmqpError | null): Buffer {
  return frame(FRAME_TYPE.amqp, 0, PERFORMATIVE.close, () => writeError(error));
}

/** Transport, 2.7.2. */
export function beginFrame(
  channel: number,
  fields: {
    readonly remoteChannel: number;
    readonly nextOutgoingId: number;
    readonly incomingWindow: number;
    readonly outgoingWindow: number;
    readonly handleMax: number;
  },
): Buffer {
  return frame(FRAME_TYPE.amqp, channel, PERFORMATIVE.begin, () => {
    writer.ushort(fields.remoteChannel);
    writer.uint(fields.nextOutgoingId);
    writer.uint(fields.incomingWindow);
    writer.uint(fields.outgoingWindow);
    writer.uint(fields.handleMax);
    return 5;
  });
}

/** Transport, 2.7.8. */
export function endFrame(channel: number): Buffer {
  return frame(FRAME_TYPE.amqp, channel, PERFORMATIVE.end, () => 0);
}

/** A source (messaging, 3.5.3) or target (3.5.4) as this server answers it. */
export interface TerminusFields {
  readonly address: string | null;
  /** Sources only: an encoded map, or null. */
  readonly filter?: Buffer | null;
  /** Sources that deliver; they have outcomes, and the one without an outcome. */
  readonly distributionMode?: DistributionMode;
}

/** Whether the client takes elements, or looks at copies (messaging, 3.5.3). */
export type DistributionMode = 'move' | 'copy';

interface AttachFields {
  readonly name: string;
  readonly handle: number;
  readonly isReceiver: boolean;
  readonly sndSettleMode: number;
  readonly rcvSettleMode: number;
  /** Null: the link is refused, and `detach` follows (transport, 2.6.3). */
  readonly source: TerminusFields | null;
  readonly target: TerminusFields | null;
  /** 0: not announced. */
  readonly maxMessageBytes: number;
  readonly capabilities: readonly string[];
}

const OUTCOMES = ['amqp:accepted:list', 'amqp:rejected:list', 'amqp:released:list', 'amqp:modified:list'];

/** What the answer to an `attach` takes at most, in addition to its name, addresses and filter. */
export const ATTACH_BYTES = 256;

/** Transport, 2.7.3. */
export function attachFrame(channel: number, fields: AttachFields): Buffer {
  return frame(FRAME_TYPE.amqp, channel, PERFORMATIVE.attach, () => {
    const { source, target, capabilities } = fields;
    writer.text(fields.name);
    writer.uint(fields.handle);
    writer.boolean(fields.isReceiver);
    writer.ubyte(fields.sndSettleMode);
    writer.ubyte(fields.rcvSettleMode);
    if (source === null) writer.null();
    else writer.list(DESCRIBED.source, () => writeSource(source));
    if (target === null) writer.null();
    else {
      writer.list(DESCRIBED.target, () => {
        writer.text(target.address);
        return 1;
      });
    }
    writer.null();
    writer.null();
    if (fields.isReceiver) writer.null();
    else writer.uint(0);
    if (fields.maxMessageBytes === 0) writer.null();
    else writer.ulong(fields.maxMessageBytes);
    if (capabilities.length === 0) return 11;
    writer.symbols(capabilities);
    return 12;
  });
}

function writeSource({ address, filter = null, distributionMode }: TerminusFields): number {
  writer.text(address);
  if (distributionMode === undefined) return 1;
  for (let field = 1; field < 6; field++) writer.null();
  writer.symbol(distributionMode);
  if (filter === null) writer.null();
  else writer.encoded(filter);
  // Without an outcome, a delivery that the client may have seen is a failed try.
  writer.list(DESCRIBED.modified, () => {
    writer.boolean(true);
    return 1;
  });
  writer.symbols(OUTCOMES);
  return 10;
}

/** Transport, 2.7.7. A `detach` always closes the link: links are not resumed. */
export function detachFrame(channel: number, handle: number, error: AmqpError | null): Buffer {
  return frame(FRAME_TYPE.amqp, channel, PERFORMATIVE.detach, () => {
    writer.uint(handle);
    writer.boolean(true);
    return 2 + writeError(error);
  });
}

interface FlowFields {
  readonly nextIncomingId: number;
  readonly incomingWindow: number;
  readonly nextOutgoingId: number;
  readonly outgoingWindow: number;
}

/** The part of a flow that is about a link. */
export interface LinkFlow {
  readonly ownHandle: number;
  readonly deliveryCount: number;
  readonly credit: number;
  readonly drain: boolean;
}

/** Transport, 2.7.4. @param link null: it is about the session alone */
export function flowFrame(channel: number, session: FlowFields, link: LinkFlow | null): Buffer {
  return frame(FRAME_TYPE.amqp, channel, PERFORMATIVE.flow, () => {
    writer.uint(session.nextIncomingId);
    writer.uint(session.incomingWindow);
    writer.uint(session.nextOutgoingId);
    writer.uint(session.outgoingWindow);
    if (link === null) return 4;
    writer.uint(link.ownHandle);
    writer.uint(link.deliveryCount);
    writer.uint(link.credit);
    writer.null();
    writer.boolean(link.drain);
    return 9;
  });
}

/** The outcomes that this server gives to what a client sent. */
export type ReplyOutcome = 'accepted' | 'released' | 'rejected';

/** Transport, 2.7.6; everything is settled. @param error of `rejected` */
export function dispositionFrame(
  channel: number,
  isReceiver: boolean,
  first: number,
  last: number,
  outcome: ReplyOutcome | null,
  error: AmqpError | null,
): Buffer {
  return frame(FRAME_TYPE.amqp, channel, PERFORMATIVE.disposition, () => {
    writer.boolean(isReceiver);
    writer.uint(first);
    writer.uint(last);
    writer.boolean(true);
    if (outcome === null) return 4;
    writer.list(DESCRIBED[outcome], () => (error === null ? 0 : writeError(error)));
    return 5;
  });
}

/** Of the list that a transfer is: count, handle, delivery-id, delivery-tag, message-format, settled, more. */
const TRANSFER_LIST_BYTES = 1 + 5 + 5 + 6 + 1 + 1 + 1;
/** The head of a transfer; a message has this much room in front of it, so that it need not be copied behind it. */
export const TRANSFER_HEAD_BYTES = HEADER_BYTES + 5 + TRANSFER_LIST_BYTES;

/**
 * Writes the head of a transfer (transport, 2.7.5) in front of its payload, which ends at `end`. The delivery's id is its
 * tag, too.
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

/** Security, 5.3.3.1. */
export function saslMechanismsFrame(mechanisms: readonly string[]): Buffer {
  return frame(FRAME_TYPE.sasl, 0, SASL.mechanisms, () => {
    const [only, ...more] = mechanisms;
    // A single symbol stands for an array of one (transport, 2.7: "multiple").
    if (only !== undefined && more.length === 0) writer.symbol(only);
    else writer.symbols(mechanisms);
    return 1;
  });
}

/** Asks for a response that `sasl-init` did not bring (security, 5.3.3.3). */
export function saslChallengeFrame(): Buffer {
  return frame(FRAME_TYPE.sasl, 0, SASL.challenge, () => {
    writer.head(CODE.binary8, 0);
    return 1;
  });
}

/** Security, 5.3.3.5. */
export function saslOutcomeFrame(code: number): Buffer {
  return frame(FRAME_TYPE.sasl, 0, SASL.outcome, () => {
    writer.ubyte(code);
    return 1;
  });
}
