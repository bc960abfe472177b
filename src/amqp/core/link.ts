import { ownBytes } from '../../util/own-bytes.ts';
import { DESCRIBED, PERFORMATIVE } from './codes.ts';
import { NOTHING } from './fields.ts';
import { FRAME_TYPE, frame, frameWithError, writeError, writer } from './frames.ts';
import type { AmqpError } from './protocol-error.ts';
import type { LinkFlow, QueuedFrame, SentDelivery, SessionEndpoint } from './session.ts';

/** The source or target of an `attach`, as the client wrote it. */
export interface Terminus {
  readonly address: string | null;
  /** Targets only: it is the coordinator of transactions. */
  readonly isCoordinator: boolean;
  readonly isDynamic: boolean;
  /** Sources only. */
  readonly distributionMode: string | null;
  /** Sources only: a map, encoded. */
  readonly filter: Buffer | null;
}

/** An `attach` of the client (transport, 2.7.3). */
export interface AttachRequest {
  readonly name: string;
  readonly handle: number;
  readonly isPeerSender: boolean;
  readonly sndSettleMode: number;
  readonly rcvSettleMode: number;
  readonly source: Terminus | null;
  readonly target: Terminus | null;
  readonly initialDeliveryCount: number;
  /** The largest message that the client takes. */
  readonly maxMessageBytes: number;
}

/** Values of `snd-settle-mode` (transport, 2.8.2). */
export const SETTLE_MODE = { unsettled: 0, settled: 1, mixed: 2 } as const;

/** The outcome or state that a client gave a delivery. One object serves all; it is valid during the call. */
export interface AmqpDeliveryState {
  /** The number of its descriptor; 0: none was given. */
  kind: number;
  /** The error of `rejected`: its condition and description, cut to what is kept of a reason. */
  reason: string | null;
  /** Of `modified`. */
  isFailed: boolean;
  isUndeliverable: boolean;
}

interface EndpointHandler {
  /** The client, or a link of the same name, ended the link. Called at most once, and never after `detach`. */
  onDetach(): void;
}

/** The user of a link by which the client sends. */
export interface ReceiverHandler extends EndpointHandler {
  /** @param payload the encoded message; longer than allowed if it is too large, but not much */
  onMessage(deliveryId: number, payload: Buffer, isSettled: boolean): void;
  /** The client used so much credit up without sending. */
  onCreditLost(count: number): void;
}

/** The user of a link by which the client receives. */
export interface SenderHandler extends EndpointHandler {
  onFlow(): void;
  /** Each disposition of the client that names the delivery, until it is settled. */
  onDisposition(delivery: SentDelivery, state: AmqpDeliveryState, isSettled: boolean): void;
}

/** A source (messaging, 3.5.3) or target (3.5.4) as this server answers it. */
interface TerminusFields {
  readonly address: string | null;
  /** Sources only: an encoded map, or null. */
  readonly filter?: Buffer | null;
  /** Sources that deliver; they have outcomes, and the one without an outcome. */
  readonly distributionMode?: DistributionMode;
}

/** Whether the client takes elements, or looks at copies (messaging, 3.5.3). */
type DistributionMode = 'move' | 'copy';

interface AttachFields {
  readonly sndSettleMode: number;
  readonly rcvSettleMode: number;
  /** Null: the link is refused, and `detach` follows (transport, 2.6.3). */
  readonly source: TerminusFields | null;
  readonly target: TerminusFields | null;
  /** 0: not announced. */
  readonly maxMessageBytes: number;
  readonly capabilities: readonly string[];
}

/**
 * What each `attach` of a link to send by offers. Without it Qpid JMS refuses to send with a delay, and with it sends
 * `x-opt-delivery-time`.
 */
const LINK_CAPABILITIES: readonly string[] = ['DELAYED_DELIVERY'];

/** What `open` offers: in addition, links whose messages name their queues (AMQP Anonymous Terminus, 1.0). */
export const CAPABILITIES: readonly string[] = [...LINK_CAPABILITIES, 'ANONYMOUS-RELAY'];

const OUTCOMES = ['amqp:accepted:list', 'amqp:rejected:list', 'amqp:released:list', 'amqp:modified:list'];

/** The largest size of the answer to an `attach`, in addition to its name, addresses and filter. */
export const ATTACH_BYTES = 256;

/** This server's end of a link (transport, 2.6). */
abstract class LinkEndpoint<Handler extends EndpointHandler = EndpointHandler> {
  readonly session: SessionEndpoint;
  readonly request: AttachRequest;
  readonly ownHandle: number;
  /** Null before it is accepted, and once the link is over. */
  handler: Handler | null = null;
  /** The client still has to confirm it; what comes until then is discarded. */
  isDetachSent = false;

