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

/** The part of a flow that is about a link. */
export interface LinkFlow {
  readonly ownHandle: number;
  readonly deliveryCount: number;
  readonly credit: number;
  readonly drain: boolean;
}

/** The outcomes that this server gives to what a client sent. */
type ReplyOutcome = 'accepted' | 'released' | 'rejected';

/** A message for the client, until it is settled. */
export class SentDelivery {
  readonly endpoint: SenderEndpoint;
  /** It needs no outcome. */
  readonly isSettled: boolean;
  /** Learns what becomes of it. */
  observer: WriteObserver = UNOBSERVED;
  /**
   * Its delivery-id; -1 before its first frame is written. Clients end their connection if an id is left out, and a
   * link may end before its messages are sent.
   */
  id = -1;
  /** What is to be sent: the encoded message behind `TRANSFER_HEAD_BYTES` of room, which are overwritten. */
  bytes: Buffer;
  /** The next byte to send. */
  at = TRANSFER_HEAD_BYTES;

  constructor(endpoint: SenderEndpoint, bytes: Buffer, isSettled: boolean) {
    this.endpoint = endpoint;
    this.bytes = bytes;
    this.isSettled = isSettled;
  }

  /** Whether all of it was given to the writer. */
  get isWritten(): boolean {
    return this.bytes === NOTHING;
  }
}

/** A flow of a link that has to stay behind its messages. */
interface QueuedFlow {
  readonly endpoint: SenderEndpoint;
  /** Whether the client's drain is done; else it asked for an echo. */
  isDrained: boolean;
  /** Credit that is used up by it. */
  advance: number;
}

/** What waits for the client's window. */
export type QueuedFrame = SentDelivery | QueuedFlow;

/** Settlements that one disposition carries. */
interface PendingSettlement {
  readonly isReceiver: boolean;
  readonly first: number;
  last: number;
  readonly outcome: ReplyOutcome | null;
}

/** `a` - `b` in the arithmetic of serial numbers (RFC 1982; transport, 2.8.10). */
function serialDifference(a: number, b: number): number {
  return (a - b) | 0;
}

function next(id: number): number {
  return (id + 1) >>> 0;
}

const WINDOW = AMQP_LIMITS.unsettled;
const INITIAL_RING = 16;

/**
 * This server's end of a session (transport, 2.5). All ids are serial numbers of 32 bits, which wrap.
 *
 * Sent deliveries that are not settled are in a ring by their ids. The ring grows to `AMQP_LIMITS.unsettled`; a message
 * is taken when there is a place for the next id, that is, when the oldest is settled. Messages that the client's
 * window has no room for wait in one queue with the flows that report used credit, so that a drained link's flow never
 * overtakes a transfer.
 */
export class SessionEndpoint {
  /** This server's channel, and the client's. */
  readonly channel: number;
  readonly peerChannel: number;
  /** By the client's handles. A link whose `detach` was sent stays until the client confirms it. */
  readonly endpoints: (Endpoint | undefined)[] = [];
  /** The number of handles that the client allows. */
  readonly peerHandles: number;
  isOver = false;
  readonly #connection: ConnectionEndpoint;
  readonly #ownHandles: boolean[] = [];

  // What the client sends.
  #nextIncomingId: number;
  /** Transfers that the client may still send by what was announced. */
  #incomingLeft: number = WINDOW;
  /** Deliveries that have begun and that are not settled. */
  #unsettledIn = 0;
  /** -1: any will do. */
  #nextPeerDeliveryId = -1;

  // What is sent to the client.
  readonly #firstOutgoingId: number;
  #nextOutgoingId: number;
  #remoteWindow: number;
  #nextDeliveryId: number;
  /** No delivery before it is unsettled. */
  #oldestId: number;
  #hasSent = false;
  /** Unsettled deliveries, by ids modulo the ring's length. */
  #ring: (SentDelivery | undefined)[] = Array<undefined>(INITIAL_RING).fill(undefined);
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
    this.#nextDeliveryId = fields.firstId;
    this.#oldestId = fields.firstId;
    const begin = frame(FRAME_TYPE.amqp, this.channel, PERFORMATIVE.begin, () => {
      writer.ushort(this.peerChannel);
      writer.uint(this.#nextOutgoingId);
      writer.uint(WINDOW);
      writer.uint(WINDOW);
      writer.uint(AMQP_LIMITS.handleMax);
      return 5;
    });
    connection.send(begin, null);
  }

