import { quote } from '../../../util/quote.ts';
import type { Link } from '../channels.ts';
import type { Fields } from '../fields.ts';
import { ABSENT } from '../fields.ts';
import type { FrameInHand } from '../frame-in-hand.ts';
import { AMQP_LIMITS } from '../limits.ts';
import { prefixedName, renamed } from '../link-name.ts';
import { DESCRIBED, descriptorNumber } from '../performatives.ts';
import {
  Breach,
  decodeError,
  framingError,
  hex,
  illegalState,
  invalidField,
  limitExceeded,
  notImplemented,
} from '../refusal.ts';
import { CODE } from '../type-codes.ts';

/** The peer's `attach`. rhea gets it with the link's name prefixed. */
export function checkAttach(frame: FrameInHand): void {
  const { fields, channel, bytes, start, end } = frame;
  const listAt = fields.countAt - fields.countWidth - 1 - start;
  const nameBytes = fields.sized('name', CODE.string8, CODE.string32);
  if (nameBytes === ABSENT) throw invalidField('A link has no name.');
  if (nameBytes > AMQP_LIMITS.nameBytes) {
    throw limitExceeded(`A link's name has ${nameBytes} bytes. Allowed: at most ${AMQP_LIMITS.nameBytes}.`);
  }
  const nameTo = fields.at;
  const handle = fields.neededUint('handle');
  if (handle > AMQP_LIMITS.handleMax) {
    throw framingError(`Handle ${handle} is too high. Allowed: 0 to ${AMQP_LIMITS.handleMax}.`);
  }
  if (channel.links[handle] !== undefined) {
    throw new Breach('amqp:session:handle-in-use', `Handle ${handle} has a link already. Detach it first.`);
  }
  const role = fields.boolean('role');
  if (role === ABSENT) throw invalidField('A link has no role.');
  const isPeerSender = role === 0;
  const sendMode = fields.ubyte('snd-settle-mode');
  if (sendMode > 2) throw invalidField(`snd-settle-mode is ${sendMode}. Allowed: 0, 1, 2.`);
  const receiveMode = fields.ubyte('rcv-settle-mode');
  if (receiveMode > 1) throw invalidField(`rcv-settle-mode is ${receiveMode}. Allowed: 0, 1.`);
  checkTerminus(frame, DESCRIBED.source);
  checkTerminus(frame, DESCRIBED.target);
  fields.oneOf('unsettled', CODE.map8, CODE.map32);
  fields.boolean('incomplete-unsettled');
  if (fields.uint('initial-delivery-count') === ABSENT && isPeerSender) {
    throw invalidField('A sender has no initial-delivery-count.');
  }
  fields.oneOf('max-message-size', CODE.ulong, CODE.smallUlong, CODE.ulong0);
  fields.symbols('offered-capabilities');
  fields.symbols('desired-capabilities');
  fields.oneOf('properties', CODE.map8, CODE.map32);
  frame.finish();

  const place = { from: nameTo - nameBytes - start, to: nameTo - start };
  const whole = bytes.subarray(start, end);
  const name = prefixedName(whole, place, isPeerSender);
  if (channel.byName(name) !== undefined) {
    throw illegalState(
      `Link ${quote(name.slice(2))} is attached already. Detach it first, or choose another name.`,
    );
  }
  if (channel.linkCount >= channel.peerHandles) {
    throw new Breach(
      'amqp:not-allowed',
      `The client attaches more links than the ${channel.peerHandles} that its own handle-max allows.`,
    );
  }
  channel.add(newLink(handle, isPeerSender, name));
  frame.replacement = renamed(whole, listAt, place, name);
}

function newLink(handle: number, isPeerSender: boolean, name: string): Link {
  return { handle, isPeerSender, name, credit: 0, begunId: -1, begunBytes: 0, begunCost: 0 };
}

function checkTerminus({ fields, inner }: FrameInHand, expected: number): void {
  if (fields.isAbsent) {
    fields.skip();
    return;
  }
  const type = descriptorNumber(inner.enterField(fields));
  if (type === DESCRIBED.coordinator)
    throw notImplemented('Transactions are not served, so no link may have a coordinator.');
  if (type !== expected) {
    throw decodeError(
      `A ${expected === DESCRIBED.source ? 'source' : 'target'} has the descriptor ${hex(type)}.`,
    );
  }
  checkNode(inner);
  if (type === DESCRIBED.source) {
    inner.oneOf('distribution-mode', CODE.symbol8, CODE.symbol32);
    inner.oneOf('filter', CODE.map8, CODE.map32);
    inner.skip();
    inner.symbols('outcomes');
  }
  inner.symbols('capabilities');
}

/** The fields that sources and targets have alike. */
function checkNode(fields: Fields): void {
  fields.oneOf('address', CODE.string8, CODE.string32);
  fields.uint('durable');
  fields.oneOf('expiry-policy', CODE.symbol8, CODE.symbol32);
  fields.uint('timeout');
  fields.boolean('dynamic');
  fields.oneOf('dynamic-node-properties', CODE.map8, CODE.map32);
}
