import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { Ids, idsFrom } from '../../src/engines/sqlite/worker/ids.ts';

describe('element ids of the SQLite engine', () => {
  const epochs = fc.integer({ min: 1, max: 2 ** 21 - 2 });
  const counters = fc.integer({ min: 0, max: 2 ** 32 - 2 });

  it('are parsed to the sequence number that they were made from, in this epoch and later ones', () => {
    fc.assert(
      fc.property(epochs, counters, (epoch, counter) => {
        const ids = new Ids([{ from: 0, text: 'abc123' }], epoch, counter);
        const seq = ids.next();
        const text = ids.format(seq);
        assert.match(text, /^[0-9a-z]+-[0-9a-z]+$/);
        assert.ok(text.length <= 32);
        assert.equal(ids.parse(text), seq);
        ids.startEpoch(epoch + 1);
        assert.equal(ids.format(seq), text);
        assert.equal(ids.parse(text), seq);
        assert.ok(ids.next() > seq);
      }),
    );
  });

  it('of consecutive numbers can be computed from the first one', () => {
    const fewer = fc.integer({ min: 0, max: 2 ** 32 - 1000 });
    fc.assert(
      fc.property(epochs, fewer, fc.integer({ min: 1, max: 100 }), (epoch, counter, count) => {
        const ids = new Ids([{ from: 0, text: 'abc123' }], epoch, counter);
        const first = ids.issue(count);
        const expected = Array.from({ length: count }, (_, i) => ids.format(first + i));
        assert.deepEqual(idsFrom(ids.format(first), count), expected);
      }),
    );
  });

  it('have exactly one spelling: no other string is parsed to the same number', () => {
    fc.assert(
      fc.property(epochs, counters, fc.string(), (epoch, counter, tail) => {
        const ids = new Ids([{ from: 0, text: 'abc123' }], epoch, counter);
        const text = ids.format(ids.next());
        const others = [
          text.toUpperCase(),
          `${text}0`,
          text.replace('-', '-0'),
          `abc1230${text.slice(6)}`,
          tail,
        ];
        for (const other of others) if (other !== text) assert.notEqual(ids.parse(other), ids.parse(text));
        assert.equal(ids.parse(text.replace('-', '-00')), null);
        assert.equal(new Ids([{ from: 0, text: 'abc124' }], epoch).parse(text), null);
      }),
    );
  });

  it('request a new epoch long before the counter is exhausted', () => {
    const fresh = new Ids([{ from: 0, text: 'abc123' }], 1);
    fresh.next();
    assert.equal(fresh.isNearlySpent, false);
    const spent = new Ids([{ from: 0, text: 'abc123' }], 1, 2 ** 32 - 2 ** 23);
    spent.next();
    assert.equal(spent.isNearlySpent, true);
    spent.startEpoch(2);
    assert.equal(spent.isNearlySpent, false);
  });
});
