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

/** Id of the node that a row of a list of all nodes is about. */
export const NodeOfRow = Type.String({ description: 'Id of the node, as in `/nodes`.' });

/** A list that all nodes make together. @param member the one with the rows */
export function listOfNodes(id: string, member: string, row: Schema): Schema {
  return named(
    id,
    Type.Object({
      node: Type.String({ description: 'Id of the node that answered, as in `/nodes`.' }),
      missing: Type.Array(Type.String(), {
        description:
          'Ids of the nodes that did not reply within a second: what they know is not in the list.',
      }),
      total: Type.Integer({ description: 'How many there are that the user may see, also beyond `limit`.' }),
      [member]: Type.Array(row),
    }),
  );
}
