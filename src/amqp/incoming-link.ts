import type { Delivery, EventContext, Receiver } from 'rhea';
import { momentIn } from '../broker/engine-time.ts';
import { needsFor } from '../broker/needs.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { maskUrl } from '../util/mask.ts';
import { quote } from '../util/quote.ts';
import { parseAddress } from './address.ts';
import { AMQP_ERRORS, wireError } from './errors.ts';
import { LINK_LIMITS } from './limits.ts';
import { addressOf, Link, type LinkHost } from './link.ts';
import { elementOf } from './message/from-message.ts';
import { setReceiving } from './rhea.ts';

/** Credit is replenished when this part of it was used and settled. */
const GRANTED_AT_ONCE = LINK_LIMITS.credit / 4;

/** A link by which a client sends: each message is one element of the queue that its target names. */
export class IncomingLink extends Link {
  readonly #receiver: Receiver;
  readonly #address: string;
  /** Messages that were settled since credit was granted last. */
  #settled = 0;

  /** @throws QuaysideError what the target, or the right to write there, lacks */
  constructor(host: LinkHost, receiver: Receiver) {
    const address = addressOf(receiver.target);
    checkTarget(address);
    host.destinations.find(address, 'write');
    super(host, receiver);
    this.#receiver = receiver;
    this.#address = address;
    receiver.set_source({ address: receiver.source?.address ?? '' });
    receiver.set_target({ address });
    setReceiving(receiver, host.bodyLimit + LINK_LIMITS.sectionBytes);
    receiver.on(
      'message',
      host.heard((context) => this.#receive(context)),
    );
    const over = host.heard(() => this.stop(true));
    receiver.on('receiver_close', over);
    receiver.on('receiver_error', over);
    receiver.add_credit(LINK_LIMITS.credit);
  }

  override checkRight(): void {
    this.host.destinations.find(this.#address, 'write');
  }

  override fill(): void {}

  protected override letGo(): void {}

  /** The engine has it. */
  accepted(delivery: Delivery): void {
    delivery.accept();
    this.#answered();
  }

  /** It was not stored, or nobody knows. */
  refused(delivery: Delivery, thrown: unknown): void {
    const error = this.host.shown(thrown);
    const { message } = AMQP_ERRORS[error.code];
    // A message that came settled has no outcome by which its sender would hear of this.
    if (message === 'detach' || delivery.remote_settled) this.fail(error);
    else if (message === 'released') delivery.release();
    else delivery.reject(wireError(error));
    this.#answered();
  }

  #receive({ delivery, message }: EventContext): void {
    if (delivery === undefined) return;
    if (this.isOver) {
      delivery.release();
      this.#answered();
      return;
    }
    try {
      this.#store(delivery, message as unknown as Buffer);
    } catch (error) {
      this.refused(delivery, error);
    }
  }

  #store(delivery: Delivery, bytes: Buffer): void {
    const { host } = this;
    const { namespace, queue } = host.destinations.find(this.#address, 'write');
    if (bytes.length > host.bodyLimit + LINK_LIMITS.sectionBytes) throw this.#tooLarge('more');
    const sent = elementOf(bytes);
    if (sent.body.length > host.bodyLimit) throw this.#tooLarge(String(sent.body.length));
    // A length needs no clock that sender and server agree on, so it goes before a moment.
    const expiresAt = sent.ttlMs === null ? sent.expiresAt : momentIn(sent.ttlMs, namespace, queue.key);
    const element = { ...sent, expiresAt, groups: queue.groups(sent.groups), dedupKey: null };
    needsFor(namespace, element);
    host.storing.add(queue, element, { link: this, delivery });
    host.planTurn();
  }

  #answered(): void {
    if (this.isOver) return;
    this.#settled += 1;
    if (this.#settled < GRANTED_AT_ONCE) return;
    this.#receiver.add_credit(this.#settled);
    this.#settled = 0;
  }

  #tooLarge(bytes: string): QuaysideError {
    const allowed = `Allowed: at most ${this.host.bodyLimit}.`;
    return new QuaysideError('body-too-large', `The body has ${bytes} bytes. ${allowed}`);
  }
}

/** @throws QuaysideError `invalid-parameter` where it has options, which would have no effect */
function checkTarget(address: string): void {
  const { group, leaseMs } = parseAddress(address);
  if (group === null && leaseMs === null) return;
  throw invalidParameter(
    'address',
    `The address ${quote(maskUrl(address))} of a link to send by has options, which only receivers have. A message names its groups in x-ks-groups.`,
  );
}
