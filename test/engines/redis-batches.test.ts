import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Move } from '../../src/engine/old-port.ts';
import { newElement, newElements } from '../support/elements.ts';
import { StubbedStorage } from './redis-stub.ts';
import { ANSWERED_MS, inTime, passTo, refusalOf, turns } from './redis-time.ts';

const [HERE, THERE] = [
  { ns: 'jobs', name: 'here' },
  { ns: 'jobs', name: 'dead' },
];
const FINISH = { id: '0123456789ab000000000001', group: '', token: null };
const FAILED = { ...FINISH, delayMs: 0, countTry: true };
const ENTRY = { id: Buffer.alloc(24), to: 'jobs/dead', packed: Buffer.alloc(0) };

const move = (from: Move['from'], queue: Move['from']): Move[] => [
  { from, finish: FINISH, inserts: [{ queue, element: newElement({ body: 'copy' }) }] },
];

describe('Batches of the Redis engine on a cluster', () => {
  let stub: StubbedStorage;

  beforeEach(() => {
    stub = new StubbedStorage();
  });

  afterEach(async () => {
    await passTo(stub.clock, stub.stop());
    assert.equal(stub.clock.pending, 0);
  });

  const reply = async (verb: string, ...parcels: Parameters<ReturnType<typeof stub.take>['reply']>) => {
    stub.take(verb).reply(...parcels);
    await turns();
  };

  it('of two queues that send to each other do not wait for each other', async () => {
    const { storage } = stub;
    const failing = storage.rollback(HERE, [FAILED]);
    const moving = storage.transfer(move(THERE, HERE));
    await turns();
    // The rollback was the last one that the element had: it goes to the queue which moves one the other way.
    stub.take('rollback').reply([ENTRY]);
    await turns();
    await reply('move');
    await reply('accept');
    assert.deepEqual(await Promise.all([failing, moving]), [['done'], ['done']]);
    await reply('delivered');
    await reply('struck');
  });

  it('go on while what one of them sent elsewhere does not arrive; its caller has an answer in time', async () => {
    const { storage, clock } = stub;
    const moving = storage.transfer(move(HERE, THERE));
    await turns();
    await reply('move', [ENTRY]);
    const inserting = storage.insert(HERE, newElements('next'));
    await turns();
    await reply('insert');
    await inserting;
    assert.deepEqual(await inTime(clock, [moving.then(String)]), ['done']);
  });

  it('that never end do not keep their calls, nor those behind them, from an answer', async () => {
    const { storage, clock } = stub;
    const first = refusalOf(storage.insert(HERE, newElements('a')));
    await turns();
    const behind = [storage.insert(HERE, newElements('b')), storage.sizes(HERE), storage.purge(HERE)];
    assert.deepEqual(await inTime(clock, [first, ...behind.map(refusalOf)]), []);
    const after = storage.insert(HERE, newElements('c'));
    await turns();
    stub.sent.splice(0, stub.sent.length - 1);
    await reply('insert');
    assert.equal((await after).length, 1, 'the queue is not stuck');
  });

  it('never share a number, though the server was away, the queue idle, and used again', async () => {
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
    assert.equal(await refusalOf(storage.insert(HERE, newElements('refused'))), 'storage-unavailable');
    stub.isReachable = true;
    const late = storage.insert(HERE, newElements('b'));
    await turns();
    const slow = stub.take('insert');
    // The queue was idle for this long, had it not been used again.
    clock.advance(3_000);
    await turns();
    for (const bye of stub.sent.splice(0)) bye.reply();
    await turns();
    const next = storage.insert(HERE, newElements('c'));
    await turns();
    assert.deepEqual(stub.sent, [], 'what is called now waits for the batch before it');
    slow.reply();
    await turns();
    const { number } = stub.sent[0] ?? assert.fail();
    assert.ok(number > slow.number);
    await reply('insert');
    await Promise.all([late, next]);
    assert.ok(clock.monotonic() <= ANSWERED_MS);
  });
});
