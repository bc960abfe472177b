import { textOfBytes } from './byte-text.ts';

/** The longest part of a value that an error message quotes. */
const MAX_QUOTED = 64;
/** Of bytes no more are decoded than the longest characters would need. */
const MAX_BYTES = 8 * MAX_QUOTED;
const CUT = /[\xc0-\xff][\x80-\xbf]*$/;

/** What an attacker could hide in a terminal, a log or a page: controls, direction marks, line separators. */
const INVISIBLE = /[\p{C}\p{Zl}\p{Zp}]/gu;

/**
 * A value as an error message names it: at most 64 characters of it, and whatever is not visible escaped. Text
 * stands in double quotes; a part that was left out shows as `…` behind them. Never pass a secret.
 */
export function quote(value: unknown): string {
  if (typeof value === 'object' && value !== null) {
    const empty = Object.keys(value).length === 0 ? 'empty ' : '';
    return `an ${empty}${Array.isArray(value) ? 'array' : 'object'}`;
  }
  if (typeof value !== 'string') return String(value);
  // A body of megabytes must not be escaped only to be cut.
  const start = value.slice(0, 2 * MAX_QUOTED);
  const characters = [...start];
  const isWhole = value.length === start.length && characters.length <= MAX_QUOTED;
  const text = JSON.stringify(isWhole ? start : characters.slice(0, MAX_QUOTED).join(''));
  return text.replace(INVISIBLE, escaped) + (isWhole ? '' : '…');
}

/** The same of bytes, one character for each, that are probably text in UTF-8. */
export function quoteBytes(bytes: string): string {
  // The cut may have left the start of a character at the end.
  const start = bytes.length <= MAX_BYTES ? bytes : bytes.slice(0, MAX_BYTES).replace(CUT, '');
  return quote(textOfBytes(start) ?? bytes);
}

function escaped(character: string): string {
  const point = character.codePointAt(0) ?? 0;
  const hex = point.toString(16).padStart(4, '0');
  return point > 0xffff ? `\\u{${hex}}` : `\\u${hex}`;
}
