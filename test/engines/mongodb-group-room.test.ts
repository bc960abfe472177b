import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { GroupRoom } from '../../src/engines/mongodb/group-room.ts';

const POLICY = { name: 's', groups: ['default'], deadLetter: null, retentionMs: null, maxGroups: 3 };
const QUEUE = { ns: 's', name: 'q' };
const TOO_MANY = { code: 'too-many-groups' };

describe('The room for groups on MongoDB', () => {
  let stored: string[];
  let questions: number;
  let now: number;
  let room: GroupRoom;

  beforeEach(() => {
    stored = [];
    questions = 0;
    now = 0;
    const read = async (): Promise<string[]> => {
      questions += 1;
      return stored;
    };
    room = new GroupRoom([POLICY, { ...POLICY, name: 'plain', groups: null }], {
      read,
      monotonic: () => now,
    });
  });

  const admit = async (...groups: string[]): Promise<void> => {
    await room.admit(QUEUE, [{ groups }]);
  };

  it('asks nothing for default groups, for plain queues and for groups that it let in before', async () => {
    assert.equal(room.admit(QUEUE, [{ groups: ['default'] }]), null);
    assert.equal(room.admit({ ns: 'plain', name: 'q' }, [{ groups: [''] }]), null);
    await admit('a', 'b');
    assert.equal(room.admit(QUEUE, [{ groups: ['b', 'default'] }]), null);
    assert.equal(questions, 1);
  });

  it('refuses what would make one more, and the default groups never', async () => {
    stored = ['a', 'b', 'default'];
    await admit('c');
    await assert.rejects(admit('d'), TOO_MANY);
    await admit('c', 'default');
  });

  it('refuses without a question what even an empty queue may not have', async () => {
    await assert.rejects(admit('a', 'b', 'c', 'd'), TOO_MANY);
    assert.equal(questions, 0);
  });

  it('asks again where it seems full, once a second, and lets new groups in for those that have gone', async () => {
    await admit('a', 'b', 'c');
    now = 999;
    await assert.rejects(admit('d'), TOO_MANY);
    assert.equal(questions, 1);
    stored = ['a'];
    now = 1000;
    await admit('d', 'e');
    await assert.rejects(admit('f'), TOO_MANY);
    assert.equal(questions, 2);
  });
});
