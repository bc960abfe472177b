import { BEAT_PACE } from '../../../session/heart-beat.ts';
import { ABSENT } from '../fields.ts';
import type { FrameInHand } from '../frame-in-hand.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { illegalState, invalidField, limitExceeded } from '../refusal.ts';
import { CODE } from '../type-codes.ts';

/** The least `max-frame-size` that AMQP allows. */
const LEAST_FRAME_BYTES = 512;
/** A Node timer holds no more; who asks for more than this is sent something every 12 days. */
const LONGEST_IDLE_MS = 2 ** 31 - 1;

/** The peer's `open`. */
export function checkOpen(frame: FrameInHand): void {
  const { state, fields } = frame;
  if (state.isPeerOpen) throw illegalState('The connection is open already.');
  if (frame.channelNumber !== 0) {
    throw illegalState(`open came on channel ${frame.channelNumber}. Allowed: channel 0.`);
  }
  if (fields.oneOf('container-id', CODE.string8, CODE.string32) === CODE.null) {
    throw invalidField('container-id is missing.');
  }
  fields.oneOf('hostname', CODE.string8, CODE.string32);
  const frameBytes = fields.uint('max-frame-size');
  if (frameBytes !== ABSENT && frameBytes < LEAST_FRAME_BYTES) {
    throw invalidField(`max-frame-size is ${frameBytes}. Allowed: ${LEAST_FRAME_BYTES} or more.`);
  }
  const channelMax = fields.ushort('channel-max');
  checkIdle(frame);
  fields.symbols('outgoing-locales');
  fields.symbols('incoming-locales');
  fields.symbols('offered-capabilities');
  fields.symbols('desired-capabilities');
  fields.oneOf('properties', CODE.map8, CODE.map32);
  frame.finish();
  state.isPeerOpen = true;
  state.peerChannels = channelMax === ABSENT ? AMQP_LIMITS.channelMax + 1 : channelMax + 1;
}

function checkIdle({ fields, bytes }: FrameInHand): void {
  const { at } = fields;
  const idleMs = fields.uint('idle-time-out');
  if (idleMs > 0 && idleMs < AMQP_LIMITS.shortestIdleMs) {
    throw limitExceeded(
      `idle-time-out is ${idleMs} ms. Allowed: 0, or ${AMQP_LIMITS.shortestIdleMs} and more.`,
    );
  }
  if (idleMs <= 0) return;
  // rhea sends something after half of what it reads. Only the longest form of a number holds so much.
  bytes.writeUInt32BE(Math.min(LONGEST_IDLE_MS, Math.floor(idleMs * 2 * BEAT_PACE)), at + 1);
}

/** The peer's `close`. */
export function checkClose(frame: FrameInHand): void {
  frame.error();
  frame.finish();
  frame.state.isPeerClosed = true;
}
