import { isAscii } from 'node:buffer';
import { CODE } from './codes.ts';
import { isScalar, type SimpleType } from './reader.ts';

const INITIAL_BYTES = 4096;

/**
 * Writes encoded values (types, 1.2) to a buffer that is reused. Strings hold bytes, one character for each, unless
 * stated otherwise.
 */
export class Writer {
  #bytes = Buffer.allocUnsafe(INITIAL_BYTES);
  #at = 0;

  /**
   * A copy of everything that was written since the last call, with `body` behind it.
   * @param headroom so many bytes are left free in front of it
   */
  finish(headroom = 0, body: Uint8Array | null = null): Buffer {
    const end = headroom + this.#at;
    const bytes = Buffer.allocUnsafe(body === null ? end : end + body.byteLength);
    this.#bytes.copy(bytes, headroom, 0, this.#at);
    if (body !== null) bytes.set(body, end);
    this.#at = 0;
    return bytes;
  }

  /** Drops what was written since `finish`: what was to be written cannot be. */
  reset(): void {
    this.#at = 0;
  }

  raw(...octets: readonly number[]): void {
    this.#ensure(octets.length);
    for (const octet of octets) {
      this.#bytes[this.#at] = octet;
      this.#at += 1;
    }
  }

  /** Values that are encoded already. */
  encoded(bytes: Uint8Array): void {
    this.#ensure(bytes.byteLength);
    this.#bytes.set(bytes, this.#at);
    this.#at += bytes.byteLength;
  }

  null(): void {
    this.raw(CODE.null);
  }

  boolean(value: boolean): void {
    this.raw(value ? CODE.true : CODE.false);
  }

  ubyte(value: number): void {
    this.raw(CODE.ubyte, value);
  }

  ushort(value: number): void {
    this.raw(CODE.ushort, value >> 8, value & 0xff);
  }

  /** A symbol of ASCII, or null. */
  symbolOrNull(text: string | null): void {
    if (text === null) this.null();
    else this.symbol(text);
  }

  /** A string that is text, not bytes; or null. */
  text(value: string | null): void {
    if (value === null) this.null();
    else this.#variable(0xa1, value, 'utf8');
  }

  unsigned(value: number, width: number): void {
    this.#ensure(width);
    this.#at = this.#bytes.writeUIntBE(value, this.#at, width);
  }

  /** The descriptor of a section. */
  section(code: number): void {
    this.raw(0x00, 0x53, code);
  }

  string(text: string): void {
    this.#variable(0xa1, text, 'latin1');
  }

  symbol(text: string): void {
    this.#variable(0xa3, text, 'latin1');
  }

  binary(text: string, encoding: BufferEncoding): void {
    this.#variable(0xa0, text, encoding);
  }

  uint(value: number): void {
    if (value === 0) this.raw(0x43);
    else if (value < 256) this.raw(0x52, value);
    else {
      this.raw(0x70);
      this.unsigned(value, 4);
    }
  }

  ulong(value: number): void {
    if (value < 256) this.raw(CODE.smallUlong, value);
    else {
      this.raw(CODE.ulong);
      this.unsigned(Math.floor(value / 2 ** 32), 4);
      this.unsigned(value % 2 ** 32, 4);
    }
  }

  timestamp(ms: bigint): void {
    this.raw(0x83);
    this.#ensure(8);
    this.#at = this.#bytes.writeBigInt64BE(ms, this.#at);
  }

  /**
   * A described list or map of what `write` writes. `write` returns the number of values; nothing is written if that
   * is 0.
   */
  compound(code: number, kind: 'list' | 'map', write: () => number): void {
    const start = this.#at;
    this.section(code);
    if (this.plain(kind, write) === 0) this.#at = start;
  }

  /** As `compound`, also if it is empty. */
  list(code: number, write: () => number): void {
    this.section(code);
    this.plain('list', write);
  }

  /** A list or map without a descriptor, also if it is empty. Returns the number of values. */
  plain(kind: 'list' | 'map', write: () => number): number {
    this.raw(kind === 'list' ? CODE.list32 : CODE.map32);
    const sizeAt = this.#at;
    this.unsigned(0, 4);
    this.unsigned(0, 4);
    const count = write();
    this.#bytes.writeUInt32BE(this.#at - sizeAt - 4, sizeAt);
    this.#bytes.writeUInt32BE(count, sizeAt + 4);
    return count;
  }

