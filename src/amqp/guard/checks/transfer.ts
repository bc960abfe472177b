import type { Channel, Link } from '../channels.ts';
import { ABSENT } from '../fields.ts';
import type { FrameInHand } from '../frame-in-hand.ts';
import { AMQP_LIMITS } from '../limits.ts';
import {
  Breach,
  decodeError,
  illegalState,
  invalidField,
  limitExceeded,
  notImplemented,
} from '../refusal.ts';
import { CODE } from '../type-codes.ts';
import { checkState } from './outcome.ts';

const LONGEST_TAG_BYTES = 32;
/** What rhea keeps for a part of a delivery beside its bytes, about. */
const PART_BYTES = 256;

/** The peer's `transfer`. The format of the message is struck out, so that rhea leaves it as it is. */
export function checkTransfer(frame: FrameInHand): void {
  const { fields, bytes, end, channel } = frame;
  const link = frame.link(fields.neededUint('handle'));
  if (!link.isPeerSender) {
    throw illegalState(`A transfer came on link ${link.handle}, by which the client only receives.`);
  }
  if (channel.window <= 0) {
    throw new Breach(
      'amqp:session:window-violation',
      'A transfer came although the incoming-window of its session is 0.',
    );
  }
  const deliveryId = fields.uint('delivery-id');
  const tagBytes = fields.sized('delivery-tag', CODE.binary8, CODE.binary32);
  if (tagBytes > LONGEST_TAG_BYTES)
    throw invalidField(`A delivery-tag has ${tagBytes} bytes. Allowed: at most ${LONGEST_TAG_BYTES}.`);
  const formatAt = fields.at;
  const format = fields.uint('message-format');
  fields.boolean('settled');
  const hasMore = fields.boolean('more') === 1;
  const settleMode = fields.ubyte('rcv-settle-mode');
  if (settleMode > 1) throw invalidField(`rcv-settle-mode is ${settleMode}. Allowed: 0, 1.`);
  if (fields.isAbsent) fields.skip();
  else checkState(frame);
  if (fields.boolean('resume') === 1)
    throw notImplemented('resume is true, but deliveries cannot be resumed.');
  if (fields.boolean('aborted') === 1)
    throw notImplemented('aborted is true, but deliveries cannot be aborted.');
  fields.boolean('batchable');
  frame.payloadAt = fields.finish();
  channel.window -= 1;

  const payloadBytes = end - frame.payloadAt;
  if (link.begunId === -1) {
    begin(channel, link, deliveryId);
    if (tagBytes === ABSENT) throw invalidField('A delivery has no delivery-tag.');
    if (format > 0) throw notImplemented(`message-format ${format} is not known. Allowed: 0.`);
    if (format === 0) strikeFormat(bytes, formatAt);
    // rhea would take it for no message at all.
    if (payloadBytes === 0) throw decodeError('The first transfer of a delivery has no payload.');
    if (!hasMore && payloadBytes <= frame.messageBytes) {
      link.begunId = -1;
      return;
    }
  } else if (deliveryId !== ABSENT && deliveryId !== link.begunId) {
    throw illegalState(`Delivery ${deliveryId} starts before delivery ${link.begunId} has ended.`);
  }
  part(frame, link, payloadBytes, hasMore);
}

function begin(channel: Channel, link: Link, deliveryId: number): void {
  if (deliveryId === ABSENT) throw invalidField('A delivery has no delivery-id.');
  if (channel.nextDeliveryId !== -1 && deliveryId !== channel.nextDeliveryId) {
    throw invalidField(`delivery-id is ${deliveryId}. Expected: ${channel.nextDeliveryId}.`);
  }
  if (link.credit <= 0) {
    throw new Breach(
      'amqp:link:transfer-limit-exceeded',
      `Delivery ${deliveryId} came on link ${link.handle}, which has no credit left.`,
    );
  }
  link.credit -= 1;
  channel.nextDeliveryId = deliveryId + 1;
  link.begunId = deliveryId;
  link.begunBytes = 0;
}

/** One of several transfers of a delivery: counted, and cut where the delivery has become too large. */
function part(frame: FrameInHand, link: Link, payloadBytes: number, hasMore: boolean): void {
  const { state, messageBytes, bytes, start, payloadAt, end } = frame;
  // One byte more than there may be tells whoever gets it.
  const wanted = Math.max(0, messageBytes + 1 - link.begunBytes);
  link.begunBytes += payloadBytes;
  const kept = Math.min(wanted, payloadBytes);
  const frameBytes = payloadAt - start + kept;
  if (kept < payloadBytes) bytes.writeUInt32BE(frameBytes, start);
  if (!hasMore) {
    state.begunCost -= link.begunCost;
    link.begunCost = 0;
    link.begunId = -1;
    if (kept < payloadBytes) frame.replacement = bytes.subarray(start, start + frameBytes);
    return;
  }
  const cost = kept === 0 ? 0 : 2 * kept + PART_BYTES;
  link.begunCost += cost;
  state.begunCost += cost;
  if (state.begunCost > 2 * AMQP_LIMITS.begunMessages * messageBytes) {
    throw limitExceeded(
      `Deliveries that have not ended hold more than ${AMQP_LIMITS.begunMessages} messages of ${messageBytes} bytes, the limit.`,
    );
  }
  // rhea keeps the part until the delivery ends, and with it all the bytes that came in the same read.
  const whole = bytes.subarray(start, start + frameBytes);
  if (2 * frameBytes < bytes.length) frame.replacement = copyOf(whole);
  else if (frameBytes < end - start) frame.replacement = whole;
}

/** Makes of format 0 a value that rhea does not take for a number, without moving a byte. */
function strikeFormat(bytes: Buffer, at: number): void {
  const code = bytes[at];
  if (code === CODE.uint0) bytes[at] = CODE.null;
  else if (code === CODE.smallUint) bytes[at] = CODE.binary8;
  else bytes[at] = CODE.decimal32;
}

/** Outside of the pool that small buffers share. */
function copyOf(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}
