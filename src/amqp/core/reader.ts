import { isAscii } from 'node:buffer';
import { QuaysideError } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import { textOfBytes } from '../../util/byte-text.ts';

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

/** Reads values from an encoded message (types, 1.2), each within the bytes that are there. */
export class ValueReader {
  readonly #bytes: Buffer;
  #at: number;
  #end: number;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
    this.#at = 0;
    this.#end = bytes.length;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#end;
  }

  /** The descriptor of a section: its number, or the symbol that stands for it. */
  descriptor(): number | string {
    if (this.#code() !== 0x00) throw broken('a section has no descriptor');
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
    const code = this.#code();
    const read = SIMPLE[code];
    if (read !== undefined) return read(this);
    this.#skipCompound(code, 0);
    return null;
  }

  /** Opens a list or map, and returns how many values are in it; `close` moves to its end. Null: it is null. */
  open(kind: 'list' | 'map'): { count: number; close: () => void } | null {
    const code = this.#code();
    if (code === 0x40) return null;
    if (kind === 'list' && code === 0x45) return { count: 0, close: () => {} };
    const isShort = code === (kind === 'list' ? 0xc0 : 0xc1);
    if (!isShort && code !== (kind === 'list' ? 0xd0 : 0xd1)) throw broken(`a section is no ${kind}`);
    const size = this.unsigned(isShort ? 1 : 4);
    const end = this.#at + size;
    if (end > this.#end) throw broken(`a ${kind} ends behind its message`);
    const count = this.unsigned(isShort ? 1 : 4);
    const outer = this.#end;
    this.#end = end;
    return {
      count,
      close: () => {
        this.#at = end;
        this.#end = outer;
      },
    };
  }

  /** The bytes of a binary or string; null if the next value is something else, which stays unread. */
  bytesOrNull(): { body: Buffer; form: 'binary' | 'string' } | null {
    const code = this.#bytes[this.#at] ?? 0;
    const isShort = code === 0xa0 || code === 0xa1;
    if (!isShort && code !== 0xb0 && code !== 0xb1) return null;
    this.#at += 1;
    const body = this.take(this.unsigned(isShort ? 1 : 4));
    return { body, form: code === 0xa0 || code === 0xb0 ? 'binary' : 'string' };
  }

  /** The next value, encoded. @param endOf the end of the value at a position; null: it is not well-formed */
  encoded(endOf: (bytes: Buffer, at: number) => number | null): Buffer {
    const end = endOf(this.#bytes, this.#at);
    if (end === null || end > this.#end) throw broken('a value is not well-formed, or is nested too deeply');
    return this.take(end - this.#at);
  }

  take(length: number): Buffer {
    const end = this.#at + length;
    if (end > this.#end) throw broken('a value ends behind its message');
    const bytes = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return bytes;
  }

  unsigned(width: number): number {
    return this.take(width).readUIntBE(0, width);
  }

  #code(): number {
    return this.unsigned(1);
  }

  /** What follows the code of a described value. It is not described itself, so that nothing here nests without bound. */
  #descriptor(): SimpleValue {
    const value = SIMPLE[this.#code()]?.(this);
    if (value?.type === 'ulong' || value?.type === 'symbol') return value;
    throw broken('a descriptor is neither ulong nor symbol');
  }

  #skipCompound(code: number, depth: number): void {
    if (code === 0x00) {
      if (depth > DEEPEST_DESCRIPTOR) throw broken('descriptors are nested too deeply');
      this.#descriptor();
      const inner = this.#code();
      const read = SIMPLE[inner];
      if (read !== undefined) read(this);
      else this.#skipCompound(inner, depth + 1);
      return;
    }
    if (code === 0x45) return;
    const isShort = code === 0xc0 || code === 0xc1 || code === 0xe0;
    if (!isShort && code !== 0xd0 && code !== 0xd1 && code !== 0xf0) throw broken('a type is unknown');
    this.take(this.unsigned(isShort ? 1 : 4));
  }
}

type Read = (reader: ValueReader) => SimpleValue;

const constant = (type: SimpleType, text: string): Read => {
  const value = { type, text };
  return () => value;
};
const fixed =
  (type: SimpleType, width: number, text: (bytes: Buffer) => string): Read =>
  (reader) => ({ type, text: text(reader.take(width)) });
const variable =
  (type: SimpleType, width: number, text: (bytes: Buffer) => string): Read =>
  (reader) => ({ type, text: text(reader.take(reader.unsigned(width))) });

const u8 = (bytes: Buffer): string => String(bytes.readUInt8());
const i8 = (bytes: Buffer): string => String(bytes.readInt8());
const hex = (bytes: Buffer): string => bytes.toString('hex');
const base64 = (bytes: Buffer): string => bytes.toString('base64');
const latin1 = (bytes: Buffer): string => bytes.toString('latin1');
const signed64 = (bytes: Buffer): string => String(bytes.readBigInt64BE());

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
  86: fixed('boolean', 1, (bytes) => String(bytes[0] !== 0)),
  96: fixed('ushort', 2, (bytes) => String(bytes.readUInt16BE())),
  97: fixed('short', 2, (bytes) => String(bytes.readInt16BE())),
  112: fixed('uint', 4, (bytes) => String(bytes.readUInt32BE())),
  113: fixed('int', 4, (bytes) => String(bytes.readInt32BE())),
  114: fixed('float', 4, (bytes) => number(bytes.readFloatBE())),
  115: fixed('char', 4, char),
  116: fixed('decimal32', 4, hex),
  128: fixed('ulong', 8, (bytes) => String(bytes.readBigUInt64BE())),
  129: fixed('long', 8, signed64),
  130: fixed('double', 8, (bytes) => number(bytes.readDoubleBE())),
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

function char(bytes: Buffer): string {
  const value = bytes.readUInt32BE();
  if (!isScalar(value)) throw broken('a char is no Unicode scalar value');
  return String(value);
}

function symbol(bytes: Buffer): string {
  if (!isAscii(bytes)) throw broken('a symbol is not ASCII');
  return latin1(bytes);
}

function number(value: number): string {
  return Object.is(value, -0) ? '-0' : String(value);
}

function uuid(bytes: Buffer): string {
  const text = hex(bytes);
  return [[0, 8], [8, 12], [12, 16], [16, 20], [20]].map(([from, to]) => text.slice(from, to)).join('-');
}

/** The bytes themselves; a string that is longer than all headers together may be is rejected later. */
function utf8(bytes: Buffer): string {
  const text = latin1(bytes);
  if (bytes.length <= LIMITS.headerBytes && textOfBytes(text) === null) throw broken('a string is not UTF-8');
  return text;
}

/** A message whose encoding is wrong. */
export function broken(what: string): QuaysideError {
  return new QuaysideError('malformed-request', `The message cannot be read: ${what}.`);
}