  /** An array of symbols of ASCII. */
  symbols(symbols: readonly string[]): void {
    this.raw(CODE.array32);
    const sizeAt = this.#at;
    this.unsigned(0, 4);
    this.unsigned(symbols.length, 4);
    this.raw(CODE.symbol32);
    for (const symbol of symbols) {
      this.unsigned(symbol.length, 4);
      this.#text(symbol, symbol.length, 'latin1');
    }
    this.#bytes.writeUInt32BE(this.#at - sizeAt - 4, sizeAt);
  }

  /** A value of a type from its text; returns false, and writes nothing, if the text is not of that type. */
  simple(type: SimpleType, text: string): boolean {
    const start = this.#at;
    try {
      if (WRITE[type](this, text)) return true;
    } catch {
      // A number that does not fit: the text was stored with another type in mind.
    }
    this.#at = start;
    return false;
  }

  fixed(code: number, width: number, write: (bytes: Buffer, at: number) => void): true {
    this.raw(code);
    this.#ensure(width);
    write(this.#bytes, this.#at);
    this.#at += width;
    return true;
  }

  #variable(code: number, text: string, encoding: BufferEncoding): void {
    const length = Buffer.byteLength(text, encoding);
    const isShort = length < 256;
    this.raw(isShort ? code : code + 0x10);
    this.unsigned(length, isShort ? 1 : 4);
    this.#text(text, length, encoding);
  }

  #text(text: string, length: number, encoding: BufferEncoding): void {
    this.#ensure(length);
    this.#at += this.#bytes.write(text, this.#at, encoding);
  }

  #ensure(more: number): void {
    if (this.#at + more <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(this.#bytes.length * 2, this.#at + more));
    this.#bytes.copy(larger, 0, 0, this.#at);
    this.#bytes = larger;
  }
}

/** Returns false if the text is not of the type; may throw `RangeError` or `SyntaxError` for the same. */
type Write = (writer: Writer, text: string) => boolean;

const WHOLE = /^-?[0-9]{1,20}$/;
const FLOAT = /^(?:-?(?:[0-9.]+(?:e[+-]?[0-9]+)?|Infinity)|NaN)$/;
const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

const whole =
  (code: number, width: number, write: (bytes: Buffer, value: number, at: number) => void): Write =>
  (writer, text) =>
    WHOLE.test(text) && writer.fixed(code, width, (bytes, at) => write(bytes, Number(text), at));
const whole64 =
  (code: number, write: (bytes: Buffer, value: bigint, at: number) => void): Write =>
  (writer, text) =>
    WHOLE.test(text) && writer.fixed(code, 8, (bytes, at) => write(bytes, BigInt(text), at));
const floating =
  (code: number, width: number, write: (bytes: Buffer, value: number, at: number) => void): Write =>
  (writer, text) =>
    FLOAT.test(text) && writer.fixed(code, width, (bytes, at) => write(bytes, Number(text), at));
const hex =
  (code: number, width: number, form: RegExp): Write =>
  (writer, text) =>
    form.test(text) &&
    writer.fixed(code, width, (bytes, at) => bytes.write(text.replaceAll('-', ''), at, 'hex'));
/** For what is written without checks. */
const done = (_written: undefined): true => true;

const WRITE: Readonly<Record<SimpleType, Write>> = {
  null: (writer, text) => text === '' && done(void writer.raw(0x40)),
  boolean: (writer, text) =>
    (text === 'true' || text === 'false') && done(void writer.raw(text === 'true' ? 0x41 : 0x42)),
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
  // Strict clients end their connection at anything that is no Unicode scalar value, or a symbol outside of ASCII.
  char: (writer, text) =>
    isScalar(Number(text)) &&
    whole(0x73, 4, (bytes, value, at) => bytes.writeUInt32BE(value, at))(writer, text),
  timestamp: whole64(0x83, (bytes, value, at) => bytes.writeBigInt64BE(value, at)),
  uuid: hex(0x98, 16, UUID),
  binary: (writer, text) => BASE64.test(text) && done(void writer.binary(text, 'base64')),
  string: (writer, text) => done(void writer.string(text)),
  symbol: (writer, text) => isAscii(Buffer.from(text, 'latin1')) && done(void writer.symbol(text)),
};

export function isSimpleType(name: string): name is SimpleType {
  return Object.hasOwn(WRITE, name);
}
