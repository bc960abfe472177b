import { decodeError } from './refusal.ts';
import { CODE, widthOf } from './type-codes.ts';
import { Walker, type WalkLimits } from './walker.ts';

/** What a field that is absent, or null, is read as: no field of the protocol is negative. */
export const ABSENT = -1;

export const NOTHING: Buffer = Buffer.alloc(0);

/**
 * Reads the fields of one described list in their order, without making values. One reader serves one
 * connection; it holds no more than positions. Each call takes the next field.
 */
export class Fields {
  readonly #walker: Walker;
  #bytes: Buffer = NOTHING;
  #end = 0;
  #left = 0;
  #before = 0;
  /** Where the next field begins. */
  at = 0;
  /** Where the count of fields is, how many bytes it has, and what it says; no width: there is none. */
  countAt = 0;
  countWidth = 0;
  count = 0;

  constructor(limits: WalkLimits) {
    this.#walker = new Walker(limits);
  }

  /** Where the list ends. */
  get end(): number {
    return this.#end;
  }

  /**
   * Begins with the described list at `at`, which ends at `end` or before it. Answers its descriptor: a number, or
   * the symbol's text.
   * @throws Breach `amqp:decode-error`
   */
  enter(bytes: Buffer, at: number, end: number): number | string {
    this.#bytes = bytes;
    this.#end = end;
    this.#walker.reset(end - at);
    if (bytes[at] !== CODE.described || at + 4 > end) throw decodeError('A described list is missing.');
    // The form that everybody uses.
    if (bytes[at + 1] === CODE.smallUlong) {
      this.#enterList(at + 3);
      return bytes[at + 2] ?? 0;
    }
    const code = bytes[at + 1];
    const after = this.#walker.skip(bytes, at + 1, end);
    this.#enterList(after);
    if (code === CODE.ulong) return bytes.readUInt32BE(at + 2) === 0 ? bytes.readUInt32BE(at + 6) : ABSENT;
    if (code === CODE.symbol8) return bytes.toString('latin1', at + 3, after);
    throw decodeError('A descriptor is not an ulong or a short symbol.');
  }

  /**
   * As `enter`, for a field of a list that another reader is in. The field must not be null. It is gone over to its end,
   * so that this reader need not `finish`.
   */
  enterField(outer: Fields): number | string {
    const from = outer.at;
    const to = outer.skip();
    return this.enter(outer.#bytes, from, to);
  }

  /** Lets go of the bytes. */
  leave(): void {
    this.#bytes = NOTHING;
  }

  #enterList(at: number): void {
    const bytes = this.#bytes;
    const code = bytes[at] ?? 0;
    this.countWidth = 0;
    this.count = 0;
    if (at >= this.#end) throw decodeError('A described list is missing.');
    if (code === CODE.list0) {
      this.at = at + 1;
      this.#end = this.at;
      this.#left = 0;
      return;
    }
    if (code !== CODE.list8 && code !== CODE.list32) throw decodeError('What should be a list is none.');
    const width = widthOf[code] ?? 0;
    const first = at + 1 + width;
    if (first + width > this.#end) throw decodeError('A list is longer than what contains it.');
    const size = width === 1 ? (bytes[at + 1] ?? 0) : bytes.readUInt32BE(at + 1);
    if (size < width || first + size > this.#end) {
      throw decodeError('A list is longer than what contains it.');
    }
    this.countAt = first;
    this.countWidth = width;
    this.count = width === 1 ? (bytes[first] ?? 0) : bytes.readUInt32BE(first);
    this.#left = this.count;
    this.at = first + width;
    this.#end = first + size;
  }

  /** The code of the next field; `null`'s where it is absent. */
  get code(): number {
    if (this.#left === 0) return CODE.null;
    if (this.at >= this.#end) throw decodeError('A list has fewer fields than it says.');
    return this.#bytes[this.at] ?? 0;
  }

  get isAbsent(): boolean {
    return this.code === CODE.null;
  }

  /** Goes over a field of any type. Answers where the next one begins. */
  skip(): number {
    this.#before = this.at;
    if (this.#left === 0) return this.at;
    this.#left -= 1;
    this.at = this.#walker.skip(this.#bytes, this.at, this.#end);
    return this.at;
  }

  /** Goes over what is left, and checks that the list ends where it says. Answers where that is. */
  finish(): number {
    while (this.#left > 0) this.skip();
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

  neededUint(name: string): number {
    const value = this.uint(name);
    if (value === ABSENT) throw decodeError(`${name} is missing.`);
    return value;
  }

  ushort(name: string): number {
    const code = this.code;
    const at = this.at;
    if (code !== CODE.ushort || at + 3 > this.#end) return this.#absent(name, code, 'ushort');
    this.#take(3);
    return this.#bytes.readUInt16BE(at + 1);
  }

  ubyte(name: string): number {
    const code = this.code;
    const at = this.at;
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

  /** Goes over a field whose code is one of two, or that is absent. Answers how many bytes it says, or `ABSENT`. */
  sized(name: string, code8: number, code32: number): number {
    const code = this.code;
    const at = this.at;
    if (code !== code8 && code !== code32) return this.#absent(name, code, 'other type');
    return this.skip() - at - 1 - (widthOf[code] ?? 0);
  }

  /** Goes over a field that has one of these codes, or is absent; answers its code, `null`'s where it is absent. */
  oneOf(name: string, ...codes: number[]): number {
    const code = this.code;
    if (code !== CODE.null && !codes.includes(code)) throw decodeError(`${name} is of a wrong type.`);
    this.skip();
    return code;
  }

  /** Goes over a field that is a symbol or an array of symbols, or absent. */
  symbols(name: string): void {
    const code = this.oneOf(name, CODE.symbol8, CODE.symbol32, CODE.array8, CODE.array32);
    if (code !== CODE.array8 && code !== CODE.array32) return;
    const element = this.#bytes[this.#before + 1 + 2 * (widthOf[code] ?? 0)];
    if (element !== CODE.symbol8 && element !== CODE.symbol32) {
      throw decodeError(`${name} has a value that is no symbol.`);
    }
  }

  #take(bytes: number): void {
    this.#left -= 1;
    this.at += bytes;
  }

  #absent(name: string, code: number, type: string): number {
    if (code !== CODE.null) throw decodeError(`${name} is no ${type}, or is cut off.`);
    this.skip();
    return ABSENT;
  }
}
