import assert from 'node:assert/strict';
import { DatabaseSync } from 'node:sqlite';
import { describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Engine } from '../../src/engine/engine.ts';
import type { SettleAction, Storage } from '../../src/engine/storage.ts';
import type { TransactionPoint } from '../../src/engines/sqlite/worker/store.ts';
import type { Delivery } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { Faults } from '../engines/sqlite-faults.ts';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { bodyText, bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { commit } from '../support/settle.ts';
import { sweepAffected } from '../support/sweep.ts';

/** Another queue of the same engine. */
const OTHER = { ...QUEUE, name: 'other' };

const SQLITE_BUSY = 5;
const SQLITE_NOMEM = 7;
const SQLITE_IOERR = 10;
const SQLITE_IOERR_FSYNC = 10 | (4 << 8);
const SQLITE_CORRUPT = 11;
const SQLITE_FULL = 13;

/** The results of a series of inserts: acknowledged bodies, and those with an unknown outcome. */
interface InsertResults {
  readonly stored: string[];
  readonly unknown: string[];
}

/** Inserts elements one by one while one of the transactions fails. */
async function insertSeries(engine: Engine, calls: number): Promise<InsertResults> {
  const results: InsertResults = { stored: [], unknown: [] };
  for (let call = 0; call < calls; call++) {
    const body = `element ${call}`;
    try {
      await engine.storage.insert(QUEUE, newElements(body));
      results.stored.push(body);
    } catch (error) {
      assert.ok(error instanceof QuaysideError, String(error));
      if (error.code === 'outcome-unknown') results.unknown.push(body);
      else assert.ok(['storage-unavailable', 'storage-full'].includes(error.code), error.code);
    }
  }
  return results;
}

/** Commits a delivery and inserts an element into {@link OTHER} in the same step. */
function forward(storage: Storage, { id, lease }: Delivery): Promise<unknown> {
  const inserts = newElements('copy').map((element) => ({ queue: OTHER, element }));
  const action = { kind: 'finish', inserts } as const;
  const token = lease?.token ?? null;
  return storage.settle([{ queue: QUEUE, id, group: '', from: 'reserved', token, action }]);
}

async function remainingIn(folder: SqliteFolder, count = 1000): Promise<string[]> {
  const engine = await folder.started();
  const { deliveries } = await engine.storage.take(QUEUE, { group: '', count, leaseMs: null });
  await engine.stop();
  return bodyTexts(deliveries);
}

describe('A SQLite store with injected faults', () => {
  const CALLS = 6;

  for (const point of ['begin', 'commit'] as const) {
    it(`loses no acknowledged element if call N meets a transient error at ${point}, N = 1 to ${CALLS}`, async () => {
      await withFolder(async (folder) => {
        const faults = new Faults();
        const engine = await folder.started({ testThread: faults.thread });
        const acknowledged: string[] = [];
        for (const code of [SQLITE_BUSY, SQLITE_NOMEM]) {
          for (let n = 1; n <= CALLS; n++) {
            faults.arm(point, code, n);
            const { stored, unknown } = await insertSeries(engine, CALLS);
            // The batch is rolled back and repeated call by call, so callers do not notice a transient error.
            assert.equal(stored.length, CALLS);
            assert.deepEqual(unknown, []);
            acknowledged.push(...stored);
          }
        }
        await engine.stop();
        assert.deepEqual(await remainingIn(folder), acknowledged);
      });
    });
  }

  it('rejects the insert that meets a full disk and accepts the next one when there is space', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread });
      const { storage } = engine;
      await storage.insert(QUEUE, newElements('a'));
      faults.arm('commit', SQLITE_FULL);
      const both = [
        storage.insert(QUEUE, newElements('refused')),
        storage.take(QUEUE, { group: '', count: 9, leaseMs: null }),
      ] as const;
      await assert.rejects(both[0], { code: 'storage-full' });
      assert.deepEqual(bodyTexts((await both[1]).deliveries), ['a']);
      await storage.insert(QUEUE, newElements('b'));
      assert.equal((await storage.counts(QUEUE)).ready, 1);
    });
  });

  const fatal: [TransactionPoint, number][] = [
    ['begin', SQLITE_IOERR],
    ['commit', SQLITE_IOERR],
    ['commit', SQLITE_CORRUPT],
    ['committed', SQLITE_IOERR_FSYNC],
  ];
  for (const [point, code] of fatal) {
    it(`acknowledges nothing after error ${code} at ${point}, reports its failure, and loses nothing`, async () => {
      for (let n = 1; n <= 3; n++) {
        await withFolder(async (folder) => {
          const faults = new Faults();
          const engine = await folder.started({ testThread: faults.thread });
          faults.arm(point, code, n);
          const { stored, unknown } = await insertSeries(engine, CALLS);
          assert.equal(stored.length, n - 1);
          assert.equal(unknown.length, point === 'committed' ? 1 : 0);
          assert.match((await engine.failed).message, /test\.db failed: injected fault/);
          await assert.rejects(engine.ping(), { code: 'storage-unavailable' });
          await engine.stop();
          const left = await remainingIn(folder);
          assert.deepEqual(left.slice(0, stored.length), stored);
          assert.ok(left.length <= stored.length + unknown.length);
        });
      }
    });
  }

  const synced: [string, (storage: Storage, held: Delivery) => Promise<unknown>][] = [
    [
      'a commit of the same transaction',
      (storage, { id, lease }) => commit(storage, QUEUE, [{ id, group: '', token: lease?.token ?? null }]),
    ],
    ['an insert into another queue', (storage) => storage.insert(OTHER, newElements('c'))],
    ['a commit that inserts into another queue', forward],
  ];
  for (const [what, call] of synced) {
    it(`replies to a reserve before the sync that ${what} waits for`, async () => {
      await withFolder(async (folder) => {
        const faults = new Faults();
        const engine = await folder.started({ testThread: faults.thread });
        const { storage } = engine;
        await storage.insert(QUEUE, newElements('a', 'b'));
        const reserve = () => storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 });
        const [held] = (await reserve()).deliveries;
        assert.ok(held);
        faults.arm('committed', SQLITE_IOERR_FSYNC);
        const calling = codeOf(call(storage, held));
        assert.deepEqual(bodyTexts((await reserve()).deliveries), ['b']);
        assert.equal(await calling, 'outcome-unknown');
      });
    });
  }

  it('delivers no element before its insert is synced', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread });
      const { storage } = engine;
      faults.arm('committed', SQLITE_IOERR_FSYNC);
      const inserting = codeOf(storage.insert(QUEUE, newElements('a')));
      const reserving = codeOf(storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 }));
      assert.deepEqual(await Promise.all([inserting, reserving]), ['outcome-unknown', 'outcome-unknown']);
    });
  });

  it('delivers no element before the commit that inserts it is synced', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread });
      const { storage } = engine;
      await storage.insert(QUEUE, newElements('a'));
      const [held] = (await storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 })).deliveries;
      assert.ok(held);
      faults.arm('committed', SQLITE_IOERR_FSYNC);
      const forwarding = codeOf(forward(storage, held));
      const reserving = codeOf(storage.take(OTHER, { group: '', count: 1, leaseMs: 60_000 }));
      assert.deepEqual(await Promise.all([forwarding, reserving]), ['outcome-unknown', 'outcome-unknown']);
    });
  });

  const failures: [string, SettleAction][] = [
    ['a rejection', { kind: 'dead-letter', countTry: true, reason: null }],
    ['the last try', { kind: 'release', delayMs: 0, countTry: true }],
  ];
  for (const [what, action] of failures) {
    it(`delivers no dead letter of ${what} before it is synced`, async () => {
      await withFolder(async (folder) => {
        const faults = new Faults();
        const policy = plain(QUEUE.ns, { deadLetter: { maxTries: 1, queue: OTHER.name } });
        const { storage } = await folder.started({ testThread: faults.thread }, [policy]);
        await storage.insert(QUEUE, newElements('a'));
        const [held] = (await storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 })).deliveries;
        assert.ok(held?.lease);
        faults.arm('committed', SQLITE_IOERR_FSYNC);
        const item = {
          queue: QUEUE,
          id: held.id,
          group: '',
          from: 'reserved',
          token: held.lease.token,
        } as const;
        const failing = codeOf(storage.settle([{ ...item, action }]));
        const reserving = codeOf(storage.take(OTHER, { group: '', count: 1, leaseMs: 60_000 }));
        assert.deepEqual(await Promise.all([failing, reserving]), ['outcome-unknown', 'outcome-unknown']);
      });
    });
  }

  it('fails if a checkpoint cannot be synced, so that the log is kept', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread });
      faults.arm('checkpoint', SQLITE_IOERR_FSYNC);
      await engine.storage.insert(QUEUE, newElements('acknowledged'));
      await engine.failed;
      await engine.stop();
      assert.deepEqual(await remainingIn(folder), ['acknowledged']);
    });
  });

  it('rejects changes of a failed batch with outcome-unknown, and calls of the next batch with storage-unavailable', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread });
      const frozen = faults.freeze('committed');
      const first = [engine.storage.insert(QUEUE, newElements('a')), engine.storage.counts(QUEUE)] as const;
      await frozen;
      const next = engine.storage.insert(QUEUE, newElements('b'));
      // The insert waits in the thread's port when the store fails.
      await turn();
      const rejections = Promise.all([
        assert.rejects(first[0], { code: 'outcome-unknown' }),
        assert.rejects(first[1], { code: 'storage-unavailable' }),
        assert.rejects(next, { code: 'storage-unavailable' }),
      ]);
      faults.release();
      await rejections;
      await engine.stop();
      assert.deepEqual(await remainingIn(folder), ['a']);
    });
  });

  /** Resolves when the thread is busy with an insert; then the calls of several turns wait in its port. */
  async function callsOfTurns(storage: Storage, faults: Faults, turns: number): Promise<Promise<string[]>[]> {
    const frozen = faults.freeze('committed');
    const calls = [storage.insert(QUEUE, newElements('busy'))];
    await frozen;
    for (let i = 0; i < turns; i++) {
      calls.push(storage.insert(QUEUE, newElements(`turn ${i}`)));
      await turn();
    }
    return calls;
  }

  it('runs the calls of several turns in one transaction if they arrived while it was busy', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults(folder.clock);
      const { storage } = await folder.started({ testThread: faults.thread });
      const calls = await callsOfTurns(storage, faults, 7);
      // A second commit would fail.
      faults.arm('commit', SQLITE_IOERR, 2);
      faults.resume();
      const ids = (await Promise.all(calls)).flat();
      faults.disarm();
      assert.equal((await storage.counts(QUEUE)).ready, 8);
      // Each turn got its own reply.
      const page = { group: '', states: ['ready'], after: null, limit: 1, bodies: true } as const;
      for (const [i, id] of ids.slice(1).entries()) {
        const { deliveries } = await storage.scan(QUEUE, { ...page, ids: [id] });
        assert.deepEqual(bodyTexts(deliveries), [`turn ${i}`]);
      }
    });
  });

  it('reports an unknown outcome for all calls that shared a transaction which failed after its commit', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults(folder.clock);
      const engine = await folder.started({ testThread: faults.thread });
      const calls = await callsOfTurns(engine.storage, faults, 4);
      faults.arm('committed', SQLITE_IOERR);
      faults.resume();
      const [first, ...turns] = await Promise.allSettled(calls);
      assert.equal(first?.status, 'fulfilled');
      assert.deepEqual(
        turns.map((result) => result.status === 'rejected' && result.reason.code),
        turns.map(() => 'outcome-unknown'),
      );
      await engine.stop();
      assert.deepEqual(await remainingIn(folder), ['busy', 'turn 0', 'turn 1', 'turn 2', 'turn 3']);
    });
  });

  it('reports an unknown outcome for all calls of a batch that is repeated one by one and fails at a later one', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread });
      const { storage } = engine;
      const foreign = { id: 'never-1', group: '', tries: 0, matureAt: 0, lease: null };
      // The invalid call makes the batch run one by one, in three more transactions.
      faults.arm('begin', SQLITE_IOERR, 4);
      const calls = [
        storage.insert(QUEUE, newElements('first')),
        storage.undoTake(QUEUE, [{ ...newElement(), ...foreign }]),
        storage.insert(QUEUE, newElements('last')),
      ];
      assert.deepEqual(
        await Promise.all(calls.map((call) => codeOf(call))),
        Array.from({ length: 3 }, () => 'outcome-unknown'),
      );
      await engine.stop();
      assert.deepEqual(await remainingIn(folder), ['first']);
    });
  });

  it('fails only the invalid call of a batch', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const { storage } = engine;
      await storage.insert(QUEUE, newElements('before'));
      const foreign = { id: 'never-1', group: '', tries: 0, matureAt: 0, lease: null };
      const bad = { ...newElement(), ...foreign };
      const [first, failed, second, taken] = await Promise.allSettled([
        storage.insert(QUEUE, newElements('first')),
        storage.undoTake(QUEUE, [bad]),
        storage.insert(QUEUE, newElements('second', 'third')),
        storage.take(QUEUE, { group: '', count: 9, leaseMs: null }),
      ]);
      assert.equal(first.status, 'fulfilled');
      assert.equal(second.status, 'fulfilled');
      assert.ok(failed.status === 'rejected' && failed.reason instanceof QuaysideError);
      assert.ok(taken.status === 'fulfilled');
      assert.deepEqual(bodyTexts(taken.value.deliveries), ['before', 'first', 'second', 'third']);
      assert.equal((await storage.counts(QUEUE)).ready, 0);
    });
  });

  it('sends nothing of a call that cannot be encoded, and assigns all replies to the right calls', async () => {
    await withFolder(async (folder) => {
      const { storage } = await folder.started();
      const broken = { ...newElement(), body: null as unknown as Uint8Array };
      const first = storage.insert(QUEUE, newElements('first'));
      assert.throws(() => storage.insert(QUEUE, [newElement(), broken]), TypeError);
      const taken = storage.take(QUEUE, { group: '', count: 9, leaseMs: null });
      assert.throws(() => storage.insert(QUEUE, [broken]), TypeError);
      assert.equal((await first).length, 1);
      assert.deepEqual(bodyTexts((await taken).deliveries), ['first']);
      assert.throws(() => storage.insert(QUEUE, [broken]), TypeError);
      assert.equal((await storage.counts(QUEUE)).ready, 0);
    });
  });

  it('fails when a reply cannot be decoded', async () => {
    await withFolder(async (folder) => {
      const before = await folder.started();
      await before.definitions.put('queue', 'k', { paused: true }, null);
      await before.stop();
      const db = new DatabaseSync(folder.file);
      db.exec("UPDATE definition SET value = '{not JSON'");
      db.close();
      const engine = await folder.started();
      const calls = [engine.definitions.get('queue', 'k'), engine.storage.counts(QUEUE)];
      for (const call of calls) await assert.rejects(call, { code: 'storage-unavailable' });
      assert.match((await engine.failed).message, /a reply cannot be read/);
    });
  });

  it('rolls back counts, queues and groups in memory together with a transaction', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread });
      const { storage } = engine;
      await storage.insert(QUEUE, newElements('a', 'b'));
      assert.equal((await storage.counts(QUEUE)).ready, 2);
      const fresh = { ns: 'S', name: 'new' };
      faults.arm('commit', SQLITE_NOMEM);
      const [, { deliveries }] = await Promise.all([
        storage.insert(fresh, [newElement({ groups: ['g1', 'g2'] })]),
        storage.take(QUEUE, { group: '', count: 1, leaseMs: 1000 }),
        storage.insert(QUEUE, newElements('c')),
        storage.counts(fresh),
      ]);
      assert.deepEqual(bodyTexts(deliveries), ['a']);
      const { ready, reserved } = await storage.counts(QUEUE);
      assert.deepEqual({ ready, reserved }, { ready: 2, reserved: 1 });
      assert.equal((await storage.counts(fresh)).ready, 1);
      assert.deepEqual(await storage.queues('S'), ['new']);
    });
  });
});

