import { CODE } from './codes.ts';
import { decodeError } from './protocol-error.ts';
import { sizeAt, sizedEnd, ValueChecker, type ValueLimits, widthOf } from './value-checker.ts';

/** The value of a field that is absent or null; no field of the protocol is negative. */
export const ABSENT = -1;

export const NOTHING: Buffer = Buffer.alloc(0);

/**
 * Reads the fields of one described list in order. It stores only positions and decodes only the requested fields, so
 * one reader can be reused for all frames. Each call reads the next field; unless stated otherwise, it returns `ABSENT`
 * for a field that is absent or null, and throws a ProtocolError `amqp:decode-error` for one of another type.
 */
export class FieldReader {
  readonly #checker: ValueChecker;
  #bytes: Buffer = NOTHING;
  #end = 0;
  #fieldsLeft = 0;
  /** Position of the next field. */
  at = 0;

  constructor(limits: ValueLimits) {
    this.#checker = new ValueChecker(limits);
  }

  /** Where the list ends. */
  get end(): number {
    return this.#end;
  }

  /**
   * Enters the described list at `at`, which must end at `end` or earlier. Returns its descriptor: a number, or a
   * symbol as string.
   * @throws ProtocolError `amqp:decode-error`
   */
  enter(bytes: Buffer, at: number, end: number): number | string {
    this.#bytes = bytes;
    this.#end = end;
    this.#checker.reset(end - at);
    if (bytes[at] !== CODE.described || at + 4 > end) throw decodeError('A described list is missing.');
    // Fast path: almost all clients use this encoding.
    if (bytes[at + 1] === CODE.smallUlong) {
      this.#enterList(at + 3);
      return bytes[at + 2] ?? 0;
    }
    const code = bytes[at + 1];
    const after = this.#checker.skip(bytes, at + 1, end);
    this.#enterList(after);
    if (code === CODE.ulong) return bytes.readUInt32BE(at + 2) === 0 ? bytes.readUInt32BE(at + 6) : ABSENT;
    if (code === CODE.symbol8) return bytes.toString('latin1', at + 3, after);
    throw decodeError('A descriptor is not a ulong or a short symbol.');
  }

