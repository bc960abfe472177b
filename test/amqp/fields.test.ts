import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ABSENT, FieldReader } from '../../src/amqp/core/fields.ts';
import { ProtocolError } from '../../src/amqp/core/protocol-error.ts';
import {
  array8,
  bin,
  bytes,
  described,
  FALSE,
  list8,
  list32,
  map8,
  NULL,
  smallUlong,
  str,
  sym,
  TRUE,
  ubyte,
  uint,
  uint32,
  ushort,
  type Wire,
} from './wire.ts';

/** Enters a list that is followed in its buffer by bytes which would be valid values. */
function entered(given: Buffer): FieldReader {
  const fields = new FieldReader();
  fields.enter(Buffer.concat([given, uint(0), uint(0)]), 0, given.length);
  return fields;
}

function of(...values: Wire[]): FieldReader {
  return entered(described(0x10, list8(...values)));
}

/** The error messages for a list, once at the end of its buffer and once followed by more bytes. */
function refusals(
  given: Buffer,
  read: (fields: FieldReader) => void = (fields) => fields.finish(),
): Set<string> {
  return new Set(
    [Buffer.alloc(0), bytes(uint32(0), uint32(0))].map((behind) => {
      const fields = new FieldReader();
      try {
        fields.enter(Buffer.concat([given, behind]), 0, given.length);
        read(fields);
      } catch (error) {
        assert.ok(error instanceof ProtocolError, String(error));
        return error.message;
      }
      return 'passed';
    }),
  );
}

