import assert from 'node:assert/strict';
import { type SQLInputValue, StatementSync } from 'node:sqlite';
import { describe, it, type TestContext } from 'node:test';
import { SCAN_BYTES } from '../../src/engine/scan-cursor.ts';
import { COUNTER_NAMES } from '../../src/engine/stats.ts';
import {
  type Call,
  type Inserted,
  nameOf,
  type Scanned,
  SHARED_TAKEN_FIELDS,
  SIMILAR,
  TAKEN_FIELDS,
  type Taken,
  type TakenFields,
} from '../../src/engines/sqlite/protocol.ts';
import { type BatchResult, runBatches, wholeOf } from '../../src/engines/sqlite/worker/batch.ts';
import { openDatabase } from '../../src/engines/sqlite/worker/open.ts';
import { Store } from '../../src/engines/sqlite/worker/store.ts';
import { LIMITS } from '../../src/model/limits.ts';

const QUEUE = nameOf({ ns: 'N', name: 'queue' });
const NO_BODIES = { small: new Uint8Array(0), large: [] };
const PING: Call = ['ping'];
/** Reserves no element, so it needs no fsync. */
const RESERVE: Call = ['take', QUEUE, '', 1, 1000];
const DECLARE: Call = ['declare', [QUEUE], null];
const BAD: Call = ['undoTake', QUEUE, [{ id: 'no id' }]];

/** The ids and tokens that a take returned. */
function deliveriesOf([, , fields]: Taken): { id: string; token: string | null }[] {
  const deliveries: { id: string; token: string | null }[] = [];
  for (let at = 0; at < fields.length; ) {
    const [mark, id, , , , token] = fields.slice(at) as TakenFields;
    deliveries.push({ id, token });
    at += TAKEN_FIELDS + (mark === SIMILAR ? 0 : SHARED_TAKEN_FIELDS);
  }
  return deliveries;
}

function idsOf(taken: Taken): string[] {
  return deliveriesOf(taken).map(({ id }) => id);
}

interface OpenStore {
  readonly store: Store;
  /** For each transaction so far, whether it needed an fsync. */
  readonly synced: boolean[];
  run(...batches: Call[][]): BatchResult[];
}

function openStore(): OpenStore {
  const settings = { file: ':memory:', durability: 'full', damagedLog: 'refuse' } as const;
  const warn = (): void => {};
  const db = openDatabase({ ...settings, cacheBytes: 1_000_000 }, warn);
  const options = { file: ':memory:', policies: [], durability: 'full', dedupWindowMs: 1000 } as const;
  const store = new Store(db, options, { space: null, warn, reach: warn });
  const synced: boolean[] = [];
  const begin = store.begin.bind(store);
  store.begin = (needsSync) => {
    synced.push(needsSync);
    begin(needsSync);
  };
  const run = (...batches: Call[][]): BatchResult[] => {
    const parts = batches.map((calls) => wholeOf({ now: 1, calls, bytes: 0, bodies: NO_BODIES }));
    runBatches(store, parts);
    return parts.map(({ result }) => result);
  };
  return { store, synced, run };
}

/** How the plans of all queries of `run` look up deliveries. */
function searchesBy(t: TestContext, store: Store, run: () => unknown): string[] {
  const queries = new Set<string>();
  for (const method of ['all', 'get'] as const) {
    const original: (this: StatementSync, ...args: SQLInputValue[]) => unknown =
      StatementSync.prototype[method];
    t.mock.method(StatementSync.prototype, method, function (this: StatementSync, ...args: SQLInputValue[]) {
      queries.add(this.sourceSQL);
      return original.apply(this, args) as never;
    });
  }
  run();
  t.mock.restoreAll();
  return [...queries]
    .filter((sql) => sql.includes('FROM delivery d'))
    .flatMap((sql) => store.db.prepare(`EXPLAIN QUERY PLAN ${sql}`).all())
    .map(({ detail }) => String(detail))
    .filter((detail) => detail.startsWith('SEARCH d '));
}

