import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { purgeSteps } from '../../src/engines/postgres/verbs/purge.ts';

describe('The steps of a purge', () => {
  it('leave no gap for what matures or is given back between two of them', () => {
    assert.deepEqual(purgeSteps(['ready', 'scheduled', 'reserved']), ['waiting', 'reserved', 'waiting']);
    assert.deepEqual(purgeSteps(['scheduled', 'ready']), ['waiting']);
  });

  it('are the states themselves where only some were asked for, each once', () => {
    assert.deepEqual(purgeSteps(['ready', 'reserved', 'ready']), ['ready', 'reserved']);
    assert.deepEqual(purgeSteps([]), []);
  });
});
