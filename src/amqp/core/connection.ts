import { LIMITS } from '../../model/limits.ts';
import type { WriteObserver } from '../../session/socket-writer.ts';
import { ownBytes } from '../../util/own-bytes.ts';
import { quote } from '../../util/quote.ts';
import { truncateUtf8 } from '../../util/truncate-utf8.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { CODE, DESCRIBED, descriptorNumber, PERFORMATIVE } from './codes.ts';
import { ABSENT, FieldReader } from './fields.ts';
import { FRAME_TYPE, frame, frameWithError, HEADER_BYTES, writeError, writer } from './frames.ts';
import {
  type AmqpDeliveryState,
  ATTACH_BYTES,
  type AttachRequest,
  CAPABILITIES,
  type Endpoint,
  ReceiverEndpoint,
  type ReceiverHandler,
  SETTLE_MODE,
  SenderEndpoint,
  type Terminus,
} from './link.ts';
import {
  type AmqpError,
  decodeError,
  framingError,
  hex,
  illegalState,
  invalidField,
  limitExceeded,
  notAllowed,
  notImplemented,
  ProtocolError,
} from './protocol-error.ts';
import { SessionEndpoint } from './session.ts';

/** Minimum effort of a frame. The unit is one settled delivery, which takes 20 to 500 ns. */
const FRAME_EFFORT = 8;
/** The smallest `max-frame-size` that AMQP allows (transport, 2.7.1). */
const MIN_FRAME_BYTES = 512;
const MAX_TAG_BYTES = 32;
/** Maximum links including those whose `detach` the client has not confirmed: they stay in memory until it does. */
const MAX_ATTACHED = 4 * AMQP_LIMITS.links;
/** Used if the client announces no limit. */
const MAX_PEER_FRAME_BYTES = 2 ** 31;

/** The target of a link on which a client controls transactions (transactions, 4.5.1). */
const COORDINATOR: Terminus = {
  address: null,
  isCoordinator: true,
  isDynamic: false,
  distributionMode: null,
  filter: null,
};

/** What a protocol connection calls. */
export interface ConnectionHost {
  /** Sends a frame to the client. @param observer that of the message which ends with this frame; null if none does */
  readonly writer: { add(observer: WriteObserver | null, frame: Buffer): void };
  /** Calls `flush` at the end of this turn. */
  planFlush(): void;
  /**
   * The client opened the connection.
   * @param idleTimeoutMs the client's `idle-time-out`, within which it must be sent a frame; 0: none
   */
  onOpen(idleTimeoutMs: number): void;
  /** The client attached a link: `accept` or `refuse` it. */
  onAttach(endpoint: Endpoint): void;
  /** Links of this session may send more deliveries. */
  onSessionCapacity(session: SessionEndpoint): void;
  /** The bytes of messages that wait for session windows changed by `bytes`, which may be negative. */
  onQueued(bytes: number): void;
  /** The client closed the connection: `close` has to be called. */
  onClose(): void;
}

interface EndpointOptions {
  readonly containerId: string;
  /** 0: the client need not send heart-beats. */
  readonly idleTimeoutMs: number;
  readonly version: string;
  /** Maximum size of an encoded message. */
  readonly messageBytes: number;
  /** The first id of the transfers and deliveries of each session; they wrap at 2^32. */
  readonly firstId: number;
}

/**
 * The server's end of one AMQP connection (transport, 2.4) after the protocol headers: frames in, calls and frames out.
 * It has no socket, clock or event loop. If a client violates the protocol, `receive` throws a `ProtocolError`; valid
 * frames are answered before `receive` returns, or by `flush`.
 */