describe('a batch of calls in the SQLite engine', () => {
  it('is halved until the call that throws is isolated, and every other call gets its result', () => {
    const { run, synced } = openStore();
    const calls = (bad: number): Call[] => Array.from({ length: 64 }, (_, i) => (i === bad ? BAD : DECLARE));
    const results = run(calls(-1), calls(37), calls(-1), calls(0));
    for (const [index, bad] of [-1, 37, -1, 0].entries()) {
      const { results: own = [], rejections } = results[index] ?? {};
      assert.equal(own.length, 64);
      assert.deepEqual([...(rejections?.keys() ?? [])], bad === -1 ? [] : [bad]);
    }
    assert.ok(synced.length < 40, `${synced.length} transactions`);
  });

  it('ends a bounded number of leases in each transaction, also when it is halved', (t) => {
    const { store, synced, run } = openStore();
    t.mock.method(store.rows, 'mayLeaseHaveEnded', () => true);
    const { mock } = t.mock.method(store.rows, 'endedLeases');
    run(Array.from({ length: 64 }, (_, i) => (i === 0 ? BAD : DECLARE)));
    assert.ok(
      mock.callCount() <= synced.length,
      `${mock.callCount()} steps in ${synced.length} transactions`,
    );
  });

  it('executes inserts and commits of single elements with few statements, each with its own result', (t) => {
    const { store, run } = openStore();
    const other = nameOf({ ns: 'N', name: 'other' });
    const insert = (queue: string, type: string, key: string | null = null): Call => {
      const rare = key === null ? null : JSON.stringify([null, key, 'f']);
      return ['insert', queue, [type, null, 0, 0, 1, 0, '', rare], null];
    };
    const several = (from: number): Call[] =>
      Array.from({ length: 64 }, (_, i) => insert(QUEUE, String(from + i)));
    let statements = 0;
    const { run: runStatement } = StatementSync.prototype;
    t.mock.method(
      StatementSync.prototype,
      'run',
      function (this: StatementSync, ...args: Parameters<typeof runStatement>) {
        statements++;
        return runStatement.apply(this, args);
      },
    );
    const statementsOf = (calls: Call[]): number => {
      statements = 0;
      run(calls);
      return statements;
    };
    const resultsOf = (given: Call[]): unknown[] => run(given)[0]?.results ?? [];
    assert.ok(statementsOf(several(0)) < 20, `${statements} statements`);
    const calls = [
      ...several(64),
      insert(other, 'other'),
      insert(QUEUE, '128', 'key'),
      insert(QUEUE, '129', 'key'),
      insert(QUEUE, '129'),
      insert(QUEUE, '130'),
    ];
    // In the second run, each half of the calls is executed again, then each half of that, and so on.
    for (const more of [[], [BAD]]) {
      const ids = resultsOf([...calls, ...more])
        .slice(0, calls.length)
        .map((result) => (typeof result === 'string' ? result : String((result as Inserted)[1])));
      for (const [index, id] of ids.entries()) {
        const scan: Call = ['scan', index === 64 ? other : QUEUE, '', ['ready'], [id], null, 1, false];
        const [page] = resultsOf([scan]);
        const [, [delivery]] = page as Scanned;
        const expected = index < 64 ? String(64 + index) : ['other', '128', '128', '129', '130'][index - 64];
        assert.equal(delivery?.contentType, expected, `call ${index}`);
      }
    }
    const reserve: Call = ['take', QUEUE, '', 192, 1000, ''];
    const taken = resultsOf([reserve])[0] as Taken;
    const deliveries = deliveriesOf(taken);
    const commitOf = (index: number, token = deliveries[index]?.token, queue = QUEUE): Call => {
      return ['settle', [queue, deliveries[index]?.id, '', 0, token, null, 'finish'], null];
    };
    const range = (from: number, to: number): Call[] =>
      Array.from({ length: to - from }, (_, i) => commitOf(from + i));
    assert.ok(statementsOf(range(0, 64)) < 10, `${statements} statements`);
    const mixed = [
      ...range(64, 80),
      commitOf(80, 'another'),
      commitOf(70),
      commitOf(81, undefined, other),
      commitOf(80),
      ...range(81, 96),
    ];
    const outcomes = resultsOf(mixed);
    const expected: string[] = Array(mixed.length).fill('done');
    expected.splice(16, 3, 'lease-lost', 'not-found', 'not-found');
    assert.deepEqual(outcomes, expected);
    assert.equal(store.queues.find(QUEUE)?.subscriptions.get('')?.reserved, 96);
  });

  const insert: Call = ['insert', QUEUE, [null, null, 0, 0, 1, 0, '', null], null];
  const reserve = (count: number): Call => ['take', QUEUE, '', count, 1000, '', null, true];
  it('undoes what a failed transaction did to reservations in memory', () => {
    const { run } = openStore();
    const resultsOf = (calls: Call[]): unknown[] => run(calls)[0]?.results ?? [];
    const inserted = resultsOf(Array.from({ length: 12 }, () => insert));
    const [before] = resultsOf([reserve(4)]) as [Taken];
    const commits = deliveriesOf(before).flatMap(({ id, token }) => [
      QUEUE,
      id,
      '',
      0,
      token,
      null,
      'finish',
    ]);
    const counts: Call = ['counts', QUEUE, null];
    const results = resultsOf([['settle', commits, null], reserve(2), counts, BAD, reserve(3)]);
    assert.deepEqual(results[0], ['done', null, 'done', null, 'done', null, 'done', null]);
    const taken = [before, results[1], results[4]].flatMap((one) => idsOf(one as Taken));
    assert.deepEqual(taken, inserted.slice(0, 9));
    const [[{ ready, reserved }]] = resultsOf([counts]) as [[{ ready: number; reserved: number }]];
    assert.deepEqual([ready, reserved], [3, 5]);
  });

  it('keeps the reservations in memory of earlier transactions if a new epoch of ids cannot be stored', (t) => {
    const { store, run } = openStore();
    const take = (): string[] => idsOf(run([reserve(2)])[0]?.results[0] as Taken);
    run(Array.from({ length: 4 }, () => insert));
    const first = take();
    let failures = 0;
    t.mock.getter(store.ids, 'isNearlySpent', () => failures++ === 0);
    t.mock.method(store.ids, 'startEpoch', () => {
      throw new Error('disk full');
    });
    const second = take();
    assert.equal(failures, 2);
    assert.equal(new Set([...first, ...second]).size, 4);
  });

  it('reads each commit a few times, while another queue has reservations in memory', (t) => {
    const { store, run } = openStore();
    const resultsOf = (calls: Call[]): unknown[] => run(calls)[0]?.results ?? [];
    const other = nameOf({ ns: 'N', name: 'other' });
    const elsewhere: Call = ['insert', other, [null, null, 0, 0, 1, 0, '', null], null];
    // The numbers of a queue's elements are not consecutive.
    run(Array.from({ length: 512 }, (_, at) => (at % 2 === 0 ? insert : elsewhere)));
    run([['take', other, '', 8, 1000, '', null, true]]);
    const [taken] = resultsOf([['take', QUEUE, '', 256, 1000, '', null, false]]) as [Taken];
    const commits = deliveriesOf(taken).flatMap(({ id, token }, at) => {
      return [at === 0 ? QUEUE : null, id, '', 0, token, null, 'finish'];
    });
    const { mock } = t.mock.method(store.ids, 'parse');
    const [results] = resultsOf([['settle', commits, null]]) as [unknown[]];
    assert.equal(results.filter((outcome) => outcome === 'done').length, 256);
    assert.ok(mock.callCount() <= 5 * 256, `${mock.callCount()} reads`);
  });

  it('takes behind reservations in memory without reading the others of the same maturity', (t) => {
    const { store, run } = openStore();
    run(Array.from({ length: 4 }, () => insert));
    run([reserve(2)]);
    const searches = searchesBy(t, store, () => run([reserve(1), reserve(2)]));
    const ofWaiting = 'SEARCH d USING INDEX delivery_waiting ';
    const sameMaturity = `${ofWaiting}(subscription=? AND due_at=? AND rowid>?)`;
    const later = [
      `${ofWaiting}(subscription=? AND due_at>? AND due_at<?)`,
      `${ofWaiting}(subscription=? AND due_at>?)`,
    ];
    // The elements, and the next maturity.
    assert.deepEqual(searches, [sameMaturity, later[0], sameMaturity, later[1]]);
  });

  it('reads a page of elements without those of the same maturity or lease end before it', (t) => {
    const { store, run } = openStore();
    run([insert, insert]);
    const pageOf = (state: 'ready' | 'reserved', after: string | null): Scanned =>
      run([['scan', QUEUE, '', [state], null, after, 1, false]])[0]?.results[0] as Scanned;
    const searchesOf = (state: 'ready' | 'reserved'): string[] => {
      const [next, deliveries] = pageOf(state, null);
      assert.ok(next !== null && deliveries.length === 1);
      return searchesBy(t, store, () => pageOf(state, next));
    };
    const ofWaiting = 'SEARCH d USING INDEX delivery_waiting ';
    assert.deepEqual(searchesOf('ready'), [
      `${ofWaiting}(subscription=? AND due_at=? AND rowid>?)`,
      `${ofWaiting}(subscription=? AND due_at>? AND due_at<?)`,
    ]);
    run([reserve(2)]);
    const ofReserved = 'SEARCH d USING INDEX delivery_reserved ';
    assert.deepEqual(searchesOf('reserved'), [
      `${ofReserved}(subscription=? AND lease_until=? AND rowid>?)`,
      `${ofReserved}(subscription=? AND lease_until>?)`,
    ]);
  });

  it('has at most 8,192 reservations in memory, which the next count writes', () => {
    const { store, run } = openStore();
    run(Array.from({ length: 10_000 }, () => insert));
    const taken = Array.from({ length: 10 }, () => run([reserve(1000)])[0]?.results[0] as Taken);
    assert.equal(new Set(taken.flatMap((one) => idsOf(one))).size, 10_000);
    const written = (): number | undefined => store.queues.find(QUEUE)?.subscriptions.get('')?.reserved;
    // A take reserves 64 elements at a time.
    assert.equal(written(), 10_000 - 128 * 64);
    run([['counts', QUEUE, null]]);
    assert.equal(written(), 10_000);
    run([insert, reserve(1)]);
    assert.equal(written(), 10_000);
  });

  it('waits for an fsync after a failure only in parts that need one', () => {
    const { run, synced } = openStore();
    run([RESERVE, RESERVE, PING, BAD]);
    assert.deepEqual(synced, [true, false, true, false, true, true]);
  });

  it('sends no bodies that were read by a failed transaction', () => {
    const { store, run } = openStore();
    const { queues, rows, ids } = store;
    const body = new Uint8Array(100);
    const facts = { dueAt: 1, tries: 0, expiresAt: null, reason: null };
    const content = { type: null, more: null, body };
    store.begin(true);
    const subscription = queues.subscription(queues.use(QUEUE, 1), '');
    for (let i = 0; i < 4; i++) rows.addPlain(subscription, ids.next(), [{ ...content, ...facts }], 1);
    store.commit();
    const pop: Call = ['take', QUEUE, '', 1, null];
    const [result] = run([pop, pop, pop, BAD]);
    assert.equal(result?.bodies.byteLength, 300);
  });

  it('removes exactly the popped elements, whether or not their sequence numbers are consecutive', () => {
    const { store, run } = openStore();
    const other = nameOf({ ns: 'N', name: 'other' });
    const insert = (queue: string, count: number): Call => {
      return ['insert', queue, Array(count).fill([null, null, 0, 0, 1, 0, '', null]).flat(), null];
    };
    for (const [own, others] of [
      [7, 1],
      [3, 1],
      [1, 2],
      [30, 1],
    ] as const) {
      run([insert(QUEUE, own), insert(other, others)]);
    }
    const pop: Call = ['take', QUEUE, '', 20, null, ''];
    run([pop]);
    const left = store.db.prepare('SELECT seq FROM delivery ORDER BY seq').all();
    // Left are the elements of the other queue, 8, 12, 14, 15 and 46, and all but the first 9 of the last insert.
    const numbers = [8, 12, 14, 15, ...Array.from({ length: 21 }, (_, i) => 25 + i), 46];
    assert.deepEqual(
      left.map(({ seq }) => Number(seq) % 2 ** 32),
      numbers,
    );
    assert.equal(store.queues.find(QUEUE)?.subscriptions.get('')?.ready, 21);
  });

  it('copies at most about 4 MiB of expired elements to dead-letter queues, however many takes find some', () => {
    const { store, run } = openStore();
    const names = ['first', 'second'].map((name) => nameOf({ ns: 'N', name }));
    run([['declare', names, JSON.stringify({ deadLetter: { queue: 'dead', maxTries: 3 } })]]);
    const expired = { type: null, more: null, dueAt: 1, tries: 0, expiresAt: 1, reason: null };
    store.begin(true);
    for (const name of names) {
      const subscription = store.queues.subscription(store.queues.use(name, 1), '');
      const elements = Array.from({ length: 8 }, () => ({ ...expired, body: new Uint8Array(1024 * 1024) }));
      store.rows.addPlain(subscription, store.ids.issue(8), elements, 1);
    }
    store.commit();
    const takes = names.map((name): Call => ['take', name, '', 1, null, '', null]);
    const count: Call = ['counts', nameOf({ ns: 'N', name: 'dead' }), null];
    const copied = (): unknown => {
      const [result] = run([...takes, count]);
      return (result?.results[2] as [{ readonly ready: number }, boolean] | undefined)?.[0].ready;
    };
    // The second take copies one element in any case, so that it does not starve.
    assert.deepEqual([copied(), copied(), copied(), copied()], [5, 10, 14, 16]);
  });

  it('reads no more bodies than a reply may hold, and none of expired elements', (t) => {
    const { store, run } = openStore();
    const { queues, rows, ids } = store;
    const facts = { type: null, more: null, dueAt: 1, tries: 0, expiresAt: null, reason: null };
    const element = { ...facts, body: new Uint8Array(1024 * 1024) };
    store.begin(true);
    const subscription = queues.subscription(queues.use(QUEUE, 1), '');
    const texts: string[] = [];
    for (let i = 0; i < 40; i++) {
      const seq = ids.next();
      rows.addPlain(subscription, seq, [element], 1);
      texts.push(ids.format(seq));
    }
    const expired = nameOf({ ns: 'N', name: 'expired' });
    const ofExpired = queues.subscription(queues.use(expired, 1), '');
    // Large bodies are never read with their rows, small ones are.
    const small = { ...facts, body: new Uint8Array(2048) };
    const ofBothSizes = Array.from({ length: 40 }, (_, i) => ({
      ...(i % 2 ? element : small),
      expiresAt: 1,
    }));
    rows.addPlain(ofExpired, ids.issue(40), ofBothSizes, 1);
    store.commit();
    let read = 0;
    const note = (row: object | undefined): void => {
      const [body] = Object.values(row ?? {}).filter((value) => value instanceof Uint8Array);
      read += body?.byteLength ?? 0;
    };
    const { get, all, iterate } = StatementSync.prototype;
    t.mock.method(
      StatementSync.prototype,
      'get',
      function (this: StatementSync, ...args: Parameters<typeof get>) {
        const row = get.apply(this, args);
        note(row);
        return row;
      },
    );
    t.mock.method(
      StatementSync.prototype,
      'all',
      function (this: StatementSync, ...args: Parameters<typeof get>) {
        const found = all.apply(this, args);
        found.forEach(note);
        return found;
      },
    );
    t.mock.method(
      StatementSync.prototype,
      'iterate',
      function* (this: StatementSync, ...args: Parameters<typeof get>) {
        for (const row of iterate.apply(this, args)) {
          note(row);
          yield row;
        }
      },
    );
    const bytesRead = (call: Call): number => {
      read = 0;
      assert.equal(run([call])[0]?.rejections, null);
      return read;
    };
    assert.equal(bytesRead(['scan', QUEUE, '', ['ready'], texts, null, 40, false]), 0);
    const page = bytesRead(['scan', QUEUE, '', ['ready'], null, null, 40, true]);
    assert.equal(page, SCAN_BYTES);
    const reserved = bytesRead(['take', QUEUE, '', 40, 0, '']);
    assert.equal(reserved, LIMITS.takeBytes);
    const taken = bytesRead(['take', QUEUE, '', 40, null, '']);
    assert.equal(taken, LIMITS.takeBytes);
    assert.equal(bytesRead(['take', expired, '', 1, null, '']), 0);
    assert.equal(queues.find(expired)?.subscriptions.get('')?.ready, 0);
  });

  it('purges a stream without reading the groups again that earlier steps emptied', (t) => {
    const { store, run } = openStore();
    const { queues, rows, ids } = store;
    const element = { type: null, more: null, dueAt: 1, tries: 0, expiresAt: null, reason: null };
    const queue = queues.use(QUEUE, 1);
    store.begin(true);
    for (let i = 0; i < 300; i++) {
      const elements = Array(20).fill({ ...element, body: new Uint8Array(0) });
      rows.addPlain(queues.subscription(queue, `g${i}`), ids.issue(20), elements, 1);
    }
    store.commit();
    const { all } = StatementSync.prototype;
    let reads = 0;
    t.mock.method(
      StatementSync.prototype,
      'all',
      function (this: StatementSync, ...args: Parameters<typeof all>) {
        reads += 1;
        return all.apply(this, args);
      },
    );
    const step = (): unknown => run([['purge', QUEUE, null]])[0]?.results[0];
    for (let i = 0; i < 3; i++) assert.deepEqual(step(), { removed: 2000, isDone: false });
    assert.deepEqual(step(), { removed: 0, isDone: true });
    assert.ok(reads <= 3 * 300, `${reads} reads of 300 groups in 3 states`);
  });

  it('purges about 128 MiB of large bodies in a step, since each of their pages takes time', () => {
    const { store, run } = openStore();
    const { queues, rows, ids } = store;
    const body = new Uint8Array(1024 * 1024);
    const facts = { type: null, more: null, dueAt: 1, tries: 0, expiresAt: null, reason: null };
    store.begin(true);
    const subscription = queues.subscription(queues.use(QUEUE, 1), '');
    const add = (count: number, bytes: Uint8Array): void => {
      rows.addPlain(subscription, ids.issue(count), Array(count).fill({ ...facts, body: bytes }), 1);
    };
    add(150, body);
    add(1000, body.subarray(0, 10));
    store.commit();
    const step = (): unknown => run([['purge', QUEUE, null]])[0]?.results[0];
    assert.deepEqual(step(), { removed: 128, isDone: false });
    assert.deepEqual(step(), { removed: 1022, isDone: true });
  });

  it('changes no table if a reservation finds nothing', () => {
    const { store, run } = openStore();
    const pop: Call = ['take', QUEUE, '', 1, null];
    run([['insert', QUEUE, [null, null, 0, 0, 1, 0, '', null], null]], [pop]);
    const changes = (): unknown => store.db.prepare('SELECT total_changes() AS n').get()?.n;
    const before = changes();
    assert.deepEqual(run([RESERVE])[0]?.results, [[null, 1001, [], false, false]]);
    assert.equal(changes(), before);
    assert.equal(store.rows.mayLeaseHaveEnded(1001), false);
  });

  it('iterates over the subscriptions once for a sweep, however many leases were settled before their end', () => {
    const { store, run } = openStore();
    for (let i = 1; i <= 20; i++) {
      const queue = nameOf({ ns: 'N', name: `queue ${i}` });
      const insert: Call = ['insert', queue, [null, null, 0, 0, 1, 0, '', null], null];
      const reserve: Call = ['take', queue, '', 1, i * 1000, ''];
      const [, taken] = (run([insert, reserve])[0]?.results ?? []) as [unknown, Taken];
      const [{ id, token }] = deliveriesOf(taken) as [{ id: string; token: string }];
      if (i !== 7) run([['settle', [queue, id, '', 0, token, null, 'finish'], null]]);
    }
    let passes = 0;
    const subscriptions = store.queues.subscriptions.bind(store.queues);
    store.queues.subscriptions = () => {
      passes++;
      return subscriptions();
    };
    const [swept] = run([['sweep']]);
    assert.deepEqual(swept?.results, [7001]);
    assert.equal(passes, 1);
  });

  it('looks for the counters of a queue without elements once, not at each sweep', (t) => {
    const { store } = openStore();
    const runAt = (hours: number, call: Call): void => {
      runBatches(store, [wholeOf({ now: hours * 3_600_000, calls: [call], bytes: 0, bodies: NO_BODIES })]);
    };
    const names = Array.from({ length: 100 }, (_, i) => nameOf({ ns: 'N', name: `queue ${i}` }));
    const counts = COUNTER_NAMES.map(() => 1);
    runAt(0, ['statsAdd', names.map((name) => [name, '', ...counts])]);
    const { mock } = t.mock.method(store.records, 'hasCounts');
    for (const hours of [10, 48, 49, 29 * 24]) runAt(hours, ['sweep']);
    assert.equal(mock.callCount(), 100);
    // A further count extends the time.
    runAt(29 * 24, ['statsAdd', [[names[0], '', ...counts]]]);
    for (const hours of [31, 32]) runAt(hours * 24, ['sweep']);
    assert.deepEqual(
      [...store.queues.all()].map(({ key }) => key.name),
      ['queue 0'],
    );
    assert.equal(mock.callCount(), 101);
    runAt(60 * 24, ['sweep']);
    assert.deepEqual([...store.queues.all()], []);
  });

  it('accepts a token only exactly as it was returned', () => {
    const { run } = openStore();
    const element = [null, null, 0, 0, 1, 0, '', null];
    run([['insert', QUEUE, [...element, ...element], null]]);
    const [result] = run([['take', QUEUE, '', 2, 1000, '']])[0]?.results ?? [];
    const [{ id, token }] = deliveriesOf(result as Taken) as [{ id: string; token: string }];
    const start = token?.slice(0, -1) ?? '';
    const digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/ é';
    const texts = [...digits].map((digit) => start + digit).filter((text) => text !== token);
    const commit = (text: string): unknown =>
      run([['settle', [QUEUE, id, '', 0, text, null, 'finish'], null]])[0]?.results;
    for (const text of [...texts, start, `${token}A`, ` ${token}`, '']) {
      assert.deepEqual(commit(text), ['lease-lost'], text);
    }
    assert.deepEqual(commit(token ?? ''), ['done']);
  });

  it('leaves no transaction open if the next epoch of ids cannot be stored', () => {
    const { store, run } = openStore();
    Object.defineProperty(store.ids, 'isNearlySpent', { get: () => true });
    store.db.exec("CREATE TRIGGER full BEFORE UPDATE ON meta BEGIN SELECT raise(ABORT, 'no epoch'); END");
    assert.match(run([DECLARE])[0]?.rejections?.get(0)?.message ?? '', /no epoch/);
    assert.equal(store.db.isTransaction, false);
    store.db.exec('DROP TRIGGER full');
    assert.equal(run([DECLARE])[0]?.rejections, null);
  });

  it('stops the engine if its rollback fails, and reports the first error, too', () => {
    const { store, run } = openStore();
    store.rollback = () => {
      throw new Error('no rollback');
    };
    assert.throws(() => run([BAD]), {
      name: 'StoreLost',
      message: /never had: no id; the rollback failed as well: no rollback/,
    });
  });
});