describe('A SQLite store with a stalled disk', () => {
  const POP = { group: '', count: 9, leaseMs: null };

  /** Makes calls while the worker is frozen before a commit, and lets their deadline pass. */
  async function withStalledDisk(
    folder: SqliteFolder,
    calls: (engine: Engine) => Promise<unknown>[],
  ): Promise<{ engine: Engine; codes: string[]; resume(): void }> {
    const faults = new Faults(folder.clock);
    const engine = await folder.started({ testThread: faults.thread });
    await engine.storage.insert(QUEUE, newElements('first', 'second', 'third'));
    const frozen = faults.freeze('commit');
    const made = calls(engine).map(codeOf);
    await frozen;
    folder.clock.advance(4999);
    return { engine, codes: await Promise.all(made), resume: () => faults.resume() };
  }

  it('rejects every call within 5 s: changes with outcome-unknown, reads with storage-unavailable', async () => {
    await withFolder(async (folder) => {
      const { engine, codes, resume } = await withStalledDisk(folder, ({ storage, definitions }) => [
        storage.insert(QUEUE, newElements('late')),
        storage.take(QUEUE, POP),
        storage.counts(QUEUE),
        definitions.list('queue'),
        storage.purge(QUEUE),
      ]);
      const unknown = 'outcome-unknown';
      assert.deepEqual(codes, [unknown, unknown, 'storage-unavailable', 'storage-unavailable', unknown]);
      resume();
      await engine.storage.counts(QUEUE);
    });
  });

  it('rejects a call at its own deadline if it has less than 5 s left', async () => {
    await withFolder(async (folder) => {
      const { clock } = folder;
      const faults = new Faults(clock);
      const { storage } = await folder.started({ testThread: faults.thread });
      const frozen = faults.freeze('commit');
      const early = { leftMs: 1_000 };
      const other = storage.insert(QUEUE, newElements('in time'));
      const finished = { queue: QUEUE, id: 'none', group: '', token: null, from: 'reserved' } as const;
      const made = [
        codeOf(storage.insert(QUEUE, newElements('late'), early)),
        codeOf(storage.settle([{ ...finished, action: { kind: 'finish' } }], early)),
      ];
      await frozen;
      clock.advance(1_000);
      assert.deepEqual(await Promise.all(made), ['outcome-unknown', 'outcome-unknown']);
      faults.resume();
      await other;
    });
  });

  it('returns the elements of a late take to their place with unchanged tries, and keeps the elements of a late insert', async () => {
    await withFolder(async (folder) => {
      const { engine, resume } = await withStalledDisk(folder, ({ storage }) => [
        storage.take(QUEUE, { ...POP, count: 1 }),
        storage.take(QUEUE, { ...POP, count: 1, leaseMs: 600_000 }),
        storage.insert(QUEUE, newElements('late')),
      ]);
      const { storage } = engine;
      resume();
      // This reply arrives after the late ones, and later calls run after the undo of the late takes.
      await storage.counts(QUEUE);
      const { deliveries } = await storage.take(QUEUE, POP);
      assert.deepEqual(bodyTexts(deliveries), ['first', 'second', 'third', 'late']);
      assert.deepEqual(
        deliveries.map(({ tries }) => tries),
        [0, 0, 0, 0],
      );
      const { ready, reserved } = await storage.counts(QUEUE);
      assert.deepEqual({ ready, reserved }, { ready: 0, reserved: 0 });
      assert.deepEqual(folder.warnings, []);
    });
  });

  it('reports the affected queues of a late sweep with the next sweep, so that their consumers wake up', async () => {
    await withFolder(async (folder) => {
      const expired = newElement({ expiresAt: folder.clock.now() - 1 });
      const { engine, codes, resume } = await withStalledDisk(folder, ({ storage }) => [
        storage.insert(QUEUE, [expired]),
        storage.sweep(),
      ]);
      assert.deepEqual(codes, ['outcome-unknown', 'outcome-unknown']);
      resume();
      const affected = await sweepAffected(engine.storage);
      assert.deepEqual(affected, [{ ns: 'N', name: '__deadletter__' }]);
      assert.deepEqual(await sweepAffected(engine.storage), []);
    });
  });

  it('delivers the elements returned from a late take to a get that had found nothing, after one sweep', async () => {
    await withFolder(async (folder) => {
      const { clock } = folder;
      const faults = new Faults(clock);
      const policy = plain('N');
      const engine = await folder.started({ testThread: faults.thread }, [policy]);
      const broker = brokerOn([{ policy, engine }], clock);
      await broker.start();
      const queue = broker.namespace('N').queue('q');
      const get = (): Promise<Delivery> =>
        new Promise((deliver, end) => {
          queue.get(
            { group: null, leaseMs: null, timeoutMs: 60_000, tid: null, owner: null },
            { deliver, end },
          );
        });
      await queue.insert(newElements('a'));
      const frozen = faults.freeze('commit');
      const late = codeOf(get());
      await frozen;
      clock.advance(4_500);
      assert.equal(await late, 'outcome-unknown');
      const served: string[] = [];
      const waiting = codeOf(get().then((delivery) => served.push(bodyText(delivery))));
      // Its take waits in the thread's port, after the late take and before the undo.
      await turn();
      faults.resume();
      const answered = async (): Promise<void> => {
        for (let calls = 0; calls < 3; calls += 1) await engine.ping();
      };
      await answered();
      // A node sweeps at least every 5 s, and waits less than twice this step for a reply.
      for (let passed = 0; passed < 7_500; passed += 2_500) {
        clock.advance(2_500);
        await answered();
      }
      assert.deepEqual(served, ['a']);
      await waiting;
      await broker.stop();
    });
  });

  it('reports only the queues of late takes that took elements as affected in the next sweep', async () => {
    await withFolder(async (folder) => {
      const empty = { ns: 'N', name: 'empty' };
      const { engine, resume } = await withStalledDisk(folder, ({ storage }) => [
        storage.take(empty, POP),
        storage.take(QUEUE, { ...POP, count: 1 }),
        storage.take(QUEUE, { ...POP, count: 1, leaseMs: 600_000 }),
      ]);
      resume();
      // This reply arrives after the late ones.
      await engine.storage.counts(QUEUE);
      assert.deepEqual(await sweepAffected(engine.storage), [QUEUE]);
      assert.deepEqual(await sweepAffected(engine.storage), []);
    });
  });

  it('notifies watchers of a definition whose change ended with outcome-unknown', async () => {
    await withFolder(async (folder) => {
      const changed: (string | null)[] = [];
      const { engine, codes, resume } = await withStalledDisk(folder, ({ definitions }) => {
        definitions.watch(({ key }) => changed.push(key));
        return [definitions.put('queue', 'late', 1, 'any'), definitions.delete('queue', 'gone', 'any')];
      });
      resume();
      assert.deepEqual(codes, ['outcome-unknown', 'outcome-unknown']);
      assert.deepEqual(changed, ['late', 'gone']);
      // Their read runs after the change.
      assert.equal((await engine.definitions.get('queue', 'late'))?.value, 1);
    });
  });

  it('never applies a call that expired before it was sent, and rejects it with storage-unavailable', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults(folder.clock);
      const { storage } = await folder.started({ testThread: faults.thread });
      const frozen = faults.freeze('commit');
      const sent: Promise<string>[] = [];
      // One message per turn, until the limit of messages at the worker is reached.
      for (let i = 0; i < 8; i++) {
        sent.push(codeOf(storage.insert(QUEUE, newElements(`sent ${i}`))));
        await turn();
      }
      await frozen;
      const unsent = [codeOf(storage.insert(QUEUE, newElements('unsent'))), codeOf(storage.take(QUEUE, POP))];
      folder.clock.advance(4000);
      const waiting = storage.insert(QUEUE, newElements('waiting'));
      folder.clock.advance(999);
      assert.deepEqual(new Set(await Promise.all(sent)), new Set(['outcome-unknown']));
      assert.deepEqual(await Promise.all(unsent), ['storage-unavailable', 'storage-unavailable']);
      faults.resume();
      await waiting;
      const { deliveries } = await storage.take(QUEUE, POP);
      assert.deepEqual(bodyTexts(deliveries), [...sent.map((_, i) => `sent ${i}`), 'waiting']);
    });
  });

  it('finishes earlier calls when it stops, however late, and returns the elements that they took', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults(folder.clock);
      const engine = await folder.started({ testThread: faults.thread });
      const { storage } = engine;
      await storage.insert(QUEUE, newElements('first', 'second'));
      const frozen = faults.freeze('commit');
      const taken = codeOf(storage.take(QUEUE, POP));
      const stored = codeOf(storage.insert(QUEUE, newElements('late')));
      // In the same turn, so that the engine's last call shares their transaction.
      const stopping = engine.stop();
      await frozen;
      folder.clock.advance(10_000);
      assert.deepEqual([await taken, await stored], ['outcome-unknown', 'outcome-unknown']);
      faults.resume();
      await stopping;
      assert.equal(folder.clock.pending, 0);
      assert.deepEqual(await remainingIn(folder), ['first', 'second', 'late']);
    });
  });
});

describe('The onRepeat callback of an insert', () => {
  it('fails only its own insert if it throws', async () => {
    await withFolder(async (folder) => {
      const { storage } = await folder.started();
      const keyed = [newElement({ dedupKey: 'k' })];
      const thrown = new Error('thrown by the caller');
      await storage.insert(QUEUE, keyed);
      const repeated = storage.insert(QUEUE, keyed, {
        onRepeat: () => {
          throw thrown;
        },
      });
      const other = storage.insert(QUEUE, newElements('other'));
      await assert.rejects(repeated, thrown);
      await other;
      assert.equal((await storage.counts(QUEUE)).ready, 2);
    });
  });
});
