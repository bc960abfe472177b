import { QuaysideError } from '../model/errors.ts';

/**
 * One frame. Header names and values have one character per byte (see `util/byte-string.ts`) and no escapes. They are
 * flat pairs in the order of the frame: name, value, name, value, …
 */
export interface StompFrame {
  readonly command: string;
  readonly headers: readonly string[];
  /** A view of the buffer that was read; copy it if it is kept for long. */
  readonly body: Buffer;
  /** Size of command, headers and body. */
  readonly bytes: number;
}

/** A header's value; null if there is none. Of repeated headers, the first counts. */
export function headerOf(headers: readonly string[], name: string): string | null {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (headers[at] === name) return headers[at + 1] ?? null;
  }
  return null;
}

/** The error for bytes that are not a STOMP frame, or for a frame that is not valid. */
export function malformed(message: string, parameter?: string): QuaysideError {
  return new QuaysideError('malformed-request', message, parameter === undefined ? {} : { parameter });
}

/** The supported protocol versions, oldest first. */
export const VERSIONS = ['1.0', '1.1', '1.2'] as const;
export type Version = (typeof VERSIONS)[number];

/** How the head of a frame is written in one version. */
export interface HeadRules {
  /** Whether a line may end in CR LF as well as in LF. If not, CR is a character like any other. */
  readonly crlf: boolean;
  /** The escape sequence of each escaped character; empty if the version has no escapes. */
  readonly escapes: ReadonlyMap<string, string>;
  /** Whether spaces around a header's value are removed, which 1.1 and 1.2 forbid. */
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

/** For CONNECT, STOMP and CONNECTED, which are exchanged before a version is agreed on and have no escapes. */
export const CONNECT_RULES: HeadRules = { crlf: true, escapes: NO_ESCAPES, trims: false, utf8: true };

const TO_ESCAPE = /[\\\r\n:]/;
const EACH_TO_ESCAPE = /[\\\r\n:]/g;

/** Escapes a header name or value. */
function escapeHeader({ escapes }: HeadRules, text: string): string {
  if (!TO_ESCAPE.test(text)) return text;
  return text.replace(EACH_TO_ESCAPE, (character) => escapes.get(character) ?? character);
}

/** One header line. Name and value have one character per byte. */
export function headerLine(rules: HeadRules, name: string, value: string): string {
  return `${escapeHeader(rules, name)}:${escapeHeader(rules, value)}\n`;
}

/** A frame without its final NUL, which the writer adds. The body has one character per byte. */
export function frameText(rules: HeadRules, command: string, headers: readonly string[], body = ''): string {
  let text = `${command}\n`;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    text += headerLine(rules, headers[at] as string, headers[at + 1] as string);
  }
  return `${text}\n${body}`;
}

/**
 * Removes the spaces around a value. Not `trim`, which would also remove a byte A0 that is part of a UTF-8 character.
 */
export function trimSpaces(value: string): string {
  let from = 0;
  let end = value.length;
  while (value[from] === ' ') from += 1;
  while (end > from && value[end - 1] === ' ') end -= 1;
  return value.slice(from, end);
}
