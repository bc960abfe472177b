import { QuaysideError } from '../../model/errors.ts';
import { quoteBytes } from '../../util/quote.ts';

/**
 * One frame. Header names and values are bytes, one character for each (see `util/byte-text.ts`), free of
 * escapes, as flat pairs in the order in which they came: name, value, name, value, …
 */
export interface Frame {
  readonly command: string;
  readonly headers: readonly string[];
  /** A view of the memory that was read; to be copied if it is kept for long. */
  readonly body: Buffer;
}

/** A header's value, or null. Of repeated headers the first counts. */
export function headerOf(headers: readonly string[], name: string): string | null {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (headers[at] === name) return headers[at + 1] ?? null;
  }
  return null;
}

/** Bytes that are no STOMP frame, or a frame that cannot be understood. */
export function malformed(message: string, parameter?: string): QuaysideError {
  return new QuaysideError('malformed-request', message, parameter === undefined ? {} : { parameter });
}

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
function escapeHeader({ escapes }: HeadRules, text: string): string {
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

/** One header line. Name and value are bytes, one character for each. */
export function headerLine(rules: HeadRules, name: string, value: string): string {
  return `${escapeHeader(rules, name)}:${escapeHeader(rules, value)}\n`;
}

/** A frame up to the NUL that ends it, which the outbox writes. The body is given as bytes, one character for each. */
export function frameText(rules: HeadRules, command: string, headers: readonly string[], body = ''): string {
  let text = `${command}\n`;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    text += headerLine(rules, headers[at] as string, headers[at + 1] as string);
  }
  return `${text}\n${body}`;
}