  constructor(session: SessionEndpoint, request: AttachRequest, ownHandle: number) {
    this.session = session;
    this.request = request;
    this.ownHandle = ownHandle;
  }

  /** Ends it from this side. Harmless if it is over. */
  detach(error: AmqpError | null): void {
    if (this.isDetachSent || this.session.isOver) return;
    this.release();
    this.isDetachSent = true;
    const { channel, peerFrameBytes } = this.session;
    const write = (sent: AmqpError | null): Buffer =>
      frame(FRAME_TYPE.amqp, channel, PERFORMATIVE.detach, () => {
        writer.uint(this.ownHandle);
        // A `detach` always closes the link: links are not resumed.
        writer.boolean(true);
        return 2 + writeError(sent);
      });
    this.session.write(frameWithError(error, peerFrameBytes, write));
  }

  /** Answers an `attach` that is refused: without a terminus, then `detach` (transport, 2.6.3). */
  refuse(error: AmqpError): void {
    const { sndSettleMode, rcvSettleMode } = this.request;
    const modes = { sndSettleMode, rcvSettleMode };
    this.answerAttach({ ...modes, source: null, target: null, maxMessageBytes: 0, capabilities: [] });
    this.detach(error);
  }

  /** Another link took its name (transport, 2.6.1). */
  steal(): void {
    const { handler } = this;
    handler?.onDetach();
    this.detach({ condition: 'amqp:link:stolen', description: 'Another link was attached under its name.' });
  }

  /** The link is over: drops what it holds. Harmless when repeated. */
  release(): void {
    this.handler = null;
  }

  /** Transport, 2.7.3. */
  protected answerAttach({ source, target, ...fields }: AttachFields): void {
    const { name, isPeerSender: isReceiver } = this.request;
    const { session } = this;
    const attach = frame(FRAME_TYPE.amqp, session.channel, PERFORMATIVE.attach, () => {
      writer.text(name);
      writer.uint(this.ownHandle);
      writer.boolean(isReceiver);
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
      if (isReceiver) writer.null();
      else writer.uint(0);
      if (fields.maxMessageBytes === 0) writer.null();
      else writer.ulong(fields.maxMessageBytes);
      if (fields.capabilities.length === 0) return 11;
      writer.symbols(fields.capabilities);
      return 12;
    });
    session.write(attach);
  }
}

/** The end of a link by which the client sends. */
export class ReceiverEndpoint extends LinkEndpoint<ReceiverHandler> {
  /** Deliveries that the client may still begin. */
  credit = 0;
  #deliveryCount: number;
  /** Of the delivery that has begun and not ended; -1: there is none. */
  begunId = -1;
  isBegunSettled = false;
  #parts: Buffer[] = [];
  #begunBytes = 0;
  /** Bytes that the begun delivery retains at most. */
  begunCost = 0;

  constructor(session: SessionEndpoint, request: AttachRequest, ownHandle: number) {
    super(session, request, ownHandle);
    this.#deliveryCount = request.initialDeliveryCount;
  }

  /**
   * Answers the `attach` with what the client wrote.
   * @param maxMessageBytes the largest message that this side takes
   */
  accept(handler: ReceiverHandler, maxMessageBytes: number): void {
    const { source, target, sndSettleMode } = this.request;
    this.handler = handler;
    this.answerAttach({
      source: { address: source?.address ?? '' },
      target: { address: target === null ? '' : target.address },
      maxMessageBytes,
      sndSettleMode,
      // The receiver decides. uamqp asks for `second`, and then never settles what it sent.
      rcvSettleMode: 0,
      capabilities: LINK_CAPABILITIES,
    });
  }

  grant(credit: number): void {
    this.credit += credit;
    this.session.writeFlow(this.linkFlow());
  }

