import { Channel } from '../channels.ts';
import { ABSENT } from '../fields.ts';
import type { FrameInHand } from '../frame-in-hand.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { Breach, framingError, illegalState, invalidField } from '../refusal.ts';
import { CODE } from '../type-codes.ts';

/** The peer's `begin`. */
export function checkBegin(frame: FrameInHand): void {
  const { state, fields, channelNumber } = frame;
  if (channelNumber > AMQP_LIMITS.channelMax) {
    throw framingError(`Channel ${channelNumber} is too high. Allowed: 0 to ${AMQP_LIMITS.channelMax}.`);
  }
  if (state.channels[channelNumber] !== undefined) {
    throw illegalState(`Channel ${channelNumber} has a session already. End it first.`);
  }
  if (state.channelCount >= state.peerChannels) {
    throw new Breach(
      'amqp:not-allowed',
      `The client begins more sessions than the ${state.peerChannels} that its own channel-max allows.`,
    );
  }
  if (fields.ushort('remote-channel') !== ABSENT) {
    throw invalidField('remote-channel answers a session that this server did not begin.');
  }
  fields.neededUint('next-outgoing-id');
  fields.neededUint('incoming-window');
  fields.neededUint('outgoing-window');
  const handleMax = fields.uint('handle-max');
  fields.symbols('offered-capabilities');
  fields.symbols('desired-capabilities');
  fields.oneOf('properties', CODE.map8, CODE.map32);
  frame.finish();
  state.channels[channelNumber] = new Channel(handleMax === ABSENT ? Infinity : handleMax + 1);
  state.channelCount += 1;
}

/** The peer's `end`. */
export function checkEnd(frame: FrameInHand): void {
  const { state, channel } = frame;
  frame.error();
  frame.finish();
  for (const link of channel.links) state.begunCost -= link?.begunCost ?? 0;
  state.channels[frame.channelNumber] = undefined;
  state.channelCount -= 1;
}

/** The peer's `detach`. */
export function checkDetach(frame: FrameInHand): void {
  const { state, channel, fields } = frame;
  const link = frame.link(fields.neededUint('handle'));
  fields.boolean('closed');
  frame.error();
  frame.finish();
  state.begunCost -= link.begunCost;
  channel.remove(link);
}

/** The peer's `flow`. */
export function checkFlow(frame: FrameInHand): void {
  const { fields, bytes } = frame;
  // There has to be a session, also where no link is named.
  frame.channel;
  fields.uint('next-incoming-id');
  fields.neededUint('incoming-window');
  fields.neededUint('next-outgoing-id');
  fields.neededUint('outgoing-window');
  const handle = fields.uint('handle');
  const link = handle === ABSENT ? null : frame.link(handle);
  fields.uint('delivery-count');
  const credit = fields.uint('link-credit');
  if (link !== null && !link.isPeerSender && credit === ABSENT) {
    throw invalidField('A flow for a link has no link-credit.');
  }
  fields.uint('available');
  const { at } = fields;
  // rhea would set its own count of deliveries to whatever the peer's says.
  if (fields.boolean('drain') === 1 && link?.isPeerSender) makeFalse(bytes, at);
  fields.boolean('echo');
  fields.oneOf('properties', CODE.map8, CODE.map32);
  frame.finish();
}

/** @param at of the code of a boolean that is true */
function makeFalse(bytes: Buffer, at: number): void {
  if (bytes[at] === CODE.true) bytes[at] = CODE.false;
  else bytes[at + 1] = 0;
}
