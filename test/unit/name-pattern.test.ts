import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { bySpecificity, conflictOf, likePattern, matches, ruleFor } from '../../src/util/name-pattern.ts';

const words = fc.string({ unit: fc.constantFrom('a', 'b', '*'), maxLength: 6 });
const names = fc.string({ unit: fc.constantFrom('a', 'b'), maxLength: 8 });

/** The reference: the same with a regular expression. */
function matchesByExpression(pattern: string, name: string): boolean {
  return new RegExp(`^${pattern.replaceAll('*', '.*')}$`, 's').test(name);
}

describe('Patterns of names', () => {
  it('match like the equivalent regular expression', () => {
    fc.assert(
      fc.property(words, names, (pattern, name) => {
        assert.equal(matches(pattern, name), matchesByExpression(pattern, name));
      }),
      { numRuns: 2000 },
    );
  });

  it('match every character except the star literally', () => {
    for (const [pattern, name, expected] of [
      ['a.c', 'abc', false],
      ['[ab]*', '[ab]c', true],
      ['100%*', '100% sure', true],
      ['*\n*', 'two\nlines', true],
      ['', '', true],
      ['', 'a', false],
    ] as const) {
      assert.equal(matches(pattern, name), expected, `${pattern} ${name}`);
    }
  });

  it('apply in the order of specificity: names first, then by the number of characters', () => {
    const rules = ['*', 'mails-*', 'm*', 'mails-urgent', '*-urgent'].map((pattern) => ({ pattern }));
    const sorted = bySpecificity(rules);
    const ruleOf = (name: string): string | undefined => ruleFor(sorted, name)?.pattern;
    assert.deepEqual(['mails-urgent', 'mails-1', 'my-urgent', 'more', 'other'].map(ruleOf), [
      'mails-urgent',
      'mails-*',
      '*-urgent',
      'm*',
      '*',
    ]);
    assert.equal(ruleFor([], 'a'), undefined);
  });

  it('conflict if they are equally specific and some name matches both', () => {
    assert.deepEqual(conflictOf(['a-*', 'x', '*-b']), ['a-*', '*-b']);
    assert.deepEqual(conflictOf(['a*', '*a']), ['a*', '*a']);
    assert.deepEqual(conflictOf(['a*b', 'ab*', '*']), ['a*b', 'ab*']);
    assert.equal(conflictOf(['a-*', 'b-*']), null, 'no name matches both');
    assert.equal(conflictOf(['mails-*', 'mails*', 'mails-1', 'mails-2']), null);
  });

  it('conflict if, and only if, they are equally specific and some name matches both', () => {
    // Long enough for the characters of both patterns.
    const all = Array.from({ length: 2 ** 11 }, (_, i) =>
      i.toString(2).slice(1).replaceAll('0', 'a').replaceAll('1', 'b'),
    );
    fc.assert(
      fc.property(words, words, (one, other) => {
        fc.pre(one !== other && one.includes('*') && other.includes('*'));
        fc.pre(one.replaceAll('*', '').length === other.replaceAll('*', '').length);
        const canMeet = all.some((name) => matches(one, name) && matches(other, name));
        assert.deepEqual(conflictOf([one, other]), canMeet ? [one, other] : null);
      }),
      { numRuns: 500 },
    );
  });

  it('are searched for conflicts without comparing each with all others', () => {
    const many = Array.from({ length: 2_000 }, (_, i) => `a queue of tenant ${10_000 + i}`);
    const before = process.threadCpuUsage();
    assert.equal(conflictOf([...many, ...many.map((name) => `${name}-*-jobs`)]), null);
    const { user } = process.threadCpuUsage(before);
    assert.ok(user < 1_000_000, `${user} µs of processor time`);
  });

  it('become LIKE patterns of SQL, with special characters escaped', () => {
    assert.equal(likePattern('50%_a\\b*'), '50\\%\\_a\\\\b%');
  });
});
