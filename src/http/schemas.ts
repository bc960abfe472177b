import { type Schema, Type } from '../util/schema.ts';

// The shapes of JSON responses stand with their routes, for `/openapi.json`. They are shown, not enforced: the types of the
// code enforce them. These are their common parts.

/** A schema that `/openapi.json` has under this name, so that generated clients have a type of it. */
export function named<T extends Schema>($id: string, schema: T): T {
  return Object.assign(schema, { $id });
}

export const Count = Type.Integer({ minimum: 0 });
export const Moment = Type.String({ format: 'date-time' });

/** What a schema describes, or null. */
export function orNull<T>(schema: Schema<T>): Schema<T | null> {
  return Type.Union([schema, Type.Null()]);
}
