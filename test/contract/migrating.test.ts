import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, it } from 'node:test';
import { MigratingStorage } from '../../src/broker/migrating-storage.ts';
import { unavailable, unknownOutcome } from '../../src/engine/calls.ts';
import type { Storage } from '../../src/engine/storage.ts';
import type { Delivery, ElementId } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { type JoinedEngines, migratingEngine, openJoined } from '../engines/migrating.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { commit, rollback, transfer } from '../support/settle.ts';
import { byToken, DEAD_LETTERS, MAX_TRIES, NAMESPACES, type Reserved } from './fixture.ts';
import { batchContract } from './storage/batch.ts';
import { browseContract } from './storage/browse.ts';
import { insertContract } from './storage/insert.ts';
import { requestKeyContract } from './storage/request-key.ts';
import { scanContract } from './storage/scan.ts';
import { settleContract } from './storage/settle.ts';
import { takeContract } from './storage/take.ts';
import { transferContract } from './storage/transfer.ts';
import { undoTakeContract } from './storage/undo-take.ts';
import { storageContract } from './storage.ts';

const DAY_MS = 24 * 3_600_000;

const UNAVAILABLE = unavailable('The store is not reachable now.', new Error('test'));

const NEW = migratingEngine('new');
const OLD = migratingEngine('old');

describe('Storage port: migrating, elements in the new engine', () => {
  batchContract(NEW.open);
  insertContract(NEW.open);
  requestKeyContract(NEW);
});

describe('Storage port: migrating, elements in the old engine', () => {
  takeContract(OLD.open);
  settleContract(OLD.open);
  transferContract(OLD.open);
  undoTakeContract(OLD.open);
  browseContract(OLD.open);
  scanContract(OLD);
});

// The whole contract opens hundreds of engines.
if (process.env.MIGRATING_CONTRACT === 'whole') {
  storageContract(NEW);
  storageContract(OLD, false);
}

