import { QuaysideError } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import { isAscii, textOfBytes } from '../../util/byte-text.ts';
import { CODE } from './codes.ts';

/** The simple types of AMQP (types, 1.6), which tell values apart that are kept as text. */
export type SimpleType =
  | 'null'
  | 'boolean'
  | 'ubyte'
  | 'ushort'
  | 'uint'
  | 'ulong'
  | 'byte'
  | 'short'
  | 'int'
  | 'long'
  | 'float'
  | 'double'
  | 'decimal32'
  | 'decimal64'
  | 'decimal128'
  | 'char'
  | 'timestamp'
  | 'uuid'
  | 'binary'
  | 'string'
  | 'symbol';

/** A value as text, in bytes with one character for each: how it is kept among an element's headers. */
export interface SimpleValue {
  readonly type: SimpleType;
  readonly text: string;
}

/** The nesting of descriptors that is read. */
const DEEPEST_DESCRIPTOR = 4;

/**
 * Reads values from an encoded message (types, 1.2), each within the bytes that are there. Numbers and texts are read
 * where they are: a view of its bytes for each value took a third of what reading a message takes.
 */
export class ValueReader {
  readonly #bytes: Buffer;
  #at = 0;
  #end: number;
  /** Of what contains the open list or map. */
  #outerEnd = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
    this.#end = bytes.length;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#end;
  }

  /** The descriptor of a section: its number, or the symbol that stands for it. */
  descriptor(): number | string {
    if (this.unsigned(1) !== CODE.described) throw broken('a section has no descriptor');
    // The form that almost all clients use.
    if (this.#bytes[this.#at] === CODE.smallUlong) {
      this.#at += 1;
      return this.unsigned(1);
    }
    const { type, text } = this.#descriptor();
    return type === 'ulong' ? Number(text) : text;
  }

  /** A value of a simple type. @throws QuaysideError `not-supported` if it is a list, map, array or described */
  simple(): SimpleValue {
    const value = this.simpleOrNull();
    if (value === null) {
      throw new QuaysideError(
        'not-supported',
        'A value is a list, map, array or described. Allowed with an element: simple types.',
      );
    }
    return value;
  }

  /** As `simple`, of a value that may be described; its descriptor is passed over. */
  bare(): SimpleValue {
    if (this.#bytes[this.#at] === 0x00) {
      this.#at += 1;
      this.#descriptor();
    }
    return this.simple();
  }

  /** As `simple`; skips any other value and returns null. */
  simpleOrNull(): SimpleValue | null {
    const code = this.unsigned(1);
    const read = SIMPLE[code];
    if (read !== undefined) return read(this);
    this.#skipCompound(code, 0);
    return null;
  }

  /**
   * Opens a list or map, none within another, and returns how many values are in it; `close` moves to its end. Null: it
   * is null.
   */
  open(kind: 'list' | 'map'): number | null {
    const code = this.unsigned(1);
    if (code === CODE.null) return null;
    const isEmpty = kind === 'list' && code === CODE.list0;
    const isShort = code === (kind === 'list' ? CODE.list8 : CODE.map8);
    if (!isEmpty && !isShort && code !== (kind === 'list' ? CODE.list32 : CODE.map32))
      throw broken(`a section is no ${kind}`);
    const size = isEmpty ? 0 : this.unsigned(isShort ? 1 : 4);
    const end = this.#at + size;
    if (end > this.#end) throw broken(`a ${kind} ends behind its message`);
    const count = isEmpty ? 0 : this.unsigned(isShort ? 1 : 4);
    this.#outerEnd = this.#end;
    this.#end = end;
    return count;
  }

  close(): void {
    this.#at = this.#end;
    this.#end = this.#outerEnd;
  }

  /** The bytes of a binary or string; null if the next value is something else, which stays unread. */
  bytesOrNull(): { body: Buffer; form: 'binary' | 'string' } | null {
    const code = this.#bytes[this.#at] ?? 0;
    const isShort = code === 0xa0 || code === 0xa1;
    if (!isShort && code !== 0xb0 && code !== 0xb1) return null;
    this.#at += 1;
    const body = this.#take(this.unsigned(isShort ? 1 : 4));
    return { body, form: code === 0xa0 || code === 0xb0 ? 'binary' : 'string' };
  }

  /** The next value, encoded. @param endOf the end of the value at a position; null: it is not well-formed */
  encoded(endOf: (bytes: Buffer, at: number) => number | null): Buffer {
    const end = endOf(this.#bytes, this.#at);
    if (end === null || end > this.#end) throw broken('a value is not well-formed, or is nested too deeply');
    return this.#take(end - this.#at);
  }

  #take(length: number): Buffer {
    const from = this.#skip(length);
    return this.#bytes.subarray(from, this.#at);
  }

  /** The next bytes as a text. */
  text(length: number, read: ReadText): string {
    const from = this.#skip(length);
    return read(this.#bytes, from, this.#at);
  }

  unsigned(width: 1 | 4): number {
    const from = this.#skip(width);
    return width === 1 ? (this.#bytes[from] ?? 0) : this.#bytes.readUInt32BE(from);
  }

  /** Returns where the bytes are that are passed over. */
  #skip(length: number): number {
    const from = this.#at;
    if (from + length > this.#end) throw broken('a value ends behind its message');
    this.#at = from + length;
    return from;
  }

  /** What follows the code of a described value. It is not described itself, so that nothing here nests without bound. */
  #descriptor(): SimpleValue {
    const value = SIMPLE[this.unsigned(1)]?.(this);
    if (value?.type === 'ulong' || value?.type === 'symbol') return value;
    throw broken('a descriptor is neither ulong nor symbol');
  }

  #skipCompound(code: number, depth: number): void {
    if (code === 0x00) {
      if (depth > DEEPEST_DESCRIPTOR) throw broken('descriptors are nested too deeply');
      this.#descriptor();
      const inner = this.unsigned(1);
      const read = SIMPLE[inner];
      if (read !== undefined) read(this);
      else this.#skipCompound(inner, depth + 1);
      return;
    }
    if (code === 0x45) return;
    const isShort = code === 0xc0 || code === 0xc1 || code === 0xe0;
    if (!isShort && code !== 0xd0 && code !== 0xd1 && code !== 0xf0) throw broken('a type is unknown');
    this.#skip(this.unsigned(isShort ? 1 : 4));
  }
}

type Read = (reader: ValueReader) => SimpleValue;
type ReadText = (bytes: Buffer, from: number, to: number) => string;

const constant = (type: SimpleType, text: string): Read => {
  const value = { type, text };
  return () => value;
};
const fixed =
  (type: SimpleType, width: number, text: ReadText): Read =>
  (reader) => ({ type, text: reader.text(width, text) });
const variable =
  (type: SimpleType, width: 1 | 4, text: ReadText): Read =>
  (reader) => ({ type, text: reader.text(reader.unsigned(width), text) });

const u8: ReadText = (bytes, from) => String(bytes.readUInt8(from));
const i8: ReadText = (bytes, from) => String(bytes.readInt8(from));
const hex: ReadText = (bytes, from, to) => bytes.toString('hex', from, to);
const base64: ReadText = (bytes, from, to) => bytes.toString('base64', from, to);
const latin1: ReadText = (bytes, from, to) => bytes.toString('latin1', from, to);
const signed64: ReadText = (bytes, from) => String(bytes.readBigInt64BE(from));

const SIMPLE: Readonly<Record<number, Read>> = {
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
  114: fixed('float', 4, (bytes, from) => number(bytes.readFloatBE(from))),
  115: fixed('char', 4, char),
  116: fixed('decimal32', 4, hex),
  128: fixed('ulong', 8, (bytes, from) => String(bytes.readBigUInt64BE(from))),
  129: fixed('long', 8, signed64),
  130: fixed('double', 8, (bytes, from) => number(bytes.readDoubleBE(from))),
  131: fixed('timestamp', 8, signed64),
  132: fixed('decimal64', 8, hex),
  148: fixed('decimal128', 16, hex),
  152: fixed('uuid', 16, uuid),
  160: variable('binary', 1, base64),
  161: variable('string', 1, utf8),
  163: variable('symbol', 1, symbol),
  176: variable('binary', 4, base64),
  177: variable('string', 4, utf8),
  179: variable('symbol', 4, symbol),
};

/** Surrogates are no characters, and nothing is above U+10FFFF. */
export function isScalar(value: number): boolean {
  return value < 0xd800 || (value > 0xdfff && value <= 0x10ffff);
}

function char(bytes: Buffer, from: number): string {
  const value = bytes.readUInt32BE(from);
  if (!isScalar(value)) throw broken('a char is no Unicode scalar value');
  return String(value);
}

function symbol(bytes: Buffer, from: number, to: number): string {
  const text = latin1(bytes, from, to);
  if (!isAscii(text)) throw broken('a symbol is not ASCII');
  return text;
}

function number(value: number): string {
  return Object.is(value, -0) ? '-0' : String(value);
}

function uuid(bytes: Buffer, from: number, to: number): string {
  const text = hex(bytes, from, to);
  return [[0, 8], [8, 12], [12, 16], [16, 20], [20]].map(([start, end]) => text.slice(start, end)).join('-');
}

/** The bytes themselves; a string that is longer than all headers together may be is rejected later. */
function utf8(bytes: Buffer, from: number, to: number): string {
  const text = latin1(bytes, from, to);
  if (text.length <= LIMITS.headerBytes && textOfBytes(text) === null) throw broken('a string is not UTF-8');
  return text;
}

/** A message whose encoding is wrong. */
export function broken(what: string): QuaysideError {
  return new QuaysideError('malformed-request', `The message cannot be read: ${what}.`);
}
