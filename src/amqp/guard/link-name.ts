import { isUtf8 } from 'node:buffer';
import { decodeError } from './refusal.ts';
import { CODE } from './type-codes.ts';

// AMQP tells links apart by name and direction, rhea by name alone, as a property of a plain object. So each name
// goes to rhea with a prefix for its direction, and comes back without.

const PREFIX_BYTES = 2;
const FOR_SENDER = 's:';
const FOR_RECEIVER = 'r:';

/** Where the text of the name is in an `attach`. */
export interface NamePlace {
  readonly from: number;
  readonly to: number;
}

/** @throws Breach `amqp:decode-error` */
export function prefixedName(bytes: Buffer, { from, to }: NamePlace, isPeerSender: boolean): string {
  const name = bytes.subarray(from, to);
  if (!isUtf8(name)) throw decodeError('The name of a link is not UTF-8.');
  return (isPeerSender ? FOR_SENDER : FOR_RECEIVER) + name.toString('utf8');
}

/**
 * An `attach` frame with another name.
 * @param frame whole
 * @param listAt of the code of the list of fields in it, which is a list8 or a list32
 */
export function renamed(frame: Buffer, listAt: number, name: NamePlace, text: string): Buffer {
  const isShort = frame[listAt] === CODE.list8;
  const count = isShort ? (frame[listAt + 2] ?? 0) : frame.readUInt32BE(listAt + 5);
  const encoded = Buffer.from(text, 'utf8');
  const head = Buffer.alloc(listAt + 14);
  frame.copy(head, 0, 0, listAt);
  head[listAt] = CODE.list32;
  head.writeUInt32BE(count, listAt + 5);
  head[listAt + 9] = CODE.string32;
  head.writeUInt32BE(encoded.length, listAt + 10);
  const whole = Buffer.concat([head, encoded, frame.subarray(name.to)]);
  whole.writeUInt32BE(whole.length, 0);
  whole.writeUInt32BE(whole.length - listAt - 5, listAt + 1);
  return whole;
}

/** The name as the peer knows it. */
export function withoutPrefix(name: string): string {
  return name.slice(PREFIX_BYTES);
}
