import { quoteBytes } from '../../util/quote.ts';
import { malformed } from './malformed.ts';

/** The protocol versions that are served, oldest first. */
export const VERSIONS = ['1.0', '1.1', '1.2'] as const;
export type Version = (typeof VERSIONS)[number];

/** How the head of a frame is written in one version. */
export interface HeadRules {
  /** Whether a line may end in CR LF as well as in LF. Where not, CR is a character like any other. */
  readonly crlf: boolean;
  /** What stands for each character that cannot stand for itself; empty: nothing is escaped. */
  readonly escapes: ReadonlyMap<string, string>;
  /** Whether spaces around a header's value are padding; later versions forbid to take them away. */
  readonly trims: boolean;
  /** Whether heads must be UTF-8. */
  readonly utf8: boolean;
}

const NO_ESCAPES: ReadonlyMap<string, string> = new Map();
const ESCAPES_1_1: ReadonlyMap<string, string> = new Map([
  ['\\', '\\\\'],
  ['\n', '\\n'],
  [':', '\\c'],
]);
const ESCAPES_1_2: ReadonlyMap<string, string> = new Map([...ESCAPES_1_1, ['\r', '\\r']]);

export const RULES: Readonly<Record<Version, HeadRules>> = {
  '1.0': { crlf: false, escapes: NO_ESCAPES, trims: true, utf8: false },
  '1.1': { crlf: false, escapes: ESCAPES_1_1, trims: false, utf8: true },
  '1.2': { crlf: true, escapes: ESCAPES_1_2, trims: false, utf8: true },
};

/** For CONNECT, STOMP and CONNECTED, which are read before a version is agreed and never escape. */
export const CONNECT_RULES: HeadRules = { crlf: true, escapes: NO_ESCAPES, trims: false, utf8: true };

const TO_ESCAPE = /[\\\r\n:]/;
const EACH_TO_ESCAPE = /[\\\r\n:]/g;

/** A header name or value as it is written. */
export function escapeHeader({ escapes }: HeadRules, text: string): string {
  if (!TO_ESCAPE.test(text)) return text;
  return text.replace(EACH_TO_ESCAPE, (character) => escapes.get(character) ?? character);
}

const SEQUENCE = /\\([\s\S]?)/g;
const MEANINGS: Readonly<Record<string, string>> = { '\\': '\\', n: '\n', r: '\r', c: ':' };

/** The reverse. @throws QuaysideError `malformed-request` for a sequence that the version does not define */
export function unescapeHeader({ escapes }: HeadRules, text: string): string {
  if (escapes.size === 0 || !text.includes('\\')) return text;
  return text.replace(SEQUENCE, (sequence: string, character: string) => {
    const meaning = MEANINGS[character];
    if (meaning !== undefined && escapes.has(meaning)) return meaning;
    throw malformed(
      `Undefined escape sequence ${quoteBytes(sequence)} in a header. Allowed: ${[...escapes.values()].join(' ')}`,
    );
  });
}