export class ConnectionEndpoint {
  readonly host: ConnectionHost;
  /** Maximum size of a frame to the client. */
  peerFrameBytes = MIN_FRAME_BYTES;
  isPeerClosed = false;
  /**
   * Approximate cost of the frames since it was set to 0. A client may request much work in few bytes, so other clients
   * are served before this grows large.
   */
  effort = 0;
  #isPeerOpen = false;
  #isCloseSent = false;
  readonly #options: EndpointOptions;
  readonly #fields = new FieldReader(AMQP_LIMITS);
  /** Readers of described lists within `#fields`, and of those nested in them. */
  readonly #inner = new FieldReader(AMQP_LIMITS);
  readonly #innermost = new FieldReader(AMQP_LIMITS);
  readonly #state: AmqpDeliveryState = {
    kind: 0,
    reason: null,
    isFailed: false,
    isUndeliverable: false,
  };
  /** By the client's channel numbers. */
  readonly #sessions: (SessionEndpoint | undefined)[] = [];
  readonly #ownChannels: boolean[] = [];
  /** How many sessions the client allows. */
  #peerChannels = 0;
  /** Links by direction and name (transport, 2.6.1). */
  readonly #links = new Map<string, Endpoint>();
  /** Links whose `detach` the client has not sent, including those that have ended on this side. */
  #attached = 0;
  /** Upper bound on the bytes that incomplete deliveries retain. */
  #begunCost = 0;

  constructor(host: ConnectionHost, options: EndpointOptions) {
    this.host = host;
    this.#options = options;
  }

  /** Sends a frame to the client. @param observer that of the message which ends with this frame; null if none does */
  send(frame: Buffer, observer: WriteObserver | null): void {
    // Nothing may follow a close (transport, 2.4.3).
    if (this.#isCloseSent) observer?.lost();
    else this.host.writer.add(observer, frame);
  }

  /** Sends the dispositions and flows collected in this turn. */
  flush(): void {
    if (this.#isCloseSent) return;
    for (const session of this.#sessions) session?.flush();
  }

  /** Closes the connection from this side, after an `open` if none was sent yet. No effect if it is closed. */
  close(error: AmqpError | null): void {
    if (this.#isCloseSent) return;
    try {
      this.flush();
    } finally {
      // In `finally`, since flushing may fail again with the error that this close reports.
      if (!this.#isPeerOpen) this.#sendOpen();
      this.#isCloseSent = true;
      const write = (sent: AmqpError | null): Buffer =>
        frame(FRAME_TYPE.amqp, 0, PERFORMATIVE.close, () => writeError(sent));
      this.host.writer.add(null, frameWithError(error, this.peerFrameBytes, write));
    }
  }

  /** Releases the last frame, so that an idle connection does not retain what it read. */
  releaseFrame(): void {
    for (const fields of [this.#fields, this.#inner, this.#innermost]) fields.leave();
  }

  /**
   * Executes one whole frame.
   * @throws ProtocolError
   */
  receive(bytes: Buffer, start: number, end: number): void {
    this.effort += FRAME_EFFORT;
    const offset = 4 * (bytes[start + 4] ?? 0);
    if (offset < HEADER_BYTES || start + offset > end) {
      throw framingError(`The data offset ${offset} is outside the frame of ${end - start} bytes.`);
    }
    if (bytes[start + 5] !== FRAME_TYPE.amqp) {
      throw framingError(`Frame type ${bytes[start + 5]} is not known. Allowed after the login: 0.`);
    }
    if (this.isPeerClosed) return;
    // A heart-beat.
    if (start + offset === end) return;
    const type = descriptorNumber(this.#fields.enter(bytes, start + offset, end));
    if (!this.#isPeerOpen && type !== PERFORMATIVE.open) {
      throw illegalState(`The first performative is ${hex(type)}. Allowed: open (0x10).`);
    }
    if (this.#isCloseSent && type !== PERFORMATIVE.close) return;
    this.#performative(type, bytes.readUInt16BE(start + 6), bytes, end);
  }

  #performative(type: number, channel: number, bytes: Buffer, end: number): void {
    switch (type) {
      case PERFORMATIVE.transfer:
        this.#transfer(this.#sessionOn(channel), bytes, end);
        break;
      case PERFORMATIVE.disposition:
        this.#disposition(this.#sessionOn(channel), end);
        break;
      case PERFORMATIVE.flow:
        this.#flow(this.#sessionOn(channel), end);
        break;
      case PERFORMATIVE.attach:
        this.#attach(this.#sessionOn(channel), end);
        break;
      case PERFORMATIVE.detach:
        this.#detach(this.#sessionOn(channel), end);
        break;
      case PERFORMATIVE.begin:
        this.#begin(channel, end);
        break;
      case PERFORMATIVE.end:
        this.#end(this.#sessionOn(channel), end);
        break;
      case PERFORMATIVE.open:
        this.#open(channel, end);
        break;
      case PERFORMATIVE.close:
        this.#close(end);
        break;
      default:
        throw decodeError(`Performative ${hex(type)} is not known.`);
    }
  }

  #open(channel: number, end: number): void {
    const fields = this.#fields;
    if (this.#isPeerOpen) throw illegalState('The connection is open already.');
    if (channel !== 0) throw illegalState(`open was sent on channel ${channel}. Allowed: channel 0.`);
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
    this.#finish(end);
    this.peerFrameBytes = frameBytes === ABSENT ? MAX_PEER_FRAME_BYTES : frameBytes;
    this.#peerChannels = (channelMax === ABSENT ? AMQP_LIMITS.channelMax : channelMax) + 1;
    this.#sendOpen();
    this.#isPeerOpen = true;
    this.host.onOpen(Math.max(0, idleMs));
  }

  #sendOpen(): void {
    const { containerId, idleTimeoutMs, version } = this.#options;
    const open = frame(FRAME_TYPE.amqp, 0, PERFORMATIVE.open, () => {
      writer.text(containerId);
      writer.null();
      writer.uint(AMQP_LIMITS.frameBytes);
      writer.ushort(AMQP_LIMITS.channelMax);
      if (idleTimeoutMs > 0) writer.uint(idleTimeoutMs);
      else writer.null();
      writer.null();
      writer.null();
      writer.symbols(CAPABILITIES);
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
    this.host.writer.add(null, open);
  }

  #close(end: number): void {
    this.#skipError();
    this.#finish(end);
    this.isPeerClosed = true;
    this.host.onClose();
  }

  #begin(channel: number, end: number): void {
    const fields = this.#fields;
    if (channel > AMQP_LIMITS.channelMax) {
      throw framingError(`Channel ${channel} is too high. Allowed: 0 to ${AMQP_LIMITS.channelMax}.`);
    }
    if (this.#sessions[channel] !== undefined) {
      throw illegalState(`Channel ${channel} has a session already. End it first.`);
    }
    if (fields.ushort('remote-channel') !== ABSENT) {
      throw invalidField('remote-channel is set, but this server begins no sessions.');
    }
    const nextIncomingId = fields.requiredUint('next-outgoing-id');
    const remoteWindow = fields.requiredUint('incoming-window');
    fields.requiredUint('outgoing-window');
    const handleMax = fields.uint('handle-max');
    this.#skipExtensions();
    this.#finish(end);
    const free = this.#ownChannels.indexOf(false);
    const ownChannel = free === -1 ? this.#ownChannels.length : free;
    if (ownChannel >= this.#peerChannels) {
      throw notAllowed(
        `The client begins more sessions than the ${this.#peerChannels} that its own channel-max allows.`,
      );
    }
    this.#ownChannels[ownChannel] = true;
    this.#sessions[channel] = new SessionEndpoint(this, {
      channel: ownChannel,
      peerChannel: channel,
      peerHandles: handleMax === ABSENT ? Infinity : handleMax + 1,
      nextIncomingId,
      remoteWindow,
      firstId: this.#options.firstId,
    });
  }

  #end(session: SessionEndpoint, end: number): void {
    this.#skipError();
    this.#finish(end);
    for (const endpoint of session.endpoints) if (endpoint !== undefined) this.#endLink(endpoint);
    session.end();
    this.#sessions[session.peerChannel] = undefined;
    this.#ownChannels[session.channel] = false;
  }

  #sessionOn(channel: number): SessionEndpoint {
    const session = this.#sessions[channel];
    if (session === undefined) throw framingError(`There is no session on channel ${channel}.`);
    return session;
  }

  #attach(session: SessionEndpoint, end: number): void {
    const request = this.#readAttach(session);
    this.#finish(end);
    if (this.#attached >= MAX_ATTACHED) {
      throw limitExceeded(`The client has not confirmed the detach of ${MAX_ATTACHED} links.`);
    }
    const givenBytes = attachSize(request);
    if (givenBytes > AMQP_LIMITS.attachBytes) {
      throw limitExceeded(
        `The name, addresses and filter of the link ${quote(request.name)} have ${givenBytes} bytes. Allowed: at most ${AMQP_LIMITS.attachBytes}.`,
      );
    }
    const answerBytes = ATTACH_BYTES + givenBytes;
    if (answerBytes > this.peerFrameBytes) {
      throw limitExceeded(
        `The reply to the attach of ${quote(request.name)} may have ${answerBytes} bytes, but the client takes ${this.peerFrameBytes} (max-frame-size).`,
      );
    }
    const ownHandle = session.takeHandle();
    if (ownHandle === null) {
      throw notAllowed(
        `The client attaches more links than the ${session.peerHandles} that its own handle-max allows.`,
      );
    }
    const endpoint = request.isPeerSender
      ? new ReceiverEndpoint(session, request, ownHandle)
      : new SenderEndpoint(session, request, ownHandle);
    const key = linkKey(endpoint);
    // The newer link wins, and the older one ends with an error (transport, 2.6.1, "link stealing").
    this.#links.get(key)?.steal();
    this.#links.set(key, endpoint);
    session.endpoints[request.handle] = endpoint;
    this.#attached += 1;
    this.host.onAttach(endpoint);
  }

  #readAttach(session: SessionEndpoint): AttachRequest {
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
    if (session.endpoints[handle] !== undefined) {
      throw new ProtocolError(
        'amqp:session:handle-in-use',
        `Handle ${handle} has a link already, so ${quote(name)} cannot use it. Detach that first.`,
      );
    }
    const role = fields.boolean('role');
    if (role === ABSENT) throw invalidField('A link has no role.');
    const isPeerSender = role === 0;
    const sndSettleMode = this.#readMode('snd-settle-mode', 2);
    const rcvSettleMode = this.#readMode('rcv-settle-mode', 1);
    const source = this.#readTerminus(DESCRIBED.source);
    const target = this.#readTerminus(DESCRIBED.target);
    fields.oneOf('unsettled', CODE.map8, CODE.map32);
    fields.boolean('incomplete-unsettled');
    const initialDeliveryCount = fields.uint('initial-delivery-count');
    if (initialDeliveryCount === ABSENT && isPeerSender) {
      throw invalidField('A sender has no initial-delivery-count.');
    }
    const maxMessageBytes = fields.ulong('max-message-size');
    this.#skipExtensions();
    return {
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
  }

  #readMode(name: string, max: number): number {
    const mode = this.#fields.ubyte(name);
    if (mode <= max) return mode;
    throw invalidField(`${name} is ${mode}. Allowed: ${max === 2 ? '0, 1, 2' : '0, 1'}.`);
  }

  #readTerminus(expected: number): Terminus | null {
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

  #detach(session: SessionEndpoint, end: number): void {
    const endpoint = this.#endpointOf(session, this.#fields.requiredUint('handle'));
    this.#fields.boolean('closed');
    this.#skipError();
    this.#finish(end);
    this.#endLink(endpoint);
    endpoint.detach(null);
    session.removeEndpoint(endpoint);
  }

  /** The client has ended a link, or its session. */
  #endLink(endpoint: Endpoint): void {
    if (endpoint instanceof ReceiverEndpoint && endpoint.begunId !== -1) {
      this.#endDelivery(endpoint);
      endpoint.session.forgetReceived();
    }
    this.#attached -= 1;
    endpoint.handler?.onDetach();
    endpoint.release();
    const key = linkKey(endpoint);
    if (this.#links.get(key) === endpoint) this.#links.delete(key);
  }

  #endpointOf(session: SessionEndpoint, handle: number): Endpoint {
    const endpoint = session.endpoints[handle];
    if (endpoint !== undefined) return endpoint;
    throw new ProtocolError('amqp:session:unattached-handle', `No link is attached to handle ${handle}.`);
  }

  #flow(session: SessionEndpoint, end: number): void {
    const fields = this.#fields;
    const nextIncomingId = fields.uint('next-incoming-id');
    const incomingWindow = fields.requiredUint('incoming-window');
    fields.requiredUint('next-outgoing-id');
    fields.requiredUint('outgoing-window');
    const handle = fields.uint('handle');
    const endpoint = handle === ABSENT ? null : this.#endpointOf(session, handle);
    const deliveryCount = fields.uint('delivery-count');
    const credit = fields.uint('link-credit');
    const isPeerReceiver = endpoint instanceof SenderEndpoint;
    if (isPeerReceiver && credit === ABSENT) throw invalidField('A flow for a link has no link-credit.');
    fields.uint('available');
    const isDraining = fields.boolean('drain') === 1;
    const isEcho = fields.boolean('echo') === 1;
    fields.oneOf('properties', CODE.map8, CODE.map32);
    this.#finish(end);
    session.flow(nextIncomingId, incomingWindow);
    if (isPeerReceiver) endpoint.flow(deliveryCount, credit, isDraining);
    else if (deliveryCount !== ABSENT) endpoint?.advanceTo(deliveryCount);
    this.host.onSessionCapacity(session);
    if (!isEcho) return;
    if (endpoint === null || endpoint.isDetachSent) session.writeFlow(null);
    else if (isPeerReceiver) session.sendFlow(endpoint, false, 0);
    else session.writeFlow(endpoint.linkFlow());
  }

  #transfer(session: SessionEndpoint, bytes: Buffer, end: number): void {
    const fields = this.#fields;
    const handle = fields.requiredUint('handle');
    const endpoint = this.#endpointOf(session, handle);
    if (!(endpoint instanceof ReceiverEndpoint)) {
      throw illegalState(`A transfer was sent on link ${handle}, on which the client receives.`);
    }
    session.countTransfer();
    const deliveryId = fields.uint('delivery-id');
    const tagBytes = fields.binaryLength('delivery-tag');
    if (tagBytes > MAX_TAG_BYTES) {
      throw invalidField(`A delivery-tag has ${tagBytes} bytes. Allowed: at most ${MAX_TAG_BYTES}.`);
    }
    const format = fields.uint('message-format');
    const isSettled = fields.boolean('settled') === 1;
    const hasMore = fields.boolean('more') === 1;
    this.#readMode('rcv-settle-mode', 1);
    if (fields.isAbsent) fields.skip();
    else this.#readState();
    if (fields.boolean('resume') === 1) {
      throw notImplemented('resume is true, but deliveries cannot be resumed.');
    }
    const isAborted = fields.boolean('aborted') === 1;
    fields.boolean('batchable');
    const payload = bytes.subarray(fields.finish(), end);

    const isFirst = endpoint.begunId === -1;
    if (isFirst) {
      if (deliveryId === ABSENT) throw invalidField('A delivery has no delivery-id.');
      if (tagBytes === ABSENT) throw invalidField('A delivery has no delivery-tag.');
      if (format > 0) throw notImplemented(`message-format ${format} is not known. Allowed: 0.`);
      // After a `detach` of this side, which the client may not have seen yet, the delivery is discarded.
      if (endpoint.credit <= 0 && !endpoint.isDetachSent) {
        throw new ProtocolError(
          'amqp:link:transfer-limit-exceeded',
          `Delivery ${deliveryId} was sent on link ${handle}, which has no credit left.`,
        );
      }
      session.beginDelivery(deliveryId);
      endpoint.begin(deliveryId, isSettled);
    } else if (deliveryId !== ABSENT && deliveryId !== endpoint.begunId) {
      throw illegalState(`Delivery ${deliveryId} starts before delivery ${endpoint.begunId} has ended.`);
    }
    // Any transfer of a delivery may settle it (transport, 2.7.5).
    if (isSettled) endpoint.isBegunSettled = true;
    if (isAborted) this.#abortDelivery(endpoint);
    else if (endpoint.handler === null) this.#discardDelivery(endpoint, hasMore);
    else if (isFirst && !hasMore) this.#completeDelivery(endpoint, endpoint.handler, payload);
    else {
      this.#keepPart(endpoint, payload);
      if (!hasMore) this.#completeDelivery(endpoint, endpoint.handler, null);
    }
  }

  #keepPart(endpoint: ReceiverEndpoint, payload: Buffer): void {
    const { messageBytes } = this.#options;
    this.#begunCost += endpoint.storePart(payload, messageBytes);
    if (this.#begunCost <= 2 * AMQP_LIMITS.begunMessages * messageBytes) return;
    throw limitExceeded(
      `Deliveries that have not ended hold more than ${AMQP_LIMITS.begunMessages} messages of ${messageBytes} bytes, the limit.`,
    );
  }

  /** A delivery is complete. @param payload that of its only transfer; null: it arrived in several */
  #completeDelivery(endpoint: ReceiverEndpoint, handler: ReceiverHandler, payload: Buffer | null): void {
    const { begunId, isBegunSettled, session } = endpoint;
    const kept = this.#endDelivery(endpoint);
    // A delivery that the client sent settled does not count as unsettled.
    if (isBegunSettled) session.forgetReceived();
    handler.onMessage(begunId, payload ?? kept, isBegunSettled);
  }

  /** The client sent this delivery before it knew that the link had ended on this side. */
  #discardDelivery(endpoint: ReceiverEndpoint, hasMore: boolean): void {
    if (hasMore) return;
    const { begunId, isBegunSettled, session } = endpoint;
    this.#endDelivery(endpoint);
    if (isBegunSettled) session.forgetReceived();
    else session.settleReceived(begunId, 'released');
  }

  /** The client aborted a delivery, which settles it (transport, 2.7.5). */
  #abortDelivery(endpoint: ReceiverEndpoint): void {
    this.#endDelivery(endpoint);
    endpoint.session.forgetReceived();
    // The delivery has used its credit.
    endpoint.handler?.onCreditLost(1);
  }

  #endDelivery(endpoint: ReceiverEndpoint): Buffer {
    this.#begunCost -= endpoint.begunCost;
    return endpoint.endDelivery();
  }

  #disposition(session: SessionEndpoint, end: number): void {
    const fields = this.#fields;
    const role = fields.boolean('role');
    if (role === ABSENT) throw invalidField('A disposition has no role.');
    const first = fields.requiredUint('first');
    const lastGiven = fields.uint('last');
    const last = lastGiven === ABSENT ? first : lastGiven;
    const isPeerReceiver = role === 1;
    session.checkRange(isPeerReceiver, first, last);
    const isSettled = fields.boolean('settled') === 1;
    this.#state.kind = 0;
    if (fields.isAbsent) fields.skip();
    else this.#readState();
    fields.boolean('batchable');
    this.#finish(end);
    // Dispositions about what the client sent have no effect: this side settles a delivery with its outcome.
    if (isPeerReceiver) this.effort += session.disposition(first, last, this.#state, isSettled);
  }

  /** Reads a delivery state (messaging, 3.4) into `#state`. */
  #readState(): void {
    const inner = this.#inner;
    const state = this.#state;
    state.kind = descriptorNumber(inner.enterField(this.#fields));
    state.reason = null;
    state.isFailed = false;
    state.isUndeliverable = false;
    switch (state.kind) {
      case DESCRIBED.received:
        inner.requiredUint('section-number');
        inner.oneOf('section-offset', CODE.ulong, CODE.smallUlong, CODE.ulong0);
        break;
      case DESCRIBED.accepted:
      case DESCRIBED.released:
        break;
      case DESCRIBED.rejected:
        if (inner.isAbsent) break;
        this.#readError(inner, this.#innermost);
        break;
      case DESCRIBED.modified:
        state.isFailed = inner.boolean('delivery-failed') === 1;
        state.isUndeliverable = inner.boolean('undeliverable-here') === 1;
        inner.oneOf('message-annotations', CODE.map8, CODE.map32);
        break;
      case DESCRIBED.transactionalState:
        throw notImplemented(
          'Transactions are not supported, so no delivery may have a transactional-state.',
        );
      default:
        throw decodeError(
          `Delivery state ${hex(state.kind)} is not known. Allowed: received, accepted, rejected, released, modified.`,
        );
    }
  }

  /** Reads the error at the position of `outer` into `#state`. @param reader one that is not in use */
  #readError(outer: FieldReader, reader: FieldReader): void {
    if (descriptorNumber(reader.enterField(outer)) !== DESCRIBED.error) {
      throw decodeError('A field that must be an error has another type.');
    }
    const condition = reader.symbol('condition');
    if (condition === null) throw invalidField('An error has no condition.');
    const parts = [condition, reader.string('description')].filter((part) => part !== null && part !== '');
    // Cut once for all deliveries of the disposition: the text may have 128 KiB, and there may be 2,048 deliveries.
    this.#state.reason = parts.length === 0 ? null : truncateUtf8(parts.join(': '), LIMITS.reasonBytes);
    reader.oneOf('info', CODE.map8, CODE.map32);
  }

  /** Skips a field of the performative that is an error or absent. */
  #skipError(): void {
    if (this.#fields.isAbsent) this.#fields.skip();
    else this.#readError(this.#fields, this.#inner);
  }

  /** Skips the last fields of `open`, `begin` and `attach`. */
  #skipExtensions(): void {
    const fields = this.#fields;
    fields.symbols('offered-capabilities');
    fields.symbols('desired-capabilities');
    fields.oneOf('properties', CODE.map8, CODE.map32);
  }

  /** Reads the rest of a performative that has no payload. */
  #finish(end: number): void {
    if (this.#fields.finish() !== end) throw decodeError('A frame that is not a transfer has a payload.');
  }
}

/** Size of the parts of an `attach` that its reply repeats. */
function attachSize({ name, source, target }: AttachRequest): number {
  const filterBytes = source?.filter?.length ?? 0;
  return Buffer.byteLength(`${name}${source?.address ?? ''}${target?.address ?? ''}`) + filterBytes;
}

function linkKey({ request: { isPeerSender, name } }: Endpoint): string {
  return (isPeerSender ? 's' : 'r') + name;
}
