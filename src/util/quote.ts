/** Characters of a value that an error message quotes, at most. */
export const MAX_QUOTED = 64;

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

function escaped(character: string): string {
  const point = character.codePointAt(0) ?? 0;
  const hex = point.toString(16).padStart(4, '0');
  return point > 0xffff ? `\\u{${hex}}` : `\\u${hex}`;
}
