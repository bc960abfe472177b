import type { WriteObserver } from '../../session/socket-writer.ts';
import { quote } from '../../util/quote.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { PERFORMATIVE } from './codes.ts';
import { ABSENT } from './fields.ts';
import { bodyStart, FRAME_TYPE, frame, frameWithError, writeError, writer } from './frames.ts';
import {
  ATTACH_BYTES,
  CAPABILITIES,
  type Endpoint,
  ReceiverEndpoint,
  type ReceiverHandler,
  SenderEndpoint,
} from './link.ts';
import { attachSize, MIN_FRAME_BYTES, PerformativeReader } from './performatives.ts';
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

/** Maximum links including those whose `detach` the client has not confirmed: they stay in memory until it does. */
const MAX_ATTACHED = 4 * AMQP_LIMITS.links;
/** Used if the client announces no limit. */
const MAX_PEER_FRAME_BYTES = 2 ** 31;

/** Shared by all connections, since each frame is read synchronously, before it takes effect. Retains the last ones. */
const performatives = new PerformativeReader();

/** What a protocol connection calls. */
export interface ConnectionHost {
  /** Sends a frame to the client. @param observer that of the message which ends with this frame; null if none does */
  readonly writer: { add(observer: WriteObserver | null, frame: Buffer): void };
  /** Whether the writer takes more of a message now. If not, `sendQueued` is called once it does. */
  readonly canWrite: boolean;
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
  /** Bytes of the client's deliveries that have begun and not ended. */
  begunBytes = 0;
  /** Bytes of messages that wait for the windows of sessions, or for the writer. */
  queuedBytes = 0;
  #isPeerOpen = false;
  #isCloseSent = false;
  readonly #options: EndpointOptions;
  /** By the client's channel numbers. */
  readonly #sessions: (SessionEndpoint | undefined)[] = [];
  readonly #ownChannels: boolean[] = [];
  /** How many sessions the client allows. */
  #peerChannels = 0;
  /** Links by direction and name (transport, 2.6.1). */
  readonly #links = new Map<string, Endpoint>();
  /** Links whose `detach` the client has not sent, including those that have ended on this side. */
  #attached = 0;

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

