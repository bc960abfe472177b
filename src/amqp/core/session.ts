import { UNOBSERVED, type WriteObserver } from '../../session/socket-writer.ts';
import { Fifo } from '../../util/fifo.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { DESCRIBED, PERFORMATIVE } from './codes.ts';
import type { ConnectionEndpoint } from './connection.ts';
import { NOTHING } from './fields.ts';
import {
  FRAME_TYPE,
  frame,
  frameWithError,
  TRANSFER_HEAD_BYTES,
  writeError,
  writer,
  writeTransferHead,
} from './frames.ts';
import type { AmqpDeliveryState, Endpoint, SenderEndpoint } from './link.ts';
import { type AmqpError, invalidField, ProtocolError } from './protocol-error.ts';
import { serialAfter, serialDifference } from './serial.ts';

/** The outcomes that this server sends for a client's deliveries. */
type ReplyOutcome = 'accepted' | 'released' | 'rejected';

/** A message to the client, until it is settled. */
export class SentDelivery {
  readonly endpoint: SenderEndpoint;
  /** Whether the message is sent settled, so that it needs no outcome. */
  readonly isSettled: boolean;
  /** Notified when the message is written or lost. */
  observer: WriteObserver = UNOBSERVED;
  /**
   * The delivery-id; -1 before the first frame is written. It is assigned late because clients close the connection if
   * there is a gap in the ids, and a link may end before its messages are sent.
   */
  id = -1;
  /** The encoded message after a headroom of `TRANSFER_HEAD_BYTES`, which is overwritten. */
  bytes: Buffer;
  /** The next byte to send. */
  at = TRANSFER_HEAD_BYTES;

  constructor(endpoint: SenderEndpoint, bytes: Buffer, isSettled: boolean) {
    this.endpoint = endpoint;
    this.bytes = bytes;
    this.isSettled = isSettled;
  }

  /** Whether the whole message was passed to the writer. */
  get isWritten(): boolean {
    return this.bytes === NOTHING;
  }
}

/** A flow of a link that must be sent after the link's messages. */
interface QueuedFlow {
  readonly endpoint: SenderEndpoint;
  /** Whether it ends the client's drain; else it replies to an echo. */
  isDrained: boolean;
  /** Credit that it uses up. */
  advance: number;
}

/** A frame that waits for the client's window, or for the writer. */
export type QueuedFrame = SentDelivery | QueuedFlow;

/** Settlements to send in one disposition. */
interface PendingSettlement {
  readonly isReceiver: boolean;
  readonly first: number;
  last: number;
  readonly outcome: ReplyOutcome | null;
}

const WINDOW = AMQP_LIMITS.unsettled;

/**
 * This server's end of a session (transport, 2.5). All ids are serial numbers of 32 bits, which wrap.
 *
 * A message can be sent only while fewer than `AMQP_LIMITS.unsettled` deliveries are unsettled. Messages that exceed
 * the client's window, or what the writer takes, wait in one queue with the flows that report used credit, so that a
 * drained link's flow never overtakes a transfer.
 */
export class SessionEndpoint {
  /** This server's channel number, and the client's. */
  readonly channel: number;
  readonly peerChannel: number;
  /** By the client's handles. A link whose `detach` was sent stays until the client confirms it. */
  readonly endpoints: (Endpoint | undefined)[] = [];
  /** How many handles the client allows. */
  readonly peerHandles: number;
  isOver = false;
  /** How many deliveries may come from takes in progress. */
  taking = 0;
  readonly #connection: ConnectionEndpoint;
  readonly #ownHandles: boolean[] = [];

  // Receiving from the client.
  #nextIncomingId: number;
  /** Transfers that the client may still send within the announced incoming-window. */
  #incomingLeft: number = WINDOW;
  /** The client's deliveries that have started and are not settled. */
  #unsettledIn = 0;
  /** -1 before the first delivery, which may have any id. */
  #nextPeerDeliveryId = -1;

