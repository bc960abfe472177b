import { isUtf8 } from 'node:buffer';
import { MAX_QUOTED, quote } from './quote.ts';

// Element headers are bytes in every protocol. They are stored as byte strings, the form that HTTP uses: each character
// stands for one byte (ISO 8859-1). Text in headers is nearly always UTF-8. These functions convert between the two, so
// that a header has the same text in every protocol.

// biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII is meant
const ASCII = /^[\x00-\x7f]*$/;

export function isAscii(string: string): boolean {
  return ASCII.test(string);
}

/** Encodes a string in UTF-8, and returns one character for each byte. */
export function toByteString(string: string): string {
  return isAscii(string) ? string : Buffer.from(string, 'utf8').toString('latin1');
}

/** Decodes UTF-8 given as one character for each byte; null if it is not valid UTF-8. */
export function fromByteString(bytes: string): string | null {
  if (isAscii(bytes)) return bytes;
  const utf8 = Buffer.from(bytes, 'latin1');
  return isUtf8(utf8) ? utf8.toString('utf8') : null;
}

/** As `fromByteString`, for people: bytes that are not valid UTF-8 are read as ISO 8859-1, as in STOMP and AMQP. */
export function textOfByteString(bytes: string): string {
  return fromByteString(bytes) ?? bytes;
}

/** Bytes that are decoded, at most: more than the longest 64 characters need. */
const MAX_BYTES = 8 * MAX_QUOTED;
const CUT = /[\xc0-\xff][\x80-\xbf]*$/;

/** Like `quote`, for bytes that are probably UTF-8, given as one character for each byte. */
export function quoteBytes(bytes: string): string {
  // The cut may split the last character.
  const start = bytes.length <= MAX_BYTES ? bytes : bytes.slice(0, MAX_BYTES).replace(CUT, '');
  return quote(fromByteString(start) ?? bytes);
}
