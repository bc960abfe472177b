import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type BatchInFlight, InFlightLimit } from '../../src/exchange/in-flight-limit.ts';

describe('The limit on bytes that exchanges have in flight', () => {
  const limited = () => {
    const limit = new InFlightLimit(100);
    const entered: string[] = [];
    const inFlight = new Map<string, BatchInFlight>();
    return {
      entered,
      enter: (owner: string, name: string, bytes: number, exchange = `exchange of ${name}`): void => {
        void limit.enter({ key: exchange, owner }, bytes).then((batch) => {
          entered.push(name);
          inFlight.set(name, batch);
        });
      },
      grow: (name: string, bytes: number): void => inFlight.get(name)?.grow(bytes),
      leave: async (name: string): Promise<void> => {
        inFlight.get(name)?.leave();
        await turn();
      },
    };
  };
  const turn = (): Promise<void> => new Promise(setImmediate);

  it('gives half of it to one user, whose other batches enter in order as earlier ones leave', async () => {
    const { entered, enter, leave } = limited();
    for (const [name, bytes] of [
      ['a', 25],
      ['b', 25],
      ['c', 20],
      ['d', 1],
    ] as const) {
      enter('user', name, bytes);
    }
    await turn();
    assert.deepEqual(entered, ['a', 'b'], 'a small batch does not overtake an earlier one');
    await leave('a');
    assert.deepEqual(entered, ['a', 'b', 'c', 'd']);
  });

  it('never admits a batch that would exceed the half of its user or, unless it is the first of its user, the whole', async () => {
    const { entered, enter, leave } = limited();
    enter('user', 'a', 24);
    enter('user', 'b', 24);
    enter('user', 'c', 24);
    await turn();
    assert.deepEqual(entered, ['a', 'b'], '72 of 100 bytes would be more than a half');
    enter('other', 'd', 24);
    enter('other', 'e', 24);
    enter('third', 'f', 2);
    enter('third', 'g', 3);
    await turn();
    assert.deepEqual(entered, ['a', 'b', 'd', 'e', 'f'], '101 bytes would be more than all');
    await leave('a');
    assert.deepEqual(entered, ['a', 'b', 'd', 'e', 'f', 'g']);
    await leave('d');
    assert.deepEqual(entered, ['a', 'b', 'd', 'e', 'f', 'g', 'c']);
  });

  it('always admits a user with nothing in flight, however much others hold and wait for', async () => {
    const { entered, enter, leave } = limited();
    for (let i = 0; i < 30; i += 1) enter('evil', 'evil', 25, `evil ${i}`);
    enter('honest', 'honest', 25);
    await turn();
    enter('third', 'third', 25);
    enter('fourth', 'fourth', 25);
    await turn();
    const first = ['evil', 'evil', 'honest', 'third', 'fourth'];
    assert.deepEqual(entered, first);
    enter('honest', 'second', 25);
    await leave('honest');
    assert.deepEqual(entered, [...first, 'second']);
  });

  it('admits one batch at a time that exceeds a quarter of it, in addition to others', async () => {
    const { entered, enter, leave } = limited();
    enter('user', 'small', 25);
    enter('user', 'large', 1000);
    enter('user', 'behind', 1);
    enter('other', 'large too', 26);
    enter('third', 'small too', 25);
    await turn();
    assert.deepEqual(entered, ['small', 'large', 'behind', 'small too']);
    await leave('large');
    assert.deepEqual(entered, ['small', 'large', 'behind', 'small too', 'large too']);
  });

  it('gives a quarter to one exchange, so that another one of the user has its turn before all batches of the first', async () => {
    const { entered, enter, leave } = limited();
    enter('user', 'other', 25, 'A');
    for (const name of ['a', 'b', 'c']) enter('user', name, 20, 'B');
    enter('user', 'd', 20, 'C');
    await turn();
    assert.deepEqual(entered, ['other', 'a']);
    await leave('other');
    assert.deepEqual(entered, ['other', 'a', 'd'], 'the user may have ten bytes more, and B five');
    await leave('a');
    assert.deepEqual(entered, ['other', 'a', 'd', 'b']);
  });

  it('always admits small batches of an exchange, up to a thousandth, whatever others have', async () => {
    const limit = new InFlightLimit(1024 * 100);
    const enter = (key: string, bytes: number): BatchInFlight | null =>
      limit.tryEnter({ key, owner: 'user' }, bytes);
    for (const key of ['A', 'B']) assert.ok(enter(key, 1024 * 25));
    assert.equal(enter('C', 1024), null, 'the user has a half');
    const small = enter('C', 100);
    assert.ok(small);
    assert.equal(enter('C', 1), null);
    assert.ok(enter('D', 100));
    small.leave();
    assert.ok(enter('C', 1));
  });

  it('counts bytes that selectors add to a batch until the batch leaves', async () => {
    const { entered, enter, grow, leave } = limited();
    enter('user', 'a', 1);
    await turn();
    grow('a', 60);
    enter('user', 'b', 1);
    enter('other', 'c', 20);
    enter('third', 'd', 20);
    await turn();
    enter('other', 'e', 1);
    await turn();
    assert.deepEqual(entered, ['a', 'c', 'd']);
    await leave('a');
    assert.deepEqual(entered, ['a', 'c', 'd', 'b', 'e']);
  });
});
