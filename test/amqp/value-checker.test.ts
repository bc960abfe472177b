import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { ValueChecker } from '../../src/amqp/core/fields.ts';
import { ProtocolError } from '../../src/amqp/core/protocol-error.ts';
import {
  array8,
  array32,
  bin,
  bytes,
  described,
  FALSE,
  list8,
  list32,
  map8,
  map32,
  NULL,
  str,
  sym,
  TRUE,
  uint,
  uint32,
  type Wire,
} from './wire.ts';

const LIMITS = { depth: 16, values: 4096 };
const checker = new ValueChecker(LIMITS);

function checked(value: Buffer, end = value.length): number {
  checker.reset(LIMITS.values);
  return checker.skip(value, 0, end);
}

function refusal(value: Buffer, end = value.length): string {
  try {
    checked(value, end);
  } catch (error) {
    assert.ok(error instanceof ProtocolError);
    return `${error.condition}: ${error.message}`;
  }
  return 'passed';
}

/** The decoder of rhea, which its types do not declare. */
const { Reader } = createRequire(import.meta.url)('rhea/lib/types.js') as {
  Reader: new (bytes: Buffer) => { position: number; read(): unknown };
};

const nested = (levels: number, wrap: (inner: Wire) => Wire): Wire => {
  let value: Wire = NULL;
  for (let i = 0; i < levels; i++) value = wrap(value);
  return value;
};

const leaf: fc.Arbitrary<Wire> = fc.oneof(
  fc.constantFrom(NULL, TRUE, FALSE, bytes(0x44), bytes(0x45), bytes(0x56, 1)),
  fc.integer({ min: 0, max: 2 ** 32 - 1 }).map(uint),
  fc.uint8Array({ maxLength: 300 }).map((content) => bin(Buffer.from(content))),
  fc.string({ maxLength: 300 }).map(str),
  fc.stringMatching(/^[!-~]{0,20}$/).map(sym),
  fc.uint8Array({ minLength: 8, maxLength: 8 }).map((content) => bytes(0x83, Buffer.from(content))),
  fc.uint8Array({ minLength: 16, maxLength: 16 }).map((content) => bytes(0x98, Buffer.from(content))),
  fc.array(fc.nat(255), { maxLength: 20 }).map((values) => array8(0x50, ...values.map((v) => bytes(v)))),
);

const value: fc.Arbitrary<Wire> = fc.letrec<{ value: Wire; inner: Wire }>((tie) => ({
  value: fc.oneof({ maxDepth: 5 }, leaf, tie('inner')),
  inner: fc.oneof(
    fc.array(tie('value'), { maxLength: 6 }).map((values) => list32(...values)),
    fc
      .array(fc.tuple(fc.stringMatching(/^[a-z]{1,5}$/).map(sym), tie('value')), { maxLength: 4 })
      .map((entries) => map32(...entries.flat())),
    tie('value')
      .filter((inner) => inner[0] !== 0)
      .map((inner) => described(0x75, inner)),
  ),
})).value;

