import { momentIn } from '../broker/engine-time.ts';
import { needsFor } from '../broker/queue-options.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import type { Destination } from '../session/client-session.ts';
import { maskUrl } from '../util/mask.ts';
import { quote } from '../util/quote.ts';
import { parseAddress } from './address.ts';
import type { AmqpConnection } from './connection.ts';
import type { ReceiverEndpoint, ReceiverHandler } from './core/link.ts';
import { AMQP_ERRORS, LINK_CAPABILITIES, wireError } from './errors.ts';
import { AMQP_LIMITS } from './limits.ts';
import { type AmqpLink, checkNotDynamic } from './link.ts';
import { elementOf } from './message/from-message.ts';

/** Credit is replenished when this part of it was used and settled. */
const REPLENISHED = AMQP_LIMITS.credit / 4;

/** A message of a client, on its way to the engine. */
export interface SentTicket {
  readonly link: IncomingLink;
  readonly deliveryId: number;
  /** It came settled: there is no outcome to send. */
  readonly isSettled: boolean;
}

/**
 * A link by which a client sends: each message is one element of the queue that its target names, or, if the target has
 * no address, of the queue that the message names in `to` (the anonymous terminus).
 */
export class IncomingLink implements AmqpLink, ReceiverHandler {
  readonly endpoint: ReceiverEndpoint;
  readonly #connection: AmqpConnection;
  /** Null: that of each message. */
  readonly #address: string | null;
  /** Messages that were settled since credit was granted last. */
  #settled = 0;
  #isStopped = false;

  /** @throws QuaysideError if the target, or the right to write there, is not what it must be */
  constructor(connection: AmqpConnection, endpoint: ReceiverEndpoint) {
    const { source, target } = endpoint.request;
    checkNotDynamic(target);
    const address = target === null ? '' : target.address;
    if (address !== null) {
      checkTarget(address);
      connection.destinations.find(address, 'write');
    }
    this.endpoint = endpoint;
    this.#connection = connection;
    this.#address = address;
    connection.counts.links += 1;
    endpoint.accept(this, {
      source: source?.address ?? '',
      target: address,
      maxMessageBytes: connection.messageBytes,
      capabilities: LINK_CAPABILITIES,
    });
    endpoint.grant(AMQP_LIMITS.credit);
  }

  checkRight(): void {
    if (this.#address !== null) this.#connection.destinations.find(this.#address, 'write');
  }

  stop(): void {
    if (this.#isStopped) return;
    this.#isStopped = true;
    this.#connection.counts.links -= 1;
    this.#connection.links.delete(this);
    this.endpoint.release();
  }

  onDetach(): void {
    this.stop();
  }

  onCreditLost(count: number): void {
    this.#replenish(count);
  }

  onMessage(deliveryId: number, payload: Buffer, isSettled: boolean): void {
    const ticket = { link: this, deliveryId, isSettled };
    try {
      this.#insert(payload, ticket);
    } catch (error) {
      this.refuse(ticket, error);
    }
  }

  /** The engine has it. */
  accept({ deliveryId, isSettled }: SentTicket): void {
    if (!isSettled) this.endpoint.session.settleReceived(deliveryId, 'accepted');
    this.#replenish(1);
  }

  /** It was not stored, or that is unknown. */
  refuse({ deliveryId, isSettled }: SentTicket, thrown: unknown): void {
    const { session } = this.endpoint;
    const error = this.#connection.publicError(thrown);
    const { message } = AMQP_ERRORS[error.code];
    if (message === 'detach' || isSettled) {
      // There is no outcome that would be true, or none that its sender would see.
      if (!isSettled) session.forgetReceived();
      this.#connection.failLink(this, error);
    } else {
      session.settleReceived(deliveryId, message, message === 'rejected' ? wireError(error) : null);
    }
    this.#replenish(1);
  }

  #insert(bytes: Buffer, ticket: SentTicket): void {
    const connection = this.#connection;
    // The right is checked before the message is read, if its queue is known by then.
    const known = this.#address === null ? null : connection.destinations.find(this.#address, 'write');
    if (bytes.length > connection.messageBytes) throw this.#tooLarge('more');
    const sent = elementOf(bytes);
    const { namespace, queue } = known ?? this.#named(sent.to ?? '');
    if (sent.body.length > connection.bodyLimit) throw this.#tooLarge(String(sent.body.length));
    // A length needs no clock that sender and server agree on, so it goes before a moment.
    const expiresAt = sent.ttlMs === null ? sent.expiresAt : momentIn(sent.ttlMs, namespace, queue.key);
    const element = { ...sent, expiresAt, groups: queue.groups(sent.groups), dedupKey: null };
    needsFor(namespace, element);
    connection.inserts.add(queue, element, ticket);
  }

  /** The queue that a message names. */
  #named(address: string): Destination {
    checkTarget(address);
    return this.#connection.destinations.find(address, 'write');
  }

  #replenish(count: number): void {
    if (this.#isStopped) return;
    this.#settled += count;
    if (this.#settled < REPLENISHED) return;
    this.endpoint.grant(this.#settled);
    this.#settled = 0;
  }

  #tooLarge(bytes: string): QuaysideError {
    const allowed = `Allowed: at most ${this.#connection.bodyLimit}.`;
    return new QuaysideError('body-too-large', `The body has ${bytes} bytes. ${allowed}`);
  }
}

/** @throws QuaysideError `invalid-parameter` if it has options, which would have no effect */
function checkTarget(address: string): void {
  const { group, leaseMs } = parseAddress(address);
  if (group === null && leaseMs === null) return;
  throw invalidParameter(
    'address',
    `The address ${quote(maskUrl(address))} of a link to send by has options, which only receivers have. A message names its groups in x-ks-groups.`,
  );
}
