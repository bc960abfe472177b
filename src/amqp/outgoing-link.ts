import { FINISH, type ReleaseAction, type SettleAction } from '../broker/queue.ts';
import { needs } from '../broker/queue-options.ts';
import type { Delivery } from '../model/element.ts';
import { LIMITS } from '../model/limits.ts';
import { PushConsumer } from '../session/push-consumer.ts';
import type { AmqpConnection } from './connection.ts';
import { DESCRIBED } from './core/descriptors.ts';
import { TRANSFER_HEAD_BYTES } from './core/frames.ts';
import { type DeliveryState, SETTLE_MODE, type SenderEndpoint, type SenderHandler } from './core/link.ts';
import { AMQP_LIMITS, REJECT_DELAY } from './limits.ts';
import { type AmqpLink, messageTooLarge } from './link.ts';
import { messageOf } from './message/to-message.ts';
import type { SourceRequest } from './source.ts';

/** A delivery that a client gave an outcome. */
export interface SettleTicket {
  readonly link: OutgoingLink;
  /** Null: the client has settled it. */
  readonly deliveryId: number | null;
}

/**
 * A link by which a client receives: a consumer of the queue that its source names, with its credit for the window.
 * Settled, it pops; else it reserves, and the client's outcomes settle. An element is known by its delivery's id.
 */
export class OutgoingLink extends PushConsumer<AmqpConnection, number> implements AmqpLink, SenderHandler {
  readonly endpoint: SenderEndpoint;
  readonly #source: SourceRequest;
  readonly #settledTicket: SettleTicket = { link: this, deliveryId: null };
  #isDraining = false;

  /** @throws QuaysideError if the source, or the right to read there, is not what it must be */
  constructor(connection: AmqpConnection, endpoint: SenderEndpoint, source: SourceRequest) {
    const { request } = endpoint;
    const isPop = request.sndSettleMode === SETTLE_MODE.settled;
    const { namespace, queue } = connection.destinations.find(source.address, 'read');
    if (!isPop) needs(namespace, 'reserve');
    // Refused now if the namespace has no groups, not with the first credit.
    if (source.group !== null) queue.groups([source.group]);
    super(connection, { namespace, queue, group: source.group, isPop, leaseMs: source.leaseMs });
    this.endpoint = endpoint;
    this.#source = source;
    connection.counts.links += 1;
    endpoint.accept(this, {
      source: source.address,
      target: request.target?.address ?? '',
      sndSettleMode: isPop ? SETTLE_MODE.settled : SETTLE_MODE.unsettled,
      filter: request.source?.filter ?? null,
      distributionMode: 'move',
    });
  }

  checkRight(): void {
    this.session.destinations.find(this.#source.address, 'read');
  }

  protected override async release(countTries: boolean): Promise<void> {
    this.session.counts.links -= 1;
    this.session.links.delete(this);
    const released = super.release(countTries);
    // Other links of the session may send now.
    this.session.guard(() => this.endpoint.release());
    await released;
  }

  /** Takes more if there is room, or what there is if the client drains. */
  override fill(): void {
    if (!this.endpoint.isDraining || this.#isDraining) {
      super.fill();
      return;
    }
    this.#isDraining = true;
    this.drain(() => {
      this.#isDraining = false;
      this.endpoint.drained();
    });
  }

  onDetach(): void {
    void this.stop(true);
  }

  onFlow(): void {
    const { credit } = this.endpoint;
    // Many clients give 2^32 - 1 and mean "no limit"; the session's is what they can hold.
    const window = Math.min(credit, AMQP_LIMITS.unsettled);
    if (window > this.window) this.setWindow(window);
    this.#isDraining = false;
    this.endDrain();
    // The client took credit back: what comes for it now would be too much.
    if (this.asked > this.free) this.leave();
  }

  onDisposition(deliveryId: number, state: DeliveryState, isSettled: boolean): void {
    const one = this.outstanding.get(deliveryId);
    if (one === undefined) return;
    const action = this.#actionFor(state, isSettled, one.tries);
    if (action === null) return;
    const settled = [one];
    this.settle(settled);
    const ticket = isSettled ? this.#settledTicket : { link: this, deliveryId };
    this.session.settles.add(this.queue, settled, action, ticket);
  }

  protected override get free(): number {
    return this.endpoint.sendable;
  }

  /**
   * A closed window is no end of a drain: the client would take its queue for empty. It opens as the client reads. Of
   * unsettled deliveries the client has to settle some first, for which it may wait for the end of the drain.
   */
  protected override get isUsedUp(): boolean {
    return this.endpoint.credit <= 0 || this.endpoint.session.available <= 0;
  }

  /** All credit is used: the client may have no more to give before that. */
  protected override get minTake(): number {
    return 1;
  }

  protected override send(delivery: Delivery): number {
    const { endpoint } = this;
    const { session } = endpoint;
    // Another link of the session may have filled what they share, since this one joined the wait queue.
    if (this.isStopped || session.available <= 0) {
      this.queue.returnUndelivered(delivery);
      return delivery.body.byteLength;
    }
    const bytes = messageOf(delivery, this.publicGroup, TRANSFER_HEAD_BYTES);
    const error = messageTooLarge(endpoint, bytes.length - TRANSFER_HEAD_BYTES, delivery.id);
    if (error !== null) {
      this.queue.returnUndelivered(delivery);
      this.session.failLink(this, error);
      return bytes.length;
    }
    const observer = this.track(session.nextDeliveryId, delivery);
    endpoint.send(bytes, observer, this.leaseMs === null);
    return bytes.length;
  }

  protected override onEnded(reason: unknown): void {
    this.session.failLink(this, reason);
  }

  /** What becomes of an element with this outcome (decisions, "AMQP 1.0"). Null: it has none yet. */
  #actionFor(state: DeliveryState, isSettled: boolean, tries: number): SettleAction | null {
    switch (state.kind) {
      case DESCRIBED.accepted:
        return FINISH;
      case DESCRIBED.rejected:
        return { ...failed(delayAfter(tries)), reason: state.reason };
      case DESCRIBED.released:
        return { kind: 'release', delayMs: 0, countTry: false };
      case DESCRIBED.modified:
        if (!state.isUndeliverable) return { ...failed(0), countTry: state.isFailed };
        if (this.queue.settings.deadLetter !== null) {
          return { kind: 'dead-letter', countTry: state.isFailed, reason: null };
        }
        // Another consumer may do better, but not at once: it could be this one again.
        return { ...failed(delayAfter(tries)), countTry: state.isFailed };
      default:
        // The client has forgotten it; without an outcome it is a failed try.
        return isSettled ? failed(0) : null;
    }
  }
}

/** A failed try, for which no outcome of AMQP names a delay: the queue's retry delay goes before this one. */
function failed(delayMs: number): ReleaseAction {
  return { kind: 'release', delayMs, isDefaultDelay: true, countTry: true };
}

/** How long a rejected element stays away, ms (decisions, "AMQP 1.0"). */
export function delayAfter(tries: number): number {
  const { c2, c1, c0 } = REJECT_DELAY;
  return Math.min(LIMITS.delayMs, (tries * tries * c2 + tries * c1 + c0) * 1000);
}
