import { ABSENT } from '../fields.ts';
import { checkError, type FrameInHand } from '../frame-in-hand.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { DESCRIBED, descriptorNumber } from '../performatives.ts';
import { decodeError, hex, invalidField, limitExceeded, notImplemented } from '../refusal.ts';
import { CODE } from '../type-codes.ts';

/** The fields of a disposition before its state. */
const FIELDS_BEFORE_STATE = 4;

/** The peer's `disposition`. rhea goes over every number from the first to the last, so that these are checked. */
export function checkDisposition(frame: FrameInHand): void {
  const { fields, channel } = frame;
  const role = fields.boolean('role');
  if (role === ABSENT) throw invalidField('A disposition has no role.');
  const first = fields.neededUint('first');
  const lastGiven = fields.uint('last');
  const last = lastGiven === ABSENT ? first : lastGiven;
  const newest = role === 1 ? channel.newestSent : channel.nextDeliveryId - 1;
  if (last < first)
    throw invalidField(`A disposition is from ${first} to ${last}. last must not be lower than first.`);
  if (last > newest) throw invalidField(`A disposition is about delivery ${last}. The newest is ${newest}.`);
  if (last - first >= AMQP_LIMITS.unsettled) {
    throw limitExceeded(
      `A disposition is about ${last - first + 1} deliveries. Allowed: at most ${AMQP_LIMITS.unsettled}.`,
    );
  }
  frame.effort += last - first;
  fields.boolean('settled');
  const hasState = !fields.isAbsent;
  if (hasState) checkState(frame);
  else fields.skip();
  fields.boolean('batchable');
  frame.finish();
  if (!hasState && fields.count > FIELDS_BEFORE_STATE) leaveOutState(frame);
}

/** rhea takes a state that is null for an unknown one: it gets fewer fields, and the rest as a payload. */
function leaveOutState({ bytes, fields }: FrameInHand): void {
  bytes[fields.countAt + fields.countWidth - 1] = FIELDS_BEFORE_STATE;
  if (fields.countWidth > 1) bytes.fill(0, fields.countAt, fields.countAt + fields.countWidth - 1);
}

/** Goes over a field with the state of a delivery. */
export function checkState({ fields, inner, innermost }: FrameInHand): void {
  const type = descriptorNumber(inner.enterField(fields));
  switch (type) {
    case DESCRIBED.received:
      inner.neededUint('section-number');
      inner.oneOf('section-offset', CODE.ulong, CODE.smallUlong, CODE.ulong0);
      break;
    case DESCRIBED.accepted:
    case DESCRIBED.released:
      break;
    case DESCRIBED.rejected:
      checkError(inner, innermost);
      break;
    case DESCRIBED.modified:
      inner.boolean('delivery-failed');
      inner.boolean('undeliverable-here');
      inner.oneOf('message-annotations', CODE.map8, CODE.map32);
      break;
    case DESCRIBED.transactionalState:
      throw notImplemented('Transactions are not served, so no delivery has a transactional-state.');
    default:
      throw decodeError(
        `Delivery state ${hex(type)} is not known. Allowed: received, accepted, rejected, released, modified.`,
      );
  }
}