  /**
   * As `enter`, for the next field of the list that `outer` reads. The field must not be null. All of it is checked, so
   * this reader need not `finish`.
   */
  enterField(outer: FieldReader): number | string {
    const from = outer.at;
    const to = outer.skip();
    return this.enter(outer.#bytes, from, to);
  }

  #enterList(at: number): void {
    const bytes = this.#bytes;
    const code = bytes[at] ?? 0;
    if (at >= this.#end) throw decodeError('A described list is missing.');
    if (code === CODE.list0) {
      this.at = at + 1;
      this.#end = this.at;
      this.#fieldsLeft = 0;
      return;
    }
    if (code !== CODE.list8 && code !== CODE.list32)
      throw decodeError('A value of another type was sent instead of a described list.');
    const width = widthOf[code] ?? 0;
    this.#end = sizedEnd(bytes, at + 1, this.#end, width);
    this.#fieldsLeft = sizeAt(bytes, at + 1 + width, width);
    this.at = at + 1 + 2 * width;
  }

  /** The format code of the next field; that of null if it is absent. */
  get code(): number {
    if (this.#fieldsLeft === 0) return CODE.null;
    if (this.at >= this.#end) throw decodeError('A list has fewer fields than its count.');
    return this.#bytes[this.at] ?? 0;
  }

  get isAbsent(): boolean {
    return this.code === CODE.null;
  }

  /** Skips a field of any type. Returns the position of the next one. */
  skip(): number {
    if (this.#fieldsLeft === 0) return this.at;
    this.#fieldsLeft -= 1;
    this.at = this.#checker.skip(this.#bytes, this.at, this.#end);
    return this.at;
  }

  /** Skips the remaining fields, and checks that they end where the list's size says. Returns that position. */
  finish(): number {
    while (this.#fieldsLeft > 0) this.skip();
    if (this.at !== this.#end) throw decodeError('A list is longer than its fields.');
    return this.#end;
  }

  uint(name: string): number {
    const code = this.code;
    const at = this.at;
    if (code === CODE.smallUint && at + 2 <= this.#end) {
      this.#take(2);
      return this.#bytes[at + 1] ?? 0;
    }
    if (code === CODE.uint && at + 5 <= this.#end) {
      this.#take(5);
      return this.#bytes.readUInt32BE(at + 1);
    }
    if (code === CODE.uint0) {
      this.#take(1);
      return 0;
    }
    return this.#absent(name, code, 'uint');
  }

  requiredUint(name: string): number {
    const value = this.uint(name);
    if (value === ABSENT) throw decodeError(`${name} is missing.`);
    return value;
  }

  /** Values above 2^53 are rounded. */
  ulong(name: string): number {
    const { code, at } = this;
    if (code !== CODE.ulong0 && code !== CODE.smallUlong && code !== CODE.ulong) {
      return this.#absent(name, code, 'ulong');
    }
    const end = this.skip();
    const bytes = this.#bytes;
    if (code === CODE.ulong) return bytes.readUInt32BE(at + 1) * 2 ** 32 + bytes.readUInt32BE(end - 4);
    return code === CODE.smallUlong ? (bytes[at + 1] ?? 0) : 0;
  }

  ushort(name: string): number {
    const { code, at } = this;
    if (code !== CODE.ushort || at + 3 > this.#end) return this.#absent(name, code, 'ushort');
    this.#take(3);
    return this.#bytes.readUInt16BE(at + 1);
  }

  ubyte(name: string): number {
    const { code, at } = this;
    if (code !== CODE.ubyte || at + 2 > this.#end) return this.#absent(name, code, 'ubyte');
    this.#take(2);
    return this.#bytes[at + 1] ?? 0;
  }

  /** 1, 0, or `ABSENT`. */
  boolean(name: string): number {
    const code = this.code;
    const at = this.at;
    if (code === CODE.true || code === CODE.false) {
      this.#take(1);
      return code === CODE.true ? 1 : 0;
    }
    if (code === CODE.boolean && at + 2 <= this.#end) {
      this.skip();
      return this.#bytes[at + 1] ?? 0;
    }
    return this.#absent(name, code, 'boolean');
  }

  /** A `binary` as a view of the frame; null if it is absent. */
  binary(name: string): Buffer | null {
    return this.#variable(name, CODE.binary8, CODE.binary32, 'binary');
  }

  /** Skips a `binary`. Returns its length, or `ABSENT`. */
  binaryLength(name: string): number {
    const { code, at } = this;
    if (code !== CODE.binary8 && code !== CODE.binary32) return this.#absent(name, code, 'binary');
    return this.skip() - at - (code === CODE.binary8 ? 2 : 5);
  }

  /** A `string`; null if it is absent. */
  string(name: string): string | null {
    return this.#variable(name, CODE.string8, CODE.string32, 'string')?.toString('utf8') ?? null;
  }

  /** A `symbol`; null if it is absent. */
  symbol(name: string): string | null {
    return this.#variable(name, CODE.symbol8, CODE.symbol32, 'symbol')?.toString('latin1') ?? null;
  }

  /** An encoded `map` as a view of the frame; null if it is absent. */
  map(name: string): Buffer | null {
    const from = this.at;
    const code = this.oneOf(name, CODE.map8, CODE.map32);
    return code === CODE.null ? null : this.#bytes.subarray(from, this.at);
  }

  /** Skips a field that has one of these format codes or is absent. Returns its format code; that of null if absent. */
  oneOf(name: string, ...codes: number[]): number {
    const code = this.code;
    if (code !== CODE.null && !codes.includes(code)) throw decodeError(`${name} has a wrong type.`);
    this.skip();
    return code;
  }

  /** Skips a field that is a symbol or an array of symbols, or absent. */
  symbols(name: string): void {
    const { at } = this;
    const code = this.oneOf(name, CODE.symbol8, CODE.symbol32, CODE.array8, CODE.array32);
    if (code !== CODE.array8 && code !== CODE.array32) return;
    const element = this.#bytes[at + 1 + 2 * (widthOf[code] ?? 0)];
    if (element !== CODE.symbol8 && element !== CODE.symbol32) {
      throw decodeError(`${name} contains a value that is not a symbol.`);
    }
  }

  #variable(name: string, code8: number, code32: number, type: string): Buffer | null {
    const { code, at } = this;
    if (code !== code8 && code !== code32) {
      this.#absent(name, code, type);
      return null;
    }
    const end = this.skip();
    return this.#bytes.subarray(at + 1 + (code === code8 ? 1 : 4), end);
  }

  #take(bytes: number): void {
    this.#fieldsLeft -= 1;
    this.at += bytes;
  }

  #absent(name: string, code: number, type: string): number {
    if (code !== CODE.null) throw decodeError(`${name} is not of type ${type}, or is incomplete.`);
    this.skip();
    return ABSENT;
  }
}