describe('a queue in two engines', () => {
  let engines: JoinedEngines;
  let queues = 0;
  const newQueue = (ns = 'plain'): QueueKey => ({ ns, name: `queue ${++queues}` });
  before(async () => {
    engines = await openJoined({ namespaces: NAMESPACES });
  });
  after(() => engines.close());

  const old = (): Storage => engines.from.storage;
  const pop = async (
    queue: QueueKey,
    count: number,
    storage: Storage = engines.storage,
  ): Promise<Delivery[]> => (await storage.take(queue, { group: '', count, leaseMs: null })).deliveries;
  const reserveOne = async (queue: QueueKey): Promise<Reserved> => {
    const { deliveries } = await engines.storage.take(queue, { group: '', count: 1, leaseMs: 60_000 });
    return deliveries[0] as Reserved;
  };
  const sizes = async (queue: QueueKey): Promise<[old: number, next: number]> => {
    const counts = await Promise.all([old().counts(queue), engines.to.storage.counts(queue)]);
    const [a = 0, b = 0] = counts.map(({ ready, scheduled, reserved }) => ready + scheduled + reserved);
    return [a, b];
  };

  it('stores new elements in the new engine and delivers those of the old one first', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a', 'b', 'c'));
    await engines.storage.insert(queue, newElements('d', 'e', 'f'));
    assert.deepEqual(await sizes(queue), [3, 3]);
    assert.equal((await engines.storage.counts(queue)).ready, 6);
    assert.deepEqual(bodyTexts(await pop(queue, 2)), ['a', 'b']);
    assert.deepEqual(bodyTexts(await pop(queue, 3)), ['c', 'd', 'e']);
    assert.deepEqual(bodyTexts(await pop(queue, 3)), ['f']);
  });

  it('names the consumer of each reservation, whichever engine has the element', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a'));
    await engines.storage.insert(queue, newElements('b', 'c'));
    const tids = ['first', 'second', 'third'];
    await engines.storage.take(queue, { group: '', count: 3, leaseMs: 60_000, tids });
    const states = ['reserved'] as const;
    const page = await engines.storage.scan(queue, {
      group: '',
      states,
      after: null,
      limit: 9,
      bodies: false,
    });
    assert.deepEqual(
      page.deliveries.map(({ holder }) => holder?.tid),
      tids,
    );
  });

  it('settles an element in its own engine: one rolled back in the old engine is delivered before those in the new one', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('first'));
    await engines.storage.insert(queue, newElements('second'));
    const [first, second] = [await reserveOne(queue), await reserveOne(queue)];
    assert.deepEqual(bodyTexts([first, second]), ['first', 'second']);
    const rollbacks = [first, second].map((reserved) => ({
      ...byToken(reserved),
      delayMs: 0,
      countTry: true,
    }));
    assert.deepEqual(await rollback(engines.storage, queue, rollbacks), ['done', 'done']);
    assert.deepEqual(await sizes(queue), [1, 1]);
    const again = [await reserveOne(queue), await reserveOne(queue)];
    assert.deepEqual(bodyTexts(again), ['first', 'second']);
    assert.deepEqual(
      again.map(({ tries }) => tries),
      [1, 1],
    );
    assert.deepEqual(await commit(engines.storage, queue, again.map(byToken)), ['done', 'done']);
    assert.deepEqual(await sizes(queue), [0, 0]);
  });

  it('returns the elements of an undone pop to their engines and places', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a', 'b'));
    await engines.storage.insert(queue, newElements('c'));
    await engines.storage.undoTake(queue, await pop(queue, 3));
    assert.deepEqual(await sizes(queue), [2, 1]);
    assert.deepEqual(bodyTexts(await pop(queue, 3)), ['a', 'b', 'c']);
  });

  it('recognizes dedup keys that the old engine has seen, and stores only the other elements', async () => {
    const queue = newQueue();
    const element = (body: string, dedupKey: string, fingerprint: string | null) =>
      newElement({ body, dedupKey, fingerprint });
    const [known, bare] = await old().insert(queue, [element('a', 'known', 'A'), element('b', 'bare', null)]);
    const repeats: [number, boolean][] = [];
    const insert = (...elements: ReturnType<typeof element>[]): Promise<ElementId[]> =>
      engines.storage.insert(queue, elements, { onRepeat: (...repeat) => repeats.push(repeat) });
    const given = [element('new', 'new', 'N'), element('a', 'known', 'A'), element('b', 'bare', 'B')];
    const ids = await insert(...given);
    assert.deepEqual(ids.slice(1), [known, bare]);
    assert.deepEqual(repeats.splice(0), [
      [1, true],
      [2, true],
    ]);
    assert.deepEqual(await sizes(queue), [2, 1]);
    assert.deepEqual(await insert(...given), ids);
    assert.equal(repeats.splice(0).length, 3);
    assert.deepEqual(await insert(element('more', 'more', 'M'), element('other', 'known', 'O')), []);
    assert.deepEqual(repeats, [[1, false]]);
    assert.deepEqual(await sizes(queue), [2, 1]);
  });

  it('recognizes a request key that the old engine has seen, as a repeat of all its elements', async () => {
    const queue = newQueue();
    const elements = newElements('a', 'b');
    const request = { key: ':user:k', fingerprint: 'same content' };
    const first = await old().insert(queue, elements, { request });
    const repeats: [number, boolean][] = [];
    const onRepeat = (...repeat: [number, boolean]): void => void repeats.push(repeat);
    assert.deepEqual(await engines.storage.insert(queue, elements, { request, onRepeat }), first);
    assert.deepEqual(repeats.splice(0), [
      [0, true],
      [1, true],
    ]);
    const other = { ...request, fingerprint: 'other content' };
    assert.deepEqual(await engines.storage.insert(queue, newElements('c'), { request: other, onRepeat }), []);
    assert.deepEqual(repeats.splice(0), [[0, false]]);
    assert.deepEqual(await sizes(queue), [2, 0]);
    const unseen = { ...request, key: ':user:new' };
    const ids = await engines.storage.insert(queue, elements, { request: unseen, onRepeat });
    assert.deepEqual(await sizes(queue), [2, 2]);
    assert.deepEqual(await engines.storage.insert(queue, elements, { request: unseen, onRepeat }), ids);
    assert.equal(repeats.length, 2);
    assert.deepEqual(await sizes(queue), [2, 2]);
  });

  it('does not let an insert overtake an earlier one whose dedup key is still being looked up', async () => {
    const queue = newQueue();
    const calls = [
      engines.storage.insert(queue, [newElement({ body: 'keyed', dedupKey: 'k' })]),
      engines.storage.insert(queue, newElements('plain')),
    ];
    const taken = pop(queue, 2);
    await Promise.all(calls);
    assert.deepEqual(bodyTexts(await taken), ['keyed', 'plain']);
  });

  describe('when an element of the old engine is transferred', () => {
    let from: QueueKey;
    let to: QueueKey;
    let element: Reserved;
    /** Its old engine rejects the first attempt to finish the element as unavailable. */
    let storage: MigratingStorage;

    beforeEach(async () => {
      [from, to] = [newQueue(), newQueue()];
      await old().insert(from, newElements('source'));
      let fails = true;
      const failing = override(old(), {
        settle: (items) => {
          if (!fails || items[0]?.action.kind !== 'finish') return old().settle(items);
          fails = false;
          return Promise.reject(UNAVAILABLE);
        },
      });
      storage = new MigratingStorage({ from: failing, to: engines.to.storage });
      element = await reserveOne(from);
    });

    const move = (body: string): ReturnType<typeof transfer> => {
      const inserts = [{ queue: to, element: newElement({ body }) }];
      return transfer(storage, [{ from, finish: byToken(element), inserts }]);
    };

    it('stores the copies in the new engine once, even if the element could not be finished at first', async () => {
      await assert.rejects(move('copy'), { code: 'storage-unavailable' });
      assert.deepEqual(await sizes(from), [1, 0]);
      assert.deepEqual(await move('copy'), ['done']);
      assert.deepEqual(await sizes(from), [0, 0]);
      assert.deepEqual(await sizes(to), [0, 1]);
    });

    it('stores different copies in addition to those of an attempt that could not finish the element', async () => {
      await assert.rejects(move('copy'), { code: 'storage-unavailable' });
      assert.deepEqual(await move('other'), ['done']);
      assert.deepEqual(bodyTexts(await pop(to, 3)), ['copy', 'other']);
    });
  });

  describe('when two elements are committed in one call, one of them with a copy', () => {
    /** Reserves two elements, then commits both in one call, the second with a copy. */
    const commitBoth = async (storage: MigratingStorage, from: QueueKey, to: QueueKey) => {
      const inserts = [{ queue: to, element: newElement({ body: 'copy' }) }];
      const [first, second] = [await reserveOne(from), await reserveOne(from)];
      return transfer(storage, [
        { from, finish: byToken(first), inserts: [] },
        { from, finish: byToken(second), inserts },
      ]);
    };

    it('keeps both elements if the copy could not be stored', async () => {
      const [from, to] = [newQueue(), newQueue()];
      await old().insert(from, newElements('a', 'b'));
      const insert = () => Promise.reject(UNAVAILABLE);
      const storage = new MigratingStorage({ from: old(), to: override(engines.to.storage, { insert }) });
      await assert.rejects(commitBoth(storage, from, to), { code: 'storage-unavailable' });
      assert.deepEqual(await sizes(from), [2, 0]);
      assert.deepEqual(await sizes(to), [0, 0]);
    });

    it('keeps the element of the old engine if the new engine failed', async () => {
      const [from, to] = [newQueue(), newQueue()];
      await old().insert(from, newElements('a'));
      await engines.storage.insert(from, newElements('b'));
      const settle = () => Promise.reject(UNAVAILABLE);
      const storage = new MigratingStorage({ from: old(), to: override(engines.to.storage, { settle }) });
      await assert.rejects(commitBoth(storage, from, to), { code: 'storage-unavailable' });
      assert.deepEqual(await sizes(from), [1, 1]);
      assert.deepEqual(await sizes(to), [0, 0]);
    });

    it('fails with outcome-unknown if the new engine succeeded and the old one did not', async () => {
      const [from, to] = [newQueue(), newQueue()];
      await old().insert(from, newElements('a'));
      await engines.storage.insert(from, newElements('b'));
      const failing = override(old(), {
        settle: (items) =>
          items[0]?.action.kind === 'finish' ? Promise.reject(UNAVAILABLE) : old().settle(items),
      });
      const storage = new MigratingStorage({ from: failing, to: engines.to.storage });
      await assert.rejects(commitBoth(storage, from, to), { code: 'outcome-unknown' });
      assert.deepEqual(await sizes(from), [1, 0]);
      assert.deepEqual(await sizes(to), [0, 1]);
    });
  });

  it('delivers elements of the old engine if the new one is unavailable, but returns them if the outcome in the new one is unknown', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a', 'b'));
    for (const [failure, expected] of [
      [unknownOutcome(new Error('test')), null],
      [UNAVAILABLE, ['a', 'b']],
    ] as const) {
      const failing = override(engines.to.storage, { take: () => Promise.reject(failure) });
      const storage = new MigratingStorage({ from: old(), to: failing });
      const take = storage.take(queue, { group: '', count: 3, leaseMs: null });
      if (expected === null) await assert.rejects(take, { code: 'outcome-unknown' });
      else {
        const { deliveries, isLeft } = await take;
        // `isLeft`: a consumer that shares this take and got nothing must receive the failure, not a timeout.
        assert.deepEqual([bodyTexts(deliveries), isLeft], [expected, true]);
      }
      assert.deepEqual(await sizes(queue), [expected === null ? 2 : 0, 0]);
    }
  });

  it('gets the elements of an undone pop back once, even if one engine failed at first and the call is repeated', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a'));
    await engines.storage.insert(queue, newElements('b'));
    let isUnavailable = true;
    const to = override(engines.to.storage, {
      undoTake: (...given) =>
        isUnavailable ? Promise.reject(UNAVAILABLE) : engines.to.storage.undoTake(...given),
    });
    const storage = new MigratingStorage({ from: old(), to });
    const popped = await pop(queue, 2, storage);
    await assert.rejects(storage.undoTake(queue, popped), { code: 'storage-unavailable' });
    assert.deepEqual(bodyTexts(await pop(queue, 2)), ['a']);
    isUnavailable = false;
    await storage.undoTake(queue, popped);
    assert.deepEqual(bodyTexts(await pop(queue, 2)), ['b']);
  });

  it('delivers popped elements that cannot be returned, even beyond maxBytes', async () => {
    const queue = newQueue();
    const undoTake = () => Promise.reject(UNAVAILABLE);
    await old().insert(queue, newElements('a'));
    const from = override(old(), { undoTake });
    const failingTo = override(engines.to.storage, {
      take: () => Promise.reject(unknownOutcome(UNAVAILABLE)),
    });
    assert.deepEqual(bodyTexts(await pop(queue, 2, new MigratingStorage({ from, to: failingTo }))), ['a']);

    await old().insert(queue, newElements('b'));
    await engines.storage.insert(queue, newElements('too large'));
    const storage = new MigratingStorage({ from: old(), to: override(engines.to.storage, { undoTake }) });
    const options = { group: '', count: 2, leaseMs: null, maxBytes: 3 };
    assert.deepEqual(bodyTexts((await storage.take(queue, options)).deliveries), ['b', 'too large']);
    assert.deepEqual(await sizes(queue), [0, 0]);
  });

  it('is scanned state by state, the old engine first in each', async () => {
    const queue = newQueue();
    const delayed = (body: string) => newElement({ body, delayMs: 60_000 });
    await old().insert(queue, [delayed('c'), ...newElements('a')]);
    await engines.storage.insert(queue, [delayed('d'), ...newElements('b')]);
    const bodies: string[] = [];
    let cursor: string | null = null;
    do {
      const options = { group: '', states: ['ready', 'scheduled'], limit: 1, bodies: true } as const;
      const { deliveries, next }: Awaited<ReturnType<Storage['scan']>> = await engines.storage.scan(queue, {
        ...options,
        after: cursor,
      });
      assert.equal(deliveries.length, 1);
      bodies.push(...bodyTexts(deliveries));
      cursor = next;
    } while (cursor !== null);
    assert.deepEqual(bodies, ['a', 'b', 'c', 'd']);
    assert.equal(await engines.storage.drop(queue), false);
    assert.deepEqual(await engines.storage.purge(queue), { removed: 4, isDone: true });
    assert.equal(await engines.storage.drop(queue), true);
    assert.ok(!(await engines.storage.queues('plain')).includes(queue.name));
  });

  it('continues a scan whose first page was read before the migration, each element once', async () => {
    const queue = newQueue();
    const delayed = (body: string, delayMs: number) => newElement({ body, delayMs });
    await old().insert(queue, [...newElements('a', 'b'), delayed('d', 1_000), delayed('e', 2_000)]);
    await engines.to.storage.insert(queue, newElements('c'));
    const options = { group: '', states: ['ready', 'scheduled'], bodies: true } as const;
    const rests = [1, 3].map(async (limit) => {
      const { next } = await old().scan(queue, { ...options, after: null, limit });
      return bodyTexts(
        (await engines.storage.scan(queue, { ...options, after: next, limit: 10 })).deliveries,
      );
    });
    assert.deepEqual(await Promise.all(rests), [['b', 'c', 'd', 'e'], ['e']]);
  });

  it('is forgotten by both engines together with the definition of an ended pause', async () => {
    const queue = newQueue();
    const flag = JSON.stringify([queue.ns, queue.name]);
    await engines.storage.declare([queue]);
    for (const { definitions } of [engines.from, engines.to]) {
      await definitions.put('queue', flag, { paused: false }, 'any');
    }
    engines.clock.advance(2 * DAY_MS);
    await engines.storage.sweep();
    for (const { definitions } of [engines.from, engines.to]) {
      assert.equal(await definitions.get('queue', flag), null);
    }
  });

  it('fails with outcome-unknown if a purge or a drop changed one engine and not the other', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a'));
    const fails = () => Promise.reject(UNAVAILABLE);
    const purging = new MigratingStorage({ from: old(), to: override(engines.to.storage, { purge: fails }) });
    await assert.rejects(purging.purge(queue), { code: 'outcome-unknown' });
    await assert.rejects(purging.purge(queue), { code: 'storage-unavailable' });
    await engines.storage.declare([queue]);
    const dropping = new MigratingStorage({ from: override(old(), { drop: fails }), to: engines.to.storage });
    await assert.rejects(dropping.drop(queue), { code: 'outcome-unknown' });
  });

  it('keeps a take within maxBytes across both engines', async () => {
    const queue = newQueue();
    const big = (name: string) => newElement({ body: name.repeat(10_000) });
    await old().insert(queue, [big('a')]);
    await engines.storage.insert(queue, [big('b'), big('c')]);
    const bounded = async (maxBytes: number): Promise<[string[], boolean]> => {
      const result = await engines.storage.take(queue, { group: '', count: 3, leaseMs: null, maxBytes });
      return [bodyTexts(result.deliveries).map((text) => text.slice(0, 1)), result.isCut === true];
    };
    assert.deepEqual(await bounded(15_000), [['a'], true]);
    assert.deepEqual(await bounded(25_000), [['b', 'c'], false]);
  });

  it('reports isLeft if elements of the old engine used up the maxBytes of a take', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a'));
    await engines.storage.insert(queue, newElements('b'));
    const options = { group: '', count: 2, leaseMs: null, maxBytes: 1 };
    const { deliveries, isLeft } = await engines.storage.take(queue, options);
    assert.deepEqual([bodyTexts(deliveries), isLeft], [['a'], true]);
  });

  it('is not dropped, and keeps the dedup keys of the new engine, while the old one holds an element', async () => {
    const queue = newQueue();
    await old().insert(queue, newElements('a'));
    const keyed = newElement({ body: 'b', dedupKey: 'k' });
    const [id] = await engines.storage.insert(queue, [keyed]);
    assert.deepEqual(bodyTexts(await pop(queue, 1, engines.to.storage)), ['b']);
    assert.equal(await engines.storage.drop(queue), false);
    assert.deepEqual(await engines.storage.insert(queue, [keyed]), [id]);
    assert.deepEqual(bodyTexts(await pop(queue, 2)), ['a']);
    assert.equal(await engines.storage.drop(queue), true);
  });

  for (const leadMs of [600_000, -600_000]) {
    it(`says when elements of the old engine are due by the clock of the new one, which is ${leadMs} ms ahead`, async () => {
      const queue = newQueue();
      const now = (): number => engines.clock.now() + leadMs;
      const storage = new MigratingStorage({ from: old(), to: override(engines.to.storage, { now }) });
      await old().insert(queue, newElements('leased'));
      await old().take(queue, { group: '', count: 1, leaseMs: 1_000 });
      await old().insert(queue, [newElement({ delayMs: 2_000 })]);
      const { nextDueAt } = await storage.take(queue, { group: '', count: 1, leaseMs: null });
      const { nextMatureAt } = await storage.counts(queue);
      const nextAt = await storage.sweep();
      assert.deepEqual(
        [nextDueAt, nextMatureAt, nextAt].map((at) => (at ?? 0) - now()),
        [2_000, 2_000, 1_000],
      );
    });
  }

  for (const failing of ['from', 'to'] as const) {
    it(`is affected by the sweep of one engine even if the sweep of the other one, "${failing}", fails`, async () => {
      const queue = newQueue('jobs');
      const working = failing === 'from' ? engines.to.storage : old();
      await working.insert(queue, [newElement({ tries: MAX_TRIES - 1 })]);
      await working.take(queue, { group: '', count: 1, leaseMs: 1_000 });
      engines.clock.advance(1_001);
      const sweep = () => Promise.reject(UNAVAILABLE);
      const both = { from: old(), to: engines.to.storage };
      const storage = new MigratingStorage({ ...both, [failing]: override(both[failing], { sweep }) });
      await assert.rejects(storage.sweep(), { code: 'storage-unavailable' });
      assert.ok(storage.takeAffected().some(({ ns, name }) => ns === 'jobs' && name === DEAD_LETTERS));
    });
  }
});

/** The storage with some operations replaced. */
function override(storage: Storage, operations: Partial<Storage>): Storage {
  return new Proxy(storage, {
    get(target, name) {
      const value: unknown = Reflect.get(operations, name) ?? Reflect.get(target, name);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
