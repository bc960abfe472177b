import { QuaysideError } from '../model/errors.ts';
import { headerParameter } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { fromByteString, isAscii, quoteBytes, textOfByteString } from '../util/byte-string.ts';
import { CODE } from './core/codes.ts';
import { ValueChecker } from './core/fields.ts';
import { ProtocolError } from './core/protocol-error.ts';
import type { Writer } from './core/writer.ts';
import { AMQP_LIMITS } from './limits.ts';

/** A value as it is stored in an element header: as text, with one character per byte. */
export interface SimpleValue {
  readonly type: SimpleType;
  readonly text: string;
}

/**
 * Reads values from an encoded message (types, 1.2), with bounds checks. Numbers and strings are read in place:
 * creating a view for each value took a third of the time of reading a message.
 */
export class ValueReader {
  readonly #bytes: Buffer;
  #at = 0;
  #end: number;
  /** End of what contains the open list or map. */
  #outerEnd = 0;
  /** Null until a value stays encoded. */
  #checker: ValueChecker | null = null;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
    this.#end = bytes.length;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#end;
  }

  /** Reads the descriptor of a section: a number or a symbol. */
  descriptor(): number | string {
    if (this.unsigned(1) !== CODE.described) throw malformedMessage('a section has no descriptor');
    // Fast path: almost all clients use this encoding.
    if (this.#bytes[this.#at] === CODE.smallUlong) {
      this.#at += 1;
      return this.unsigned(1);
    }
    const { type, text } = this.#descriptor();
    return type === 'ulong' ? Number(text) : text;
  }

  /**
   * Reads a value of a simple type.
   * @param name of what has the value, for the error
   * @throws QuaysideError `not-supported` if it is a list, map, array or described
   */
  simple(name?: string): SimpleValue {
    const read = READERS[this.#bytes[this.#at] ?? 0];
    if (read === undefined) {
      this.encoded();
      const what = name === undefined ? 'A value' : `The value of ${quoteBytes(name)}`;
      throw new QuaysideError(
        'not-supported',
        `${what} is a list, map, array or described. Allowed with an element: simple types.`,
        name === undefined ? {} : { parameter: headerParameter(textOfByteString(name)) },
      );
    }
    this.#skip(1);
    return read(this);
  }

  /** As `simple`, for a value that may be described; skips its descriptor. */
  bare(): SimpleValue {
    if (this.#bytes[this.#at] === 0x00) {
      this.#at += 1;
      this.#descriptor();
    }
    return this.simple();
  }

  /**
   * Opens a list or map, which must not be within another open one. Returns how many values to read before `close`;
   * null for an AMQP null.
   */
  open(kind: 'list' | 'map'): number | null {
    const code = this.unsigned(1);
    if (code === CODE.null) return null;
    const isEmpty = kind === 'list' && code === CODE.list0;
    const isShort = code === (kind === 'list' ? CODE.list8 : CODE.map8);
    if (!isEmpty && !isShort && code !== (kind === 'list' ? CODE.list32 : CODE.map32))
      throw malformedMessage(`a section is not a ${kind}`);
    const size = isEmpty ? 0 : this.unsigned(isShort ? 1 : 4);
    const end = this.#at + size;
    if (end > this.#end) throw malformedMessage(`a ${kind} ends after its message`);
    const count = isEmpty ? 0 : this.unsigned(isShort ? 1 : 4);
    this.#outerEnd = this.#end;
    this.#end = end;
    return count;
  }

  /** Closes the open list or map after all its values were read. */
  close(): void {
    if (this.#at !== this.#end) throw malformedMessage('the size of a list or map does not match its values');
    this.#end = this.#outerEnd;
  }

  /** Reads the bytes of a binary or string; null if the next value is of another type, which stays unread. */
  bytesOrNull(): { body: Buffer; form: 'binary' | 'string' } | null {
    const code = this.#bytes[this.#at] ?? 0;
    const isShort = code === 0xa0 || code === 0xa1;
    if (!isShort && code !== 0xb0 && code !== 0xb1) return null;
    this.#at += 1;
    const body = this.#take(this.unsigned(isShort ? 1 : 4));
    return { body, form: code === 0xa0 || code === 0xb0 ? 'binary' : 'string' };
  }

  /** Reads a value of any type, still encoded. */
  encoded(): Buffer {
    this.#checker ??= checkerOf(this.#bytes);
    const end = valueEnd(this.#bytes, this.#at, this.#checker);
    if (end === null || end > this.#end)
      throw malformedMessage('a value is not well-formed or nested too deeply, or there are too many');
    return this.#take(end - this.#at);
  }

  #take(length: number): Buffer {
    const from = this.#skip(length);
    return this.#bytes.subarray(from, this.#at);
  }

  /** Reads the next `length` bytes as text. */
  text(length: number, read: ReadText): string {
    const from = this.#skip(length);
    return read(this.#bytes, from, this.#at);
  }

  unsigned(width: 1 | 4): number {
    const from = this.#skip(width);
    return width === 1 ? (this.#bytes[from] ?? 0) : this.#bytes.readUInt32BE(from);
  }

  /** Skips `length` bytes, and returns the position of the first. */
  #skip(length: number): number {
    const from = this.#at;
    if (from + length > this.#end) throw malformedMessage('a value ends after its message');
    this.#at = from + length;
    return from;
  }

  /**
   * Reads the descriptor after the code of a described value. It must not be described itself, which bounds the
   * nesting.
   */
  #descriptor(): SimpleValue {
    const value = READERS[this.unsigned(1)]?.(this);
    if (value?.type === 'ulong' || value?.type === 'symbol') return value;
    throw malformedMessage('a descriptor is neither ulong nor symbol');
  }
}

type ReadValue = (reader: ValueReader) => SimpleValue;
type ReadText = (bytes: Buffer, from: number, to: number) => string;

const constant = (type: SimpleType, text: string): ReadValue => {
  const value = { type, text };
  return () => value;
};
const fixed =
  (type: SimpleType, width: number, text: ReadText): ReadValue =>
  (reader) => ({ type, text: reader.text(width, text) });
const variable =
  (type: SimpleType, width: 1 | 4, text: ReadText): ReadValue =>
  (reader) => ({ type, text: reader.text(reader.unsigned(width), text) });

const u8: ReadText = (bytes, from) => String(bytes.readUInt8(from));
const i8: ReadText = (bytes, from) => String(bytes.readInt8(from));
const hexOf: ReadText = (bytes, from, to) => bytes.toString('hex', from, to);
const base64: ReadText = (bytes, from, to) => bytes.toString('base64', from, to);
const latin1: ReadText = (bytes, from, to) => bytes.toString('latin1', from, to);
const signed64: ReadText = (bytes, from) => String(bytes.readBigInt64BE(from));

const READERS: Readonly<Record<number, ReadValue>> = {
  64: constant('null', ''),
  65: constant('boolean', 'true'),
  66: constant('boolean', 'false'),
  67: constant('uint', '0'),
  68: constant('ulong', '0'),
  80: fixed('ubyte', 1, u8),
  81: fixed('byte', 1, i8),
  82: fixed('uint', 1, u8),
  83: fixed('ulong', 1, u8),
  84: fixed('int', 1, i8),
  85: fixed('long', 1, i8),
  86: fixed('boolean', 1, (bytes, from) => String(bytes[from] !== 0)),
  96: fixed('ushort', 2, (bytes, from) => String(bytes.readUInt16BE(from))),
  97: fixed('short', 2, (bytes, from) => String(bytes.readInt16BE(from))),
  112: fixed('uint', 4, (bytes, from) => String(bytes.readUInt32BE(from))),
  113: fixed('int', 4, (bytes, from) => String(bytes.readInt32BE(from))),
  114: fixed('float', 4, (bytes, from) => formatNumber(bytes.readFloatBE(from))),
  115: fixed('char', 4, char),
  116: fixed('decimal32', 4, hexOf),
  128: fixed('ulong', 8, (bytes, from) => String(bytes.readBigUInt64BE(from))),
  129: fixed('long', 8, signed64),
  130: fixed('double', 8, (bytes, from) => formatNumber(bytes.readDoubleBE(from))),
  131: fixed('timestamp', 8, signed64),
  132: fixed('decimal64', 8, hexOf),
  148: fixed('decimal128', 16, hexOf),
  152: fixed('uuid', 16, uuid),
  160: variable('binary', 1, base64),
  161: variable('string', 1, utf8),
  163: variable('symbol', 1, symbol),
  176: variable('binary', 4, base64),
  177: variable('string', 4, utf8),
  179: variable('symbol', 4, symbol),
};

/** Whether a code point is a Unicode scalar value, that is, not a surrogate. */
function isScalar(value: number): boolean {
  return value < 0xd800 || (value > 0xdfff && value <= 0x10ffff);
}

function char(bytes: Buffer, from: number): string {
  const value = bytes.readUInt32BE(from);
  if (!isScalar(value)) throw malformedMessage('a char is not a Unicode scalar value');
  return String(value);
}

function symbol(bytes: Buffer, from: number, to: number): string {
  const text = latin1(bytes, from, to);
  if (!isAscii(text)) throw malformedMessage('a symbol is not ASCII');
  return text;
}

function formatNumber(value: number): string {
  return Object.is(value, -0) ? '-0' : String(value);
}

function uuid(bytes: Buffer, from: number, to: number): string {
  const text = hexOf(bytes, from, to);
  return [[0, 8], [8, 12], [12, 16], [16, 20], [20]].map(([start, end]) => text.slice(start, end)).join('-');
}

/** One character per byte. A string above the limit of all headers is not checked, since it is rejected later. */
function utf8(bytes: Buffer, from: number, to: number): string {
  const text = latin1(bytes, from, to);
  if (text.length <= LIMITS.headerBytes && fromByteString(text) === null)
    throw malformedMessage('a string is not UTF-8');
  return text;
}

/** The error for a message with an invalid encoding. */
export function malformedMessage(what: string): QuaysideError {
  return new QuaysideError('malformed-request', `The message cannot be read: ${what}.`);
}

/**
 * Writes a value from its text. Returns false, or throws `RangeError` or `SyntaxError`, if the text is not of the type.
 */
type WriteValue = (writer: Writer, text: string) => unknown;

const WHOLE = /^-?[0-9]{1,20}$/;
const FLOAT = /^(?:-?(?:[0-9.]+(?:e[+-]?[0-9]+)?|Infinity)|NaN)$/;
const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

const whole =
  (code: number, width: number, write: (bytes: Buffer, value: number, at: number) => void): WriteValue =>
  (writer, text) =>
    WHOLE.test(text) && writer.fixed(code, width, (bytes, at) => write(bytes, Number(text), at));
const whole64 =
  (code: number, write: (bytes: Buffer, value: bigint, at: number) => void): WriteValue =>
  (writer, text) =>
    WHOLE.test(text) && writer.fixed(code, 8, (bytes, at) => write(bytes, BigInt(text), at));
const floating =
  (code: number, width: number, write: (bytes: Buffer, value: number, at: number) => void): WriteValue =>
  (writer, text) =>
    FLOAT.test(text) && writer.fixed(code, width, (bytes, at) => write(bytes, Number(text), at));
const hex =
  (code: number, width: number, form: RegExp): WriteValue =>
  (writer, text) =>
    form.test(text) &&
    writer.fixed(code, width, (bytes, at) => bytes.write(text.replaceAll('-', ''), at, 'hex'));

const WRITERS = {
  null: (writer, text) => text === '' && writer.null(),
  boolean: (writer, text) => (text === 'true' || text === 'false') && writer.boolean(text === 'true'),
  ubyte: whole(0x50, 1, (bytes, value, at) => bytes.writeUInt8(value, at)),
  ushort: whole(0x60, 2, (bytes, value, at) => bytes.writeUInt16BE(value, at)),
  uint: whole(0x70, 4, (bytes, value, at) => bytes.writeUInt32BE(value, at)),
  ulong: whole64(0x80, (bytes, value, at) => bytes.writeBigUInt64BE(value, at)),
  byte: whole(0x51, 1, (bytes, value, at) => bytes.writeInt8(value, at)),
  short: whole(0x61, 2, (bytes, value, at) => bytes.writeInt16BE(value, at)),
  int: whole(0x71, 4, (bytes, value, at) => bytes.writeInt32BE(value, at)),
  long: whole64(0x81, (bytes, value, at) => bytes.writeBigInt64BE(value, at)),
  float: floating(0x72, 4, (bytes, value, at) => bytes.writeFloatBE(value, at)),
  double: floating(0x82, 8, (bytes, value, at) => bytes.writeDoubleBE(value, at)),
  decimal32: hex(0x74, 4, /^[0-9a-f]{8}$/),
  decimal64: hex(0x84, 8, /^[0-9a-f]{16}$/),
  decimal128: hex(0x94, 16, /^[0-9a-f]{32}$/),
  // Strict clients close the connection on a char that is not a Unicode scalar value, or a symbol that is not ASCII.
  char: (writer, text) =>
    isScalar(Number(text)) &&
    whole(0x73, 4, (bytes, value, at) => bytes.writeUInt32BE(value, at))(writer, text),
  timestamp: whole64(0x83, (bytes, value, at) => bytes.writeBigInt64BE(value, at)),
  uuid: hex(0x98, 16, UUID),
  binary: (writer, text) => BASE64.test(text) && writer.binary(text, 'base64'),
  string: (writer, text) => writer.string(text),
  symbol: (writer, text) => isAscii(text) && writer.symbol(text),
} satisfies Readonly<Record<string, WriteValue>>;

/** The simple types of AMQP (types, 1.6). */
export type SimpleType = keyof typeof WRITERS;

/** Writes a value of a type from its text. @returns false, with nothing written, if the text is not of that type */
export function writeSimple(writer: Writer, type: SimpleType, text: string): boolean {
  return writer.attempt(WRITERS[type], text);
}

export function isSimpleType(name: string): name is SimpleType {
  return Object.hasOwn(WRITERS, name);
}

/** Values in bodies may be nested deeper than those in frames. */
const BODY_LIMITS = { depth: 32, values: AMQP_LIMITS.bodyValues };

/** Returns the checker for all encoded values of one message. */
function checkerOf(message: Buffer): ValueChecker {
  const checker = new ValueChecker(BODY_LIMITS);
  checker.reset(message.length);
  return checker;
}

/**
 * The end of the encoded value at `at`; null if it is not well-formed, or exceeds the limits.
 * @param checker counts the values of one message
 */
export function valueEnd(bytes: Buffer, at: number, checker = checkerOf(bytes)): number | null {
  try {
    return checker.skip(bytes, at, bytes.length);
  } catch (error) {
    if (error instanceof ProtocolError) return null;
    throw error;
  }
}

/** Splits concatenated encoded lists; null if the bytes are anything else, or more than `max` lists. */
export function splitLists(bytes: Buffer, max: number): Buffer[] | null {
  const checker = checkerOf(bytes);
  const lists: Buffer[] = [];
  for (let at = 0; at < bytes.length; ) {
    if (lists.length >= max) return null;
    const end = isList(bytes[at]) ? valueEnd(bytes, at, checker) : null;
    if (end === null) return null;
    lists.push(bytes.subarray(at, end));
    at = end;
  }
  return lists.length === 0 ? null : lists;
}

/** Whether an encoded value with this format code is a list. */
export function isList(code: number | undefined): boolean {
  return code === CODE.list0 || code === CODE.list8 || code === CODE.list32;
}
