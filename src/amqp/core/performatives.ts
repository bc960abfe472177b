import { LIMITS } from '../../model/limits.ts';
import { ownBytes } from '../../util/own-bytes.ts';
import { quote } from '../../util/quote.ts';
import { truncateUtf8 } from '../../util/truncate-utf8.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { CODE, DESCRIBED, descriptorNumber } from './codes.ts';
import { ABSENT, FieldReader } from './fields.ts';
import { type AmqpDeliveryState, type AttachRequest, SETTLE_MODE, type Terminus } from './link.ts';
import {
  decodeError,
  framingError,
  hex,
  invalidField,
  limitExceeded,
  notImplemented,
} from './protocol-error.ts';

/** The smallest `max-frame-size` that AMQP allows (transport, 2.7.1). */
export const MIN_FRAME_BYTES = 512;
const MAX_TAG_BYTES = 32;

/** The target of a link on which a client controls transactions (transactions, 4.5.1). */
const COORDINATOR: Terminus = {
  address: null,
  isCoordinator: true,
  isDynamic: false,
  distributionMode: null,
  filter: null,
};

const NO_STATE: AmqpDeliveryState = { kind: 0, reason: null, isFailed: false, isUndeliverable: false };

/**
 * Reads performatives of clients (transport, 2.7): all fields have the right types, and values that no state of the
 * connection allows are rejected. Call `enter` with each frame, then the method of its performative, which returns what
 * this server uses of it: numbers that the client did not send are `ABSENT`, unless stated otherwise, and flags are
 * false. It throws a ProtocolError.
 */
export class PerformativeReader {
  readonly #fields = new FieldReader();
  /** Readers of described lists within `#fields`, and of those nested in them. */
  readonly #inner = new FieldReader();
  readonly #innermost = new FieldReader();
  /** End of the frame. */
  #end = 0;