  linkFlow(): LinkFlow {
    const { ownHandle, credit } = this;
    return { ownHandle, deliveryCount: this.#deliveryCount, credit, drain: false };
  }

  /** A delivery has begun: its credit is used. */
  begin(deliveryId: number, isSettled: boolean): void {
    this.credit -= 1;
    this.#deliveryCount = (this.#deliveryCount + 1) >>> 0;
    this.begunId = deliveryId;
    this.isBegunSettled = isSettled;
  }

  /** A sender may use credit up without sending (transport, 2.6.7). */
  advanceTo(deliveryCount: number): void {
    const lost = (deliveryCount - this.#deliveryCount) | 0;
    if (lost <= 0 || lost > this.credit) return;
    this.#deliveryCount = deliveryCount;
    this.credit -= lost;
    this.handler?.onCreditLost(lost);
  }

  /**
   * Keeps a part of the begun delivery, up to one byte above the largest message, which shows its user that it is too
   * large.
   * @returns by how much `begunCost` grew
   */
  keepPart(part: Buffer, maxBytes: number): number {
    const wanted = Math.max(0, maxBytes + 1 - this.#begunBytes);
    this.#begunBytes += part.length;
    if (wanted === 0 || part.length === 0) return 0;
    const kept = part.length > wanted ? part.subarray(0, wanted) : part;
    // A view of what was read would retain all of that until the delivery ends.
    this.#parts.push(2 * kept.length < kept.buffer.byteLength ? ownBytes(kept) : kept);
    const cost = 2 * kept.length + PART_BYTES;
    this.begunCost += cost;
    return cost;
  }

  /** The delivery has ended, or was aborted. Returns what was kept of it. */
  endDelivery(): Buffer {
    this.begunId = -1;
    const parts = this.#parts;
    const [first] = parts;
    if (parts.length === 0) return NOTHING;
    this.#parts = [];
    this.#begunBytes = 0;
    this.begunCost = 0;
    return parts.length === 1 && first !== undefined ? first : Buffer.concat(parts);
  }
}

/** What is retained for a part of a delivery in addition to its bytes, about. */
const PART_BYTES = 256;

/** The end of a link by which the client receives. */
export class SenderEndpoint extends LinkEndpoint<SenderHandler> {
  /** Deliveries that may still be sent. */
  credit = 0;
  /** Whether the client wants the credit used up. */
  isDraining = false;
  /** The delivery-count of what was written (transport, 2.6.7), without what waits in the session's queue. */
  deliveryCount = 0;
  /** Credit that is used by what waits in the session's queue. */
  queued = 0;
  /** The newest frame of this link in the session's queue. */
  lastWaiting: QueuedFrame | null = null;
  unsettledCount = 0;

  /** Answers the `attach` with what the client wrote. @param isSettled what is sent needs no outcome */
  accept(handler: SenderHandler, isSettled: boolean, distributionMode: DistributionMode): void {
    const { source, target, rcvSettleMode } = this.request;
    this.handler = handler;
    this.answerAttach({
      source: { address: source?.address ?? '', filter: source?.filter ?? null, distributionMode },
      target: { address: target?.address ?? '' },
      maxMessageBytes: 0,
      sndSettleMode: isSettled ? SETTLE_MODE.settled : SETTLE_MODE.unsettled,
      // Both are served: what the client does not settle with its outcome is settled by this side.
      rcvSettleMode,
      capabilities: [],
    });
  }

  /** How many messages may be sent now, and need not wait for the session's window. */
  get sendable(): number {
    return Math.max(0, Math.min(this.credit, this.session.sendable));
  }

  /** Whether no message may be sent before the client gives credit, or settles what it has. */
  get isUsedUp(): boolean {
    return this.credit <= 0 || this.session.available <= 0;
  }

  linkFlow(): LinkFlow {
    const { ownHandle, deliveryCount, queued, isDraining: drain } = this;
    return { ownHandle, deliveryCount, credit: this.credit + queued, drain };
  }

  /** Nothing is left to send: the rest of the credit is used up, behind all that was sent before. */
  drained(): void {
    if (this.isDetachSent || this.session.isOver) return;
    this.isDraining = false;
    const advance = this.credit;
    this.credit = 0;
    this.queued += advance;
    this.session.sendFlow(this, true, advance);
  }

  /** The client's view of the link (transport, 2.6.7). @param deliveryCount -1: it names none */
  flow(deliveryCount: number, credit: number, isDraining: boolean): void {
    const { queued } = this;
    // A client that names no delivery-count has not seen the `attach` of this side, in which it is 0.
    const seen = Math.max(0, deliveryCount);
    // No client has seen what waits here, whatever delivery-count it claims. So credit and queued are not more than it
    // gave.
    const unseen = Math.max(queued, (this.deliveryCount + queued - seen) | 0);
    this.credit = Math.max(0, credit - unseen);
    this.isDraining = isDraining;
    this.handler?.onFlow();
  }

  override release(): void {
    if (this.handler === null) return;
    super.release();
    this.session.forgetSent(this);
  }
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

export type Endpoint = ReceiverEndpoint | SenderEndpoint;