  // Sending to the client.
  readonly #firstOutgoingId: number;
  #nextOutgoingId: number;
  #remoteWindow: number;
  #hasSent = false;
  /** The id of the next delivery. */
  #nextSentId: number;
  /**
   * The unsettled deliveries by their ids, in the order of sending. Their ids may be far apart: one delivery may stay
   * unsettled for hours while other links of the session continue.
   */
  readonly #sent = new Map<number, SentDelivery>();
  /** Deliveries in the queue that have no id yet. */
  #unnumbered = 0;
  readonly #queue = new Fifo<QueuedFrame>();
  #pending: PendingSettlement | null = null;

  constructor(
    connection: ConnectionEndpoint,
    fields: {
      readonly channel: number;
      readonly peerChannel: number;
      readonly peerHandles: number;
      readonly nextIncomingId: number;
      readonly remoteWindow: number;
      /** The first id of transfers and of deliveries. */
      readonly firstId: number;
    },
  ) {
    this.#connection = connection;
    this.channel = fields.channel;
    this.peerChannel = fields.peerChannel;
    this.peerHandles = fields.peerHandles;
    this.#nextIncomingId = fields.nextIncomingId;
    this.#remoteWindow = fields.remoteWindow;
    this.#firstOutgoingId = fields.firstId;
    this.#nextOutgoingId = fields.firstId;
    this.#nextSentId = fields.firstId;
    const begin = frame(FRAME_TYPE.amqp, this.channel, PERFORMATIVE.begin, () => {
      writer.ushort(this.peerChannel);
      writer.uint(this.#nextOutgoingId);
      writer.uint(WINDOW);
      writer.uint(WINDOW);
      writer.uint(AMQP_LIMITS.handleMax);
    });
    connection.send(begin, null);
  }

  /** How many more deliveries may be sent before one is settled. */
  get available(): number {
    return WINDOW - this.#unnumbered - this.#sent.size;
  }

  /** How many deliveries can be sent now without waiting for the client's window. */
  get sendable(): number {
    return Math.min(this.available, this.#remoteWindow - this.#queue.length);
  }

  // Links.

  /** Takes the lowest free handle of this side; null if all `peerHandles` are in use. */
  takeHandle(): number | null {
    const free = this.#ownHandles.indexOf(false);
    const handle = free === -1 ? this.#ownHandles.length : free;
    if (handle >= this.peerHandles) return null;
    this.#ownHandles[handle] = true;
    return handle;
  }

  /** Removes a link that both sides have detached. */
  removeEndpoint({ request, ownHandle }: Endpoint): void {
    this.endpoints[request.handle] = undefined;
    this.#ownHandles[ownHandle] = false;
  }

  /** Maximum size of a frame to the client. */
  get peerFrameBytes(): number {
    return this.#connection.peerFrameBytes;
  }

  /** Sends a frame, after the settlements collected before it. */
  write(frame: Buffer): void {
    this.#flushSettlements();
    this.#connection.send(frame, null);
  }

  /** Confirms the client's `end` of the session, and drops queued frames. */
  end(): void {
    this.write(frame(FRAME_TYPE.amqp, this.channel, PERFORMATIVE.end, () => {}));
    this.isOver = true;
    for (const waiting of this.#queue.clear()) this.#drop(waiting);
  }

  /** Sends the settlements collected in this turn, and opens the incoming window. */
  flush(): void {
    if (this.isOver) return;
    this.#flushSettlements();
    if (this.#incomingLeft < (WINDOW - this.#unsettledIn) / 2) this.writeFlow(null);
  }

  /**
   * Sends a flow.
   * @param link null: it is about the session only
   * @param isDrained whether it ends the client's drain
   */
  writeFlow(link: Endpoint | null, isDrained = false): void {
    this.#flushSettlements();
    this.#incomingLeft = WINDOW - this.#unsettledIn;
    const drain = isDrained || link?.isDraining === true;
    const flow = frame(FRAME_TYPE.amqp, this.channel, PERFORMATIVE.flow, () => {
      writer.uint(this.#nextIncomingId);
      writer.uint(this.#incomingLeft);
      writer.uint(this.#nextOutgoingId);
      writer.uint(WINDOW);
      if (link === null) return;
      writer.uint(link.ownHandle);
      writer.uint(link.deliveryCount);
      writer.uint(link.linkCredit);
      writer.null();
      writer.boolean(drain);
    });
    // When a drain ends, the client takes the queue for empty, so this flow must not be sent if the elements before it
    // are dropped.
    this.#connection.send(flow, drain ? UNOBSERVED : null);
  }

  /**
   * Applies the client's view of the session (transport, 2.5.6).
   * @param nextIncomingId -1 if the client has not seen the `begin` of this side
   */
  flow(nextIncomingId: number, incomingWindow: number): void {
    const seen = nextIncomingId < 0 ? this.#firstOutgoingId : nextIncomingId;
    const unseen = Math.max(0, serialDifference(this.#nextOutgoingId, seen));
    this.#remoteWindow = Math.max(0, incomingWindow - unseen);
    this.sendQueued();
  }

  // Receiving from the client.

  /** Counts a transfer of the client. @throws ProtocolError if the incoming-window is 0 */
  countTransfer(): void {
    if (this.#incomingLeft <= 0) {
      throw new ProtocolError(
        'amqp:session:window-violation',
        'A transfer was sent although the incoming-window of its session is 0.',
      );
    }
    this.#incomingLeft -= 1;
    this.#nextIncomingId = serialAfter(this.#nextIncomingId);
    if (this.#incomingLeft < (WINDOW - this.#unsettledIn) / 2) this.#connection.host.planFlush();
  }

  /** Starts a delivery of the client. @throws ProtocolError if its id is not the next one */
  beginDelivery(deliveryId: number): void {
    if (this.#nextPeerDeliveryId !== -1 && deliveryId !== this.#nextPeerDeliveryId) {
      throw invalidField(`delivery-id is ${deliveryId}. Expected: ${this.#nextPeerDeliveryId}.`);
    }
    this.#nextPeerDeliveryId = serialAfter(deliveryId);
    this.#unsettledIn += 1;
  }

  /** Settles a delivery of the client with an outcome; adjacent ones with the same outcome share a disposition. */
  settleReceived(deliveryId: number, outcome: ReplyOutcome, error: AmqpError | null = null): void {
    this.#unsettledIn -= 1;
    if (this.isOver) return;
    if (error === null) {
      this.#settle(true, deliveryId, outcome);
      return;
    }
    this.#flushSettlements();
    const write = (sent: AmqpError | null): Buffer =>
      dispositionFrame(this.channel, true, deliveryId, deliveryId, outcome, sent);
    this.#connection.send(frameWithError(error, this.#connection.peerFrameBytes, write), null);
    this.#connection.host.planFlush();
  }

  /** Ends a delivery of the client without a disposition, because it was sent settled or its link ended. */
  forgetReceived(): void {
    this.#unsettledIn -= 1;
    if (!this.isOver) this.#connection.host.planFlush();
  }

  // Sending to the client.

  /**
   * Sends a message of a link, or queues what the client's window or the writer does not take. The link must have
   * credit, and `available` must be above 0.
   */
  send(delivery: SentDelivery): void {
    if (this.available <= 0) throw new Error('The session has no room for another unsettled delivery.');
    const { endpoint } = delivery;
    endpoint.credit -= 1;
    endpoint.queued += 1;
    this.#unnumbered += 1;
    if (this.#queue.length > 0 || !this.#transfer(delivery)) this.#enqueue(delivery);
  }

  /**
   * Sends a flow of a link after all earlier messages of that link. At most one flow is queued after each message,
   * since a client can request any number of echoes, in 29 bytes each.
   */
  sendFlow(endpoint: SenderEndpoint, isDrained: boolean, advance: number): void {
    const { lastQueued: lastWaiting } = endpoint;
    if (lastWaiting === null) this.#writeLinkFlow({ endpoint, isDrained, advance });
    else if (lastWaiting instanceof SentDelivery) this.#enqueue({ endpoint, isDrained, advance });
    else {
      lastWaiting.isDrained ||= isDrained;
      lastWaiting.advance += advance;
    }
  }

  /**
   * Checks the range of a client's disposition. It may be long, since it may include settled deliveries (transport,
   * 2.7.6).
   * @param isPeerReceiver whether it is about deliveries that were sent to the client
   */
  checkRange(isPeerReceiver: boolean, first: number, last: number): void {
    const next = isPeerReceiver ? this.#nextSentId : Math.max(0, this.#nextPeerDeliveryId);
    const newest = (next - 1) >>> 0;
    if (serialDifference(last, first) < 0) {
      throw invalidField(`A disposition is from ${first} to ${last}. last must not be lower than first.`);
    }
    const hasNone = isPeerReceiver ? !this.#hasSent : this.#nextPeerDeliveryId < 0;
    if (hasNone) throw invalidField(`A disposition is about delivery ${last}, but there was none.`);
    if (serialDifference(last, newest) > 0) {
      throw invalidField(`A disposition is about delivery ${last}. The newest is ${newest}.`);
    }
  }

  /** Applies a client's disposition of deliveries that were sent to it. Skips settled ones. */
  disposition(first: number, last: number, state: AmqpDeliveryState, isSettled: boolean): void {
    for (const delivery of this.#unsettledBetween(first, last)) {
      if (isSettled) this.#forget(delivery);
      delivery.endpoint.handler?.onDisposition(delivery, state, isSettled);
    }
    if (isSettled) this.#connection.host.onSessionCapacity(this);
  }

  /** Settles a delivery and sends the disposition, unless the client has settled it. */
  settleSent(delivery: SentDelivery): void {
    if (this.isOver || this.#sent.get(delivery.id) !== delivery) return;
    this.#forget(delivery);
    this.#settle(false, delivery.id, null);
    this.#connection.host.onSessionCapacity(this);
  }

  /** Drops the queued frames of a link that has ended, and its unsettled deliveries unless they are kept. */
  dropSent(endpoint: SenderEndpoint, keepsUnsettled: boolean): void {
    if (!keepsUnsettled && endpoint.unsettledCount > 0) {
      for (const delivery of this.#sent.values()) if (delivery.endpoint === endpoint) this.#forget(delivery);
    }
    if (this.#queue.length > 0) {
      for (const waiting of this.#queue.clear()) {
        if (waiting.endpoint !== endpoint) this.#queue.push(waiting);
        else this.#drop(waiting);
      }
      endpoint.queued = 0;
      endpoint.lastQueued = null;
      this.sendQueued();
    }
    this.#connection.host.onSessionCapacity(this);
  }

  #drop(waiting: QueuedFrame): void {
    if (!(waiting instanceof SentDelivery)) return;
    if (waiting.id === -1) this.#unnumbered -= 1;
    this.#connection.queuedBytes -= waiting.bytes.length - waiting.at;
    waiting.observer.lost();
  }

  #enqueue(waiting: QueuedFrame): void {
    this.#queue.push(waiting);
    if (waiting instanceof SentDelivery) this.#connection.queuedBytes += waiting.bytes.length - waiting.at;
    waiting.endpoint.lastQueued = waiting;
  }

  /** Sends what waits, as far as the client's window and the writer allow. */
  sendQueued(): void {
    for (let first = this.#queue.first; first !== undefined; first = this.#queue.first) {
      if (first instanceof SentDelivery) {
        const { at } = first;
        const isWhole = this.#transfer(first);
        this.#connection.queuedBytes -= first.at - at;
        if (!isWhole) return;
      }
      // Remove the frame before writing it: if writing fails, it must not be tried again.
      this.#queue.shift();
      if (first.endpoint.lastQueued === first) first.endpoint.lastQueued = null;
      if (!(first instanceof SentDelivery)) this.#writeLinkFlow(first);
    }
  }

  #writeLinkFlow({ endpoint, isDrained, advance }: QueuedFlow): void {
    endpoint.queued -= advance;
    endpoint.deliveryCount = serialAfter(endpoint.deliveryCount, advance);
    this.writeFlow(endpoint, isDrained);
  }

  /** Sends as many frames as the client's window and the writer allow; returns whether the message is complete. */
  #transfer(delivery: SentDelivery): boolean {
    const { endpoint, observer, bytes, isSettled } = delivery;
    const maxPayload = this.#connection.peerFrameBytes - TRANSFER_HEAD_BYTES;
    while (this.#remoteWindow > 0 && this.#connection.host.canWrite) {
      const { at } = delivery;
      const isFirst = delivery.id === -1;
      if (isFirst) {
        endpoint.queued -= 1;
        endpoint.deliveryCount = serialAfter(endpoint.deliveryCount);
        this.#assignId(delivery);
        this.#flushSettlements();
      }
      const end = Math.min(bytes.length, at + maxPayload);
      delivery.at = end;
      // Only the first part has headroom for a transfer head; later parts are copied.
      const frame = isFirst ? bytes : Buffer.allocUnsafe(TRANSFER_HEAD_BYTES + end - at);
      if (!isFirst) bytes.copy(frame, TRANSFER_HEAD_BYTES, at, end);
      const head = { channel: this.channel, handle: endpoint.ownHandle, deliveryId: delivery.id };
      const hasMore = end < bytes.length;
      const frameEnd = TRANSFER_HEAD_BYTES + end - at;
      writeTransferHead(frame, frameEnd, head, isSettled, hasMore);
      this.#remoteWindow -= 1;
      this.#nextOutgoingId = serialAfter(this.#nextOutgoingId);
      const sent = frame.length === frameEnd ? frame : frame.subarray(0, frameEnd);
      this.#connection.send(sent, hasMore ? UNOBSERVED : observer);
      if (hasMore) continue;
      // Release the bytes: the delivery may stay unsettled for a long time.
      delivery.bytes = NOTHING;
      return true;
    }
    return false;
  }

  /** Assigns the next id to a delivery. */
  #assignId(delivery: SentDelivery): void {
    delivery.id = this.#nextSentId;
    this.#nextSentId = serialAfter(delivery.id);
    this.#unnumbered -= 1;
    this.#hasSent = true;
    if (delivery.isSettled) return;
    this.#sent.set(delivery.id, delivery);
    delivery.endpoint.unsettledCount += 1;
  }

  /** The unsettled deliveries of a range, which may be longer than there are unsettled ones. */
  *#unsettledBetween(first: number, last: number): Generator<SentDelivery> {
    const rest = (last - first) >>> 0;
    if (rest < this.#sent.size) {
      for (let i = 0; i <= rest; i++) {
        const delivery = this.#sent.get(serialAfter(first, i));
        if (delivery !== undefined) yield delivery;
      }
    } else {
      for (const [id, delivery] of this.#sent) if ((id - first) >>> 0 <= rest) yield delivery;
    }
  }

  #forget({ id, endpoint }: SentDelivery): void {
    endpoint.unsettledCount -= 1;
    this.#sent.delete(id);
  }

  // Settlements, of which several may share a disposition.

  #settle(isReceiver: boolean, id: number, outcome: ReplyOutcome | null): void {
    const pending = this.#pending;
    if (
      pending !== null &&
      pending.isReceiver === isReceiver &&
      pending.outcome === outcome &&
      id === serialAfter(pending.last)
    ) {
      pending.last = id;
      return;
    }
    this.#flushSettlements();
    this.#pending = { isReceiver, first: id, last: id, outcome };
    this.#connection.host.planFlush();
  }

  #flushSettlements(): void {
    const pending = this.#pending;
    if (pending === null) return;
    this.#pending = null;
    const { isReceiver, first, last, outcome } = pending;
    this.#connection.send(dispositionFrame(this.channel, isReceiver, first, last, outcome, null), null);
  }
}

/** Encodes a disposition with `settled` true (transport, 2.7.6). @param error that of `rejected` */
function dispositionFrame(
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
    if (outcome === null) return;
    writer.list(DESCRIBED[outcome], () => {
      if (error !== null) writeError(error);
    });
  });
}
