import { BytePieces } from '../../util/byte-pieces.ts';
import { ownBytes } from '../../util/own-bytes.ts';
import { DESCRIBED, PERFORMATIVE } from './codes.ts';
import { NOTHING } from './fields.ts';
import { FRAME_TYPE, frame, frameWithError, writeError, writer } from './frames.ts';
import type { AmqpError } from './protocol-error.ts';
import { serialAfter, serialDifference } from './serial.ts';
import type { QueuedFrame, SentDelivery, SessionEndpoint } from './session.ts';

/** The source or target of a client's `attach`. */
export interface Terminus {
  readonly address: string | null;
  /** Targets only: whether it is a transaction coordinator. */
  readonly isCoordinator: boolean;
  readonly isDynamic: boolean;
  /** Sources only. */
  readonly distributionMode: string | null;
  /** Sources only: an encoded map. */
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
  /** Maximum size of a message to the client. */
  readonly maxMessageBytes: number;
}

/** Values of `snd-settle-mode` (transport, 2.8.2). */
export const SETTLE_MODE = { unsettled: 0, settled: 1, mixed: 2 } as const;

/** The outcome or state in a client's disposition. */
export interface AmqpDeliveryState {
  /** Its numeric descriptor; 0: the client sent no state. */
  readonly kind: number;
  /** Condition and description of the error of `rejected`, cut to `LIMITS.reasonBytes`. */
  readonly reason: string | null;
  /** `delivery-failed` and `undeliverable-here` of `modified`. */
  readonly isFailed: boolean;
  readonly isUndeliverable: boolean;
}

interface EndpointHandler {
  /**
   * The client ended the link, or another link took its name. Never called after `detach`.
   * @param countTries whether a failed try is counted for each element that the client may have seen
   */
  stop(countTries: boolean): unknown;
}

/** What a link on which the client sends calls. */
export interface ReceiverHandler extends EndpointHandler {
  /** @param payload the encoded message; if it is too large, cut to slightly more than the allowed size */
  onMessage(deliveryId: number, payload: Buffer, isSettled: boolean): void;
  /** The client used up `count` credits without sending. */
  onCreditUsed(count: number): void;
}

/** What a link on which the client receives calls. */
export interface SenderHandler extends EndpointHandler {
  onFlow(): void;
  /** Called for each disposition of the client that covers the delivery, until it is settled. */
  onDisposition(delivery: SentDelivery, state: AmqpDeliveryState, isSettled: boolean): void;
}

/** Whether the client consumes elements, or browses copies (messaging, 3.5.3). */
type DistributionMode = 'move' | 'copy';

/** What this server's `attach` adds to the client's. */
interface Acceptance {
  readonly sndSettleMode: number;
  readonly rcvSettleMode: number;
  /** Maximum size of a message from the client; links on which it sends only. */
  readonly maxMessageBytes?: number;
  /** Links on which the client receives only. */
  readonly distributionMode?: DistributionMode;
}

/**
 * Capabilities that this server offers on each link on which the client sends. Qpid JMS sends `x-opt-delivery-time`
 * only if the link offers delayed delivery, and otherwise refuses to send with a delay.
 */
const LINK_CAPABILITIES: readonly string[] = ['DELAYED_DELIVERY'];

/**
 * Capabilities offered in `open`: in addition, links whose messages name their queues (AMQP Anonymous Terminus, 1.0).
 */
export const CAPABILITIES: readonly string[] = [...LINK_CAPABILITIES, 'ANONYMOUS-RELAY'];

const OUTCOMES = ['amqp:accepted:list', 'amqp:rejected:list', 'amqp:released:list', 'amqp:modified:list'];

/** Maximum size of the reply to an `attach`, not counting name, addresses and filter. */
export const ATTACH_BYTES = 256;

/** This server's end of a link (transport, 2.6). */
abstract class LinkEndpoint<Handler extends EndpointHandler = EndpointHandler> {
  readonly session: SessionEndpoint;
  readonly request: AttachRequest;
  readonly ownHandle: number;
  /** Null before the link is accepted, and after it has ended. */
  handler: Handler | null = null;
  /** Until the client confirms the `detach`, its transfers on this link are discarded. */
  isDetachSent = false;
  /** How many deliveries may still be started: by the client, or to it. */
  credit = 0;
  /** The `delivery-count` (transport, 2.6.7); to the client, not counting messages in the session's queue. */
  deliveryCount = 0;
  /** Whether the client requested a drain; only where it receives. */
  isDraining = false;