  /** Deliveries that may still be unsettled. */
  get available(): number {
    return WINDOW - this.#unnumbered - ((this.#nextDeliveryId - this.#oldestId) >>> 0);
  }

  /** Deliveries that may be sent now, and need not wait for the client's window. */
  get sendable(): number {
    return Math.min(this.available, this.#remoteWindow - this.#queue.length);
  }

  // Links.

  /** The lowest handle of this side that is free; the client allows `peerHandles`. Null: there is none. */
  takeHandle(): number | null {
    const free = this.#ownHandles.indexOf(false);
    const handle = free === -1 ? this.#ownHandles.length : free;
    if (handle >= this.peerHandles) return null;
    this.#ownHandles[handle] = true;
    return handle;
  }

  /** Both sides have detached. */
  removeEndpoint({ request, ownHandle }: Endpoint): void {
    this.endpoints[request.handle] = undefined;
    this.#ownHandles[ownHandle] = false;
  }

  /** The largest frame that the client takes. */
  get peerFrameBytes(): number {
    return this.#connection.peerFrameBytes;
  }

  /** Sends a frame, after the settlements that were gathered before it. */
  write(frame: Buffer): void {
    this.#flushSettlements();
    this.#connection.send(frame, null);
  }

  /** The client has ended the session: confirms that, and drops what waits. */
  end(): void {
    this.write(frame(FRAME_TYPE.amqp, this.channel, PERFORMATIVE.end, () => 0));
    this.isOver = true;
    for (const waiting of this.#queue.clear()) this.#lose(waiting);
  }

  /** Sends what was gathered in this turn. */
  flush(): void {
    if (this.isOver) return;
    this.#flushSettlements();
    if (this.#incomingLeft < (WINDOW - this.#unsettledIn) / 2) this.writeFlow(null);
  }

  /** @param link null: it is about the session alone */
  writeFlow(link: LinkFlow | null): void {
    this.#flushSettlements();
    this.#incomingLeft = WINDOW - this.#unsettledIn;
    const flow = frame(FRAME_TYPE.amqp, this.channel, PERFORMATIVE.flow, () => {
      writer.uint(this.#nextIncomingId);
      writer.uint(this.#incomingLeft);
      writer.uint(this.#nextOutgoingId);
      writer.uint(WINDOW);
      if (link === null) return 4;
      writer.uint(link.ownHandle);
      writer.uint(link.deliveryCount);
      writer.uint(link.credit);
      writer.null();
      writer.boolean(link.drain);
      return 9;
    });
    // At the end of a drain the client takes the queue for empty, so this must not be sent without the elements before
    // it.
    this.#connection.send(flow, link?.drain ? UNOBSERVED : null);
  }

  /**
   * The client's view of the session (transport, 2.5.6).
   * @param nextIncomingId -1: it has not seen the `begin` of this side
   */
  flow(nextIncomingId: number, incomingWindow: number): void {
    const seen = nextIncomingId < 0 ? this.#firstOutgoingId : nextIncomingId;
    const unseen = Math.max(0, serialDifference(this.#nextOutgoingId, seen));
    this.#remoteWindow = Math.max(0, incomingWindow - unseen);
    this.#pump();
  }

  // What the client sends.

  /** Counts a transfer of the client. @throws ProtocolError if it has no window */
  countTransfer(): void {
    if (this.#incomingLeft <= 0) {
      throw new ProtocolError(
        'amqp:session:window-violation',
        'A transfer came although the incoming-window of its session is 0.',
      );
    }
    this.#incomingLeft -= 1;
    this.#nextIncomingId = next(this.#nextIncomingId);
    if (this.#incomingLeft < (WINDOW - this.#unsettledIn) / 2) this.#connection.host.planFlush();
  }

  /** A delivery of the client begins. @throws ProtocolError if its id is not the next */
  beginDelivery(deliveryId: number): void {
    if (this.#nextPeerDeliveryId !== -1 && deliveryId !== this.#nextPeerDeliveryId) {
      throw invalidField(`delivery-id is ${deliveryId}. Expected: ${this.#nextPeerDeliveryId}.`);
    }
    this.#nextPeerDeliveryId = next(deliveryId);
    this.#unsettledIn += 1;
  }

  /** Settles a delivery of the client with an outcome; adjacent ones share a disposition. */
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

  /** A delivery of the client is over and gets no disposition: it came settled, or its link ended. */
  forgetReceived(): void {
    this.#unsettledIn -= 1;
    if (!this.isOver) this.#connection.host.planFlush();
  }

  // What is sent to the client.

  /**
   * Sends a message of a link, or queues it until the client's window opens. There must be credit, and room:
   * `available`.
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
   * Sends a flow of a link behind all messages of that link that were sent before. At most one flow waits behind each
   * message: a client may ask for an echo in 29 bytes, as often as it likes.
   */
  sendFlow(endpoint: SenderEndpoint, isDrained: boolean, advance: number): void {
    const { lastWaiting } = endpoint;
    if (lastWaiting === null) this.#writeLinkFlow({ endpoint, isDrained, advance });
    else if (lastWaiting instanceof SentDelivery) this.#enqueue({ endpoint, isDrained, advance });
    else {
      lastWaiting.isDrained ||= isDrained;
      lastWaiting.advance += advance;
    }
  }

  /**
   * Checks the range of a disposition of the client. It may be long: what is settled already may be in it (transport,
   * 2.7.6).
   * @param isPeerReceiver about what was sent to the client
   */
  checkRange(isPeerReceiver: boolean, first: number, last: number): void {
    const newest =
      ((isPeerReceiver ? this.#nextDeliveryId : Math.max(0, this.#nextPeerDeliveryId)) - 1) >>> 0;
    if (serialDifference(last, first) < 0) {
      throw invalidField(`A disposition is from ${first} to ${last}. last must not be lower than first.`);
    }
    const hasNone = isPeerReceiver ? !this.#hasSent : this.#nextPeerDeliveryId < 0;
    if (hasNone) throw invalidField(`A disposition is about delivery ${last}, but there was none.`);
    if (serialDifference(last, newest) > 0) {
      throw invalidField(`A disposition is about delivery ${last}. The newest is ${newest}.`);
    }
  }

  /**
   * A disposition of the client about what was sent to it. What is settled already is skipped.
   * @returns how many deliveries after the first it covers
   */
  disposition(first: number, last: number, state: AmqpDeliveryState, isSettled: boolean): number {
    const oldest = this.#oldestId;
    if (serialDifference(last, oldest) < 0) return 0;
    const from = serialDifference(oldest, first) > 0 ? oldest : first;
    for (let id = from; ; id = next(id)) {
      const delivery = this.#unsettled(id);
      if (delivery !== undefined) {
        if (isSettled) this.#forget(delivery);
        delivery.endpoint.handler?.onDisposition(delivery, state, isSettled);
      }
      if (id === last) break;
    }
    if (isSettled) this.#connection.host.onRoom(this);
    return serialDifference(last, from);
  }

  /** Settles a delivery, unless the client has settled it, and sends the client that disposition. */
  settleSent(delivery: SentDelivery): void {
    if (this.isOver || this.#unsettled(delivery.id) !== delivery) return;
    this.#forget(delivery);
    this.#settle(false, delivery.id, null);
    this.#connection.host.onRoom(this);
  }

  /** A link is over: what it has not sent is lost, and nothing of it will be settled. */
  forgetSent(endpoint: SenderEndpoint): void {
    for (let id = this.#oldestId; endpoint.unsettledCount > 0; id = next(id)) {
      const delivery = this.#unsettled(id);
      if (delivery?.endpoint === endpoint) this.#forget(delivery);
    }
    if (this.#queue.length > 0) {
      for (const waiting of this.#queue.clear()) {
        if (waiting.endpoint !== endpoint) this.#queue.push(waiting);
        else this.#lose(waiting);
      }
      endpoint.queued = 0;
      endpoint.lastWaiting = null;
      this.#pump();
    }
    this.#connection.host.onRoom(this);
  }

  #lose(waiting: QueuedFrame): void {
    if (!(waiting instanceof SentDelivery)) return;
    if (waiting.id === -1) this.#unnumbered -= 1;
    this.#connection.host.onQueued(waiting.at - waiting.bytes.length);
    waiting.observer.lost();
  }

  #enqueue(waiting: QueuedFrame): void {
    this.#queue.push(waiting);
    if (waiting instanceof SentDelivery) this.#connection.host.onQueued(waiting.bytes.length - waiting.at);
    waiting.endpoint.lastWaiting = waiting;
  }

  #pump(): void {
    for (let first = this.#queue.first; first !== undefined; first = this.#queue.first) {
      if (first instanceof SentDelivery && !this.#transferQueued(first)) return;
      // Out of the queue before it is written: what cannot be written must not be tried again.
      this.#queue.shift();
      if (first.endpoint.lastWaiting === first) first.endpoint.lastWaiting = null;
      if (!(first instanceof SentDelivery)) this.#writeLinkFlow(first);
    }
  }

  #writeLinkFlow({ endpoint, isDrained, advance }: QueuedFlow): void {
    endpoint.queued -= advance;
    endpoint.deliveryCount = (endpoint.deliveryCount + advance) >>> 0;
    this.writeFlow({ ...endpoint.linkFlow(), drain: isDrained || endpoint.isDraining });
  }

  #transferQueued(delivery: SentDelivery): boolean {
    const { at } = delivery;
    const isWhole = this.#transfer(delivery);
    this.#connection.host.onQueued(at - delivery.at);
    return isWhole;
  }

  /** Sends what the client's window has room for; returns whether that was the rest of the message. */
  #transfer(delivery: SentDelivery): boolean {
    const { endpoint, observer, bytes, isSettled } = delivery;
    const maxPayload = this.#connection.peerFrameBytes - TRANSFER_HEAD_BYTES;
    while (this.#remoteWindow > 0) {
      const { at } = delivery;
      const isFirst = delivery.id === -1;
      if (isFirst) {
        endpoint.queued -= 1;
        endpoint.deliveryCount = next(endpoint.deliveryCount);
        this.#number(delivery);
        this.#flushSettlements();
      }
      const end = Math.min(bytes.length, at + maxPayload);
      delivery.at = end;
      // Only in front of the first part is there room for a head.
      const frame = isFirst ? bytes : Buffer.allocUnsafe(TRANSFER_HEAD_BYTES + end - at);
      if (!isFirst) bytes.copy(frame, TRANSFER_HEAD_BYTES, at, end);
      const head = { channel: this.channel, handle: endpoint.ownHandle, deliveryId: delivery.id };
      const hasMore = end < bytes.length;
      const frameEnd = TRANSFER_HEAD_BYTES + end - at;
      writeTransferHead(frame, frameEnd, head, isSettled, hasMore);
      this.#remoteWindow -= 1;
      this.#nextOutgoingId = next(this.#nextOutgoingId);
      const sent = frame.length === frameEnd ? frame : frame.subarray(0, frameEnd);
      this.#connection.send(sent, hasMore ? UNOBSERVED : observer);
      if (hasMore) continue;
      // It may stay unsettled for long.
      delivery.bytes = NOTHING;
      return true;
    }
    return false;
  }

  // The ring.

  /** Gives a delivery the next id. */
  #number(delivery: SentDelivery): void {
    const id = this.#nextDeliveryId;
    delivery.id = id;
    this.#unnumbered -= 1;
    this.#hasSent = true;
    this.#nextDeliveryId = next(id);
    // One that is sent settled has a place, too: a disposition of it must not find the older delivery of another place.
    while ((id - this.#oldestId) >>> 0 >= this.#ring.length) this.#growRing();
    if (delivery.isSettled) this.#advanceOldest();
    else {
      this.#ring[id & (this.#ring.length - 1)] = delivery;
      delivery.endpoint.unsettledCount += 1;
    }
  }

  #unsettled(id: number): SentDelivery | undefined {
    if ((id - this.#oldestId) >>> 0 >= (this.#nextDeliveryId - this.#oldestId) >>> 0) return undefined;
    return this.#ring[id & (this.#ring.length - 1)];
  }

  #growRing(): void {
    const { length } = this.#ring;
    const ring = Array<SentDelivery | undefined>(2 * length).fill(undefined);
    for (let i = 0; i < length; i++) {
      const id = this.#oldestId + i;
      ring[id & (ring.length - 1)] = this.#ring[id & (length - 1)];
    }
    this.#ring = ring;
  }

  #forget({ id, endpoint }: SentDelivery): void {
    endpoint.unsettledCount -= 1;
    this.#ring[id & (this.#ring.length - 1)] = undefined;
    this.#advanceOldest();
  }

  #advanceOldest(): void {
    while (
      this.#oldestId !== this.#nextDeliveryId &&
      this.#ring[this.#oldestId & (this.#ring.length - 1)] === undefined
    ) {
      this.#oldestId = next(this.#oldestId);
    }
  }

  // Settlements that share dispositions.

  #settle(isReceiver: boolean, id: number, outcome: ReplyOutcome | null): void {
    const pending = this.#pending;
    if (
      pending !== null &&
      pending.isReceiver === isReceiver &&
      pending.outcome === outcome &&
      id === next(pending.last)
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

/** Transport, 2.7.6; everything is settled. @param error of `rejected` */
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
    if (outcome === null) return 4;
    writer.list(DESCRIBED[outcome], () => (error === null ? 0 : writeError(error)));
    return 5;
  });
}
