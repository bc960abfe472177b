import type { Delivery } from '../model/element.ts';
import { COPY, QueueBrowser } from '../session/queue-browser.ts';
import type { AmqpConnection } from './connection.ts';
import { TRANSFER_HEAD_BYTES } from './core/frames.ts';
import { type DeliveryState, SETTLE_MODE, type SenderEndpoint, type SenderHandler } from './core/link.ts';
import { type AmqpLink, messageTooLarge } from './link.ts';
import { messageOf } from './message/to-message.ts';
import type { SourceRequest } from './source.ts';

/**
 * A link by which a client browses: its source has the distribution mode `copy`. It gets copies of what is ready, in
 * order, as far as its credit goes; what it does with them changes nothing.
 */
export class BrowsingLink extends QueueBrowser<AmqpConnection> implements AmqpLink, SenderHandler {
  readonly endpoint: SenderEndpoint;
  readonly #source: SourceRequest;
  readonly #isSettled: boolean;

  /** @throws QuaysideError if the right to browse there is missing, or the source is not what it must be */
  constructor(connection: AmqpConnection, endpoint: SenderEndpoint, source: SourceRequest) {
    const { request } = endpoint;
    const { namespace, queue } = connection.destinations.find(source.address, 'browse');
    if (source.group !== null) queue.groups([source.group]);
    super(connection, { namespace, queue, group: source.group });
    this.endpoint = endpoint;
    this.#source = source;
    this.#isSettled = request.sndSettleMode === SETTLE_MODE.settled;
    connection.counts.links += 1;
    endpoint.accept(this, {
      source: source.address,
      target: request.target?.address ?? '',
      sndSettleMode: this.#isSettled ? SETTLE_MODE.settled : SETTLE_MODE.unsettled,
      filter: request.source?.filter ?? null,
      distributionMode: 'copy',
    });
  }

  checkRight(): void {
    this.session.destinations.find(this.#source.address, 'browse');
  }

  protected override async release(): Promise<void> {
    this.session.counts.links -= 1;
    this.session.links.delete(this);
    const released = super.release();
    this.session.guard(() => this.endpoint.release());
    await released;
  }

  onDetach(): void {
    void this.stop(true);
  }

  /** Each flow of the client looks for what has come since. */
  onFlow(): void {
    this.lookAgain();
  }

  onDisposition(deliveryId: number, _state: DeliveryState, isSettled: boolean): void {
    if (!isSettled) this.endpoint.settle(deliveryId);
  }

  protected override get free(): number {
    return this.endpoint.sendable;
  }

  protected override show(delivery: Delivery): number {
    const bytes = messageOf(delivery, this.publicGroup, TRANSFER_HEAD_BYTES);
    const error = messageTooLarge(this.endpoint, bytes.length - TRANSFER_HEAD_BYTES, delivery.id);
    if (error !== null) {
      this.session.failLink(this, error);
      return 0;
    }
    this.session.counts.messages += 1;
    this.endpoint.send(bytes, COPY, this.#isSettled);
    return bytes.length;
  }

  /** As of a link that consumes, a drain does not end because the client's window is closed. */
  protected override onPause(isAtEnd: boolean): void {
    const { endpoint } = this;
    const isUsedUp = endpoint.credit <= 0 || endpoint.session.available <= 0;
    if (endpoint.isDraining && (isAtEnd || isUsedUp)) endpoint.drained();
  }

  protected override onFailed(error: unknown): void {
    this.session.failLink(this, error);
  }
}
