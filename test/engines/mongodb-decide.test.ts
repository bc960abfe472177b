import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { SettleItem } from '../../src/engines/mongodb/call.ts';
import type { DeliveryHead } from '../../src/engines/mongodb/documents.ts';
import { Policies } from '../../src/engines/mongodb/policies.ts';
import { type Decision, decide, lapsed } from '../../src/engines/mongodb/verbs/decide.ts';

const NOW = Date.UTC(2026, 0, 1);
const QUEUE = { ns: 'jobs', name: 'a' };
const POLICIES = new Policies([
  { name: 'jobs', groups: null, deadLetter: { maxTries: 3, queue: 'dead' }, retentionMs: null },
]);

function head(fields: Partial<DeliveryHead> = {}): DeliveryHead {
  return {
    _id: 'x',
    id: 'x',
    ns: 'jobs',
    queue: 'a',
    group: '',
    state: 'waiting',
    at: new Date(NOW - 1000),
    tries: 0,
    op: 'before',
    token: null,
    bytes: 1,
    ...fields,
  };
}

const held = (fields: Partial<DeliveryHead> = {}): DeliveryHead =>
  head({ state: 'reserved', token: 'mine', until: new Date(NOW + 1), ...fields });
/** Its lease has ended, and nobody has written so yet. */
const over = (): DeliveryHead => held({ until: new Date(NOW) });
/** The same after housekeeping. */
const returned = (): DeliveryHead => head({ token: 'mine', tries: 1 });

function settled(of: DeliveryHead | null, item: Partial<SettleItem> & Pick<SettleItem, 'verb'>): unknown {
  const decision = decision1(of, item);
  return decision.kind === 'letter' ? 'letter' : decision.settled;
}

function decision1(
  of: DeliveryHead | null,
  item: Partial<SettleItem> & Pick<SettleItem, 'verb'>,
  queue = QUEUE,
): Decision {
  const whole = { id: 'x', group: '', token: null, delayMs: 0, countTry: true, leaseMs: 5000, ...item };
  return decide(of, queue, whole as SettleItem, NOW, POLICIES);
}

describe('What becomes of a delivery that a call names', () => {
  it('depends on its being there, in this queue and group, and not gone', () => {
    for (const verb of ['commit', 'rollback', 'extend', 'remove'] as const) {
      assert.equal(settled(null, { verb }), 'not-found');
      assert.equal(settled(head({ state: 'gone' }), { verb }), 'not-found');
      assert.equal(settled(held({ queue: 'b' }), { verb }), 'not-found');
      assert.equal(settled(held({ ns: 'other' }), { verb }), 'not-found');
      // An id that was made to look like the `_id` of a group's delivery.
      assert.equal(settled(held({ _id: 'x/g', id: 'x', group: 'g' }), { verb, id: 'x/g' }), 'not-found');
    }
  });

  const table: [
    SettleItem['verb'],
    string | null,
    [wait: string, held: unknown, over: string, back: string],
  ][] = [
    ['commit', null, ['not-reserved', 'done', 'done', 'done']],
    ['commit', 'mine', ['lease-lost', 'done', 'done', 'done']],
    ['commit', 'older', ['lease-lost', 'lease-lost', 'lease-lost', 'lease-lost']],
    ['rollback', null, ['not-reserved', 'done', 'not-reserved', 'not-reserved']],
    ['rollback', 'mine', ['lease-lost', 'done', 'lease-lost', 'lease-lost']],
    ['extend', null, ['not-reserved', { until: NOW + 5000 }, 'not-reserved', 'not-reserved']],
    ['extend', 'older', ['lease-lost', 'lease-lost', 'lease-lost', 'lease-lost']],
    ['remove', null, ['done', 'reserved', 'done', 'done']],
  ];
  for (const [verb, token, expected] of table) {
    it(`${verb} with ${token === null ? 'no token' : `token "${token}"`} goes by the lease`, () => {
      const states = [head(), held(), over(), returned()];
      assert.deepEqual(
        states.map((state) => settled(state, { verb, token })),
        expected,
      );
    });
  }

  it('changes only what is still as it was read', () => {
    for (const verb of ['commit', 'rollback', 'extend'] as const) {
      const decision = decision1(held(), { verb });
      assert.ok(decision.kind === 'change');
      assert.equal(decision.change._id, 'x');
      assert.equal(decision.change.readOp, 'before');
    }
  });

  it('is a wait for its delay after a rollback, with one more try and no token', () => {
    const decision = decision1(held({ tries: 1 }), { verb: 'rollback', delayMs: 10.5 });
    assert.ok(decision.kind === 'change');
    assert.deepEqual(decision.change.set, {
      state: 'waiting',
      at: new Date(NOW + 11),
      tries: 2,
      token: null,
    });
    assert.deepEqual(decision.change.unset, ['until']);
  });

  it('is its old place after a rollback that counts no try, unless that asks for a delay', () => {
    const back = decision1(held(), { verb: 'rollback', countTry: false });
    const later = decision1(held(), { verb: 'rollback', countTry: false, delayMs: 7 });
    assert.ok(back.kind === 'change' && later.kind === 'change');
    assert.deepEqual([back.change.set.at, back.change.set.tries], [new Date(NOW - 1000), 0]);
    assert.deepEqual([later.change.set.at, later.change.set.tries], [new Date(NOW + 7), 0]);
  });

  it('is the dead-letter queue after the last try, but not from that queue itself', () => {
    const last = held({ tries: 2 });
    assert.equal(settled(last, { verb: 'rollback' }), 'letter');
    assert.equal(settled(last, { verb: 'rollback', countTry: false }), 'done');
    assert.equal(settled(held({ tries: 1 }), { verb: 'rollback' }), 'done');
    const dead = { ns: 'jobs', name: 'dead' };
    assert.equal(decision1(held({ tries: 99, queue: 'dead' }), { verb: 'rollback' }, dead).kind, 'change');
  });

  it('is a wait from the end of a lease that ran out, with its token for a late commit', () => {
    const until = new Date(NOW - 5);
    assert.deepEqual(lapsed(held({ tries: 1, until }), until), {
      _id: 'x',
      readOp: 'before',
      set: { state: 'waiting', at: until, tries: 2 },
      unset: ['until'],
    });
  });
});