  constructor(session: SessionEndpoint, request: AttachRequest, ownHandle: number) {
    this.session = session;
    this.request = request;
    this.ownHandle = ownHandle;
  }

  /** The `link-credit` that belongs to `deliveryCount`. */
  get linkCredit(): number {
    return this.credit;
  }

  /** Ends the link from this side. No effect if it has ended. */
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
        writeError(sent);
      });
    this.session.write(frameWithError(error, peerFrameBytes, write));
  }

  /** Refuses an `attach`: replies without source and target, then sends `detach` (transport, 2.6.3). */
  refuse(error: AmqpError): void {
    this.sendAttach(null);
    this.detach(error);
  }

  /** Ends the link because another one took its name (transport, 2.6.1). */
  steal(): void {
    this.handler?.stop(true);
    this.detach({ condition: 'amqp:link:stolen', description: 'Another link was attached under its name.' });
  }

  /**
   * Drops the state of a link that has ended. No effect when repeated.
   * @param _keepsUnsettled whether unsettled deliveries may still be settled, because the link was not detached
   */
  release(_keepsUnsettled = false): void {
    this.handler = null;
  }

  /** Sends this server's `attach` (transport, 2.7.3). @param accepted null: the link is refused */
  protected sendAttach(accepted: Acceptance | null): void {
    const { name, source, target, isPeerSender: isReceiver } = this.request;
    const { sndSettleMode, rcvSettleMode } = accepted ?? this.request;
    const attach = frame(FRAME_TYPE.amqp, this.session.channel, PERFORMATIVE.attach, () => {
      writer.text(name);
      writer.uint(this.ownHandle);
      writer.boolean(isReceiver);
      writer.ubyte(sndSettleMode);
      writer.ubyte(rcvSettleMode);
      if (accepted === null) {
        writer.null();
        writer.null();
      } else {
        writer.list(DESCRIBED.source, () => writeSource(source, accepted.distributionMode));
        writer.list(DESCRIBED.target, () => {
          writer.text(target === null ? '' : target.address);
        });
      }
      writer.null();
      writer.null();
      if (isReceiver) writer.null();
      else writer.uint(0);
      if (accepted?.maxMessageBytes === undefined) return;
      writer.ulong(accepted.maxMessageBytes);
      writer.symbols(LINK_CAPABILITIES);
    });
    this.session.write(attach);
  }
}

/** This server's end of a link on which the client sends. */
export class ReceiverEndpoint extends LinkEndpoint<ReceiverHandler> {
  /** Id of the incomplete delivery; -1 if there is none. */
  begunId = -1;
  isBegunSettled = false;
  /** The stored parts of the incomplete delivery. */
  readonly #parts = new BytePieces();

  constructor(session: SessionEndpoint, request: AttachRequest, ownHandle: number) {
    super(session, request, ownHandle);
    this.deliveryCount = request.initialDeliveryCount;
  }

  /**
   * Replies to the `attach` with the client's source and target.
   * @param maxMessageBytes maximum size of a message from the client
   */
  accept(handler: ReceiverHandler, maxMessageBytes: number): void {
    this.handler = handler;
    // `first`, whatever the client requests: uamqp requests `second`, and then never settles what it sent.
    this.sendAttach({ sndSettleMode: this.request.sndSettleMode, rcvSettleMode: 0, maxMessageBytes });
  }

  grant(credit: number): void {
    this.credit += credit;
    this.session.writeFlow(this);
  }

  /** A delivery has started and used its credit. */
  begin(deliveryId: number, isSettled: boolean): void {
    this.credit -= 1;
    this.deliveryCount = serialAfter(this.deliveryCount);
    this.begunId = deliveryId;
    this.isBegunSettled = isSettled;
  }

  /** The client used up credit without sending (transport, 2.6.7). */
  advanceTo(deliveryCount: number): void {
    const lost = serialDifference(deliveryCount, this.deliveryCount);
    if (lost <= 0 || lost > this.credit) return;
    this.deliveryCount = deliveryCount;
    this.credit -= lost;
    this.handler?.onCreditUsed(lost);
  }

