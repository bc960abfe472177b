import type { Delivery } from '../model/element.ts';
import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { sentValue } from '../session/values.ts';
import { type HeadRules, headerLine } from './codec/frame.ts';
import { OWN_HEADERS } from './element-headers.ts';

/** What every MESSAGE of a subscription begins with. `id` is null where SUBSCRIBE (of 1.0) gave none. */
export function messageStart(rules: HeadRules, id: string | null, destination: string): string {
  const subscription = id === null ? '' : headerLine(rules, 'subscription', id);
  return `MESSAGE\n${subscription}${headerLine(rules, 'destination', destination)}`;
}

export interface MessageHead {
  readonly rules: HeadRules;
  /** From {@link messageStart}. */
  readonly start: string;
  /** On a stream: the group that reads, as bytes; else null. */
  readonly group: string | null;
  readonly delivery: Delivery;
  /** What ACK will name it by, or null where none is due. */
  readonly ack: string | null;
}

/** A MESSAGE up to its body. */
export function messageHead({ rules, start, group, delivery, ack }: MessageHead): string {
  const { id, contentType, contentEncoding, body, tries, matureAt, headers } = delivery;
  let head = `${start}message-id:${id}\ncontent-length:${body.byteLength}\nx-tries:${tries}\n`;
  head += `x-mature:${escapedTime(rules, matureAt)}\n`;
  if (ack !== null) head += `ack:${ack}\n`;
  if (group !== null) head += headerLine(rules, 'x-ks-group', group);
  if (contentType !== null) head += headerLine(rules, 'content-type', sentValue(contentType));
  if (contentEncoding !== null) head += headerLine(rules, 'content-encoding', sentValue(contentEncoding));
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] as string;
    const value = sentValue(headers[at + 1] as string);
    head += headerLine(rules, ELEMENT_HEADER_PREFIX + name, value);
    if (isFree(name)) head += headerLine(rules, name, value);
  }
  return `${head}\n`;
}

/** What follows the last element that a browsing subscription shows. */
export function browserEnd(start: string): string {
  return `${start}message-id:\ncontent-length:0\nbrowser:end\n\n`;
}

/** A header that MESSAGE has not given a meaning. No producer may end what a client browses. */
function isFree(name: string): boolean {
  return !OWN_HEADERS.has(name) && name !== 'browser' && !name.startsWith(ELEMENT_HEADER_PREFIX);
}

let lastAt = Number.NaN;
let lastTime = '';
let lastEscaped = '';

/** Elements that were inserted together mature together, so the last answer often fits again. */
function escapedTime(rules: HeadRules, at: number): string {
  if (at !== lastAt) {
    lastAt = at;
    lastTime = new Date(at).toISOString();
    lastEscaped = lastTime.replaceAll(':', '\\c');
  }
  return rules.escapes.size === 0 ? lastTime : lastEscaped;
}
