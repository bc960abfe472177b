import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import {
  duration,
  flag,
  groups,
  nameOf,
  opaque,
  QueryReader,
  seconds,
  UnixTime,
  wholeNumber,
} from '../../src/http/parameters.ts';
import { QuaysideError } from '../../src/model/errors.ts';

const reader = new QueryReader({
  to: wholeNumber<number | null>('', { from: 0, to: 1_000_000, unit: 'milliseconds' }, null),
  delay: seconds('', duration(0), 0),
  mature: seconds('', UnixTime, null),
  reserve: flag(''),
  tid: nameOf('tid', ''),
  token: opaque(''),
  groups: groups(''),
});

describe('A query string', () => {
  it('that is empty yields the defaults, in one object shared by all requests', () => {
    assert.equal(reader.read(''), reader.read(''));
    assert.deepEqual(reader.read(''), {
      to: null,
      delay: 0,
      mature: null,
      reserve: false,
      tid: null,
      token: null,
      groups: null,
    });
  });

  it('of any characters is either read or rejected with a known error code', () => {
    const piece = fc.oneof(
      fc.constantFrom(
        'to',
        'delay',
        'mature',
        'reserve',
        'tid',
        'token',
        'groups',
        '=',
        '&',
        '%',
        '+',
        '%2',
        '%00',
      ),
      fc.constantFrom('1', '-1', '1e309', '.', 'NaN', '%C3%BC', '%FF', '__proto__', 'constructor', ',', ' '),
      fc.string({ maxLength: 4 }),
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), (pieces) => {
        try {
          reader.read(pieces.join(''));
        } catch (error) {
          assert.ok(error instanceof QuaysideError);
          assert.ok(['invalid-parameter', 'invalid-name', 'malformed-request'].includes(error.code));
        }
      }),
      { numRuns: 5_000 },
    );
  });

  it('returns each accepted name as it was before it was encoded', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'grapheme', minLength: 1, maxLength: 40 }),
        fc.boolean(),
        (tid, asForm) => {
          const encoded = asForm ? new URLSearchParams({ tid }).toString() : `tid=${encodeURIComponent(tid)}`;
          try {
            assert.equal(reader.read(encoded).tid, tid);
          } catch (error) {
            assert.ok(error instanceof QuaysideError && error.code === 'invalid-name', String(error));
          }
        },
      ),
      { numRuns: 2_000 },
    );
  });

  it('accepts exactly the whole numbers of the range, in decimal digits', () => {
    const near = fc.oneof(
      fc.integer({ min: -10, max: 1_000_010 }).map(String),
      fc.double().map(String),
      fc.string({ unit: fc.constantFrom(...'0123456789.-+eE'), maxLength: 20 }),
    );
    fc.assert(
      fc.property(near, (value) => {
        const isGood = /^[0-9]{1,16}$/.test(value) && Number(value) <= 1_000_000;
        const search = `to=${encodeURIComponent(value)}`;
        if (isGood) assert.equal(reader.read(search).to, Number(value));
        else assert.throws(() => reader.read(search), QuaysideError);
      }),
      { numRuns: 3_000 },
    );
  });

  it('converts seconds to the nearest millisecond', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 1_000_000_000 }), (ms) => {
        assert.equal(reader.read(`delay=${(ms / 1000).toFixed(3)}`).delay, ms);
      }),
    );
    assert.equal(reader.read('delay=0.0004').delay, 0);
    assert.equal(reader.read('delay=1.0005').delay, 1001);
  });

  it('accepts any number of digits in a fraction', () => {
    assert.equal(reader.read(`delay=${0.1 + 0.2}`).delay, 300);
    assert.equal(reader.read(`delay=0.${'9'.repeat(100)}`).delay, 1000);
    for (const value of ['.5', '5.', '1e-7', '0.5.5'])
      assert.throws(() => reader.read(`delay=${value}`), value);
  });
});
