import { isUtf8 } from 'node:buffer';
import { AMQP_LIMITS } from '../limits.ts';
import { CODE } from './codes.ts';
import { decodeError, hex, limitExceeded } from './protocol-error.ts';

/** The value of a field that is absent or null; no field of the protocol is negative. */
export const ABSENT = -1;

export const NOTHING: Buffer = Buffer.alloc(0);

/**
 * Reads the fields of one described list in order. It stores only positions and decodes only the requested fields, so
 * one reader can be reused for all frames. Each call reads the next field; unless stated otherwise, it returns `ABSENT`
 * for a field that is absent or null, and throws a ProtocolError `amqp:decode-error` for one of another type.
 */
export class FieldReader {
  readonly #checker = new ValueChecker(AMQP_LIMITS);
  #bytes: Buffer = NOTHING;
  #end = 0;
  #fieldsLeft = 0;
  /** Position of the next field. */
  at = 0;

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
    const { code } = this;
    const isUlong = code === CODE.ulong0 || code === CODE.smallUlong || code === CODE.ulong;
    return isUlong ? this.#number() : this.#absent(name, code, 'ulong');
  }

  ushort(name: string): number {
    const { code } = this;
    return code === CODE.ushort ? this.#number() : this.#absent(name, code, 'ushort');
  }

  ubyte(name: string): number {
    const { code } = this;
    return code === CODE.ubyte ? this.#number() : this.#absent(name, code, 'ubyte');
  }

  /** 1, 0, or `ABSENT`. */
  boolean(name: string): number {
    const code = this.code;
    if (code === CODE.true || code === CODE.false) {
      this.#take(1);
      return code === CODE.true ? 1 : 0;
    }
    return code === CODE.boolean ? this.#number() : this.#absent(name, code, 'boolean');
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

  /** Reads an unsigned number: all bytes that follow its format code. */
  #number(): number {
    let next = this.at + 1;
    const end = this.skip();
    let value = 0;
    for (; next < end; next++) value = value * 256 + (this.#bytes[next] ?? 0);
    return value;
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

/** What follows a format code. */
const SHAPE = { none: 0, fixed: 1, variable: 2, compound: 3, array: 4 } as const;

/** The shape of each format code; 0 if it is unknown. */
const shapeOf = new Uint8Array(256);
/** Bytes of a fixed value; for the other shapes, bytes of the size (and of the count) before the contents. */
const widthOf = new Uint8Array(256);

const DEFINED: readonly [shape: number, width: number, codes: readonly number[]][] = [
  [SHAPE.fixed, 0, [0x40, 0x41, 0x42, 0x43, 0x44, 0x45]],
  [SHAPE.fixed, 1, [0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56]],
  [SHAPE.fixed, 2, [0x60, 0x61]],
  [SHAPE.fixed, 4, [0x70, 0x71, 0x72, 0x73, 0x74]],
  [SHAPE.fixed, 8, [0x80, 0x81, 0x82, 0x83, 0x84]],
  [SHAPE.fixed, 16, [0x94, 0x98]],
  [SHAPE.variable, 1, [0xa0, 0xa1, 0xa3]],
  [SHAPE.variable, 4, [0xb0, 0xb1, 0xb3]],
  [SHAPE.compound, 1, [0xc0, 0xc1]],
  [SHAPE.compound, 4, [0xd0, 0xd1]],
  [SHAPE.array, 1, [0xe0]],
  [SHAPE.array, 4, [0xf0]],
];

for (const [shape, width, codes] of DEFINED) {
  for (const code of codes) {
    shapeOf[code] = shape;
    widthOf[code] = width;
  }
}

interface ValueLimits {
  /** Nesting of lists, maps, arrays and descriptors. */
  readonly depth: number;
  /** Total number of values, including those without content. */
  readonly values: number;
}

/**
 * Checks encoded values without decoding them: each format code is known, each length, size and count fits in what
 * contains it, and values are neither too many nor nested too deeply. The cost of decoding a checked value is at most
 * proportional to `values` and to its bytes.
 *
 * Also rejected, since decoders differ on them: a descriptor that is neither a symbol nor a ulong, or that describes a
 * described value; a map key that is a list, map, array or described value; a boolean byte above 1; a symbol that is
 * not ASCII; a string that is not UTF-8.
 */
export class ValueChecker {
  readonly #limits: ValueLimits;
  #valuesLeft = 0;

  constructor(limits: ValueLimits) {
    this.#limits = limits;
  }

  /**
   * Restarts the count of values, and also limits it to `bytes`: only elements of an array whose type has no content
   * take less than one byte each, and decoding them costs as much as that of other values.
   */
  reset(bytes: number): void {
    this.#valuesLeft = Math.min(this.#limits.values, bytes);
  }

  /**
   * Checks the value at `at`, which must end at `end` or earlier. Returns its end.
   * @throws ProtocolError `amqp:decode-error`, `amqp:resource-limit-exceeded`
   */
  skip(bytes: Buffer, at: number, end: number): number {
    return this.#value(bytes, at, end, 0);
  }

  #value(bytes: Buffer, at: number, end: number, depth: number): number {
    if (at >= end) throw decodeError('A value is missing.');
    const code = bytes[at] ?? 0;
    if (code !== CODE.described) return this.#content(bytes, at + 1, end, code, depth);
    if (depth >= this.#limits.depth) throw tooDeep();
    const after = this.#descriptor(bytes, at + 1, end);
    const inner = codeAt(bytes, after, end);
    if (inner === CODE.described) throw decodeError('A described value is described again.');
    return this.#content(bytes, after + 1, end, inner, depth + 1);
  }

  #descriptor(bytes: Buffer, at: number, end: number): number {
    const code = codeAt(bytes, at, end);
    if (!isDescriptor(code)) throw decodeError('A descriptor is neither a symbol nor a ulong.');
    return this.#content(bytes, at + 1, end, code, 0);
  }

  /** Checks what follows a format code. */
  #content(bytes: Buffer, at: number, end: number, code: number, depth: number): number {
    this.#valuesLeft -= 1;
    if (this.#valuesLeft < 0) throw limitExceeded('There are too many values.');
    const width = widthOf[code] ?? 0;
    switch (shapeOf[code]) {
      case SHAPE.fixed:
        if (at + width > end) throw pastEnd();
        if (code === CODE.boolean && (bytes[at] ?? 0) > 1) throw decodeError('A boolean is neither 0 nor 1.');
        return at + width;
      case SHAPE.variable:
        return variableEnd(bytes, at, end, code, width);
      case SHAPE.compound:
        return this.#compound(bytes, at, end, code, depth);
      case SHAPE.array:
        return this.#array(bytes, at, end, width, depth);
      default:
        throw decodeError(`${hex(code)} is not a known format code.`);
    }
  }

  #compound(bytes: Buffer, at: number, end: number, code: number, depth: number): number {
    const width = widthOf[code] ?? 0;
    const last = sizedEnd(bytes, at, end, width);
    const count = sizeAt(bytes, at + width, width);
    if (depth >= this.#limits.depth) throw tooDeep();
    const isMap = code === CODE.map8 || code === CODE.map32;
    if (isMap && count % 2 === 1) throw decodeError('A map has a key without a value.');
    let next = at + 2 * width;
    // Each value has at least its format code, so the loop ends soon even if the count is too high.
    for (let i = 0; i < count; i++) {
      const after = this.#value(bytes, next, last, depth + 1);
      if (isMap && i % 2 === 0) checkKey(bytes[next] ?? 0);
      next = after;
    }
    if (next !== last) throw decodeError('A list or map is longer than its values.');
    return last;
  }

  #array(bytes: Buffer, at: number, end: number, width: number, depth: number): number {
    const last = sizedEnd(bytes, at, end, width);
    const count = sizeAt(bytes, at + width, width);
    if (depth >= this.#limits.depth) throw tooDeep();
    let next = at + 2 * width;
    if (codeAt(bytes, next, last) === CODE.described) next = this.#descriptor(bytes, next + 1, last);
    const code = codeAt(bytes, next, last);
    next += 1;
    if (shapeOf[code] === 0) throw decodeError('The format code of an array is not known.');
    // Values without content take no bytes: the count of values ends the loop, not the size.
    for (let i = 0; i < count; i++) next = this.#content(bytes, next, last, code, depth + 1);
    if (next !== last) throw decodeError('An array is longer than its values.');
    return last;
  }
}

/** The end of a list, map or array. Its size includes the count that follows, but not the size itself. */
function sizedEnd(bytes: Buffer, at: number, end: number, width: number): number {
  if (at + 2 * width > end) throw pastEnd();
  const size = sizeAt(bytes, at, width);
  if (size < width) throw decodeError('A size has no room for the count that follows it.');
  const last = at + width + size;
  if (last > end) throw pastEnd();
  return last;
}

function variableEnd(bytes: Buffer, at: number, end: number, code: number, width: number): number {
  if (at + width > end) throw pastEnd();
  const first = at + width;
  const last = first + sizeAt(bytes, at, width);
  if (last > end) throw pastEnd();
  if (code === CODE.symbol8 || code === CODE.symbol32) {
    for (let i = first; i < last; i++) {
      if ((bytes[i] ?? 0) > 0x7f) throw decodeError('A symbol has a character that is not ASCII.');
    }
  } else if (code === CODE.string8 || code === CODE.string32) {
    // A decoder would replace invalid bytes, and so might read another address.
    if (!isUtf8(bytes.subarray(first, last))) throw decodeError('A string is not UTF-8.');
  }
  return last;
}

function codeAt(bytes: Buffer, at: number, end: number): number {
  if (at >= end) throw pastEnd();
  return bytes[at] ?? 0;
}

/** Reads an unsigned number of one or four bytes, without a bounds check. */
function sizeAt(bytes: Buffer, at: number, width: number): number {
  return width === 1 ? (bytes[at] ?? 0) : bytes.readUInt32BE(at);
}

function isDescriptor(code: number): boolean {
  return (
    code === CODE.smallUlong ||
    code === CODE.symbol8 ||
    code === CODE.ulong ||
    code === CODE.symbol32 ||
    code === CODE.ulong0
  );
}

function checkKey(code: number): void {
  const shape = shapeOf[code];
  const isPlain = code !== CODE.list0 && (shape === SHAPE.fixed || shape === SHAPE.variable);
  if (!isPlain) throw decodeError('A key of a map is a list, map, array or described value.');
}

function pastEnd(): Error {
  return decodeError('A value is longer than what contains it.');
}

function tooDeep(): Error {
  return limitExceeded('Values are nested too deeply.');
}
