import { isUtf8 } from 'node:buffer';
import { CODE } from './codes.ts';
import { decodeError, hex, limitExceeded } from './protocol-error.ts';

/** What follows a format code. */
const SHAPE = { none: 0, fixed: 1, variable: 2, compound: 3, array: 4 } as const;

/** The shape of each format code; 0 if it is unknown. */
const shapeOf = new Uint8Array(256);
/** Bytes of a fixed value; for the other shapes, bytes of the size (and of the count) before the contents. */
export const widthOf = new Uint8Array(256);

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

export interface ValueLimits {
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
export function sizedEnd(bytes: Buffer, at: number, end: number, width: number): number {
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
export function sizeAt(bytes: Buffer, at: number, width: number): number {
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