  /** Sends messages that waited for the writer. */
  sendQueued(): void {
    for (const session of this.#sessions) session?.sendQueued();
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

  /**
   * Executes one whole frame.
   * @throws ProtocolError
   */
  receive(bytes: Buffer, start: number, end: number): void {
    const body = bodyStart(bytes, start, end, FRAME_TYPE.amqp);
    if (this.isPeerClosed) return;
    // A heart-beat.
    if (body === end) return;
    const type = performatives.enter(bytes, body, end);
    if (!this.#isPeerOpen && type !== PERFORMATIVE.open) {
      throw illegalState(`The first performative is ${hex(type)}. Allowed: open (0x10).`);
    }
    if (this.#isCloseSent && type !== PERFORMATIVE.close) return;
    this.#performative(type, bytes.readUInt16BE(start + 6), bytes);
  }

  #performative(type: number, channel: number, bytes: Buffer): void {
    switch (type) {
      case PERFORMATIVE.transfer:
        this.#transfer(this.#sessionOn(channel), bytes);
        break;
      case PERFORMATIVE.disposition:
        this.#disposition(this.#sessionOn(channel));
        break;
      case PERFORMATIVE.flow:
        this.#flow(this.#sessionOn(channel));
        break;
      case PERFORMATIVE.attach:
        this.#attach(this.#sessionOn(channel));
        break;
      case PERFORMATIVE.detach:
        this.#detach(this.#sessionOn(channel));
        break;
      case PERFORMATIVE.begin:
        this.#begin(channel);
        break;
      case PERFORMATIVE.end:
        this.#end(this.#sessionOn(channel));
        break;
      case PERFORMATIVE.open:
        this.#open(channel);
        break;
      case PERFORMATIVE.close:
        this.#close();
        break;
      default:
        throw decodeError(`Performative ${hex(type)} is not known.`);
    }
  }

  #open(channel: number): void {
    if (this.#isPeerOpen) throw illegalState('The connection is open already.');
    if (channel !== 0) throw illegalState(`open was sent on channel ${channel}. Allowed: channel 0.`);
    const { frameBytes, channelMax, idleMs } = performatives.open();
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
      });
    });
    this.host.writer.add(null, open);
  }

  #close(): void {
    performatives.end();
    this.isPeerClosed = true;
    this.host.onClose();
  }

  #begin(channel: number): void {
    if (channel > AMQP_LIMITS.channelMax) {
      throw framingError(`Channel ${channel} is too high. Allowed: 0 to ${AMQP_LIMITS.channelMax}.`);
    }
    if (this.#sessions[channel] !== undefined) {
      throw illegalState(`Channel ${channel} has a session already. End it first.`);
    }
    const { nextOutgoingId, incomingWindow, handleMax } = performatives.begin();
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
      nextIncomingId: nextOutgoingId,
      remoteWindow: incomingWindow,
      firstId: this.#options.firstId,
    });
  }

  #end(session: SessionEndpoint): void {
    performatives.end();
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

  #attach(session: SessionEndpoint): void {
    const request = performatives.attach();
    const { name, handle, isPeerSender } = request;
    if (session.endpoints[handle] !== undefined) {
      throw new ProtocolError(
        'amqp:session:handle-in-use',
        `Handle ${handle} has a link already, so ${quote(name)} cannot use it. Detach that first.`,
      );
    }
    if (this.#attached >= MAX_ATTACHED) {
      throw limitExceeded(`The client has not confirmed the detach of ${MAX_ATTACHED} links.`);
    }
    const replyBytes = ATTACH_BYTES + attachSize(request);
    if (replyBytes > this.peerFrameBytes) {
      throw limitExceeded(
        `The reply to the attach of ${quote(name)} may have ${replyBytes} bytes, but the client takes ${this.peerFrameBytes} (max-frame-size).`,
      );
    }
    const ownHandle = session.takeHandle();
    if (ownHandle === null) {
      throw notAllowed(
        `The client attaches more links than the ${session.peerHandles} that its own handle-max allows.`,
      );
    }
    const endpoint = isPeerSender
      ? new ReceiverEndpoint(session, request, ownHandle)
      : new SenderEndpoint(session, request, ownHandle);
    const key = linkKey(endpoint);
    // The newer link wins, and the older one ends with an error (transport, 2.6.1, "link stealing").
    this.#links.get(key)?.steal();
    this.#links.set(key, endpoint);
    session.endpoints[handle] = endpoint;
    this.#attached += 1;
    this.host.onAttach(endpoint);
  }

  #detach(session: SessionEndpoint): void {
    const endpoint = this.#endpointOf(session, performatives.detach());
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
    endpoint.handler?.stop(true);
    endpoint.release();
    const key = linkKey(endpoint);
    if (this.#links.get(key) === endpoint) this.#links.delete(key);
  }

  #endpointOf(session: SessionEndpoint, handle: number): Endpoint {
    const endpoint = session.endpoints[handle];
    if (endpoint !== undefined) return endpoint;
    throw new ProtocolError('amqp:session:unattached-handle', `No link is attached to handle ${handle}.`);
  }

  #flow(session: SessionEndpoint): void {
    const flow = performatives.flow();
    const { nextIncomingId, incomingWindow, handle, deliveryCount, credit, isDraining, isEcho } = flow;
    const endpoint = handle === ABSENT ? null : this.#endpointOf(session, handle);
    const isPeerReceiver = endpoint instanceof SenderEndpoint;
    if (isPeerReceiver && credit === ABSENT) throw invalidField('A flow for a link has no link-credit.');
    session.flow(nextIncomingId, incomingWindow);
    if (isPeerReceiver) endpoint.flow(deliveryCount, credit, isDraining);
    else if (deliveryCount !== ABSENT) endpoint?.advanceTo(deliveryCount);
    this.host.onSessionCapacity(session);
    if (!isEcho) return;
    if (endpoint === null || endpoint.isDetachSent) session.writeFlow(null);
    else if (isPeerReceiver) session.sendFlow(endpoint, false, 0);
    else session.writeFlow(endpoint);
  }

  #transfer(session: SessionEndpoint, bytes: Buffer): void {
    const transfer = performatives.transfer(bytes);
    const { handle, deliveryId, isSettled, hasMore, payload } = transfer;
    const endpoint = this.#endpointOf(session, handle);
    if (!(endpoint instanceof ReceiverEndpoint)) {
      throw illegalState(`A transfer was sent on link ${handle}, on which the client receives.`);
    }
    session.countTransfer();
    const isFirst = endpoint.begunId === -1;
    if (isFirst) {
      if (deliveryId === ABSENT) throw invalidField('A delivery has no delivery-id.');
      if (!transfer.hasTag) throw invalidField('A delivery has no delivery-tag.');
      if (transfer.format > 0) {
        throw notImplemented(`message-format ${transfer.format} is not known. Allowed: 0.`);
      }
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
    if (transfer.isAborted) this.#abortDelivery(endpoint);
    else if (endpoint.handler === null) this.#discardDelivery(endpoint, hasMore);
    else if (isFirst && !hasMore) this.#completeDelivery(endpoint, endpoint.handler, payload);
    else {
      this.#keepPart(endpoint, payload);
      if (!hasMore) this.#completeDelivery(endpoint, endpoint.handler, null);
    }
  }

  #keepPart(endpoint: ReceiverEndpoint, payload: Buffer): void {
    const { messageBytes } = this.#options;
    this.begunBytes += endpoint.storePart(payload, messageBytes);
    if (this.begunBytes <= AMQP_LIMITS.begunMessages * messageBytes) return;
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
    endpoint.handler?.onCreditUsed(1);
  }

  #endDelivery(endpoint: ReceiverEndpoint): Buffer {
    this.begunBytes -= endpoint.begunBytes;
    return endpoint.endDelivery();
  }

  #disposition(session: SessionEndpoint): void {
    const { isPeerReceiver, first, last, isSettled, state } = performatives.disposition();
    session.checkRange(isPeerReceiver, first, last);
    // Dispositions about what the client sent have no effect: this side settles a delivery with its outcome.
    if (isPeerReceiver) session.disposition(first, last, state, isSettled);
  }
}

function linkKey({ request: { isPeerSender, name } }: Endpoint): string {
  return (isPeerSender ? 's' : 'r') + name;
}
