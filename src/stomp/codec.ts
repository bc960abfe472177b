import { isUtf8 } from 'node:buffer';
import { QuaysideError } from '../model/errors.ts';
import { GrowingBytes } from '../util/byte-pieces.ts';
import { quoteBytes } from '../util/byte-string.ts';

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

/** Maximum size of a frame. A larger one is rejected before more than the limit is in memory. */
export interface FrameLimits {
  /** Command and headers together, escapes included. */
  readonly headBytes: number;
  readonly headers: number;
  readonly bodyBytes: number;
}

const NUL = 0x00;
const LF = 0x0a;
const CR = 0x0d;
const NOTHING = Buffer.alloc(0);
const DECIMAL = /^[0-9]{1,15}$/;

interface FrameHead {
  readonly command: string;
  readonly headers: readonly string[];
}

/** The only frame of a client that may have a body. */
const BODY_COMMAND = 'SEND';

/**
 * Splits a client's bytes into frames, however they are chunked: `push` the bytes, then call `next` until it returns
 * null. Do not use a parser that has thrown.
 */
export class FrameParser {
  /** Rules of the agreed version, once there is one; may be set between two frames. */
  rules: HeadRules = CONNECT_RULES;
  readonly #limits: FrameLimits;
  #input: Buffer = NOTHING;
  /** Position of the first byte that was not read yet. */
  #position = 0;
  /**
   * The input, while it is an incomplete head. The client chooses the size of the chunks: if each were joined with all
   * earlier ones, a head in messages of one byte would take seconds.
   */
  #beginning: GrowingBytes | null = null;
  /** How many bytes of the head were searched for the blank line. */
  #searched = 0;
  /** All bytes of the head so far, ORed: above 0x7f if it is not ASCII. */
  #bits = 0;
  /** Head of the frame whose body is being read; null before its blank line. */
  #head: FrameHead | null = null;
  #headBytes = 0;
  /** The frame's content-length; null: the body ends at the first NUL. */
  #bodyLength: number | null = null;
  /** The received part of a body that spans chunks. */
  #body: GrowingBytes | null = null;

  constructor(limits: FrameLimits) {
    this.#limits = limits;
  }

  /** The receipt id of the frame that is being read, for an ERROR; null if it has none, or its head is incomplete. */
  get receipt(): string | null {
    return this.#head === null ? null : headerOf(this.#head.headers, 'receipt');
  }

