import { isAscii } from '../../util/byte-text.ts';
import { CODE } from './codes.ts';
import { isScalar, type SimpleType } from './reader.ts';

const INITIAL_BYTES = 4096;
/** Of the descriptor of a section. */
const DESCRIPTOR_BYTES = 3;
/** Texts up to this length are written here; a call of Node costs more, about as much as 40 characters. */
const SHORT_TEXT = 40;

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

  octet(value: number): void {
    this.#ensure(1);
    this.#bytes[this.#at] = value;
    this.#at += 1;
  }

  /** Values that are encoded already. */
  encoded(bytes: Uint8Array): void {
    this.#ensure(bytes.byteLength);
    this.#bytes.set(bytes, this.#at);
    this.#at += bytes.byteLength;
  }

  null(): void {
    this.octet(CODE.null);
  }

  boolean(value: boolean): void {
    this.octet(value ? CODE.true : CODE.false);
  }

  ubyte(value: number): void {
    this.octet(CODE.ubyte);
    this.octet(value);
  }

  ushort(value: number): void {
    this.octet(CODE.ushort);
    this.octet(value >> 8);
    this.octet(value & 0xff);
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

  /** A number of four bytes, without a code. */
  unsigned(value: number): void {
    this.#ensure(4);
    this.#put(value, this.#at);
    this.#at += 4;
  }

  /** The descriptor of a section. */
  section(code: number): void {
    this.octet(CODE.described);
    this.octet(CODE.smallUlong);
    this.octet(code);
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
    if (value === 0) this.octet(CODE.uint0);
    else if (value < 256) {
      this.octet(CODE.smallUint);
      this.octet(value);
    } else {
      this.octet(CODE.uint);
      this.unsigned(value);
    }
  }

  ulong(value: number): void {
    if (value < 256) {
      this.octet(CODE.smallUlong);
      this.octet(value);
    } else {
      this.octet(CODE.ulong);
      this.#long(value);
    }
  }

  /** @param ms whole, of at most 53 bits */
  timestamp(ms: number): void {
    this.octet(CODE.timestamp);
    this.#long(ms);
  }

  /** Starts a described list or map. Returns its start, for `end`. */
  begin(code: number, kind: 'list' | 'map'): number {
    const start = this.#at;
    this.section(code);
    this.#open(kind === 'list' ? CODE.list32 : CODE.map32);
    return start;
  }

  /** Ends the list or map that began there, of so many values; without any, nothing of it is written. */
  end(start: number, count: number): void {
    if (count === 0) this.#at = start;
    else this.#close(start + DESCRIPTOR_BYTES, count);
  }

  /** A described list of what `write` writes, which returns the number of values; also if it is empty. */
  list(code: number, write: () => number): void {
    this.section(code);
    this.plain('list', write);
  }

  /** The same without a descriptor, or a map. */
  plain(kind: 'list' | 'map', write: () => number): void {
    const start = this.#at;
    this.#open(kind === 'list' ? CODE.list32 : CODE.map32);
    this.#close(start, write());
  }

  /** An array of symbols of ASCII. */
  symbols(symbols: readonly string[]): void {
    const start = this.#at;
    this.#open(CODE.array32);
    this.octet(CODE.symbol32);
    for (const symbol of symbols) {
      this.unsigned(symbol.length);
      this.#text(symbol, symbol.length, 'latin1');
    }
    this.#close(start, symbols.length);
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
    this.octet(code);
    this.#ensure(width);
    write(this.#bytes, this.#at);
    this.#at += width;
    return true;
  }

  /** The code and length of a binary, string or symbol. @param code that of a short one */
  head(code: number, length: number): void {
    if (length < 256) {
      this.octet(code);
      this.octet(length);
    } else {
      this.octet(code + 0x10);
      this.unsigned(length);
    }
  }

  #variable(code: number, text: string, encoding: BufferEncoding): void {
    const length = encoding === 'latin1' ? text.length : Buffer.byteLength(text, encoding);
    this.head(code, length);
    this.#text(text, length, encoding);
  }

  #text(text: string, length: number, encoding: BufferEncoding): void {
    this.#ensure(length);
    if (encoding === 'latin1' && length <= SHORT_TEXT) {
      for (let i = 0; i < length; i++) this.#bytes[this.#at + i] = text.charCodeAt(i);
      this.#at += length;
    } else this.#at += this.#bytes.write(text, this.#at, encoding);
  }

  /** A code, and room for the size and count that `#close` knows. */
  #open(code: number): void {
    this.octet(code);
    this.#ensure(8);
    this.#at += 8;
  }

  #close(start: number, count: number): void {
    const sizeAt = start + 1;
    this.#put(this.#at - sizeAt - 4, sizeAt);
    this.#put(count, sizeAt + 4);
  }

  #long(value: number): void {
    this.unsigned(Math.floor(value / 2 ** 32));
    this.unsigned(value);
  }

  /** The lowest 32 bits of a number. */
  #put(value: number, at: number): void {
    const bytes = this.#bytes;
    bytes[at] = value >>> 24;
    bytes[at + 1] = value >>> 16;
    bytes[at + 2] = value >>> 8;
    bytes[at + 3] = value;
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
  null: (writer, text) => text === '' && done(void writer.null()),
  boolean: (writer, text) =>
    (text === 'true' || text === 'false') && done(void writer.boolean(text === 'true')),
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
  symbol: (writer, text) => isAscii(text) && done(void writer.symbol(text)),
};

export function isSimpleType(name: string): name is SimpleType {
  return Object.hasOwn(WRITE, name);
}
