import { requireCapability, requireTiming } from '../broker/capabilities.ts';
import type { Claim, Consumer } from '../broker/consumer.ts';
import { momentIn } from '../broker/engine-time.ts';
import type { Namespace } from '../broker/namespace.ts';
import { FINISH, type Queue, type ReleaseAction, type SettleAction } from '../broker/queue.ts';
import type { Delivery, ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { atMember } from '../model/members.ts';
import type { RightHolder } from '../session/consumer.ts';
import { PushConsumer } from '../session/push-consumer.ts';
import { QueueBrowser } from '../session/queue-browser.ts';
import { checkNotDynamic, checkTarget, notSupported, readSource, type SourceRequest } from './address.ts';
import type { AmqpConnection } from './connection.ts';
import { DESCRIBED } from './core/codes.ts';
import { TRANSFER_HEAD_BYTES } from './core/frames.ts';
import {
  type AmqpDeliveryState,
  type Endpoint,
  ReceiverEndpoint,
  type ReceiverHandler,
  SETTLE_MODE,
  type SenderEndpoint,
  type SenderHandler,
} from './core/link.ts';
import { SentDelivery } from './core/session.ts';
import { outcomeOf, wireError } from './errors.ts';
import { AMQP_LIMITS, REJECT_DELAY } from './limits.ts';
import { elementOf, GROUPS_PROPERTY, messageOf } from './message.ts';

/** A link of a connection, on which the client sends, receives or browses. */
export type SessionLink = IncomingLink | OutgoingLink | BrowsingLink;

/** Accepts an `attach`. @throws QuaysideError if the source or target is not valid, or the user lacks the right */
export function openLink(connection: AmqpConnection, endpoint: Endpoint): SessionLink {
  if (endpoint.request.target?.isCoordinator === true) {
    throw notSupported(
      'target',
      'Transactions are not supported, so the target of a link must not be a coordinator.',
    );
  }
  if (endpoint instanceof ReceiverEndpoint) return new IncomingLink(connection, endpoint);
  const source = readSource(endpoint.request.source);
  return source.browses
    ? new BrowsingLink(connection, endpoint, source)
    : new OutgoingLink(connection, endpoint, source);
}

/** Credit is granted again when this much was used up. */
const MIN_GRANT = AMQP_LIMITS.credit / 4;

/** The reply to a message of a client, pending until the engine has stored it. */
export interface PendingInsertReply {
  readonly link: IncomingLink;
  readonly deliveryId: number;
  /** The client sent the message settled, so no outcome is sent. */
  readonly isSettled: boolean;
}

/**
 * A link on which the client sends. Each message becomes one element of the queue that the target names, or, if the
 * target has no address (anonymous terminus), of the queue that the message names in `to`.
 */
export class IncomingLink implements ReceiverHandler, RightHolder {
  readonly right = 'write';
  /** Null if each message names its own. */
  readonly namespace: Namespace | null;
  readonly endpoint: ReceiverEndpoint;
  readonly #connection: AmqpConnection;
  /** Null if each message names its own. */
  readonly #address: string | null;
  /** Credit that was used up since some was last granted. */
  #usedCredit = 0;
  #isStopped = false;

  /** @throws QuaysideError if the target is not valid, or the user lacks the right to write there */
  constructor(connection: AmqpConnection, endpoint: ReceiverEndpoint) {
    const { target } = endpoint.request;
    checkNotDynamic(target);
    const address = target === null ? '' : target.address;
    if (address !== null) checkTarget(address);
    this.namespace = address === null ? null : connection.destinations.find(address, 'write').namespace;
    this.endpoint = endpoint;
    this.#connection = connection;
    this.#address = address;
    endpoint.accept(this, connection.messageBytes);
    endpoint.grant(AMQP_LIMITS.credit);
  }

  fail(error: unknown): void {
    this.#connection.failLink(this, error);
  }

  /** Removes the link from the connection. No effect when repeated. */
  stop(): void {
    if (this.#isStopped) return;
    this.#isStopped = true;
    this.#connection.removeLink(this);
  }

  onMessage(deliveryId: number, payload: Buffer, isSettled: boolean): void {
    const reply = { link: this, deliveryId, isSettled };
    try {
      this.#insert(payload, reply);
    } catch (error) {
      this.refuse(reply, this.#connection.publicError(error));
    }
  }

  /** The engine has stored the message. */
  accept({ deliveryId, isSettled }: PendingInsertReply): void {
    if (!isSettled) this.endpoint.session.settleReceived(deliveryId, 'accepted');
    this.onCreditUsed(1);
  }

  /** The message was not stored, or that is unknown. */
  refuse({ deliveryId, isSettled }: PendingInsertReply, error: QuaysideError): void {
    const { session } = this.endpoint;
    const outcome = outcomeOf(error.code);
    if (outcome === 'detach' || isSettled) {
      // No outcome would be correct, or the client would not see one.
      if (!isSettled) session.forgetReceived();
      this.#connection.endLink(this, error);
    } else {
      session.settleReceived(deliveryId, outcome, outcome === 'rejected' ? wireError(error) : null);
    }
    this.onCreditUsed(1);
  }

  #insert(bytes: Buffer, reply: PendingInsertReply): void {
    const connection = this.#connection;
    // Check the right before parsing the message, unless the message names the queue.
    const known = this.#address === null ? null : connection.destinations.find(this.#address, 'write');
    const { bodyLimit, messageBytes } = connection;
    if (bytes.length > messageBytes) {
      throw tooLarge(
        `The message has more than ${messageBytes} bytes. Allowed: at most ${bodyLimit} of the body, and ${AMQP_LIMITS.sectionBytes} of everything else.`,
      );
    }
    const sent = elementOf(bytes);
    const queue = known ?? this.#findNamed(sent.to ?? '');
    if (sent.body.length > bodyLimit) {
      throw tooLarge(`The body has ${sent.body.length} bytes. Allowed: at most ${bodyLimit}.`);
    }
    // The `ttl` overrides `absolute-expiry-time`, which depends on the client's clock.
    const expiresAt = sent.ttlMs === null ? sent.expiresAt : momentIn(sent.ttlMs, queue.namespace, queue.key);
    const element = {
      ...sent,
      expiresAt,
      groups: queue.groups(sent.groups, GROUPS_PROPERTY),
      dedupKey: null,
    };
    requireTiming(queue.namespace, queue.key, element);
    connection.inserts.add(queue, element, reply, bytes.length);
  }

  /** The queue that a message names in `to`. */
  #findNamed(address: string): Queue {
    return atMember('to', () => {
      checkTarget(address);
      return this.#connection.destinations.find(address, 'write');
    });
  }

  /** Grants new credit for what was used up: by messages that were settled, or without sending. */
  onCreditUsed(count: number): void {
    if (this.#isStopped) return;
    this.#usedCredit += count;
    if (this.#usedCredit < MIN_GRANT) return;
    this.endpoint.grant(this.#usedCredit);
    this.#usedCredit = 0;
  }
}

function tooLarge(message: string): QuaysideError {
  return new QuaysideError('body-too-large', message);
}

/** The reply to a client's disposition, pending until the engine has settled the element. */
export interface PendingSettleReply {
  readonly link: OutgoingLink;
  /** Null if the client has already settled the delivery. */
  readonly delivery: SentDelivery | null;
}

/**
 * A link on which the client receives: a consumer of the queue that the source names, whose window follows the link
 * credit. If its messages are sent settled, it pops; else it reserves, and the client's outcomes settle the elements.
 */
export class OutgoingLink extends PushConsumer<AmqpConnection, SentDelivery> implements SenderHandler, Claim {
  readonly endpoint: SenderEndpoint;
  readonly #settledReply: PendingSettleReply = { link: this, delivery: null };
  /** How many of the session's unsettled deliveries its take in flight may bring. */
  #claimed = 0;

  /** @throws QuaysideError if the source is not valid, or the user lacks the right to read there */
  constructor(connection: AmqpConnection, endpoint: SenderEndpoint, source: SourceRequest) {
    const isPop = endpoint.request.sndSettleMode === SETTLE_MODE.settled;
    const queue = connection.destinations.find(source.address, 'read');
    if (!isPop) requireCapability(queue.namespace, 'reserve', 'snd-settle-mode');
    const group = queue.groupOf(source.group, source.groupParameter);
    super(connection, { queue, group, isPop, leaseMs: source.leaseMs });
    this.endpoint = endpoint;
    endpoint.accept(this, isPop, 'move');
  }

  override fail(error: unknown): void {
    this.session.failLink(this, error);
  }

  /**
   * Call if the link ends but not its connection: deliveries in the writer are still sent, since ids must not have
   * gaps.
   */
  markSeen(): void {
    for (const [delivery, one] of this.outstanding) one.isSeen ||= delivery.isWritten;
  }

  protected override onStop(countTries: boolean): Promise<unknown> {
    const released = super.onStop(countTries);
    this.session.removeLink(this);
    return released;
  }

  onFlow(): void {
    const { credit } = this.endpoint;
    // Credit below the window: the client either holds the rest of the window as unsettled deliveries, or, if it holds
    // fewer, has reduced its window.
    const window = Math.min(Math.max(this.window, credit), this.outstanding.size + credit);
    // Many clients grant 2^32 - 1 as "no limit"; the session's limit is the most that they can hold.
    this.setWindow(Math.min(window, AMQP_LIMITS.unsettled));
    this.reviseTake();
  }

  onDisposition(delivery: SentDelivery, state: AmqpDeliveryState, isSettled: boolean): void {
    const tracked = this.outstanding.get(delivery);
    if (tracked === undefined) return;
    const action = this.#actionFor(state, isSettled, tracked.tries);
    if (action === null) return;
    const settled = [tracked];
    this.forget(settled);
    const reply = isSettled ? this.#settledReply : { link: this, delivery };
    this.session.settles.add(this.queue, settled, action, reply, 0);
  }

  protected override get free(): number {
    return this.endpoint.sendable;
  }

  protected override get isDraining(): boolean {
    return this.endpoint.isDraining;
  }

  protected override onDrained(): void {
    this.endpoint.drained();
  }

  /**
   * A closed session window does not end a drain, since the client would take the queue for empty; the window opens as
   * the client reads. The limit of unsettled deliveries does: the client may settle none before the drain ends.
   */
  protected override get isUsedUp(): boolean {
    return this.endpoint.isUsedUp;
  }

  /** Other links of the session may have used up its unsettled deliveries since this one joined the wait queue. */
  protected override get canSend(): boolean {
    return super.canSend && this.endpoint.session.available > 0;
  }

  protected override get claim(): Claim {
    return this;
  }

  /**
   * Whether the session has places for what the take may bring: what does not fit would have to return to its queue.
   * Without this, a session of 100 links that was nearly used up made 30 takes for each element that it sent. A drain
   * does not wait for places, since it has to learn whether there are elements, but the takes of other links leave it
   * those that it may use.
   */
  acquire({ count, request }: Consumer): boolean {
    const { session } = this.endpoint;
    if (this.#claimed > 0) return true;
    if (request.timeoutMs === null && count > session.available - session.taking) {
      this.session.awaitPlace(this);
      return false;
    }
    this.#claimed = count;
    session.taking += count;
    this.session.awaitingPlace.delete(this);
    return true;
  }

  release(): void {
    // It may have got what another link took.
    this.session.awaitingPlace.delete(this);
    if (this.#claimed === 0) return;
    const { session } = this.endpoint;
    session.taking -= this.#claimed;
    this.#claimed = 0;
    this.session.onPlaces(session);
  }

  /** Leaves the wait queue, where it may not take, so that `fill` requests as much as there are places now. */
  retake(): void {
    this.leaveWaitQueue();
    this.session.planFill(this);
  }

  override deliver(first: Delivery, more: readonly Delivery[]): void {
    this.release();
    super.deliver(first, more);
  }

  override end(reason: QuaysideError): void {
    this.release();
    super.end(reason);
  }

  protected override get sharedFree(): number {
    const { session } = this.endpoint;
    return session.sendable - session.taking;
  }

  /** Use all credit, however little: the client may grant more only then. */
  protected override get minTake(): number {
    return 1;
  }

  protected override send(delivery: Delivery): number {
    const { endpoint } = this;
    const bytes = messageOf(delivery, this.publicGroup);
    const error = messageTooLarge(endpoint, bytes, delivery.id);
    if (error !== null) {
      this.queue.returnAllUndelivered([delivery]);
      this.fail(error);
      return bytes.length;
    }
    const sent = new SentDelivery(endpoint, bytes, this.leaseMs === null);
    sent.observer = this.track(sent, delivery);
    endpoint.session.send(sent);
    return bytes.length;
  }

  /** The action for an outcome (docs/protocols/amqp.md, "Receiving"); null if the state is not an outcome yet. */
  #actionFor(state: AmqpDeliveryState, isSettled: boolean, tries: number): SettleAction | null {
    switch (state.kind) {
      case DESCRIBED.accepted:
        return FINISH;
      case DESCRIBED.rejected:
        return { ...failedTry(delayAfter(tries)), reason: state.reason };
      case DESCRIBED.released:
        return { kind: 'release', delayMs: 0, countTry: false };
      case DESCRIBED.modified:
        if (!state.isUndeliverable) return { ...failedTry(0), countTry: state.isFailed };
        if (this.queue.hasDeadLetterQueue) {
          return { kind: 'dead-letter', countTry: state.isFailed, reason: null };
        }
        // Delayed, since the next consumer could be this one again.
        return { ...failedTry(delayAfter(tries)), countTry: state.isFailed };
      default:
        // The client settled it without an outcome, which counts as a failed try.
        return isSettled ? failedTry(0) : null;
    }
  }
}

/**
 * A rollback with a failed try. AMQP's outcomes carry no delay, so the queue's retry delay, if set, overrides this one.
 */
function failedTry(delayMs: number): ReleaseAction {
  return { kind: 'release', delayMs, isDefaultDelay: true, countTry: true };
}

/** The delay of a rejected element, ms (docs/protocols/amqp.md, "Receiving"). */
export function delayAfter(tries: number): number {
  const { c2, c1, c0 } = REJECT_DELAY;
  return Math.min(LIMITS.delayMs, (tries * tries * c2 + tries * c1 + c0) * 1000);
}

/**
 * A link on which the client browses: its source has the distribution mode `copy`. It sends copies of the ready
 * elements, in order, as credit allows; the client's outcomes have no effect on them.
 */
class BrowsingLink extends QueueBrowser<AmqpConnection> implements SenderHandler {
  readonly endpoint: SenderEndpoint;
  readonly #isSettled: boolean;

  /** @throws QuaysideError if the source is not valid, or the user lacks the right to browse there */
  constructor(connection: AmqpConnection, endpoint: SenderEndpoint, source: SourceRequest) {
    const queue = connection.destinations.find(source.address, 'browse');
    const group = queue.groupOf(source.group, source.groupParameter);
    super(connection, { queue, group });
    this.endpoint = endpoint;
    this.#isSettled = endpoint.request.sndSettleMode === SETTLE_MODE.settled;
    endpoint.accept(this, this.#isSettled, 'copy');
  }

  override fail(error: unknown): void {
    this.session.failLink(this, error);
  }

  protected override onStop(): Promise<unknown> {
    this.session.removeLink(this);
    return super.onStop();
  }

  /** Each flow of the client checks for new elements. */
  onFlow(): void {
    this.refresh();
  }

  onDisposition(delivery: SentDelivery, _state: AmqpDeliveryState, isSettled: boolean): void {
    if (!isSettled) this.endpoint.session.settleSent(delivery);
  }

  protected override get free(): number {
    return this.endpoint.sendable;
  }

  protected override show(delivery: Delivery): number {
    const bytes = messageOf(delivery, this.publicGroup);
    const error = messageTooLarge(this.endpoint, bytes, delivery.id);
    if (error !== null) {
      this.fail(error);
      return 0;
    }
    this.session.counts.messages += 1;
    this.endpoint.session.send(new SentDelivery(this.endpoint, bytes, this.#isSettled));
    return bytes.length;
  }

  /** A closed session window does not end a drain; see `OutgoingLink.isUsedUp`. */
  protected override onIdle(isAtEnd: boolean): void {
    const { endpoint } = this;
    if (endpoint.isDraining && (isAtEnd || endpoint.isUsedUp)) endpoint.drained();
  }
}

/**
 * A message above the client's `max-message-size` ends the link (transport, 2.7.3), as in RabbitMQ: if it were skipped,
 * it would stay in the queue without a visible reason.
 * @param message as `messageOf` returns it
 * @returns null if the message is small enough
 */
function messageTooLarge({ request }: Endpoint, message: Buffer, id: ElementId): QuaysideError | null {
  const { maxMessageBytes } = request;
  const bytes = message.length - TRANSFER_HEAD_BYTES;
  if (bytes <= maxMessageBytes) return null;
  return tooLarge(
    `The next message, element ${id}, has ${bytes} bytes, but the client takes ${maxMessageBytes} (max-message-size).`,
  );
}
