import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { PendingLimit } from '../../src/engine/calls.ts';

const MIB = 1024 * 1024;

describe('The limit of pending calls', () => {
  it('admits calls until the server has been unreachable for two seconds', () => {
    const limit = new PendingLimit();
    for (const downMs of [0, 1, 2_000]) assert.equal(limit.rejection(downMs), null);
    assert.equal(limit.rejection(2_001)?.code, 'storage-unavailable');
  });

  it('bounds the bytes of pending calls, more tightly without a connection', () => {
    const limit = new PendingLimit();
    limit.add(16 * MIB);
    assert.equal(limit.rejection(1)?.code, 'storage-unavailable');
    assert.equal(limit.rejection(0), null);
    limit.add(48 * MIB);
    assert.equal(limit.rejection(0)?.code, 'storage-unavailable');
    limit.remove(48 * MIB);
    assert.equal(limit.rejection(0), null);
    limit.remove(16 * MIB);
    assert.equal(limit.rejection(1), null);
  });

  it('counts calls without elements, too', () => {
    const limit = new PendingLimit();
    let calls = 0;
    while (limit.rejection(1) === null) {
      limit.add(0);
      calls += 1;
    }
    assert.ok(calls > 30_000 && calls < 40_000, `${calls} calls`);
  });
});
