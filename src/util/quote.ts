import { fromByteString } from './byte-string.ts';

/** Characters of a value that an error message quotes, at most. */
const MAX_QUOTED = 64;
/** Bytes that are decoded, at most: more than the longest 64 characters need. */
const MAX_BYTES = 8 * MAX_QUOTED;
const CUT = /[\xc0-\xff][\x80-\xbf]*$/;

/** Characters that could hide text in a terminal, a log or a page: controls, direction marks, line separators. */
const INVISIBLE = /[\p{C}\p{Zl}\p{Zp}]/gu;

/**
 * Formats a value for an error message: at most 64 characters, with invisible ones escaped. Strings are in double
 * quotes, followed by `…` if they were cut. Never pass a secret.
 */
export function quote(value: unknown): string {
  if (typeof value === 'object' && value !== null) {
    const empty = Object.keys(value).length === 0 ? 'empty ' : '';
    return `an ${empty}${Array.isArray(value) ? 'array' : 'object'}`;
  }
  if (typeof value !== 'string') return String(value);
  // Avoid escaping megabytes only to cut them.
  const start = value.slice(0, 2 * MAX_QUOTED);
  const characters = [...start];
  const isWhole = value.length === start.length && characters.length <= MAX_QUOTED;
  const text = JSON.stringify(isWhole ? start : characters.slice(0, MAX_QUOTED).join(''));
  return text.replace(INVISIBLE, escaped) + (isWhole ? '' : '…');
}

/** Like `quote`, for bytes that are probably UTF-8, given as one character for each byte. */
export function quoteBytes(bytes: string): string {
  // The cut may split the last character.
  const start = bytes.length <= MAX_BYTES ? bytes : bytes.slice(0, MAX_BYTES).replace(CUT, '');
  return quote(fromByteString(start) ?? bytes);
}

function escaped(character: string): string {
  const point = character.codePointAt(0) ?? 0;
  const hex = point.toString(16).padStart(4, '0');
  return point > 0xffff ? `\\u{${hex}}` : `\\u${hex}`;
}
