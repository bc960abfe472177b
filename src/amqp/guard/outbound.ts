import type { WriteObserver } from '../../session/outstanding.ts';

import { ABSENT, Fields } from './fields.ts';
import { HEADER_BYTES } from './frames.ts';
import { AMQP_LIMITS } from './limits.ts';
import { renamed, withoutPrefix } from './link-name.ts';
import { PERFORMATIVE } from './performatives.ts';
import type { ConnectionState } from './state.ts';
import { CODE } from './type-codes.ts';

/** Numbers of deliveries of one channel: more than there are. */
const CHANNEL_STRIDE = 2 ** 32;

/**
 * Reads what rhea writes: for what a peer may do in answer (window, credit, dispositions), for who rides on a
 * delivery, and to give links their names back. rhea is trusted to write well-formed frames.
 */
export class Outbound {
  readonly #state: ConnectionState;
  readonly #fields = new Fields(AMQP_LIMITS);
  readonly #riders = new Map<number, WriteObserver>();
  /** Who rides on the frame that `observe` saw last. */
  cargo: WriteObserver | null = null;

  constructor(state: ConnectionState) {
    this.#state = state;
  }

  carry(channel: number, deliveryId: number, cargo: WriteObserver): void {
    this.#riders.set(channel * CHANNEL_STRIDE + deliveryId, cargo);
  }

  /** Tells those whose delivery was never written. */
  abandon(): void {
    const riders = [...this.#riders.values()];
    this.#riders.clear();
    for (const cargo of riders) cargo.lost();
  }

  /** Answers the frame as it goes to the peer. */
  observe(frame: Buffer): Buffer {
    const after = this.#observe(frame);
    this.#fields.leave();
    return after;
  }

  #observe(frame: Buffer): Buffer {
    this.cargo = null;
    const state = this.#state;
    if (!state.isHeaderSent) {
      state.isHeaderSent = true;
      return frame;
    }
    // A heart-beat.
    if (frame.length <= HEADER_BYTES) return frame;
    const number = frame.readUInt16BE(6);
    const fields = this.#fields;
    switch (fields.enter(frame, HEADER_BYTES, frame.length)) {
      case PERFORMATIVE.transfer:
        this.#transfer(number);
        break;
      case PERFORMATIVE.flow:
        this.#flow(number);
        break;
      case PERFORMATIVE.attach:
        return this.#attach(frame, number);
      case PERFORMATIVE.begin:
        this.#begin(number);
        break;
      case PERFORMATIVE.open:
        state.isOpenSent = true;
        break;
      case PERFORMATIVE.close:
        state.isCloseSent = true;
        break;
    }
    return frame;
  }

  #transfer(number: number): void {
    const fields = this.#fields;
    fields.skip();
    const deliveryId = fields.uint('delivery-id');
    const channel = this.#state.ownChannels[number];
    if (channel !== undefined) channel.newestSent = Math.max(channel.newestSent, deliveryId);
    if (this.#riders.size === 0) return;
    for (const _ of ['delivery-tag', 'message-format', 'settled']) fields.skip();
    if (fields.boolean('more') === 1) return;
    const key = number * CHANNEL_STRIDE + deliveryId;
    this.cargo = this.#riders.get(key) ?? null;
    this.#riders.delete(key);
  }

  #flow(number: number): void {
    const channel = this.#state.ownChannels[number];
    if (channel === undefined) return;
    const fields = this.#fields;
    fields.skip();
    // rhea has seen all that came before this, so it is what may come from now on.
    channel.window = fields.uint('incoming-window');
    fields.skip();
    fields.skip();
    const handle = fields.uint('handle');
    const link = handle === ABSENT ? undefined : channel.ownLinks[handle];
    fields.skip();
    if (link === undefined || !link.isPeerSender) return;
    // A delivery that has begun has its credit already, but rhea counts it when it ends.
    link.credit = fields.uint('link-credit') - (link.begunId === -1 ? 0 : 1);
  }

  #begin(number: number): void {
    const fields = this.#fields;
    const channel = this.#state.channels[fields.ushort('remote-channel')];
    fields.skip();
    this.#state.ownChannels[number] = channel;
    if (channel !== undefined) channel.window = fields.uint('incoming-window');
  }

  #attach(frame: Buffer, number: number): Buffer {
    const fields = this.#fields;
    const listAt = fields.countAt - fields.countWidth - 1;
    const size = fields.sized('name', CODE.string8, CODE.string32);
    const to = fields.at;
    const place = { from: to - size, to };
    const name = frame.toString('utf8', place.from, to);
    const handle = fields.uint('handle');
    const channel = this.#state.ownChannels[number];
    const link = channel?.byName(name);
    if (channel !== undefined) channel.ownLinks[handle] = link;
    return renamed(frame, listAt, place, withoutPrefix(name));
  }
}