  /** Enters the performative at `at` of a frame that ends at `end`. Returns its numeric descriptor. */
  enter(bytes: Buffer, at: number, end: number): number {
    this.#end = end;
    return descriptorNumber(this.#fields.enter(bytes, at, end));
  }

  open() {
    const fields = this.#fields;
    if (fields.oneOf('container-id', CODE.string8, CODE.string32) === CODE.null) {
      throw invalidField('container-id is missing.');
    }
    fields.oneOf('hostname', CODE.string8, CODE.string32);
    const frameBytes = fields.uint('max-frame-size');
    if (frameBytes !== ABSENT && frameBytes < MIN_FRAME_BYTES) {
      throw invalidField(`max-frame-size is ${frameBytes}. Allowed: ${MIN_FRAME_BYTES} or more.`);
    }
    const channelMax = fields.ushort('channel-max');
    const idleMs = fields.uint('idle-time-out');
    if (idleMs > 0 && idleMs < AMQP_LIMITS.shortestIdleMs) {
      throw limitExceeded(
        `idle-time-out is ${idleMs} ms. Allowed: 0, or ${AMQP_LIMITS.shortestIdleMs} and more.`,
      );
    }
    fields.symbols('outgoing-locales');
    fields.symbols('incoming-locales');
    this.#skipExtensions();
    this.#finish();
    return { frameBytes, channelMax, idleMs };
  }

  begin() {
    const fields = this.#fields;
    if (fields.ushort('remote-channel') !== ABSENT) {
      throw invalidField('remote-channel is set, but this server begins no sessions.');
    }
    const nextOutgoingId = fields.requiredUint('next-outgoing-id');
    const incomingWindow = fields.requiredUint('incoming-window');
    fields.requiredUint('outgoing-window');
    const handleMax = fields.uint('handle-max');
    this.#skipExtensions();
    this.#finish();
    return { nextOutgoingId, incomingWindow, handleMax };
  }

  attach(): AttachRequest {
    const fields = this.#fields;
    const name = fields.string('name');
    if (name === null) throw invalidField('A link has no name.');
    const nameBytes = Buffer.byteLength(name);
    if (nameBytes > AMQP_LIMITS.nameBytes) {
      throw limitExceeded(`A link's name has ${nameBytes} bytes. Allowed: at most ${AMQP_LIMITS.nameBytes}.`);
    }
    const handle = fields.requiredUint('handle');
    if (handle > AMQP_LIMITS.handleMax) {
      throw framingError(`Handle ${handle} is too high. Allowed: 0 to ${AMQP_LIMITS.handleMax}.`);
    }
    const role = fields.boolean('role');
    if (role === ABSENT) throw invalidField('A link has no role.');
    const isPeerSender = role === 0;
    const sndSettleMode = this.#mode('snd-settle-mode', 2);
    const rcvSettleMode = this.#mode('rcv-settle-mode', 1);
    const source = this.#terminus(DESCRIBED.source);
    const target = this.#terminus(DESCRIBED.target);
    fields.oneOf('unsettled', CODE.map8, CODE.map32);
    fields.boolean('incomplete-unsettled');
    const initialDeliveryCount = fields.uint('initial-delivery-count');
    if (initialDeliveryCount === ABSENT && isPeerSender) {
      throw invalidField('A sender has no initial-delivery-count.');
    }
    const maxMessageBytes = fields.ulong('max-message-size');
    this.#skipExtensions();
    this.#finish();
    const request = {
      name,
      handle,
      isPeerSender,
      sndSettleMode: sndSettleMode === ABSENT ? SETTLE_MODE.mixed : sndSettleMode,
      rcvSettleMode: Math.max(0, rcvSettleMode),
      source,
      target,
      initialDeliveryCount,
      // Both 0 and null mean no limit (transport, 2.7.3).
      maxMessageBytes: maxMessageBytes > 0 ? maxMessageBytes : Number.POSITIVE_INFINITY,
    };
    const givenBytes = attachSize(request);
    if (givenBytes > AMQP_LIMITS.attachBytes) {
      throw limitExceeded(
        `The name, addresses and filter of the link ${quote(name)} have ${givenBytes} bytes. Allowed: at most ${AMQP_LIMITS.attachBytes}.`,
      );
    }
    return request;
  }

  flow() {
    const fields = this.#fields;
    const nextIncomingId = fields.uint('next-incoming-id');
    const incomingWindow = fields.requiredUint('incoming-window');
    fields.requiredUint('next-outgoing-id');
    fields.requiredUint('outgoing-window');
    const handle = fields.uint('handle');
    const deliveryCount = fields.uint('delivery-count');
    const credit = fields.uint('link-credit');
    fields.uint('available');
    const isDraining = fields.boolean('drain') === 1;
    const isEcho = fields.boolean('echo') === 1;
    fields.oneOf('properties', CODE.map8, CODE.map32);
    this.#finish();
    return { nextIncomingId, incomingWindow, handle, deliveryCount, credit, isDraining, isEcho };
  }

  /** The payload is a view of the frame. @param bytes of the frame */
  transfer(bytes: Buffer) {
    const fields = this.#fields;
    const handle = fields.requiredUint('handle');
    const deliveryId = fields.uint('delivery-id');
    const tagBytes = fields.binaryLength('delivery-tag');
    if (tagBytes > MAX_TAG_BYTES) {
      throw invalidField(`A delivery-tag has ${tagBytes} bytes. Allowed: at most ${MAX_TAG_BYTES}.`);
    }
    const format = fields.uint('message-format');
    const isSettled = fields.boolean('settled') === 1;
    const hasMore = fields.boolean('more') === 1;
    this.#mode('rcv-settle-mode', 1);
    this.#state();
    if (fields.boolean('resume') === 1) {
      throw notImplemented('resume is true, but deliveries cannot be resumed.');
    }
    const isAborted = fields.boolean('aborted') === 1;
    fields.boolean('batchable');
    const payload = bytes.subarray(fields.finish(), this.#end);
    return {
      handle,
      deliveryId,
      hasTag: tagBytes !== ABSENT,
      format,
      isSettled,
      hasMore,
      isAborted,
      payload,
    };
  }

  /** `isPeerReceiver`: whether it is about deliveries that were sent to the client. */
  disposition() {
    const fields = this.#fields;
    const role = fields.boolean('role');
    if (role === ABSENT) throw invalidField('A disposition has no role.');
    const first = fields.requiredUint('first');
    const last = fields.uint('last');
    const isSettled = fields.boolean('settled') === 1;
    const state = this.#state();
    fields.boolean('batchable');
    this.#finish();
    return { isPeerReceiver: role === 1, first, last: last === ABSENT ? first : last, isSettled, state };
  }

  /** Returns the handle. */
  detach(): number {
    const handle = this.#fields.requiredUint('handle');
    this.#fields.boolean('closed');
    this.end();
    return handle;
  }

  /** Reads an `end` or `close`: an error, or nothing. */
  end(): void {
    if (this.#fields.isAbsent) this.#fields.skip();
    else this.#error(this.#fields, this.#inner);
    this.#finish();
  }

  #mode(name: string, max: number): number {
    const mode = this.#fields.ubyte(name);
    if (mode <= max) return mode;
    throw invalidField(`${name} is ${mode}. Allowed: ${max === 2 ? '0, 1, 2' : '0, 1'}.`);
  }

  #terminus(expected: number): Terminus | null {
    if (this.#fields.isAbsent) {
      this.#fields.skip();
      return null;
    }
    const inner = this.#inner;
    const type = descriptorNumber(inner.enterField(this.#fields));
    const isSource = expected === DESCRIBED.source;
    if (type === DESCRIBED.coordinator && !isSource) {
      inner.symbols('capabilities');
      return COORDINATOR;
    }
    if (type !== expected) {
      throw decodeError(`A ${isSource ? 'source' : 'target'} has the descriptor ${hex(type)}.`);
    }
    const address = inner.string('address');
    inner.uint('durable');
    inner.oneOf('expiry-policy', CODE.symbol8, CODE.symbol32);
    inner.uint('timeout');
    const isDynamic = inner.boolean('dynamic') === 1;
    inner.oneOf('dynamic-node-properties', CODE.map8, CODE.map32);
    const distributionMode = isSource ? inner.symbol('distribution-mode') : null;
    const filter = isSource ? inner.map('filter') : null;
    if (isSource) {
      inner.skip();
      inner.symbols('outcomes');
    }
    inner.symbols('capabilities');
    return {
      address,
      isCoordinator: false,
      isDynamic,
      distributionMode,
      // A view would retain all that was read with it, for as long as the link lives.
      filter: filter === null ? null : ownBytes(filter),
    };
  }

  /** A delivery state (messaging, 3.4). */
  #state(): AmqpDeliveryState {
    if (this.#fields.isAbsent) {
      this.#fields.skip();
      return NO_STATE;
    }
    const inner = this.#inner;
    const kind = descriptorNumber(inner.enterField(this.#fields));
    switch (kind) {
      case DESCRIBED.received:
        inner.requiredUint('section-number');
        inner.oneOf('section-offset', CODE.ulong, CODE.smallUlong, CODE.ulong0);
        return { ...NO_STATE, kind };
      case DESCRIBED.accepted:
      case DESCRIBED.released:
        return { ...NO_STATE, kind };
      case DESCRIBED.rejected:
        return { ...NO_STATE, kind, reason: inner.isAbsent ? null : this.#error(inner, this.#innermost) };
      case DESCRIBED.modified: {
        const isFailed = inner.boolean('delivery-failed') === 1;
        const isUndeliverable = inner.boolean('undeliverable-here') === 1;
        inner.oneOf('message-annotations', CODE.map8, CODE.map32);
        return { kind, reason: null, isFailed, isUndeliverable };
      }
      case DESCRIBED.transactionalState:
        throw notImplemented(
          'Transactions are not supported, so no delivery may have a transactional-state.',
        );
      default:
        throw decodeError(
          `Delivery state ${hex(kind)} is not known. Allowed: received, accepted, rejected, released, modified.`,
        );
    }
  }

  /**
   * Reads the error at the position of `outer`. Returns its condition and description, cut once for all deliveries of
   * a disposition: the text may have 128 KiB, and there may be 2,048 deliveries.
   * @param reader one that is not in use
   */
  #error(outer: FieldReader, reader: FieldReader): string | null {
    if (descriptorNumber(reader.enterField(outer)) !== DESCRIBED.error) {
      throw decodeError('A field that must be an error has another type.');
    }
    const condition = reader.symbol('condition');
    if (condition === null) throw invalidField('An error has no condition.');
    const parts = [condition, reader.string('description')].filter((part) => part !== null && part !== '');
    reader.oneOf('info', CODE.map8, CODE.map32);
    return parts.length === 0 ? null : truncateUtf8(parts.join(': '), LIMITS.reasonBytes);
  }

  /** Skips the last fields of `open`, `begin` and `attach`. */
  #skipExtensions(): void {
    const fields = this.#fields;
    fields.symbols('offered-capabilities');
    fields.symbols('desired-capabilities');
    fields.oneOf('properties', CODE.map8, CODE.map32);
  }

  /** Reads the rest of a performative that has no payload. */
  #finish(): void {
    if (this.#fields.finish() !== this.#end)
      throw decodeError('A frame that is not a transfer has a payload.');
  }
}

/** Size of the parts of an `attach` that its reply repeats. */
export function attachSize({ name, source, target }: AttachRequest): number {
  const filterBytes = source?.filter?.length ?? 0;
  return Buffer.byteLength(`${name}${source?.address ?? ''}${target?.address ?? ''}`) + filterBytes;
}
