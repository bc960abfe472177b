import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ConcurrencyLimit } from '../../src/util/concurrency-limit.ts';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

function limit(perKey: number, total?: number, maxWaiting = 10, guaranteed = 0): ConcurrencyLimit {
  const rejection = (): Error => new Error('too much waits');
  const all = total === undefined ? {} : { total };
  return new ConcurrencyLimit({ perKey, maxWaiting, rejection, guaranteed, ...all });
}

/** Enters under each key in turn, and returns the keys that are in, in order, with what ends each. */
function enterAll(of: ConcurrencyLimit, keys: readonly string[]): { key: string; leave: () => void }[] {
  const entered: { key: string; leave: () => void }[] = [];
  for (const key of keys) void of.enter(key).then((leave) => entered.push({ key, leave }));
  return entered;
}

describe('A limit of work in progress', () => {
  it('starts work of one key in order, and does not let it delay other keys', async () => {
    const entered = enterAll(limit(1), ['a', 'a', 'b', 'a']);
    await turn();
    assert.deepEqual(
      entered.map(({ key }) => key),
      ['a', 'b'],
    );
    entered[0]?.leave();
    await turn();
    assert.deepEqual(
      entered.map(({ key }) => key),
      ['a', 'b', 'a'],
    );
  });

  it('takes work that counts nothing, and starts it behind what waits of its key', async () => {
    const of = limit(1);
    const none = await of.enter('a', { size: 0 });
    const one = await of.enter('a');
    one();
    none();
    const entered = enterAll(of, ['a', 'a']);
    const started: string[] = [];
    void of.enter('a', { size: 0 }).then(() => started.push('a'));
    void of.enter('b', { size: 0 }).then(() => started.push('b'));
    await turn();
    assert.deepEqual(started, ['b']);
    entered[0]?.leave();
    await turn();
    assert.deepEqual(started, ['b', 'a']);
  });

  it('bounds the work of all keys together', async () => {
    const entered = enterAll(limit(2, 3), ['a', 'a', 'b', 'c', 'a']);
    await turn();
    assert.equal(entered.length, 3);
    // The first that waits is of another key than the one that ended.
    entered[2]?.leave();
    await turn();
    assert.deepEqual(
      entered.map(({ key }) => key),
      ['a', 'a', 'b', 'c'],
    );
  });

  it('gives a free place to the key that has the least in progress, however much of others waits', async () => {
    const entered = enterAll(limit(2, 4), ['a', 'a', 'b', 'b', 'a', 'b', 'a', 'c']);
    await turn();
    entered[0]?.leave();
    await turn();
    assert.deepEqual(
      entered.slice(4).map(({ key }) => key),
      ['c'],
    );
    entered[2]?.leave();
    await turn();
    // Both have one: in the order in which they came.
    assert.deepEqual(
      entered.slice(5).map(({ key }) => key),
      ['a'],
    );
  });

  it('lets what is guaranteed to a key start although others have reached the bound of all', async () => {
    const entered = enterAll(limit(2, 2, 10, 1), ['a', 'a', 'b', 'b', 'c']);
    await turn();
    assert.deepEqual(
      entered.map(({ key }) => key),
      ['a', 'a', 'b', 'c'],
    );
    const [a, , b, c] = entered;
    a?.leave();
    c?.leave();
    await turn();
    assert.equal(entered.length, 4, 'two are in progress');
    b?.leave();
    await turn();
    assert.deepEqual(entered.at(-1)?.key, 'b');
  });

  it('rejects work at once if too much of its key waits, or if it does not wait', async () => {
    const of = limit(1, undefined, 1);
    const leave = await of.enter('a');
    const waiting = of.run('a', async () => 'done');
    await assert.rejects(of.enter('a'), /too much waits/);
    await assert.rejects(
      of.run('a', async () => {}, { maxWaiting: 0 }),
      /too much waits/,
    );
    assert.equal(await of.run('b', async () => 'other', { maxWaiting: 0 }), 'other');
    leave();
    assert.equal(await waiting, 'done');
    assert.equal(await of.run('a', async () => 'again', { maxWaiting: 0 }), 'again');
  });

  it('gives back a place once, also of work that fails', async () => {
    const of = limit(1);
    await assert.rejects(
      of.run('a', () => Promise.reject(new Error('failed'))),
      /failed/,
    );
    const leave = await of.enter('a');
    const entered = enterAll(of, ['a', 'a']);
    leave();
    leave();
    await turn();
    assert.equal(entered.length, 1);
  });
});
