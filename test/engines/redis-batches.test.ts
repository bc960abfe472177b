import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { unknownOutcome } from '../../src/engine/calls.ts';
import type { Reply } from '../../src/engines/redis/client/connection.ts';
import { newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { rollback, type Transfer, transfer } from '../support/settle.ts';
import { ANSWERED_MS, inTime, settledOf, turns } from './fake-time.ts';
import { entryFor, olderFor, StubbedStorage } from './redis-stub.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

const [HERE, THERE] = [
  { ns: 'jobs', name: 'here' },
  { ns: 'jobs', name: 'dead' },
];
const FINISH = { id: '0123456789ab000000000001', group: '', token: null };
const FAILED = { ...FINISH, delayMs: 0, countTry: true };

const move = (from: Transfer['from'], queue: Transfer['from']): Transfer[] => [
  { from, finish: FINISH, inserts: [{ queue, element: newElement({ body: 'copy' }) }] },
];

describe('Batches of the Redis engine on a cluster', () => {
  let stub: StubbedStorage;

  beforeEach(() => {
    stub = new StubbedStorage();
  });

  afterEach(() => {
    stub.stop();
    assert.equal(stub.clock.pending, 0);
  });

  const reply = async (verb: string, outbox: readonly Reply[] = []): Promise<void> => {
    stub.take(verb).reply(outbox);
    await turns();
  };

  it('of a sweep do not wait for outbox relays, so that an unreachable destination delays no other queue', async () => {
    const { storage } = stub;
    stub.due = [HERE];
    const sweeping = storage.sweep();
    await turns();
    await reply('sweep', [entryFor('jobs/dead', 1)]);
    assert.deepEqual(await settledOf([sweeping]), [true]);
    await reply('apply');
    await reply('acknowledge');
  });

  it('of two queues that move elements to each other do not deadlock', async () => {
    const { storage } = stub;
    const failing = rollback(storage, HERE, [FAILED]);
    const moving = transfer(storage, move(THERE, HERE));
    await turns();
    // The rollback exhausts the element's tries: it moves to the queue whose element moves the other way.
    stub.take('settle').reply([entryFor('jobs/dead', 1)]);
    await turns();
    await reply('settle', [entryFor('jobs/here', 1)]);
    await reply('apply');
    await reply('apply');
    assert.deepEqual(await Promise.all([failing, moving]), [['done'], ['done']]);
    await reply('acknowledge');
    await reply('acknowledge');
    assert.deepEqual(stub.sent, []);
  });

  it('continue while an outbox entry cannot be applied, and the call that moved the element settles in time', async () => {
    const { storage, clock } = stub;
    const moving = transfer(storage, move(HERE, THERE));
    await turns();
    await reply('settle', [entryFor('jobs/dead', 1)]);
    const inserting = storage.insert(HERE, newElements('next'));
    await turns();
    await reply('insert');
    await inserting;
    assert.deepEqual(await inTime(clock, [moving.then(String)]), ['done']);
  });

  it('have their outbox entries applied in order: a later one waits until the source has deleted the earlier one', async () => {
    const { storage } = stub;
    const first = transfer(storage, move(HERE, THERE));
    await turns();
    await reply('settle', [entryFor('jobs/dead', 1)]);
    const second = transfer(storage, move(HERE, THERE));
    await turns();
    await reply('settle', [olderFor('jobs/dead', 2)]);
    const applying = stub.sent.filter(({ verbs }) => verbs.includes('apply'));
    assert.equal(applying.length, 1, 'one at a time');
    await reply('apply');
    assert.deepEqual(await first, ['done']);
    assert.deepEqual(await settledOf([second]), [false]);
    await reply('acknowledge', [entryFor('jobs/dead', 2)]);
    await reply('apply');
    assert.deepEqual(await second, ['done']);
    await reply('acknowledge');
  });

  it('have an outbox entry that could not be applied relayed again a second later', async () => {
    const { storage, clock } = stub;
    const moving = transfer(storage, move(HERE, THERE));
    await turns();
    await reply('settle', [entryFor('jobs/dead', 1)]);
    stub.take('apply');
    clock.advance(ANSWERED_MS);
    assert.deepEqual(await moving, ['done'], 'the source has finished the element, which cannot be undone');
    await turns();
    clock.advance(1_000);
    await turns();
    await reply('acknowledge', [entryFor('jobs/dead', 1)]);
    await reply('apply');
    await reply('acknowledge');
  });

  it('have entries for an unavailable server relayed at growing intervals, one attempt at a time, however many calls add some', async () => {
    const { storage, clock } = stub;
    const attempts: number[] = [];
    const transfers: Promise<unknown>[] = [];
    for (let second = 0; second < 60; second++) {
      transfers.push(transfer(storage, move(HERE, THERE)));
      await turns();
      await reply('settle', [second === 0 ? entryFor('jobs/dead', 1) : olderFor('jobs/dead', second + 1)]);
      clock.advance(1_000);
      await turns();
      assert.ok(stub.sent.length <= 1);
      for (const { verbs, reply: answer } of stub.sent.splice(0)) {
        if (verbs.includes('apply')) attempts.push(second);
        else answer([entryFor('jobs/dead', 1)]);
      }
      await turns();
    }
    assert.ok(attempts.length >= 5 && attempts.length <= 8, `attempts after ${attempts} s`);
    for (let second = 0; second < 5; second++) {
      clock.advance(1_000);
      await turns();
    }
    await Promise.all(transfers);
  });

  it('retain no elements of calls that settled at their deadline while their outbox entries wait for a server', async () => {
    const { storage, clock } = stub;
    const elements: WeakRef<object>[] = [];
    for (let i = 1; i <= 20; i++) {
      const [moved] = move(HERE, THERE);
      assert.ok(moved);
      for (const { element } of moved.inserts) elements.push(new WeakRef(element));
      const moving = transfer(storage, [moved]);
      await turns();
      await reply('settle', [i === 1 ? entryFor('jobs/dead', 1) : olderFor('jobs/dead', i)]);
      if (i === 1) stub.take('apply');
      clock.advance(ANSWERED_MS);
      assert.deepEqual(await moving, ['done']);
      await turns();
      for (const { verbs, reply: answer } of stub.sent.splice(0)) {
        if (!verbs.includes('apply')) answer([entryFor('jobs/dead', 1)]);
      }
    }
    clock.advance(10 * ANSWERED_MS);
    await turns();
    collectGarbage();
    const kept = elements.filter((element) => element.deref() !== undefined);
    assert.ok(kept.length <= 1, `${kept.length} are kept`);
  });

  it('that are not sent, since registering the queue has an unknown outcome, say that nothing was changed', async () => {
    stub.isDeclared = false;
    const registering = Promise.withResolvers<void>();
    stub.registering = registering.promise;
    const inserting = stub.storage.insert(HERE, newElements('a'));
    await turns();
    registering.reject(unknownOutcome(new Error('asked for by a test')));
    await assert.rejects(inserting, {
      code: 'storage-unavailable',
      message: /^A step before the call failed; nothing was changed\.$/,
    });
    assert.equal(stub.sent.length, 0);
  });

  it('that never get a reply do not prevent their calls, or later ones, from settling in time', async () => {
    const { storage, clock } = stub;
    const first = codeOf(storage.insert(HERE, newElements('a')));
    await turns();
    const behind = [storage.insert(HERE, newElements('b')), storage.counts(HERE), storage.purge(HERE)];
    assert.deepEqual(await inTime(clock, [first, ...behind.map(codeOf)]), []);
    const after = storage.insert(HERE, newElements('c'));
    await turns();
    stub.sent.splice(0, stub.sent.length - 1);
    await reply('insert');
    assert.equal((await after).length, 1, 'the queue is not stuck');
  });

  it('stay in flight until the last deadline of their calls: one that expires does not fail the others', async () => {
    const { storage, clock } = stub;
    stub.unanswered = 'outcome-unknown';
    const hurried = codeOf(storage.insert(HERE, newElements('a'), { leftMs: 1_000 }));
    const others = [storage.insert(HERE, newElements('b')), storage.purge(HERE)].map(codeOf);
    await turns();
    clock.advance(1_000);
    assert.equal(await hurried, 'outcome-unknown');
    await turns();
    assert.deepEqual(await settledOf(others), [false, false]);
    clock.advance(ANSWERED_MS);
    await Promise.all(others);
  });

  it('include reads between changes, so that a status read costs no round trip of its own', async () => {
    const { storage } = stub;
    const first = storage.insert(HERE, newElements('first'));
    await turns();
    const behind: Promise<unknown>[] = [];
    for (let i = 0; i < 100; i++) {
      behind.push(storage.insert(HERE, newElements('next')), storage.counts(HERE));
    }
    await reply('insert');
    assert.deepEqual(
      stub.sent.map(({ verbs }) => verbs.join()),
      [Array.from({ length: 100 }, () => 'insert,counts').join()],
    );
    await reply('counts');
    await Promise.all([first, ...behind]);
  });

  it('count the copies of elements that are moved: Redis serves nobody else while it stores them', async () => {
    const { storage } = stub;
    const first = storage.insert(HERE, newElements('first'));
    await turns();
    const [{ finish }] = move(HERE, THERE) as [Transfer];
    const inserts = Array.from({ length: 600 }, () => ({ queue: THERE, element: newElement({}) }));
    const moves = [1, 2].map(() => transfer(storage, [{ from: HERE, finish, inserts }]));
    await reply('insert');
    await reply('settle');
    assert.deepEqual(await settledOf(moves), [true, false]);
    await reply('settle');
    await Promise.all([first, ...moves]);
  });

  it('that fail do not fail the reads in them: those are sent again on their own', async () => {
    const { storage } = stub;
    const inserting = codeOf(storage.insert(HERE, newElements('a')));
    const counting = storage.counts(HERE);
    await turns();
    stub.take('insert').fail();
    await turns();
    assert.equal(await inserting, 'outcome-unknown');
    assert.deepEqual(
      stub.sent.map(({ verbs, number }) => [verbs, number]),
      [[['counts'], 0]],
    );
    await reply('counts');
    assert.equal((await counting).ready, 0);
  });

  it('of relays that fail do not fail the reads in them, either', async () => {
    const { storage } = stub;
    const first = storage.counts(THERE, '');
    void transfer(storage, move(HERE, THERE));
    await turns();
    await reply('settle', [entryFor('jobs/dead', 1)]);
    const counting = storage.counts(THERE);
    await reply('counts');
    await first;
    const relayed = stub.take('apply');
    assert.deepEqual(relayed.verbs, ['apply', 'counts']);
    relayed.fail();
    await turns();
    await reply('counts');
    assert.equal((await counting).ready, 0);
  });

  it('reject a read that expires with storage-unavailable, and a change with outcome-unknown', async () => {
    const { storage, clock } = stub;
    stub.unanswered = 'outcome-unknown';
    const outcomes = [storage.insert(HERE, newElements('a')), storage.counts(HERE)].map(codeOf);
    await turns();
    clock.advance(4_500);
    assert.deepEqual(await Promise.all(outcomes), ['outcome-unknown', 'storage-unavailable']);
  });

  it('are sent without calls that have already expired', async () => {
    const { storage, clock } = stub;
    const registering = Promise.withResolvers<void>();
    stub.isDeclared = false;
    stub.registering = registering.promise;
    const hurried = codeOf(storage.insert(HERE, newElements('a'), { leftMs: 1_000 }));
    const other = rollback(storage, HERE, [FAILED]);
    await turns();
    clock.advance(1_000);
    assert.equal(await hurried, 'storage-unavailable');
    registering.resolve();
    await turns();
    assert.deepEqual(
      stub.sent.map(({ verbs }) => verbs),
      [['settle']],
    );
    await reply('settle');
    assert.deepEqual(await other, ['done']);
  });

  it('make the server undo takes of expired calls, and only those', async () => {
    const { storage, clock } = stub;
    stub.unanswered = 'outcome-unknown';
    const take = { group: '', count: 1, leaseMs: null } as const;
    const hurried = codeOf(storage.take(HERE, { ...take, leftMs: 1_000 }));
    const taking = storage.take(HERE, take);
    const inserting = storage.insert(HERE, newElements('b'));
    await turns();
    clock.advance(1_000);
    assert.equal(await hurried, 'outcome-unknown');
    const { number } = stub.sent[0] ?? assert.fail();
    stub.ready = 2;
    await reply('take');
    assert.equal((await inserting).length, 1);
    const { deliveries } = await taking;
    assert.deepEqual(
      deliveries.map(({ id }) => id),
      ['0123456789ab0000000002'],
    );
    const { received, returned } = stub.take('settle-session');
    assert.equal(received, number);
    assert.deepEqual(returned, [number, 1, 1]);
  });

  it('repeat the takes to undo until the server has replied to a later batch', async () => {
    const { storage, clock } = stub;
    const take = { group: '', count: 1, leaseMs: null } as const;
    const hurried = codeOf(storage.take(HERE, { ...take, leftMs: 1_000 }));
    const counting = storage.counts(HERE);
    await turns();
    clock.advance(1_000);
    assert.equal(await hurried, 'storage-unavailable');
    stub.ready = 1;
    await reply('take');
    await counting;
    const first = stub.take('settle-session');
    first.fail();
    await turns();
    clock.advance(500);
    await turns();
    const second = stub.take('settle-session');
    assert.ok(second.number > first.number);
    assert.deepEqual(second.returned, first.returned);
    second.reply();
    await turns();
    const inserting = storage.insert(HERE, newElements('a'));
    await turns();
    const third = stub.take('insert');
    assert.deepEqual(third.returned, []);
    third.reply();
    await inserting;
  });

  it('are followed by a call that settles the outcome of a lost one, half a second later, however often the queue is counted', async () => {
    const { storage, clock } = stub;
    stub.unanswered = 'outcome-unknown';
    const lost = codeOf(storage.take(HERE, { group: '', count: 1, leaseMs: null }));
    await turns();
    stub.take('take');
    clock.advance(4_500);
    assert.equal(await lost, 'outcome-unknown');
    for (let passed = 0; passed < 500; passed += 100) {
      const counting = storage.counts(HERE);
      await turns();
      await reply('counts');
      await counting;
      clock.advance(100);
    }
    await turns();
    await reply('settle-session');
  });

  it('never share a number, although the server was unavailable and the queue was idle and used again', async () => {
    const { storage, clock } = stub;
    const insert = async (body: string): Promise<void> => {
      const inserting = storage.insert(HERE, newElements(body));
      await turns();
      await reply('insert');
      await inserting;
    };
    await insert('a');
    clock.advance(2_000);
    stub.isReachable = false;
    assert.equal(await codeOf(storage.insert(HERE, newElements('rejected'))), 'storage-unavailable');
    stub.isReachable = true;
    const late = storage.insert(HERE, newElements('b'));
    await turns();
    const slow = stub.take('insert');
    // So long after the first insert, the queue would be forgotten as idle if it had not been used again.
    clock.advance(3_000);
    await turns();
    for (const other of stub.sent.splice(0)) other.reply();
    await turns();
    const next = storage.insert(HERE, newElements('c'));
    await turns();
    assert.deepEqual(stub.sent, [], 'a new call waits for the batch in flight');
    slow.reply();
    await turns();
    const { number } = stub.sent[0] ?? assert.fail();
    assert.ok(number > slow.number);
    await reply('insert');
    await Promise.all([late, next]);
    assert.ok(clock.monotonic() <= ANSWERED_MS);
  });

  it('have larger numbers than all earlier ones after a queue was idle', async () => {
    const { storage, clock } = stub;
    const numbers: number[] = [];
    for (const queue of [HERE, THERE, HERE]) {
      const inserting = storage.insert(queue, newElements('a'));
      await turns();
      numbers.push(stub.sent[0]?.number ?? 0);
      await reply('insert');
      await inserting;
      clock.advance(10_000);
      await turns();
    }
    assert.deepEqual(
      numbers.toSorted((a, b) => a - b),
      numbers,
    );
    assert.equal(new Set(numbers).size, numbers.length);
  });
});

describe('A call of the Redis engine that takes several requests', () => {
  it('settles within the time left of its deadline after an earlier wait', async () => {
    const stub = new StubbedStorage();
    const { storage, clock } = stub;
    const time = { leftMs: 1_000 };
    const unanswered = [
      codeOf(storage.insert(HERE, newElements('a'), time)),
      codeOf(
        storage.settle([{ ...FINISH, queue: THERE, from: 'reserved', action: { kind: 'finish' } }], time),
      ),
    ];
    await turns();
    const unsent = codeOf(storage.insert(HERE, newElements('b'), time));
    const other = codeOf(storage.insert(HERE, newElements('c')));
    stub.unanswered = 'outcome-unknown';
    clock.advance(1_000);
    await turns();
    assert.deepEqual(await Promise.all(unanswered), ['outcome-unknown', 'outcome-unknown']);
    assert.equal(await unsent, 'storage-unavailable');
    assert.deepEqual(await settledOf([other]), [false]);
    stub.stop();
  });

  it('settles in time, however late the replies to its first requests are', async () => {
    const stub = new StubbedStorage();
    const { storage, clock } = stub;
    const first = Promise.withResolvers<void>();
    stub.registering = first.promise;
    const calls = [codeOf(storage.declare([HERE], {})), codeOf(storage.drop(THERE))];
    await turns();
    clock.advance(4_000);
    first.resolve();
    stub.registering = new Promise(() => {});
    stub.take('counts').reply();
    await turns();
    stub.take('options');
    clock.advance(ANSWERED_MS - 4_000);
    await turns();
    assert.deepEqual(await settledOf(calls), [true, true]);
    stub.stop();
  });
});
