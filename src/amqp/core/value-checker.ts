import { isUtf8 } from 'node:buffer';
import { CODE, SHAPE, shapeOf, widthOf } from './codes.ts';
import { decodeError, limitExceeded } from './protocol-error.ts';

export interface ValueLimits {
  /** Nesting of lists, maps, arrays and descriptors. */
  readonly depth: number;
  /** Values in all, those of no width included. */
  readonly values: number;
}

/**
 * Checks encoded values without decoding them: each code is known, each length, size and count fits in what contains
 * it, and there are neither too many values nor too deep ones. Decoding a value that passed costs no more than in
 * proportion to `values` and to its bytes.
 *
 * Rejected in addition, since decoders differ on them: a descriptor that is neither a symbol nor an ulong, or that
 * describes something described; a key of a map that is itself a list, map, array or described; a boolean byte above 1;
 * symbols outside ASCII; strings that are not UTF-8.
 */
export class ValueChecker {
  readonly #limits: ValueLimits;
  #left = 0;

  constructor(limits: ValueLimits) {
    this.#limits = limits;
  }

  /**
   * Restarts the count of values. There may be no more of them than bytes: only the values of an array of a type
   * without width take less than one each, and decoding costs the same for each of them.
   */
  reset(bytes: number): void {
    this.#left = Math.min(this.#limits.values, bytes);
  }

  /**
   * Checks the value at `at`, which has to end at `end` or before it. Returns its end.
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
    if (inner === CODE.described) throw decodeError('What a descriptor describes is described itself.');
    return this.#content(bytes, after + 1, end, inner, depth + 1);
  }

  #descriptor(bytes: Buffer, at: number, end: number): number {
    const code = codeAt(bytes, at, end);
    if (!isDescriptor(code)) throw decodeError('A descriptor is neither a symbol nor an ulong.');
    return this.#content(bytes, at + 1, end, code, 0);
  }

  /** Checks what follows a code. */
  #content(bytes: Buffer, at: number, end: number, code: number, depth: number): number {
    this.#left -= 1;
    if (this.#left < 0) throw tooMany();
    const width = widthOf[code] ?? 0;
    switch (shapeOf[code]) {
      case SHAPE.fixed:
        if (at + width > end) throw pastEnd();
        if (code === CODE.boolean && (bytes[at] ?? 0) > 1) throw decodeError('A boolean is 0 or 1.');
        return at + width;
      case SHAPE.variable:
        return variableEnd(bytes, at, end, code, width);
      case SHAPE.compound:
        return this.#compound(bytes, at, end, code, depth);
      case SHAPE.array:
        return this.#array(bytes, at, end, width, depth);
      default:
        throw decodeError(`0x${code.toString(16).padStart(2, '0')} is the code of no type.`);
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
    // Each value has a code of its own, so that a count above what is left ends here before long.
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
    if (shapeOf[code] === 0) throw decodeError('An array is of no type.');
    // Values of no width are as many as the count says, whatever the size: what ends this is that all are counted.
    for (let i = 0; i < count; i++) next = this.#content(bytes, next, last, code, depth + 1);
    if (next !== last) throw decodeError('An array is longer than its values.');
    return last;
  }
}

/** The end of something that begins with its size, which counts the count behind it but not itself. */
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
    // A decoder would replace the bytes, and so read another address.
    if (!isUtf8(bytes.subarray(first, last))) throw decodeError('A string is not UTF-8.');
  }
  return last;
}

function codeAt(bytes: Buffer, at: number, end: number): number {
  if (at >= end) throw pastEnd();
  return bytes[at] ?? 0;
}

/** An unsigned number of one or four bytes, which have to be there. */
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
  if (!isPlain) throw decodeError('A key of a map is not a plain value.');
}

function pastEnd() {
  return decodeError('A value is longer than what contains it.');
}

function tooDeep() {
  return limitExceeded('Values are nested too deeply.');
}

function tooMany() {
  return limitExceeded('There are too many values.');
}
