import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { UserLimit, type UserLimits } from '../../src/util/user-limit.ts';

const TOO_MANY = new Error('too many');

const limitOf = (limits: UserLimits): UserLimit => new UserLimit(limits, () => TOO_MANY);

describe('A limit per user and in total', () => {
  it('rejects a call above the limit of its user or above the total, until another call has ended', () => {
    const limit = limitOf({ total: 3, perUser: 2 });
    for (const user of ['ann', 'ann', 'ben']) limit.enter(user);
    assert.throws(() => limit.enter('ann'), TOO_MANY);
    assert.throws(() => limit.enter('ben'), TOO_MANY);
    limit.exit('ann');
    limit.enter('ben');
    assert.throws(() => limit.enter('ann'), TOO_MANY);
    assert.equal(limit.total, 3);
  });

  it('admits a first call of each user even if the total is reached, but not above the limit per user', () => {
    const limit = limitOf({ total: 4, perUser: 2 });
    for (const user of ['ann', 'ann', 'ben', 'ben']) limit.enter(user);
    limit.enter('cleo', 2);
    assert.throws(() => limit.enter('dan', 3), TOO_MANY);
    limit.exit('cleo', 2);
    limit.enter('cleo');
    assert.throws(() => limit.enter('cleo'), TOO_MANY);
  });

  it('admits the guaranteed number of calls of each user, by default a thousandth of the total', () => {
    for (const [guaranteed, limits] of [
      [5, { total: 5_000, perUser: 2_500 }],
      [20, { total: 5_000, perUser: 2_500, guaranteed: 20 }],
    ] as const) {
      const limit = limitOf(limits);
      limit.enter('ann', 2_500);
      limit.enter('ben', 2_500);
      for (let i = 0; i < guaranteed; i += 1) limit.enter('cleo');
      assert.throws(() => limit.enter('cleo'), TOO_MANY);
    }
  });
});