describe('The value checker', () => {
  it('ends exactly at the end of every well-formed value', () => {
    fc.assert(
      fc.property(value, fc.uint8Array({ maxLength: 8 }), (encoded, more) => {
        assert.equal(checked(bytes(encoded, Buffer.from(more))), encoded.length);
      }),
    );
  });

  it('rejects every truncated value', () => {
    fc.assert(
      fc.property(value, fc.nat(), (encoded, where) => {
        assert.match(refusal(encoded, where % encoded.length), /^amqp:decode-error/);
      }),
    );
  });

  it('passes only values that rhea can decode, and ends at the same byte', () => {
    const flipped = fc
      .tuple(value, fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 3 }))
      .map(([encoded, changes]) => {
        const changed = Buffer.from(encoded);
        for (const [where, to] of changes) changed[where % changed.length] = to;
        return changed;
      });
    const random = fc.uint8Array({ minLength: 1, maxLength: 40 }).map((content) => Buffer.from(content));
    let passed = 0;
    fc.assert(
      fc.property(fc.oneof(flipped, random), (encoded) => {
        checker.reset(LIMITS.values);
        let end: number;
        try {
          end = checker.skip(encoded, 0, encoded.length);
        } catch (error) {
          assert.ok(error instanceof ProtocolError, String(error));
          return;
        }
        passed += 1;
        const reader = new Reader(encoded);
        reader.read();
        assert.equal(reader.position, end);
      }),
      { numRuns: 3000 },
    );
    assert.ok(passed > 300, `${passed} passed`);
  });

  const wrong: Readonly<Record<string, [Wire, RegExp]>> = {
    'an unknown format code': [bytes(0x3f), /not a known format code/],
    'a boolean that is neither 0 nor 1': [bytes(0x56, 2), /boolean/],
    'a string longer than the data': [bytes(0xb1, 0xff, 0xff, 0xff, 0xff), /longer than/],
    'a list too small for its count': [bytes(0xd0, 0, 0, 0, 3, 0, 0, 0, 0), /no room/],
    'a list of more values than it has bytes': [bytes(0xc0, 2, 255, 0x40), /missing/],
    'a list of 2^32-1 values': [bytes(0xd0, 0, 0, 0, 5, 255, 255, 255, 255, 0x40), /missing/],
    'a list longer than its values': [bytes(0xc0, 3, 1, 0x40, 0x40), /longer than its values/],
    'a map with a key but no value': [map8(sym('a'), NULL, sym('b')), /without a value/],
    'a key that is a list': [map8(list8(), NULL), /is a list, map, array or described/],
    'a key that is an empty list': [map8(bytes(0x45), NULL), /is a list, map, array or described/],
    'a key that is described': [map8(described(1, sym('a')), NULL), /is a list, map, array or described/],
    'a descriptor that is a string': [bytes(0, str('a'), NULL), /neither a symbol/],
    'a descriptor that is a list': [bytes(0, list8(), NULL), /neither a symbol/],
    'a described value within a described value': [described(1, described(2, NULL)), /described again/],
    'a descriptor without a value': [bytes(0, 0x53, 1), /longer than/],
    'an array with an unknown format code': [array32(5, 1, 0x3f), /format code of an array/],
    'an array longer than the data': [array32(6, 3, 0x50, 1), /longer than/],
    'an array longer than its values': [array32(8, 1, 0x50, 1, 2, 3), /longer than its values/],
    'an array without a format code': [array32(4, 0), /longer than/],
    'a string that is not UTF-8': [bytes(0xa1, 2, 0x4d, 0xfc), /not UTF-8/],
    'a long string that is not UTF-8': [bytes(0xb1, 0, 0, 0, 1, 0xff), /not UTF-8/],
    'a symbol outside ASCII': [bytes(0xa3, 1, 0xe9), /not ASCII/],
  };
  for (const [name, [encoded, message]] of Object.entries(wrong)) {
    it(`rejects ${name}`, () => {
      assert.match(refusal(encoded), /^amqp:decode-error/);
      assert.match(refusal(encoded), message);
    });
  }

  it('accepts values nested to a depth of 16 only', () => {
    for (const wrap of [
      (inner: Wire) => list32(inner),
      (inner: Wire) => map32(sym('a'), inner),
      (inner: Wire) => array32(4 + inner.length, 1, inner),
    ]) {
      assert.equal(refusal(nested(16, wrap)), 'passed');
      assert.match(refusal(nested(17, wrap)), /^amqp:resource-limit-exceeded/);
    }
    const innermost = (value: Wire): Wire => {
      let whole = value;
      for (let i = 0; i < 16; i++) whole = list32(whole);
      return whole;
    };
    assert.match(refusal(innermost(described(1, NULL))), /^amqp:resource-limit-exceeded/);
    assert.equal(refusal(nested(8, (inner) => described(1, list32(inner)))), 'passed');
    assert.match(refusal(nested(9, (inner) => described(1, list32(inner)))), /^amqp:resource-limit-exceeded/);
  });

  it('counts values that have no bytes', () => {
    assert.equal(refusal(array32(5, 4095, 0x40)), 'passed');
    for (const count of [4096, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1]) {
      assert.match(refusal(array32(5, count, 0x40)), /^amqp:resource-limit-exceeded/);
    }
    assert.equal(refusal(list32(...Array<Wire>(4095).fill(NULL))), 'passed');
    assert.match(refusal(list32(...Array<Wire>(4096).fill(NULL))), /^amqp:resource-limit-exceeded/);
    const four = array32(5, 2000, 0x41);
    assert.match(refusal(list32(four, four, four)), /^amqp:resource-limit-exceeded/);
  });

  it('rejects more values than its budget', () => {
    const many = list32(array32(5, 60, 0x40));
    const nothing = (bytes: number): void => {
      checker.reset(bytes);
      checker.skip(many, 0, many.length);
    };
    assert.throws(() => nothing(many.length), /too many values/);
    nothing(62);
  });

  it('rejects values that claim 2^32-1 bytes', () => {
    for (const code of [0xb0, 0xb1, 0xb3, 0xd0, 0xd1, 0xf0]) {
      assert.match(refusal(bytes(code, uint32(2 ** 32 - 1), uint32(0))), /^amqp:decode-error/);
    }
  });
});
