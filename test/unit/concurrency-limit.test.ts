import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ConcurrencyLimit } from '../../src/util/concurrency-limit.ts';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

function limit(perKey: number, total?: number, maxWaiting = 10, guaranteed = 0): ConcurrencyLimit {
  const rejection = (): Error => new Error('too much waits');
  const all = total === undefined ? {} : { total };
  return new ConcurrencyLimit({ perKey, maxWaiting, rejection, guaranteed, ...all });
}

/** Enters once per key. Returns the keys that were admitted, in order, each with the function that ends its work. */
function enterAll(of: ConcurrencyLimit, keys: readonly string[]): { key: string; leave: () => void }[] {
  const entered: { key: string; leave: () => void }[] = [];
  for (const key of keys) void of.enter(key).then((leave) => entered.push({ key, leave }));
  return entered;
}

describe('A concurrency limit', () => {
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

  it('admits work of size 0, but behind the waiting work of its key', async () => {
    const limited = limit(1);
    const none = await limited.enter('a', { size: 0 });
    const one = await limited.enter('a');
    one();
    none();
    const entered = enterAll(limited, ['a', 'a']);
    const started: string[] = [];
    void limited.enter('a', { size: 0 }).then(() => started.push('a'));
    void limited.enter('b', { size: 0 }).then(() => started.push('b'));
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
    // The first waiting call has another key than the one that ended.
    entered[2]?.leave();
    await turn();
    assert.deepEqual(
      entered.map(({ key }) => key),
      ['a', 'a', 'b', 'c'],
    );
  });

  it('gives a free slot to the key with the least work in progress, however much other work waits', async () => {
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
    // Both keys have one call in progress, so the order of arrival decides.
    assert.deepEqual(
      entered.slice(5).map(({ key }) => key),
      ['a'],
    );
  });

  it('starts the guaranteed work of a key although other keys have used up the total', async () => {
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

  it('rejects work immediately if too much work of its key waits, or if it may not wait', async () => {
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

  it('counts running work of varying size, which starts others when it shrinks', async () => {
    const limited = limit(10, 15);
    const resize = limited.track('a');
    resize(4);
    assert.equal(limited.isFull('a'), false);
    resize(12);
    assert.deepEqual([limited.isFull('a'), limited.isFull('b')], [true, false]);
    const entered = enterAll(limited, ['a']);
    await turn();
    assert.equal(entered.length, 0);
    resize(9);
    await turn();
    assert.equal(entered.length, 1);
    resize(0);
    entered[0]?.leave();
    await limited.idle();
  });

  it('does not start a task that has given up waiting', async () => {
    const limited = limit(1);
    const leave = await limited.enter('a');
    let giveUp = (): void => {};
    const onWait = (cancel: () => void): void => {
      giveUp = cancel;
    };
    void limited.enter('a', { onWait }).then(() => assert.fail('it started'));
    giveUp();
    leave();
    await limited.idle();
    const again = limited.tryEnter('a');
    giveUp();
    assert.notEqual(again, null);
  });

  it('frees a slot once, also if the work fails', async () => {
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
