import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Budget } from '../../src/exchange/budget.ts';

describe('The budget of bytes that exchanges share', () => {
  const entering = (budget: Budget, entered: string[], name: string, bytes: number): void => {
    void budget.enter(bytes).then(() => entered.push(name));
  };
  const turn = (): Promise<void> => new Promise(setImmediate);

  it('lets in whoever has room, and the others in their turn', async () => {
    const budget = new Budget(100);
    const entered: string[] = [];
    for (const [name, bytes] of [
      ['a', 60],
      ['b', 50],
      ['c', 10],
    ] as const) {
      entering(budget, entered, name, bytes);
    }
    await turn();
    assert.deepEqual(entered, ['a'], 'the small one does not pass the one before it');
    budget.leave(60);
    await turn();
    assert.deepEqual(entered, ['a', 'b', 'c']);
  });

  it('lets in alone what is more than all of it', async () => {
    const budget = new Budget(100);
    const entered: string[] = [];
    entering(budget, entered, 'small', 1);
    entering(budget, entered, 'huge', 1000);
    entering(budget, entered, 'next', 1);
    await turn();
    assert.deepEqual(entered, ['small']);
    budget.leave(1);
    await turn();
    assert.deepEqual(entered, ['small', 'huge']);
    budget.leave(1000);
    await turn();
    assert.deepEqual(entered, ['small', 'huge', 'next']);
  });
});
