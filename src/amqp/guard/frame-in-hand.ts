import type { Channel, Link } from './channels.ts';
import { Fields, NOTHING } from './fields.ts';
import { AMQP_LIMITS } from './limits.ts';
import { DESCRIBED, descriptorNumber } from './performatives.ts';
import { Breach, decodeError, framingError, invalidField } from './refusal.ts';
import type { ConnectionState } from './state.ts';
import { CODE } from './type-codes.ts';

/** The one frame that is checked now, and what its check needs. One object serves all frames of a connection. */
export class FrameInHand {
  readonly state: ConnectionState;
  /** The largest encoded message. */
  readonly messageBytes: number;
  /** In the performative. */
  readonly fields = new Fields(AMQP_LIMITS);
  /** In a described list that is one of those fields. */
  readonly inner = new Fields(AMQP_LIMITS);
  /** In a described list that is one of the fields of that. */
  readonly innermost = new Fields(AMQP_LIMITS);
  bytes: Buffer = NOTHING;
  /** From its size to the end of its payload. */
  start = 0;
  end = 0;
  channelNumber = 0;
  /** Where the payload begins: set when the performative has been read. */
  payloadAt = 0;
  /** What rhea gets in its place; null: the frame as it is. */
  replacement: Buffer | null = null;
  /** See `Inbound`. */
  effort = 0;

  constructor(state: ConnectionState, messageBytes: number) {
    this.state = state;
    this.messageBytes = messageBytes;
  }

  /** Lets go of the bytes, so that a peer that is silent keeps nothing. */
  leave(): void {
    this.bytes = NOTHING;
    this.replacement = null;
    for (const fields of [this.fields, this.inner, this.innermost]) fields.leave();
  }

  /** Its session. @throws Breach where there is none on its channel */
  get channel(): Channel {
    const channel = this.state.channels[this.channelNumber];
    if (channel === undefined) throw framingError(`There is no session on channel ${this.channelNumber}.`);
    return channel;
  }

  /** @throws Breach where no link is attached to the handle */
  link(handle: number): Link {
    const link = this.channel.links[handle];
    if (link === undefined) {
      throw new Breach('amqp:session:unattached-handle', `No link is attached to handle ${handle}.`);
    }
    return link;
  }

  /** Reads the rest of a performative that has no payload. */
  finish(): void {
    this.payloadAt = this.fields.finish();
    if (this.payloadAt !== this.end) throw decodeError('A frame that is no transfer has a payload.');
  }

  /** Goes over a field of the performative that is an error, or absent. */
  error(): void {
    checkError(this.fields, this.inner);
  }
}

/**
 * Goes over a field that is an error, or absent.
 * @param outer at the field
 * @param reader a free one
 */
export function checkError(outer: Fields, reader: Fields): void {
  if (outer.isAbsent) {
    outer.skip();
    return;
  }
  if (descriptorNumber(reader.enterField(outer)) !== DESCRIBED.error) {
    throw decodeError('An error is of another type.');
  }
  const condition = reader.oneOf('condition', CODE.symbol8, CODE.symbol32);
  if (condition === CODE.null) throw invalidField('An error has no condition.');
  reader.oneOf('description', CODE.string8, CODE.string32);
  reader.oneOf('info', CODE.map8, CODE.map32);
}
