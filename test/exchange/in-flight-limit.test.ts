import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { InFlightLimit } from '../../src/exchange/in-flight-limit.ts';

describe('The limit of bytes that exchanges have in flight', () => {
  const limited = () => {
    const limit = new InFlightLimit(100);
    const entered: string[] = [];
    return {
      limit,
      entered,
      enter: (owner: string, name: string, bytes: number): void => {
        void limit.enter(owner, bytes).then(() => entered.push(name));
      },
      leave: async (owner: string, bytes: number): Promise<void> => {
        limit.leave(owner, bytes);
        await turn();
      },
    };
  };
  const turn = (): Promise<void> => new Promise(setImmediate);

  it('gives a user half of it, and the rest in order as their batches leave', async () => {
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
    assert.deepEqual(entered, ['a', 'b'], 'the small one does not pass the one before it');
    await leave('user', 25);
    assert.deepEqual(entered, ['a', 'b', 'c', 'd']);
  });

  it('always lets in a user who has nothing in flight, however much others hold and wait for', async () => {
    const { entered, enter, leave } = limited();
    for (let i = 0; i < 30; i += 1) enter('evil', 'evil', 25);
    enter('honest', 'honest', 25);
    await turn();
    enter('third', 'third', 25);
    await turn();
    assert.deepEqual(entered, ['evil', 'evil', 'honest', 'third']);
    enter('honest', 'second', 25);
    await leave('honest', 25);
    assert.deepEqual(entered, ['evil', 'evil', 'honest', 'third', 'second']);
  });

  it('has one batch at a time that is more than a quarter of it, in addition to others', async () => {
    const { entered, enter, leave } = limited();
    enter('user', 'small', 25);
    enter('user', 'large', 1000);
    enter('user', 'behind', 1);
    enter('other', 'large too', 26);
    enter('third', 'small too', 25);
    await turn();
    assert.deepEqual(entered, ['small', 'large', 'behind', 'small too']);
    await leave('user', 1000);
    assert.deepEqual(entered, ['small', 'large', 'behind', 'small too', 'large too']);
  });
});
