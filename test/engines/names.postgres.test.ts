import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DatabaseClock } from '../../src/engines/postgres/database-clock.ts';
import { Names } from '../../src/engines/postgres/names.ts';
import { systemClock } from '../../src/model/clock.ts';

describe('The queues that a PostgreSQL engine remembers', () => {
  it('are one object for one name', () => {
    const names = new Names([], new DatabaseClock(systemClock));
    assert.equal(names.queue({ ns: 'a', name: 'q' }), names.queue({ ns: 'a', name: 'q' }));
    assert.notEqual(names.queue({ ns: 'a', name: 'q' }), names.queue({ ns: 'b', name: 'q' }));
  });

  it('do not grow with names that do not exist, and stay while they were just read or are in use', () => {
    const clock = new DatabaseClock(systemClock);
    clock.see(0);
    const names = new Names([], clock);
    const existing = names.queue({ ns: 'a', name: 'existing' });
    existing.id = 1;
    existing.readAt = clock.now;
    const unused = names.queue({ ns: 'a', name: 'unused' });
    unused.id = 2;
    const used = names.queue({ ns: 'a', name: 'used' });
    const idle = names.queue({ ns: 'a', name: 'idle' });
    names.prune(() => new Set());
    assert.equal(names.queue({ ns: 'a', name: 'idle' }), idle, 'a few are no burden');
    for (let index = 0; index < 10_000; index++) names.queue({ ns: 'a', name: `asked ${index}` });
    names.prune(() => new Set([used]));
    assert.equal(names.queue({ ns: 'a', name: 'existing' }), existing);
    assert.equal(names.queue({ ns: 'a', name: 'used' }), used);
    assert.notEqual(names.queue({ ns: 'a', name: 'idle' }), idle);
    assert.notEqual(names.queue({ ns: 'a', name: 'unused' }), unused, 'its number is read again anyway');
  });
});
