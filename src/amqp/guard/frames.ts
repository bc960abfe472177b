import { DESCRIBED, PERFORMATIVE } from './performatives.ts';
import type { Refusal } from './refusal.ts';
import { CODE } from './type-codes.ts';

export const FRAME_TYPE = { amqp: 0, sasl: 1 } as const;
export const HEADER_BYTES = 8;

/** The protocol headers of AMQP 1.0.0, bare and with SASL. */
export const AMQP_HEADER = Buffer.from('AMQP\0\x01\0\0', 'latin1');
export const SASL_HEADER = Buffer.from('AMQP\x03\x01\0\0', 'latin1');

const DOFF = 2;
/** A frame with nothing in it: a sign of life. */
export const HEART_BEAT = Buffer.from([0, 0, 0, HEADER_BYTES, DOFF, FRAME_TYPE.amqp, 0, 0]);
/** Descriptions are cut to this length, so that each text fits in its short form. */
const LONGEST_TEXT = 200;

/** A frame on channel 0 with one described list. @param fields encoded, each */
export function listFrame(type: number, descriptor: number, fields: readonly Buffer[]): Buffer {
  const body = describedList(descriptor, fields);
  const header = Buffer.from([0, 0, 0, 0, DOFF, type, 0, 0]);
  header.writeUInt32BE(HEADER_BYTES + body.length);
  return Buffer.concat([header, body]);
}

function describedList(descriptor: number, fields: readonly Buffer[]): Buffer {
  const content = Buffer.concat(fields);
  const head = Buffer.alloc(12);
  head.set([CODE.described, CODE.smallUlong, descriptor, CODE.list32]);
  head.writeUInt32BE(content.length + 4, 4);
  head.writeUInt32BE(fields.length, 8);
  return Buffer.concat([head, content]);
}

/** @param text of at most 255 ASCII characters */
export function symbol(text: string): Buffer {
  return Buffer.concat([Buffer.from([CODE.symbol8, text.length]), Buffer.from(text, 'latin1')]);
}

function string(text: string): Buffer {
  const bytes = Buffer.from(text.slice(0, LONGEST_TEXT), 'latin1');
  return Buffer.concat([Buffer.from([CODE.string8, bytes.length]), bytes]);
}

export function ubyte(value: number): Buffer {
  return Buffer.from([CODE.ubyte, value]);
}

export function binary(bytes: Buffer): Buffer {
  return Buffer.concat([Buffer.from([CODE.binary8, bytes.length]), bytes]);
}

/** The shortest `open` that there is. */
export function openFrame(containerId: string): Buffer {
  return listFrame(FRAME_TYPE.amqp, PERFORMATIVE.open, [string(containerId)]);
}

/** A `close` that says why. */
export function closeFrame({ condition, description }: Refusal): Buffer {
  const error = describedList(DESCRIBED.error, [symbol(condition), string(description)]);
  return listFrame(FRAME_TYPE.amqp, PERFORMATIVE.close, [error]);
}
