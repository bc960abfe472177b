import type { DatabaseSync, StatementSync } from 'node:sqlite';

export type Statements<T> = { readonly [K in keyof T]: StatementSync };

/** Prepares statements by name, so that each is written once. */
export function prepareAll<T extends Readonly<Record<string, string>>>(
  db: DatabaseSync,
  sql: T,
): Statements<T> {
  const prepared = Object.entries(sql).map(([name, text]) => [name, db.prepare(text)]);
  return Object.fromEntries(prepared) as Statements<T>;
}

/** Rows of these are arrays, which are faster to make than objects. */
export function prepareArrays<T extends Readonly<Record<string, string>>>(
  db: DatabaseSync,
  sql: T,
): Statements<T> {
  const statements = prepareAll(db, sql);
  for (const statement of Object.values(statements)) statement.setReturnArrays(true);
  return statements;
}
