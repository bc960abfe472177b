import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { parse } from '../../src/model/members.ts';
import { Group, Name } from '../../src/model/names.ts';
import { inUnit, optional, orNull, refined, type Schema, schemaErrors, Type } from '../../src/util/schema.ts';

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

  /** `tooLong` includes values that are too short. */
  const values: Record<string, { schema: Schema; right: unknown[]; wrong: unknown[]; tooLong?: unknown[] }> =
    {
      'a string': {
        schema: Type.String({ minLength: 2, maxLength: 3 }),
        right: ['ab', 'abc'],
        wrong: [12, null, ['ab'], undefined],
        tooLong: ['a', 'abcd'],
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
        wrong: ['b', 2, [], ['a']],
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
        wrong: [{ 0: 'a' }, 'a'],
        tooLong: [[], ['a', 'b', 'c']],
      },
      'a map': {
        schema: Type.Record(Type.Integer(), { minProperties: 1 }),
        right: [{ a: 1 }],
        wrong: [[1], null, 'a'],
        tooLong: [{}],
      },
    };
  for (const [name, { schema, right, wrong, tooLong = [] }] of Object.entries(values)) {
    it(`of ${name} accepts valid values and rejects others`, () => {
      for (const value of right) assert.deepEqual(errors(schema, value), [], JSON.stringify(value));
      for (const value of wrong) assert.deepEqual(errors(schema, value), [' other'], JSON.stringify(value));
      for (const value of tooLong)
        assert.deepEqual(errors(schema, value), [' length'], JSON.stringify(value));
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

describe('A value that a client sent', () => {
  const closed = { additionalProperties: false };
  const Item = Type.Object(
    {
      id: Type.String({ minLength: 1, maxLength: 3 }),
      delay: optional(inUnit('milliseconds', Type.Integer({ minimum: 0, maximum: 9 }))),
      limit: Type.Optional(orNull(Type.Integer({ minimum: 1 }))),
      group: optional(Group),
      even: Type.Optional(
        refined(Type.Integer(), { allowed: 'an even number', fits: (number) => number % 2 === 0 }),
      ),
    },
    closed,
  );
  const Body = Type.Object(
    {
      queue: Name,
      items: Type.Array(Type.Union([Type.String(), Item]), { minItems: 1, maxItems: 2 }),
      password: Type.Optional(Type.String({ format: 'password' })),
      labels: Type.Optional(Type.Record(Type.String(), { maxProperties: 1 })),
    },
    closed,
  );
  const body = (change: object): object => ({ queue: 'q', items: ['a'], ...change });

  it('is returned if it has the form of its schema', () => {
    const value = body({ items: ['a', { id: 'b', delay: null, limit: null, group: 'g', even: 2 }] });
    assert.equal(parse(Body, value), value);
  });

  const wrong: readonly (readonly [value: unknown, parameter: string, message: string])[] = [
    [[], '', 'The body must be a JSON object, not an empty array.'],
    [undefined, '', 'The body is missing; it must be a JSON object.'],
    [{ items: ['a'] }, 'queue', 'queue is missing; it must be a string.'],
    // A misspelt member explains why another one is missing.
    [{ quue: 'q', items: ['a'] }, 'quue', 'Unknown member quue. Did you mean "queue"?'],
    [body({ queue: 5 }), 'queue', 'queue must be a string, not 5.'],
    [body({ queue: '' }), 'queue', 'The queue name "" is empty. Use 1 to 255 bytes of UTF-8.'],
    [body({ items: [] }), 'items', 'items must be an array of 1 to 2, not an empty array.'],
    [body({ items: ['a', 'b', 'c'] }), 'items', 'items must be an array of 1 to 2, not of 3.'],
    [body({ items: ['a', 7] }), 'items[1]', 'items[1] must be a string or a JSON object, not 7.'],
    [body({ items: [['a']] }), 'items[0]', 'items[0] must be a string or a JSON object, not an array.'],
    [
      body({ items: [{}] }),
      'items[0].id',
      'items[0].id is missing; it must be a string of 1 to 3 characters.',
    ],
    [
      body({ items: [{ id: 'long' }] }),
      'items[0].id',
      'items[0].id must be a string of 1 to 3 characters, not of 4.',
    ],
    [
      body({ items: [{ id: 'a', delay: 10 }] }),
      'items[0].delay',
      'items[0].delay must be milliseconds, a whole number from 0 to 9, not 10.',
    ],
    [
      body({ items: [{ id: 'a', limit: 0 }] }),
      'items[0].limit',
      'items[0].limit must be a whole number from 1, or null, not 0.',
    ],
    [
      body({ items: [{ id: 'a', even: 3 }] }),
      'items[0].even',
      'items[0].even must be an even number, not 3.',
    ],
    [body({ password: ['hush'] }), 'password', 'password must be a string, not "object".'],
    [body({ labels: { 'a b': 1 } }), 'labels["a b"]', 'labels["a b"] must be a string, not 1.'],
    [
      body({ labels: { a: 'b', c: 'd' } }),
      'labels',
      'labels must be a JSON object of at most 1 members, not of 2.',
    ],
  ];
  for (const [value, parameter, message] of wrong) {
    it(`is rejected with its path: ${message}`, () => {
      assert.throws(() => parse(Body, value), { message, details: { parameter } });
    });
  }
});