describe('The fields of a list', () => {
  it('are entered by a numeric or symbolic descriptor, in every encoding of a list', () => {
    const fields = new FieldReader();
    const enter = (given: Buffer): number | string => fields.enter(given, 0, given.length);
    assert.equal(enter(described(0x10, list8(uint(1)))), 0x10);
    assert.equal(fields.uint('a'), 1);
    assert.equal(enter(described(0x11, list32(uint(2)))), 0x11);
    assert.equal(fields.uint('a'), 2);
    assert.equal(enter(described(0x12, bytes(0x45))), 0x12);
    assert.equal(fields.uint('a'), ABSENT);
    assert.equal(enter(described('amqp:open:list', list8(uint(3)))), 'amqp:open:list');
    assert.equal(fields.uint('a'), 3);
    assert.equal(enter(bytes(0, 0x80, Buffer.from('0000000000000013', 'hex'), list8())), 0x13);
    assert.equal(enter(bytes(0, 0x80, Buffer.alloc(8, 1), list8())), ABSENT);
  });

  it('are read in order, each by its type', () => {
    const fields = of(
      uint(0),
      uint(255),
      uint32(2 ** 32 - 1),
      ushort(65_535),
      ubyte(7),
      TRUE,
      FALSE,
      bytes(0x56, 1),
    );
    const read = [
      fields.uint('a'),
      fields.uint('b'),
      fields.uint('c'),
      fields.ushort('d'),
      fields.ubyte('e'),
      fields.boolean('f'),
      fields.boolean('g'),
      fields.boolean('h'),
    ];
    assert.deepEqual(read, [0, 255, 2 ** 32 - 1, 65_535, 7, 1, 0, 1]);
    assert.equal(fields.finish(), fields.at);
  });

  it('are absent if they are null or the list has ended', () => {
    const fields = of(NULL);
    assert.equal(fields.uint('a'), ABSENT);
    const { at } = fields;
    assert.deepEqual(
      [fields.uint('b'), fields.ushort('c'), fields.ubyte('d'), fields.boolean('e')],
      Array(4).fill(ABSENT),
    );
    assert.deepEqual(
      [fields.binary('f'), fields.string('f'), fields.symbol('f'), fields.map('f')],
      [null, null, null, null],
    );
    assert.ok(fields.isAbsent);
    fields.symbols('g');
    assert.equal(fields.skip(), at);
    assert.throws(() => fields.requiredUint('h'), /h is missing/);
  });

  it('are returned with their values', () => {
    const map = map8(sym('k'), NULL);
    const fields = of(bin('abc'), bin(''), str('ü'), sym('s'), map);
    assert.deepEqual([fields.binary('a'), fields.binary('b')], [Buffer.from('abc'), Buffer.alloc(0)]);
    assert.deepEqual([fields.string('c'), fields.symbol('d'), fields.map('e')], ['ü', 's', map]);
    const long = entered(described(0, list32(bin(Buffer.alloc(300, 'x')))));
    assert.deepEqual(long.binary('a'), Buffer.alloc(300, 'x'));
  });

  it('are read as 64-bit numbers in every encoding', () => {
    const fields = of(bytes(0x44), smallUlong(7), bytes(0x80, Buffer.from('0000000300000005', 'hex')), NULL);
    const read = ['a', 'b', 'c', 'd'].map((name) => fields.ulong(name));
    assert.deepEqual(read, [0, 7, 3 * 2 ** 32 + 5, ABSENT]);
    assert.throws(() => of(uint(1)).ulong('x'), /x is not of type ulong/);
  });

  it('may be nested lists', () => {
    const outer = of(described(0x28, list8(uint(5))), uint(6));
    const inner = new FieldReader();
    assert.equal(inner.enterField(outer), 0x28);
    assert.equal(inner.uint('a'), 5);
    inner.finish();
    assert.equal(outer.uint('b'), 6);
  });

  const wrong: Readonly<Record<string, [Buffer, string]>> = {
    nothing: [Buffer.alloc(0), 'A described list is missing.'],
    'a list without a descriptor': [list8(uint(0), uint(0)), 'A described list is missing.'],
    'a descriptor without a list': [bytes(0, smallUlong(0x10)), 'A described list is missing.'],
    'a symbol without a list': [bytes(0, sym('amqp:open:list')), 'A described list is missing.'],
    'a truncated descriptor': [bytes(0, 0x80, 0, 0, 0), 'A value is longer than what contains it.'],
    'a descriptor that is a string': [
      bytes(0, str('ab'), list8()),
      'A descriptor is not a ulong or a short symbol.',
    ],
    'a map instead of a list': [
      described(0x10, bytes(0xc1, 1, 0)),
      'A value of another type was sent instead of a described list.',
    ],
    'a list8 without its count': [
      bytes(0, smallUlong(1), 0xc0, 1),
      'A value is longer than what contains it.',
    ],
    'a list32 without its size': [
      bytes(0, smallUlong(1), 0xd0, 0, 0),
      'A value is longer than what contains it.',
    ],
    'a list32 without its count': [
      bytes(0, smallUlong(1), 0xd0, 0, 0, 0, 4, 0, 0),
      'A value is longer than what contains it.',
    ],
    'a size too small for the count': [
      bytes(0, smallUlong(1), 0xd0, 0, 0, 0, 3, 0, 0, 0, 0),
      'A size has no room for the count that follows it.',
    ],
    'a size of 0': [bytes(0, smallUlong(1), 0xc0, 0, 0), 'A size has no room for the count that follows it.'],
    'a size past the end': [
      bytes(0, smallUlong(1), 0xc0, 3, 1, 0x40),
      'A value is longer than what contains it.',
    ],
    'a size of 2^32-1': [
      bytes(0, smallUlong(1), 0xd0, 255, 255, 255, 255, 0, 0, 0, 0),
      'A value is longer than what contains it.',
    ],
    'a field fewer than the count': [bytes(0, smallUlong(1), 0xc0, 2, 2, 0x40), 'A value is missing.'],
    'a field more than the count': [
      bytes(0, smallUlong(1), 0xc0, 3, 1, 0x40, 0x40),
      'A list is longer than its fields.',
    ],
  };
  for (const [what, [given, message]] of Object.entries(wrong)) {
    it(`are rejected if there is ${what}`, () => {
      assert.deepEqual(refusals(given), new Set([message]));
    });
  }

  const cut: Readonly<Record<string, [Wire, (fields: FieldReader) => unknown]>> = {
    'an uint of one byte': [bytes(0x52), (fields) => fields.uint('x')],
    'an uint of four bytes': [bytes(0x70, 0, 0, 0), (fields) => fields.uint('x')],
    'an ushort': [bytes(0x60, 0), (fields) => fields.ushort('x')],
    'an ubyte': [bytes(0x50), (fields) => fields.ubyte('x')],
    'a boolean': [bytes(0x56), (fields) => fields.boolean('x')],
  };
  for (const [what, [value, read]] of Object.entries(cut)) {
    it(`are rejected if ${what} is cut off by the end of the list`, () => {
      const [message] = refusals(described(1, list8(value)), read);
      assert.match(message ?? '', /is incomplete|longer than/);
    });
  }

  it('are not read beyond the end of the list', () => {
    for (const read of [
      (fields: FieldReader) => fields.uint('x'),
      (fields: FieldReader) => fields.isAbsent,
      (fields: FieldReader) => fields.oneOf('x', 0x43),
    ]) {
      const given = bytes(0, smallUlong(1), 0xc0, 1, 1);
      assert.deepEqual(refusals(given, read), new Set(['A list has fewer fields than its count.']));
    }
  });

  it('are rejected if their type is wrong', () => {
    assert.throws(() => of(str('1')).uint('x'), /x is not of type uint/);
    assert.throws(() => of(uint(1)).ushort('x'), /x is not of type ushort/);
    assert.throws(() => of(uint(1)).ubyte('x'), /x is not of type ubyte/);
    assert.throws(() => of(uint(1)).boolean('x'), /x is not of type boolean/);
    assert.throws(() => of(bytes(0x56, 2)).boolean('x'), /A boolean is neither 0 nor 1/);
    assert.throws(() => of(str('x')).binary('x'), /x is not of type binary/);
    assert.throws(() => of(str('x')).oneOf('x', 0xa3, 0xb3), /x has a wrong type/);
    assert.throws(() => of(array8(0x50, bytes(1))).symbols('x'), /not a symbol/);
    of(array8(0xa3, bytes(1, 0x61))).symbols('x');
  });
});
