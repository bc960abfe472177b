/**
 * One SQL statement, prepared once on each connection under its name. The text is a constant: values travel
 * as parameters, and the schema by the session's `search_path`.
 */
export interface Statement {
  readonly name: string;
  readonly text: string;
}

/** A result row as PostgreSQL's text format has it, by column. */
export type Row = readonly (string | null)[];

/** A parameter: a packed array from `arrays.ts`, a plain value in text form, or null. */
export type Parameter = Buffer | string | null;

/** A statement with its parameters. */
export interface Query {
  readonly statement: Statement;
  readonly values: readonly Parameter[];
}

/** The text of a column that is never null. @throws Error where it is: a fault of the statement */
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
