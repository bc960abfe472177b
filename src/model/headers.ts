import { quoteBytes } from '../util/byte-string.ts';
import { quote } from '../util/quote.ts';
import type { ElementHeaders } from './element.ts';
import { QuaysideError } from './errors.ts';
import { LIMITS } from './limits.ts';

// The response to a get contains each header as it is stored. So a header that HTTP cannot carry is rejected at the
// insert, whatever its protocol: otherwise the element would be popped and then lost, as its response could not be
// written.

/** The prefix of element headers in protocols that have headers of their own. */
export const ELEMENT_HEADER_PREFIX = 'x-ks-hdr-';

/** RFC 9110 token, lower-case: all code after the front ends compares header names as bytes. */
const NAME = /^[!#$%&'*+\-.^_`|~0-9a-z]+$/;
/**
 * RFC 9110 field-value: tab, visible ASCII, space and the bytes 0x80 to 0xff, because UTF-8 reaches an HTTP server as
 * such bytes. White space at the ends is not part of a value in HTTP.
 */
const VALUE = /^(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?$/;
/** The same, with spaces at the ends, as names of queues and exchanges in the service's headers may have them. */
const SERVICE_VALUE = /^(?:[\x20-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x20-\x7e\x80-\xff])?)?$/;
const VALUE_RULE = 'a header value has no control character but tab and no white space at its ends';

const NONE: ReadonlySet<string> = new Set();

interface HeaderRules {
  /**
   * Headers of the service: if their value is no longer than a name, they do not count towards the limits; they may
   * have spaces at their ends.
   */
  readonly exempt?: ReadonlySet<string>;
  /** The name of a header as the client sent it, for the error. */
  readonly spell?: (name: string) => string;
}

/**
 * Checks element headers, flat pairs without the `x-ks-hdr-` prefix: names are lower-case tokens, values survive an
 * HTTP response unchanged, at most 64 pairs and 8 KiB of names and values. Front ends join repeated names before.
 * @returns `flat`
 * @throws QuaysideError `invalid-header` naming the header
 */
export function checkHeaders(
  flat: readonly string[],
  { exempt = NONE, spell = (name) => name }: HeaderRules = {},
): ElementHeaders {
  if (flat.length % 2 !== 0) throw invalidHeader(null, 'Headers must be pairs of name and value.');
  let count = 0;
  let bytes = 0;
  for (let at = 0; at < flat.length; at += 2) {
    const name = flat[at] as string;
    const value = flat[at + 1] as string;
    const isCounted = !exempt.has(name) || value.length > LIMITS.nameBytes;
    if (isCounted) count += 1;
    if (count > LIMITS.headerCount) {
      throw invalidHeader(
        spell(name),
        `it is one header too many, an element has at most ${LIMITS.headerCount} headers`,
      );
    }
    // Each character of a valid pair is one byte on the wire, so lengths count bytes.
    if (isCounted) bytes += name.length + value.length;
    if (bytes > LIMITS.headerBytes) {
      throw invalidHeader(
        spell(name),
        `with it the headers have ${bytes} bytes, an element has at most ${LIMITS.headerBytes}`,
      );
    }
    if (!NAME.test(name)) throw invalidName(name, spell(name));
    const allowed = exempt.has(name) ? SERVICE_VALUE : VALUE;
    if (!allowed.test(value)) throw invalidValue(spell(name), value);
  }
  return flat;
}

/**
 * Checks a `content-type` or `content-encoding` before it is stored: it survives an HTTP response unchanged and has at
 * most 255 characters. Front ends pass it as bytes, one character for each.
 * @returns the value; null for an empty one
 * @throws QuaysideError `invalid-header` naming the header
 */
export function checkContentHeader(
  name: 'content-type' | 'content-encoding',
  value: string | null,
): string | null {
  if (value === null || value === '') return null;
  if (value.length > LIMITS.contentTypeLength) {
    throw invalidHeader(
      name,
      `${quote(value)} has ${value.length} characters, at most ${LIMITS.contentTypeLength} are allowed`,
    );
  }
  if (!VALUE.test(value)) throw invalidValue(name, value);
  return value;
}

/** Characters of an invalid header name that an error repeats as its parameter. */
const MAX_PARAMETER = 64;

function invalidName(name: string, spelled: string): QuaysideError {
  const what = name === '' && spelled !== '' ? 'no name follows the prefix, ' : '';
  return invalidHeader(spelled, `${what}a header name is a lower-case HTTP token`);
}

function invalidValue(name: string, value: string): QuaysideError {
  return invalidHeader(name, `${quoteBytes(value)} is not allowed, ${VALUE_RULE}`);
}

function invalidHeader(name: string | null, rule: string): QuaysideError {
  if (name === null) return new QuaysideError('invalid-header', rule);
  return new QuaysideError('invalid-header', `Header ${quote(name)}: ${rule}.`, {
    parameter: headerParameter(name),
  });
}

/** The name of a header as the `parameter` of an error, truncated. */
export function headerParameter(name: string): string {
  return name.length > MAX_PARAMETER ? `${name.slice(0, MAX_PARAMETER)}…` : name;
}

/** The value of an element header; null if there is no header of that name. */
export function headerOf(headers: ElementHeaders, name: string): string | null {
  for (let at = 0; at < headers.length; at += 2) if (headers[at] === name) return headers[at + 1] ?? '';
  return null;
}

/** Replaces some headers. @param changes names and values; null removes the header */
export function withChanges(headers: ElementHeaders, changes: readonly (string | null)[]): ElementHeaders {
  const values = new Map<string, string | null>();
  for (let i = 0; i < changes.length; i += 2) values.set(changes[i] ?? '', changes[i + 1] ?? null);
  const result: string[] = [];
  for (let i = 0; i < headers.length; i += 2) {
    if (!values.has(headers[i] ?? '')) result.push(headers[i] ?? '', headers[i + 1] ?? '');
  }
  for (const [name, value] of values) if (value !== null) result.push(name, value);
  return result;
}
