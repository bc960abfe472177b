import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { didYouMean, nearestName } from '../../src/util/did-you-mean.ts';
import { quote } from '../../src/util/quote.ts';

describe('A value that an error message quotes', () => {
  it('is quoted completely up to 64 characters', () => {
    assert.equal(quote('dealy'), '"dealy"');
    assert.equal(quote('x'.repeat(64)), `"${'x'.repeat(64)}"`);
    assert.equal(quote('𝄞'.repeat(64)), `"${'𝄞'.repeat(64)}"`);
  });

  it('is truncated after 64 characters, never within one', () => {
    assert.equal(quote('x'.repeat(65)), `"${'x'.repeat(64)}"…`);
    assert.equal(quote(`x${'𝄞'.repeat(1000)}`), `"x${'𝄞'.repeat(63)}"…`);
    assert.equal(quote('x'.repeat(10_000_000)), `"${'x'.repeat(64)}"…`);
  });

  it('is escaped if it could mislead a terminal, a log or a page', () => {
    assert.equal(quote('a"b\\c\n\u001b[31m'), '"a\\"b\\\\c\\n\\u001b[31m"');
    assert.equal(
      quote('\u007f\u0085\u202e\u2028\u200b\ud800'),
      '"\\u007f\\u0085\\u202e\\u2028\\u200b\\ud800"',
    );
    assert.equal(quote('\u{e0041}'), '"\\u{e0041}"');
    assert.equal(quote('Müller ☃'), '"Müller ☃"');
  });

  it('is named by its kind if it is an object or an array, and shown as it is otherwise', () => {
    assert.deepEqual([quote({ a: 1 }), quote([1]), quote(null)], ['an object', 'an array', 'null']);
    assert.deepEqual([quote({}), quote([])], ['an empty object', 'an empty array']);
    assert.deepEqual([quote(1.5), quote(true), quote(undefined)], ['1.5', 'true', 'undefined']);
  });
});

describe('The suggestion for a misspelled name', () => {
  const known = ['delay', 'reserve', 'to', 'tid', 'selector'];

  it('is a name that differs by case, by one letter or by two swapped ones', () => {
    for (const [slip, meant] of [
      ['Delay', 'delay'],
      ['dealy', 'delay'],
      ['dlay', 'delay'],
      ['delayy', 'delay'],
      ['reserv', 'reserve'],
      ['RESERV', 'reserve'],
      ['selectr', 'selector'],
      ['TO', 'to'],
    ] as const) {
      assert.equal(nearestName(slip, known), meant, slip);
    }
    assert.equal(didYouMean('dealy', known), ' Did you mean "delay"?');
  });

  it('is a name below the minimum length of the caller only if just the case differs', () => {
    assert.equal(nearestName('too', known, 4), null);
    assert.equal(nearestName('TID', known, 4), 'tid');
    assert.equal(nearestName('dealy', known, 4), 'delay');
  });

  it('is a name that differs only in case rather than another one', () => {
    assert.equal(nearestName('TIP', ['tid', 'tip']), 'tip');
  });

  it('is missing if two letters differ', () => {
    assert.equal(nearestName('deal', ['reserve']), null);
    assert.equal(nearestName('daley', known), null);
    assert.equal(didYouMean('priority', known), '');
  });
});
