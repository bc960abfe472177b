import type { GroupName } from '../model/element.ts';
import { invalidParameter } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { checkGroup, checkGroups } from '../model/names.ts';
import { bytesOfText, textOfBytes } from '../util/byte-text.ts';
import { ownString } from '../util/own-bytes.ts';
import { quoteBytes } from '../util/quote.ts';

// Readers of single header values as bytes, one character for each; null stands for one that was not sent. Groups are
// kept for long, in counters, wait queues and engines, so they are strings of their own, which retain no frame.

const WHOLE = /^[0-9]{1,16}$/;

interface Range {
  readonly from?: number;
  readonly to: number;
  /** For the error message. */
  readonly unit: string;
}

/** A whole number. @throws QuaysideError `invalid-parameter` */
export function whole<T>(
  name: string,
  value: string | null,
  { from = 0, to, unit }: Range,
  fallback: T,
): number | T {
  if (value === null) return fallback;
  const number = WHOLE.test(value) ? Number(value) : Number.NaN;
  if (number >= from && number <= to) return number;
  throw invalidParameter(
    name,
    `Invalid ${name} ${quoteBytes(value)}. Allowed: ${unit}, a whole number from ${from} to ${to}.`,
  );
}

/** A length in ms, as `x-delta-t` and `x-lease` have it. */
export function milliseconds<T>(name: string, value: string | null, from: number, fallback: T): number | T {
  return whole(name, value, { from, to: LIMITS.delayMs, unit: 'milliseconds' }, fallback);
}

/** A moment, as `x-next-t` has it. */
export function moment(name: string, value: string | null): number | null {
  return whole(name, value, { to: LIMITS.matureAt, unit: 'unix time in milliseconds' }, null);
}

/** One consumer group. @throws QuaysideError `invalid-parameter` */
export function groupOf(name: string, value: string | null): GroupName | null {
  return value === null ? null : ownString(checkGroup(name, textOf(name, value).trim()));
}

/** Consumer groups with commas between them, trimmed, each once. @throws QuaysideError `invalid-parameter` */
export function groupsOf(name: string, value: string | null): readonly GroupName[] | null {
  return value === null ? null : checkGroups(name, textOf(name, value)).map(ownString);
}

/** A header's bytes as text. @throws QuaysideError `invalid-parameter` if they are not UTF-8 */
export function textOf(name: string, value: string): string {
  const text = textOfBytes(value);
  if (text !== null) return text;
  throw invalidParameter(name, `Invalid ${name} ${quoteBytes(value)}. Allowed: text in UTF-8.`);
}

/**
 * A stored value as it is sent by protocols whose text is UTF-8: bytes that came over HTTP and are not UTF-8 are
 * taken for ISO 8859-1. One character for each byte.
 */
export function sentValue(bytes: string): string {
  return textOfBytes(bytes) === null ? bytesOfText(bytes) : bytes;
}
