import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type Schema, schemaErrors, Type } from '../../src/util/schema.ts';

/** Path and rule of each error, as `a/b rule`. */
const errors = (schema: Schema, value: unknown): string[] =>
  schemaErrors(schema, value).map(({ path, rule }) => `${path.join('/')} ${rule}`);

describe('A schema', () => {
  it('serializes to plain JSON Schema, in which optional properties are not required', () => {
    const schema = Type.Object({ a: Type.String({ minLength: 1 }), b: Type.Optional(Type.Null()) });
    assert.deepEqual(JSON.parse(JSON.stringify(schema)), {
      type: 'object',
      required: ['a'],
      properties: { a: { type: 'string', minLength: 1 }, b: { type: 'null' } },
    });
  });

  const values: Record<string, { schema: Schema; right: unknown[]; wrong: unknown[] }> = {
    'a string': {
      schema: Type.String({ minLength: 2, maxLength: 3 }),
      right: ['ab', 'abc'],
      wrong: ['a', 'abcd', 12, null, ['ab'], undefined],
    },
    'a whole number': {
      schema: Type.Integer({ minimum: 0, maximum: 9 }),
      right: [0, 9],
      wrong: [-1, 10, 1.5, Number.NaN, '1', true],
    },
    'a number': {
      schema: Type.Number({ exclusiveMinimum: 0, maximum: 1 }),
      right: [0.1, 1],
      wrong: [0, 1.1, Number.POSITIVE_INFINITY, '1'],
    },
    'a boolean': { schema: Type.Boolean(), right: [true, false], wrong: ['true', 0, null] },
    'one of several': { schema: Type.Enum(['a', 'b']), right: ['a', 'b'], wrong: ['c', '', 1] },
    'a literal': { schema: Type.Literal('a'), right: ['a'], wrong: ['b', null] },
    alternatives: {
      schema: Type.Union([Type.Literal('a'), Type.Null(), Type.Integer({ minimum: 3 })]),
      right: ['a', null, 3],
      wrong: ['b', 2, []],
    },
    'several at once': {
      schema: Type.Intersect([Type.Object({ a: Type.Integer() }), Type.Object({ b: Type.Integer() })]),
      right: [{ a: 1, b: 2 }],
      wrong: [{ a: 1 }, { b: 2 }, 1],
    },
    anything: { schema: Type.Unknown(), right: [1, 'a', null, [], {}], wrong: [] },
    'a list': {
      schema: Type.Array(Type.String(), { minItems: 1, maxItems: 2 }),
      right: [['a'], ['a', 'b']],
      wrong: [[], ['a', 'b', 'c'], { 0: 'a' }, 'a'],
    },
    'a map': {
      schema: Type.Record(Type.Integer(), { minProperties: 1 }),
      right: [{ a: 1 }],
      wrong: [{}, [1], null, 'a'],
    },
  };
  for (const [name, { schema, right, wrong }] of Object.entries(values)) {
    it(`of ${name} accepts valid values and rejects others`, () => {
      for (const value of right) assert.deepEqual(errors(schema, value), [], JSON.stringify(value));
      for (const value of wrong)
        assert.match(errors(schema, value).join(), /^ (?:other|length)$/, JSON.stringify(value));
    });
  }

  it('reports the path of each wrong, missing or unknown value at any depth', () => {
    const schema = Type.Object(
      {
        port: Type.Integer(),
        users: Type.Record(Type.Object({ password: Type.String() }, { additionalProperties: false })),
        origins: Type.Optional(Type.Array(Type.String({ pattern: '^https?://' }))),
      },
      { additionalProperties: false },
    );
    assert.deepEqual(errors(schema, { port: 1, users: { a: { password: 'x' } } }), []);
    assert.deepEqual(
      errors(schema, {
        users: { a: {}, b: { password: 'x', pasword: 'y' }, c: 1 },
        origins: ['http://a', 'b', 3],
        prot: 2,
      }),
      [
        'users/a/password missing',
        'users/b/pasword unknown',
        'users/c other',
        'origins/1 pattern',
        'origins/2 other',
        'prot unknown',
        'port missing',
      ],
    );
  });

  it('does not mistake members of Object.prototype for properties', () => {
    const schema = Type.Object({ toString: Type.Optional(Type.String()) }, { additionalProperties: false });
    assert.deepEqual(errors(schema, {}), []);
    assert.deepEqual(errors(schema, { constructor: 1 }), ['constructor unknown']);
    assert.deepEqual(errors(Type.Object({ constructor: Type.String() }), {}), ['constructor missing']);
  });
});