  get begunBytes(): number {
    return this.#parts.length;
  }

  /**
   * Stores a part of the incomplete delivery. Of a message that is too large, one byte more than allowed is stored, by
   * which the handler recognizes it.
   * @returns how many bytes were stored
   */
  storePart(part: Buffer, maxBytes: number): number {
    const kept = part.subarray(0, maxBytes + 1 - this.begunBytes);
    // A view would retain everything that was read with it until the delivery ends.
    this.#parts.append(2 * kept.length < kept.buffer.byteLength ? ownBytes(kept) : kept);
    return kept.length;
  }

  /** The delivery is complete, or was aborted. Returns its stored parts. */
  endDelivery(): Buffer {
    this.begunId = -1;
    return this.begunBytes === 0 ? NOTHING : this.#parts.take();
  }
}

/** This server's end of a link on which the client receives. */
export class SenderEndpoint extends LinkEndpoint<SenderHandler> {
  /** Credit used by frames in the session's queue. */
  queued = 0;
  /** The newest frame of this link in the session's queue. */
  lastQueued: QueuedFrame | null = null;
  unsettledCount = 0;

  /** Replies to the `attach` with the client's source and target. @param isSettled whether messages are sent settled */
  accept(handler: SenderHandler, isSettled: boolean, distributionMode: DistributionMode): void {
    this.handler = handler;
    const sndSettleMode = isSettled ? SETTLE_MODE.settled : SETTLE_MODE.unsettled;
    // Both modes are supported: if the client does not settle with its outcome, this side settles then.
    this.sendAttach({ sndSettleMode, rcvSettleMode: this.request.rcvSettleMode, distributionMode });
  }

  /** How many messages can be sent now without waiting for the session's window. */
  get sendable(): number {
    return Math.max(0, Math.min(this.credit, this.session.sendable));
  }

  /** Whether no message may be sent before the client grants credit or settles deliveries. */
  get isUsedUp(): boolean {
    return this.credit <= 0 || this.session.available <= 0;
  }

  override get linkCredit(): number {
    return this.credit + this.queued;
  }

  /** Ends a drain: uses up the remaining credit, with a flow after all earlier messages. */
  drained(): void {
    if (this.isDetachSent || this.session.isOver) return;
    this.isDraining = false;
    const advance = this.credit;
    this.credit = 0;
    this.queued += advance;
    this.session.sendFlow(this, true, advance);
  }

  /** Applies the client's view of the link (transport, 2.6.7). @param deliveryCount -1 if the flow has none */
  flow(deliveryCount: number, credit: number, isDraining: boolean): void {
    const { queued } = this;
    // A client that sends no delivery-count has not seen the `attach` of this side, in which it is 0.
    const seen = Math.max(0, deliveryCount);
    // Whatever delivery-count the client claims, it has not seen messages that are queued here. So `credit` plus
    // `queued` never exceeds the credit that it granted.
    const unseen = Math.max(queued, serialDifference(this.deliveryCount + queued, seen));
    this.credit = Math.max(0, credit - unseen);
    this.isDraining = isDraining;
    this.handler?.onFlow();
  }

  override release(keepsUnsettled = false): void {
    if (this.handler === null) return;
    super.release();
    this.session.dropSent(this, keepsUnsettled);
  }
}

/** Writes the fields of a source (messaging, 3.5.3); if it delivers, also the supported and the default outcomes. */
function writeSource(source: Terminus | null, distributionMode: DistributionMode | undefined): void {
  writer.text(source?.address ?? '');
  if (distributionMode === undefined) return;
  for (let field = 1; field < 6; field++) writer.null();
  writer.symbol(distributionMode);
  const filter = source?.filter ?? null;
  if (filter === null) writer.null();
  else writer.encoded(filter);
  // The default outcome: a delivery that the client may have seen counts as a failed try.
  writer.list(DESCRIBED.modified, () => {
    writer.boolean(true);
  });
  writer.symbols(OUTCOMES);
}

export type Endpoint = ReceiverEndpoint | SenderEndpoint;
