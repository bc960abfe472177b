import assert from 'node:assert/strict';
import { StatementSync } from 'node:sqlite';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { QueueCounts } from '../../src/engine/storage.ts';
import { nameOf } from '../../src/engines/sqlite/protocol.ts';
import { openDatabase } from '../../src/engines/sqlite/worker/open.ts';
import type { Subscription, WorkerQueue } from '../../src/engines/sqlite/worker/queues.ts';
import type { DeliveryRow } from '../../src/engines/sqlite/worker/rows.ts';
import { Store } from '../../src/engines/sqlite/worker/store.ts';
import { seededRandom } from '../support/random.ts';

const NAME = nameOf({ ns: 'N', name: 'stream' });
const GROUPS = ['a', 'b', 'c'];
const ELEMENTS = 1000;
/** How many elements of three groups one count reads. */
const STEP = 20_000;
const CONTENT = { type: null, more: null, body: new Uint8Array(1) };

describe('the counts of a stream in the SQLite engine', () => {
  let store: Store;
  let queue: WorkerQueue;
  let elements: number[];
  /** Rows of statements that iterate, as those do that read all elements. */
  let rowsRead = 0;
  /** Statements that return one row, as those do that read one element. */
  let singlesRead = 0;
  const { iterate, get } = StatementSync.prototype;

  beforeEach(() => {
    [rowsRead, singlesRead] = [0, 0];
    StatementSync.prototype.get = function (this: StatementSync, ...given: Parameters<typeof get>) {
      singlesRead += 1;
      return get.apply(this, given);
    } as typeof get;
    StatementSync.prototype.iterate = function* (this: StatementSync, ...given: Parameters<typeof iterate>) {
      for (const row of iterate.apply(this, given)) {
        rowsRead += 1;
        yield row;
      }
    } as typeof iterate;
    const settings = { file: ':memory:', durability: 'full', damagedLog: 'refuse' } as const;
    const db = openDatabase({ ...settings, cacheBytes: 1_000_000 }, () => {});
    const options = { file: ':memory:', policies: [], durability: 'full', dedupWindowMs: 1000 } as const;
    store = new Store(db, options, { space: null, warn: () => {}, reach: () => {} });
    store.now = 1;
    store.begin(true);
    queue = store.queues.use(NAME, 1);
    elements = Array.from({ length: ELEMENTS }, (_, i) => add(1 + (i % 10)));
  });

  afterEach(() => {
    Object.assign(StatementSync.prototype, { iterate, get });
    store.db.close();
  });

  const add = (dueAt: number): number => {
    const { rows, ids, queues, now } = store;
    const seq = ids.next();
    rows.addElement(queue, seq, GROUPS.length, CONTENT, now);
    const facts = { dueAt, tries: 0, expiresAt: null, reason: null };
    for (const group of GROUPS)
      rows.addShared(queues.subscription(queue, group), ids.next(), seq, facts, now);
    return seq;
  };
  const delivery = (element: number, group: string): [Subscription, DeliveryRow | null] => {
    const subscription = store.queues.subscription(queue, group);
    return [subscription, store.rows.find(subscription, element)];
  };
  const reserve = (element: number, group: string): void => {
    const [subscription, row] = delivery(element, group);
    if (row === null || row.leaseUntil !== null) return;
    const reservations = { until: 1e6, at: store.now, token: 't', holders: [''] };
    store.rows.reserve(subscription, [row], reservations);
  };
  const finish = (element: number, group: string): void => {
    const [subscription, row] = delivery(element, group);
    if (row !== null) store.rows.remove(subscription, [row]);
  };
  const wait = (element: number, group: string, dueAt: number): void => {
    const [subscription, row] = delivery(element, group);
    if (row !== null)
      store.rows.setWaiting(subscription, row, { dueAt, tries: 1, token: null, reason: null }, store.now);
  };
  const count = (): QueueCounts => store.counter.counts(NAME, null, store.now)[0];
  /** Counts from the tables alone, as after a start. */
  const countAll = (): QueueCounts => {
    store.queues.save();
    store.queues.reload();
    const counted = count();
    queue = store.queues.use(NAME, store.now);
    return counted;
  };

  /** Adds elements for all of the groups, with sequence numbers before those of the other elements. */
  const addMany = (many: number, groups: readonly string[], dueAt: number): void => {
    const numbers = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${many})`;
    store.queues.save();
    store.db.exec(`${numbers} INSERT INTO element SELECT i, ${queue.id}, 2, 1, NULL, NULL, 0, x'00' FROM n`);
    for (const [i, group] of groups.entries()) {
      const { id } = store.queues.subscription(queue, group);
      store.db.exec(`${numbers} INSERT INTO delivery (seq, subscription, due_at, tries, crc, element)
        SELECT i + ${(i + 1) * many}, ${id}, ${dueAt}, 0, 0, i FROM n`);
      const state = dueAt <= 1 ? 'ready' : 'scheduled';
      store.db.exec(`UPDATE subscription SET ${state} = ${state} + ${many} WHERE id = ${id}`);
    }
    store.queues.reload();
    queue = store.queues.use(NAME, 1);
  };
  /** Counts until all elements are read. Returns the maximum of elements that one step read. */
  const countInSteps = (): number => {
    let [maxRead, steps] = [0, 0];
    do {
      [rowsRead, singlesRead] = [0, 0];
      count();
      maxRead = Math.max(maxRead, rowsRead + singlesRead);
      steps += 1;
      assert.ok(steps < 20, 'all are read in the end');
    } while (queue.shared?.isPart);
    return maxRead;
  };

  /** The result of {@link countAll} after all elements were read. */
  const countAllInSteps = (): QueueCounts => {
    countAll();
    countInSteps();
    return count();
  };

  it('are read from all elements once, and then only from those that changed', () => {
    assert.equal(count().ready, ELEMENTS / 10);
    assert.equal(rowsRead, ELEMENTS);
    reserve(elements[0] ?? 0, 'a');
    finish(elements[1] ?? 0, 'b');
    store.now = 2;
    const { ready, scheduled, reserved } = count();
    assert.deepEqual({ ready, scheduled, reserved }, { ready: 200, scheduled: 800, reserved: 0 });
    assert.equal(rowsRead, ELEMENTS);
  });

  it('are read in steps, so that a start with millions of elements does not block other calls', () => {
    const many = 19_500;
    addMany(many, ['a', 'b'], 1);
    const first = count();
    assert.equal(rowsRead, 20_000);
    // Half of the elements that the test started with are counted once for each group.
    assert.equal(first.ready, many + 50 + 50 * GROUPS.length);
    finish(many, 'a');
    assert.equal(queue.shared?.isPart, true);
    assert.equal(count().ready, ELEMENTS / 10 + many);
    assert.equal(queue.shared?.isPart, false);
    assert.equal(rowsRead, many + ELEMENTS);
  });

  it('read one step of elements when very many become due at once, and are exact a few counts later', () => {
    const many = 45_000;
    addMany(many, ['a', 'b'], 5);
    countInSteps();
    store.now = 5;
    const most = countInSteps();
    assert.ok(most <= 2 * STEP, `${most} were read in one step`);
    assert.equal(count().ready, ELEMENTS / 2 + many);
    assert.deepEqual(count(), countAllInSteps());
  });

  it('read one step of changed elements, and are exact a few counts later', () => {
    const many = 30_000;
    addMany(many, ['a', 'b'], 1);
    countInSteps();
    for (let element = 1; element <= many; element += 1) finish(element, 'a');
    const most = countInSteps();
    assert.ok(most <= 1.1 * STEP, `${most} were read in one step`);
    assert.equal(count().ready, ELEMENTS / 10 + many);
    assert.deepEqual(count(), countAllInSteps());
  });

  it('read fewer elements per step if the elements have many groups', () => {
    const groups = Array.from({ length: 60 }, (_, i) => `g${i}`);
    addMany(2000, groups, 1);
    count();
    // A twentieth of a step with three groups, since each element has twenty times as many deliveries.
    assert.equal(rowsRead, STEP / 20);
    countInSteps();
    assert.equal(count().ready, ELEMENTS / 10 + 2000);
  });

  it('equal those of the tables after any sequence of changes, even if the clock is set back', () => {
    const { between, chance, pick } = seededRandom(7);
    for (let round = 0; round < 60; round += 1) {
      for (let change = 0; change < 20; change += 1) {
        const element = elements[between(0, 40)] ?? 0;
        const group = pick(GROUPS);
        const kind = between(0, 5);
        if (kind === 0) reserve(element, group);
        else if (kind === 1) finish(element, group);
        else if (kind === 2) wait(element, group, store.now + between(0, 3));
        else if (kind === 3) wait(element, group, 1);
        else if (kind === 4) elements.unshift(add(store.now + between(0, 4)));
        else store.counter.counts(NAME, group, store.now);
      }
      store.now = Math.max(1, store.now + between(chance(0.1) ? -3 : 0, 3));
      const counted = count();
      if (round % 5 === 4) assert.deepEqual(counted, countAll());
    }
  });
});