  /** How many bytes of an incomplete body have arrived, and how many it may have. */
  get body(): { readonly received: number; readonly max: number } {
    return { received: this.#body?.length ?? 0, max: this.#bodyLength ?? this.#limits.bodyBytes };
  }

  push(bytes: Buffer): void {
    if (this.#beginning !== null) {
      this.#beginning.append(bytes);
      this.#input = this.#beginning.bytes;
      return;
    }
    const rest = this.#input.length - this.#position;
    this.#input = rest === 0 ? bytes : Buffer.concat([this.#input.subarray(this.#position), bytes]);
    this.#position = 0;
  }

  /** The next whole frame, or null. @throws QuaysideError `malformed-request`, `headers-too-large`, `body-too-large` */
  next(): StompFrame | null {
    const head = this.#head ?? this.#readHead();
    if (head === null) return null;
    return this.#bodyLength === null ? this.#readUpToNul(head) : this.#readCounted(head, this.#bodyLength);
  }

  /** Skips line ends between frames, which heart-beats are, too. @returns whether a command follows */
  #skipLineEnds(): boolean {
    const input = this.#input;
    for (; this.#position < input.length; this.#position++) {
      const byte = input[this.#position] as number;
      if (byte === LF || (byte === CR && this.rules.crlf)) continue;
      if (byte < 0x41 || byte > 0x5a)
        throw invalidCommand(input.toString('latin1', this.#position, previewEnd(input, this.#position)));
      return true;
    }
    this.#input = NOTHING;
    this.#position = 0;
    return false;
  }

  /** Searches for the blank line at the end of the head. */
  #readHead(): FrameHead | null {
    if (this.#searched === 0 && !this.#skipLineEnds()) return null;
    const input = this.#input;
    const { crlf } = this.rules;
    let at = this.#position + this.#searched;
    for (; at < input.length; at++) {
      const byte = input[at] as number;
      this.#bits |= byte;
      if (byte === NUL)
        throw malformed('There is a NUL in the headers of a frame. A blank line must end the headers.');
      if (byte !== LF) continue;
      const next = input[at + 1];
      if (next === LF) return this.#endHead(at, at + 2);
      if (next === undefined) break;
      if (next !== CR || !crlf) continue;
      const afterNext = input[at + 2];
      if (afterNext === LF) return this.#endHead(at, at + 3);
      if (afterNext === undefined) break;
    }
    this.#searched = at - this.#position;
    this.#checkHeadLength(input.length);
    // Copied, since an idle session would retain the whole chunk.
    this.#beginning ??= new GrowingBytes(input.subarray(this.#position));
    this.#input = this.#beginning.bytes;
    this.#position = 0;
    return null;
  }

  #endHead(end: number, bodyAt: number): FrameHead {
    this.#checkHeadLength(end);
    const input = this.#input;
    const bits = this.#bits;
    this.#beginning = null;
    this.#searched = 0;
    this.#bits = 0;
    if (bits > 0x7f && this.rules.utf8 && !isUtf8(input.subarray(this.#position, end))) {
      throw malformed('Command and headers are not UTF-8, which STOMP 1.1 and 1.2 require.');
    }
    const head = parseHead(input.toString('latin1', this.#position, end), this.rules, this.#limits.headers);
    this.#head = head;
    this.#headBytes = end - this.#position;
    this.#position = bodyAt;
    this.#bodyLength = this.#readLength(head);
    return head;
  }

  #checkHeadLength(end: number): void {
    const { headBytes } = this.#limits;
    if (end - this.#position <= headBytes) return;
    throw new QuaysideError(
      'headers-too-large',
      `Command and headers of a frame have more than ${headBytes} bytes, the maximum.`,
    );
  }

  #readLength({ command, headers }: FrameHead): number | null {
    const text = headerOf(headers, 'content-length');
    if (text === null) return null;
    if (!DECIMAL.test(text)) {
      throw malformed(
        `Invalid content-length ${quoteBytes(text)}. Allowed: a whole number from 0.`,
        'content-length',
      );
    }
    const length = Number(text);
    this.#checkBodyLength(command, length);
    return length;
  }

  #checkBodyLength(command: string, length: number): void {
    const { bodyBytes } = this.#limits;
    if (length === 0 || (command === BODY_COMMAND && length <= bodyBytes)) return;
    if (command !== BODY_COMMAND) {
      throw malformed(`The ${command} frame has a body. Only ${BODY_COMMAND} may have one.`);
    }
    throw new QuaysideError(
      'body-too-large',
      `The body has ${length} bytes or more. Allowed: at most ${bodyBytes}.`,
    );
  }

  #readCounted(head: FrameHead, length: number): StompFrame | null {
    const missing = length + 1 - (this.#body?.length ?? 0);
    const end = this.#position + missing;
    if (this.#input.length < end) {
      this.#appendBody(this.#input.length);
      return null;
    }
    if (this.#input[end - 1] !== NUL) {
      throw malformed(
        `The content-length is ${length}, but no NUL follows after that many bytes of the body.`,
      );
    }
    return this.#completeFrame(head, end - 1);
  }

  #readUpToNul(head: FrameHead): StompFrame | null {
    const nulAt = this.#input.indexOf(NUL, this.#position);
    const end = nulAt < 0 ? this.#input.length : nulAt;
    this.#checkBodyLength(head.command, (this.#body?.length ?? 0) + end - this.#position);
    if (nulAt >= 0) return this.#completeFrame(head, end);
    this.#appendBody(end);
    return null;
  }

  /** Keeps the input up to `end` as a part of a body that continues in the next chunk. */
  #appendBody(end: number): void {
    const piece = this.#input.subarray(this.#position, end);
    if (this.#body !== null) this.#body.append(piece);
    else if (piece.length > 0) this.#body = new GrowingBytes(piece);
    this.#input = NOTHING;
    this.#position = 0;
  }

  /** Completes the frame. @param end position of the final NUL */
  #completeFrame({ command, headers }: FrameHead, end: number): StompFrame {
    let body = end === this.#position ? NOTHING : this.#input.subarray(this.#position, end);
    if (this.#body !== null) {
      this.#body.append(body);
      body = this.#body.bytes;
      this.#body = null;
    }
    this.#position = end + 1;
    this.#head = null;
    return { command, headers, body, bytes: this.#headBytes + body.byteLength };
  }
}

/**
 * The end of the line that starts at `at`, or of the received part; at most 100 bytes later, enough for an error
 * message.
 */
function previewEnd(input: Buffer, at: number): number {
  const end = input.subarray(at, at + 100).findIndex((byte) => byte === LF || byte === CR);
  return end < 0 ? at + 100 : at + end;
}

/**
 * Parses a frame's command and headers. `text` ends before the blank line and has one character per byte.
 * @throws QuaysideError `malformed-request`, `headers-too-large`
 */
function parseHead(text: string, rules: HeadRules, maxHeaders: number): FrameHead {
  const commandEnd = lineEnd(text, 0);
  const command = lineAt(text, 0, commandEnd, rules);
  if (!COMMAND.test(command)) throw invalidCommand(command);
  const headers: string[] = [];
  for (let from = commandEnd + 1; from <= text.length; ) {
    const end = lineEnd(text, from);
    if (headers.length >= 2 * maxHeaders) {
      throw new QuaysideError(
        'headers-too-large',
        `The ${command} frame has more than ${maxHeaders} headers, the maximum.`,
      );
    }
    addHeader(headers, lineAt(text, from, end, rules), rules);
    from = end + 1;
  }
  return { command, headers };
}

/** The error for a wrong command, mostly from a client of another protocol. */
function invalidCommand(start: string): QuaysideError {
  return malformed(
    `${quoteBytes(start)} is not a STOMP command. A frame starts with a command in capital letters, such as SEND.`,
  );
}

/** Quotes a line for an error message, unless it may contain a password. */
function quoteLine(text: string): string {
  return /pass/i.test(text) ? 'of a password' : quoteBytes(text);
}

/** Checked for the first line, so that clients of other protocols are rejected early. */
const COMMAND = /^[A-Z]{1,16}$/;

function lineEnd(text: string, from: number): number {
  const at = text.indexOf('\n', from);
  return at < 0 ? text.length : at;
}

function lineAt(text: string, from: number, end: number, { crlf }: HeadRules): string {
  if (!crlf) return text.slice(from, end);
  const bare = text.slice(from, text[end - 1] === '\r' ? end - 1 : end);
  if (bare.includes('\r'))
    throw malformed(`The line ${quoteLine(bare)} has a CR in the middle. Allowed: a CR before an LF.`);
  return bare;
}

function addHeader(headers: string[], text: string, rules: HeadRules): void {
  const colon = text.indexOf(':');
  if (colon < 1) throw malformed(`The header line ${quoteLine(text)} is not name:value.`);
  const value = unescapeHeader(rules, text.slice(colon + 1));
  headers.push(unescapeHeader(rules, text.slice(0, colon)), rules.trims ? trimSpaces(value) : value);
}

const ESCAPE_SEQUENCE = /\\([\s\S]?)/g;
const UNESCAPED: Readonly<Record<string, string>> = { '\\': '\\', n: '\n', r: '\r', c: ':' };

/** Unescapes a header name or value. @throws QuaysideError `malformed-request` for a sequence that is not defined */
function unescapeHeader({ escapes }: HeadRules, text: string): string {
  if (escapes.size === 0 || !text.includes('\\')) return text;
  return text.replace(ESCAPE_SEQUENCE, (sequence: string, character: string) => {
    const meaning = UNESCAPED[character];
    if (meaning !== undefined && escapes.has(meaning)) return meaning;
    throw malformed(
      `Undefined escape sequence ${quoteBytes(sequence)} in a header. Allowed: ${[...escapes.values()].join(' ')}`,
    );
  });
}
