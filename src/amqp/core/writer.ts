import { CODE } from './codes.ts';

const INITIAL_BYTES = 4096;
/** Size of the descriptor of a section. */
const DESCRIPTOR_BYTES = 3;
/** Shorter strings are copied in a loop: a call of `Buffer.write` costs as much as about 40 characters. */
const SHORT_TEXT = 40;

/**
 * Encodes values (types, 1.2) into a reused buffer, and counts those of the list or map that is being written. Strings
 * have one character per byte unless stated otherwise.
 */
export class Writer {
  #bytes = Buffer.allocUnsafe(INITIAL_BYTES);
  #at = 0;
  /** How many values the open list or map has. */
  #count = 0;

  /**
   * Returns a copy of everything written since the last call, followed by `body`.
   * @param headroom bytes to leave free before it
   */
  finish(headroom: number, body: Uint8Array | null = null): Buffer {
    const end = headroom + this.#at;
    const bytes = Buffer.allocUnsafe(body === null ? end : end + body.byteLength);
    this.#bytes.copy(bytes, headroom, 0, this.#at);
    if (body !== null) bytes.set(body, end);
    this.#at = 0;
    return bytes;
  }

  /** Drops what was written since `finish`, before an error. */
  reset(): void {
    this.#at = 0;
    this.#count = 0;
  }

  /** Writes a value that is already encoded. */
  encoded(bytes: Uint8Array): void {
    this.#count += 1;
    this.#ensure(bytes.byteLength);
    this.#bytes.set(bytes, this.#at);
    this.#at += bytes.byteLength;
  }

  null(): void {
    this.#code(CODE.null);
  }

  boolean(value: boolean): void {
    this.#code(value ? CODE.true : CODE.false);
  }

  ubyte(value: number): void {
    this.#code(CODE.ubyte);
    this.#octet(value);
  }

  ushort(value: number): void {
    this.#code(CODE.ushort);
    this.#octet(value >> 8);
    this.#octet(value & 0xff);
  }

  /** Writes a JavaScript string as UTF-8, or null. */
  text(value: string | null): void {
    if (value === null) this.null();
    else this.#variable(0xa1, value, 'utf8');
  }

  /** Writes the descriptor of a section. */
  section(code: number): void {
    this.#octet(CODE.described);
    this.#octet(CODE.smallUlong);
    this.#octet(code);
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
    if (value === 0) this.#code(CODE.uint0);
    else if (value < 256) {
      this.#code(CODE.smallUint);
      this.#octet(value);
    } else {
      this.#code(CODE.uint);
      this.#unsigned(value);
    }
  }

  ulong(value: number): void {
    this.#code(CODE.ulong);
    this.#long(value);
  }

  /** @param ms a whole number of at most 53 bits */
  timestamp(ms: number): void {
    this.#code(CODE.timestamp);
    this.#long(ms);
  }

  /** Starts a section that is a list or map. Returns its start, for `end`. */
  begin(code: number, kind: 'list' | 'map'): number {
    const start = this.#at;
    this.section(code);
    this.#open(kind === 'list' ? CODE.list32 : CODE.map32);
    this.#count = 0;
    return start;
  }

  /** Ends the list or map of a section. If it is empty, removes the section. */
  end(start: number): void {
    if (this.#count === 0) this.#at = start;
    else this.#close(start + DESCRIPTOR_BYTES, this.#count);
  }

  /** Writes a described list, even if it is empty. `write` writes its values. */
  list(code: number, write: () => void): void {
    this.section(code);
    this.plain('list', write);
  }

  /** As `list`, for a list or map without a descriptor. */
  plain(kind: 'list' | 'map', write: () => void): void {
    const start = this.#at;
    this.#open(kind === 'list' ? CODE.list32 : CODE.map32);
    const outer = this.#count;
    this.#count = 0;
    write();
    this.#close(start, this.#count);
    this.#count = outer;
  }

  /** Writes an array of symbols. */
  symbols(symbols: readonly string[]): void {
    const start = this.#at;
    this.#open(CODE.array32);
    this.#octet(CODE.symbol32);
    for (const symbol of symbols) {
      this.#unsigned(symbol.length);
      this.#writeString(symbol, symbol.length, 'latin1');
    }
    this.#close(start, symbols.length);
  }

  /** Runs `write`. If it returns false, or throws because a number is out of range, undoes it and returns false. */
  attempt(write: (writer: Writer, text: string) => unknown, text: string): boolean {
    const start = this.#at;
    const count = this.#count;
    try {
      if (write(this, text) !== false) return true;
    } catch {
      // The text is not valid for the type.
    }
    this.#at = start;
    this.#count = count;
    return false;
  }

  fixed(code: number, width: number, write: (bytes: Buffer, at: number) => void): void {
    this.#code(code);
    this.#ensure(width);
    write(this.#bytes, this.#at);
    this.#at += width;
  }

  /** Writes the format code and length of a binary, string or symbol. @param code the format code of a short one */
  head(code: number, length: number): void {
    if (length < 256) {
      this.#code(code);
      this.#octet(length);
    } else {
      this.#code(code + 0x10);
      this.#unsigned(length);
    }
  }

  #variable(code: number, text: string, encoding: BufferEncoding): void {
    const length = encoding === 'latin1' ? text.length : Buffer.byteLength(text, encoding);
    this.head(code, length);
    this.#writeString(text, length, encoding);
  }

  #writeString(text: string, length: number, encoding: BufferEncoding): void {
    this.#ensure(length);
    if (encoding === 'latin1' && length <= SHORT_TEXT) {
      for (let i = 0; i < length; i++) this.#bytes[this.#at + i] = text.charCodeAt(i);
      this.#at += length;
    } else this.#at += this.#bytes.write(text, this.#at, encoding);
  }

  /** Writes a format code, and reserves space for size and count, which `#close` writes. */
  #open(code: number): void {
    this.#code(code);
    this.#ensure(8);
    this.#at += 8;
  }

  #close(start: number, count: number): void {
    const sizeAt = start + 1;
    this.#putUint32(this.#at - sizeAt - 4, sizeAt);
    this.#putUint32(count, sizeAt + 4);
  }

  /** Writes the format code of a value. */
  #code(code: number): void {
    this.#count += 1;
    this.#octet(code);
  }

  #octet(value: number): void {
    this.#ensure(1);
    this.#bytes[this.#at] = value;
    this.#at += 1;
  }

  /** Writes an unsigned number of four bytes, without a format code. */
  #unsigned(value: number): void {
    this.#ensure(4);
    this.#putUint32(value, this.#at);
    this.#at += 4;
  }

  #long(value: number): void {
    this.#unsigned(Math.floor(value / 2 ** 32));
    this.#unsigned(value);
  }

  /** Writes the lowest 32 bits of a number. */
  #putUint32(value: number, at: number): void {
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
