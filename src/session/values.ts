import type { GroupName } from '../model/element.ts';
import { invalidParameter } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { checkGroup, checkGroups } from '../model/names.ts';
import { fromByteString, quoteBytes, toByteString } from '../util/byte-string.ts';
import { ownString } from '../util/own-bytes.ts';

// Parsers of single header values, which have one character per byte, or are null if the header was not sent. Groups
// live long, in counters, wait queues and engines, so they are copied to strings that do not retain the frame.

const WHOLE = /^[0-9]{1,16}$/;

interface Range {
  readonly from?: number;
  readonly to: number;
  /** For the error message. */
  readonly unit: string;
}

/** Parses a whole number. @throws QuaysideError `invalid-parameter` */
export function parseInteger<T>(
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

/** Parses a duration in ms, such as `x-delta-t` or `x-lease`. @throws QuaysideError `invalid-parameter` */
export function parseMilliseconds<T>(
  name: string,
  value: string | null,
  from: number,
  fallback: T,
): number | T {
  return parseInteger(name, value, { from, to: LIMITS.delayMs, unit: 'milliseconds' }, fallback);
}

/** Parses a moment in ms since 1970, such as `x-next-t`. @throws QuaysideError `invalid-parameter` */
export function parseMoment(name: string, value: string | null): number | null {
  return parseInteger(name, value, { to: LIMITS.matureAt, unit: 'unix time in milliseconds' }, null);
}

/** Parses one consumer group. @throws QuaysideError `invalid-parameter` */
export function parseGroup(name: string, value: string | null): GroupName | null {
  return value === null ? null : ownString(checkGroup(name, decodeText(name, value).trim()));
}

/** Parses comma-separated consumer groups, without duplicates. @throws QuaysideError `invalid-parameter` */
export function parseGroups(name: string, value: string | null): readonly GroupName[] | null {
  return value === null ? null : checkGroups(name, decodeText(name, value).split(',')).map(ownString);
}

/** Decodes a header value. @throws QuaysideError `invalid-parameter` if it is not UTF-8 */
export function decodeText(name: string, value: string): string {
  const text = fromByteString(value);
  if (text !== null) return text;
  throw invalidParameter(name, `Invalid ${name} ${quoteBytes(value)}. Allowed: text in UTF-8.`);
}

/**
 * Encodes a stored header value, one character per byte, for protocols whose strings are UTF-8. Bytes that arrived over
 * HTTP and are not UTF-8 are treated as ISO 8859-1.
 */
export function encodeValue(bytes: string): string {
  return fromByteString(bytes) === null ? toByteString(bytes) : bytes;
}
