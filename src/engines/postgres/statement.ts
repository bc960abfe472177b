/**
 * One SQL statement, prepared once per connection under its name. Its text is constant: values are passed as
 * parameters, and the schema is set by the session's `search_path`.
 */
export interface Statement {
  readonly name: string;
  readonly text: string;
}

/** A result row: the columns in PostgreSQL's text format. */
export type Row = readonly (string | null)[];

/** A parameter: a packed array (`int4Array` and the like), a plain value in text form, or null. */
export type Parameter = Buffer | string | null;

/** A statement with its parameters. */
export interface Query {
  readonly statement: Statement;
  readonly values: readonly Parameter[];
}

/** One column of the rows that are passed to a statement, each column as one array. */
interface Column<T> {
  readonly name: string;
  readonly type: string;
  readonly encode: (rows: readonly T[]) => Parameter;
}

type ValueOf<T, V> = (row: T) => V;

/** Describes the rows that are passed to a statement, as columns in the order of its parameters. */
export class Columns<T> {
  readonly #columns: Column<T>[] = [];

  /** A 63-bit id, see `registry.ts`. */
  id(name: string, of: ValueOf<T, Buffer>): this {
    return this.#add(name, 'bigint', (rows) => idArray(rows.map(of)));
  }

  bigint(name: string, of: ValueOf<T, number | null>): this {
    return this.#add(name, 'bigint', (rows) => int8Array(rows.map(of)));
  }

  int(name: string, of: ValueOf<T, number | null>): this {
    return this.#add(name, 'int', (rows) => int4Array(rows.map(of)));
  }

  bool(name: string, of: ValueOf<T, boolean>): this {
    return this.#add(name, 'bool', (rows) => boolArray(rows.map(of)));
  }

  text(name: string, of: ValueOf<T, string | null | undefined>): this {
    return this.#add(name, 'text', (rows) => textArray(rows.map((row) => of(row) ?? null)));
  }

  bytea(name: string, of: ValueOf<T, Uint8Array | null>): this {
    return this.#add(name, 'bytea', (rows) => byteaArray(rows.map(of)));
  }

  get count(): number {
    return this.#columns.length;
  }

  values(rows: readonly T[]): Parameter[] {
    return this.#columns.map(({ encode }) => encode(rows));
  }

  /**
   * The rows as an item of `FROM`. The column `ord` numbers them from 1; results refer to rows by it.
   * @param first the number of the first parameter
   */
  from(alias: string, first = 1): string {
    const types = this.#columns.map(({ type }, index) => `$${first + index}::${type}[]`);
    const names = this.#columns.map(({ name }) => name);
    return `unnest(${types.join(', ')}) WITH ORDINALITY AS ${alias}(${names.join(', ')}, ord)`;
  }

  #add(name: string, type: string, encode: Column<T>['encode']): this {
    this.#columns.push({ name, type, encode });
    return this;
  }
}

/**
 * Caches variants by boolean properties, each created on first use. Statements have variants because a statement that
 * does less costs less. Returns a function that returns the variant for some properties.
 */
export function variantsByFlags<F extends readonly boolean[], T>(
  create: (...flags: F) => T,
): (...flags: F) => T {
  const variants: T[] = [];
  return (...flags) => {
    let bits = 0;
    for (const isSet of flags) bits = bits * 2 + (isSet ? 1 : 0);
    variants[bits] ??= create(...flags);
    return variants[bits] as T;
  };
}

/** The index of the input row that a result row refers to by its first column. */
export function rowIndex(row: Row): number {
  return number(row, 0) - 1;
}

/** The value of a column that is never null. @throws Error if it is null: a bug of the statement */
export function text(row: Row, column: number): string {
  const value = row[column];
  if (value === null || value === undefined) throw new Error(`column ${column} has no value`);
  return value;
}

export function number(row: Row, column: number): number {
  return Number(text(row, column));
}

export function numberOrNull(row: Row, column: number): number | null {
  const value = row[column];
  return value === null || value === undefined ? null : Number(value);
}

export function flag(row: Row, column: number): boolean {
  return row[column] === 't';
}

/**
 * Type OIDs of array elements. Array parameters use PostgreSQL's binary format: a batch is one array per column, so its
 * size affects neither the number of messages nor the SQL text, and a body is sent as bytes, not as hex. Measured for
 * 64 small elements: 2 to 4 µs per element, all columns together.
 */
const OID = { bool: 16, bytea: 17, int8: 20, int4: 23, text: 25 } as const;

const HEADER_BYTES = 20;
const NULL_LENGTH = -1;
const TWO_32 = 2 ** 32;

export function int4Array(values: readonly (number | null)[]): Buffer {
  return fixedArray(OID.int4, 4, values, (bytes, value, at) => bytes.writeInt32BE(value, at));
}

/** An array of safe integers and nulls. */
export function int8Array(values: readonly (number | null)[]): Buffer {
  return fixedArray(OID.int8, 8, values, (bytes, value, at) => {
    // In two halves: a BigInt per value would cost more than the rest of the array.
    bytes.writeInt32BE(Math.floor(value / TWO_32), at);
    bytes.writeUInt32BE(((value % TWO_32) + TWO_32) % TWO_32, at + 4);
  });
}

export function boolArray(values: readonly boolean[]): Buffer {
  return fixedArray(OID.bool, 1, values, (bytes, value, at) => bytes.writeUInt8(value ? 1 : 0, at));
}

/** An array of 64-bit integers, each given as 8 bytes, big-endian. */
export function idArray(values: readonly Uint8Array[]): Buffer {
  return bytesArray(OID.int8, values);
}

export function textArray(values: readonly (string | null)[]): Buffer {
  return bytesArray(
    OID.text,
    values.map((value) => (value === null ? null : Buffer.from(value))),
  );
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

/** An array of values of one size. */
function fixedArray<T>(
  oid: number,
  size: number,
  values: readonly (T | null)[],
  write: (bytes: Buffer, value: T, at: number) => void,
): Buffer {
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + values.length * (4 + size));
  let [at, nulls] = [HEADER_BYTES, 0];
  for (const value of values) {
    if (value === null) {
      nulls = 1;
      at = bytes.writeInt32BE(NULL_LENGTH, at);
      continue;
    }
    at = bytes.writeInt32BE(size, at);
    write(bytes, value, at);
    at += size;
  }
  writeHeader(bytes, oid, values.length, nulls);
  return bytes.subarray(0, at);
}

/** One dimension with lower bound 1. An empty one unnests to no rows. */
function writeHeader(bytes: Buffer, oid: number, count: number, nulls: number): void {
  bytes.writeInt32BE(1, 0);
  bytes.writeInt32BE(nulls, 4);
  bytes.writeInt32BE(oid, 8);
  bytes.writeInt32BE(count, 12);
  bytes.writeInt32BE(1, 16);
}

/** An array of strings as a PostgreSQL array literal. */
export function textArrayLiteral(values: readonly string[]): string {
  return `{${values.map((value) => `"${value.replace(/["\\]/g, '\\$&')}"`).join(',')}}`;
}
