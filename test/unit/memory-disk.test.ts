import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { memoryDiskOf } from '../support/memory-disk.ts';

describe('The file system in memory of the tests', () => {
  it('is not used if less memory is free than it may fill, however large it is', (t) => {
    t.mock.method(process, 'availableMemory', () => 2);
    assert.equal(memoryDiskOf(3), null);
  });
});
