import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { SettleAction } from '../../src/engine/storage.ts';
import { QUEUE, withFolder } from '../engines/sqlite-folder.ts';
import { newElement } from '../support/elements.ts';

const MIB = 1024 * 1024;
const DEAD = { ns: 'N', name: '__deadletter__' };
/**
 * The number of elements that become dead letters in one step, including the one that exceeds the step's byte limit.
 */
const MAX_PER_STEP = 5;
const COUNT = 12;

function large(fields: Parameters<typeof newElement>[0]): ReturnType<typeof newElement>[] {
  return Array.from({ length: COUNT }, () => newElement({ body: Buffer.alloc(MIB, 'x'), ...fields }));
}

async function readyIn({ storage }: Engine, queue = DEAD): Promise<number> {
  return (await storage.counts(queue)).ready;
}

/** Sweeps until nothing is due. Returns the number of dead letters before the first sweep and after each. */
async function sweptSteps(engine: Engine, now: () => number): Promise<number[]> {
  const steps = [await readyIn(engine)];
  for (let nextAt: number | null = now(); nextAt !== null && nextAt <= now(); ) {
    nextAt = await engine.storage.sweep();
    steps.push(await readyIn(engine));
  }
  return steps;
}

/** Checks that no count exceeds the previous one by more than the allowed steps. */
function assertSteps(steps: readonly number[]): void {
  assert.equal(steps.at(-1), COUNT);
  // Both the sweep and the following count end expired leases, so each may take a step.
  for (const [i, count] of steps.entries()) assert.ok(count - (steps[i - 1] ?? 0) <= 2 * MAX_PER_STEP);
  assert.ok((steps[0] ?? 0) <= MAX_PER_STEP);
}

describe('Large elements of SQLite that become dead letters by expiry', () => {
  it('are moved in several steps when their leases expire, so that other calls wait for only one step', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, large({ tries: 1 }));
      const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: COUNT, leaseMs: 1000 });
      assert.equal(deliveries.length, COUNT);
      folder.clock.advance(1000);
      assertSteps(await sweptSteps(engine, () => folder.clock.now()));
      assert.equal((await engine.storage.counts(QUEUE)).reserved, 0);
    });
  });

  it('are moved in several steps when they expire', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, large({ expiresAt: folder.clock.now() + 1000 }));
      folder.clock.advance(1000);
      assertSteps(await sweptSteps(engine, () => folder.clock.now()));
      assert.equal(await readyIn(engine, QUEUE), 0);
    });
  });

  it('delay a take by one step, and the take reports that more are due', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const { storage } = engine;
      await storage.insert(QUEUE, large({ expiresAt: folder.clock.now() + 1000 }));
      await storage.insert(QUEUE, [newElement({ body: 'behind' })]);
      folder.clock.advance(1000);
      const take = { group: '', count: 1, leaseMs: null };
      const first = await storage.take(QUEUE, take);
      assert.deepEqual(first.deliveries, []);
      assert.ok((first.nextDueAt ?? Number.POSITIVE_INFINITY) <= folder.clock.now());
      assert.ok((await readyIn(engine)) <= MAX_PER_STEP);
      let taken = first;
      while (taken.deliveries.length === 0) taken = await storage.take(QUEUE, take);
      assert.equal(await readyIn(engine), COUNT);
    });
  });
});

describe('Large elements of SQLite moved by one call', () => {
  const ACTIONS: readonly SettleAction[] = [
    { kind: 'dead-letter', countTry: true, reason: null },
    { kind: 'release', delayMs: 0, countTry: true },
    { kind: 'move', to: DEAD, groups: [''], tries: null, head: null },
  ];

  for (const action of ACTIONS) {
    it(`are moved in several steps by ${action.kind}, so that other calls wait for only one step`, async () => {
      await withFolder(async (folder) => {
        const engine = await folder.started();
        const { storage } = engine;
        const ids = await storage.insert(QUEUE, large({ tries: 1 }));
        if (action.kind !== 'move') await storage.take(QUEUE, { group: '', count: COUNT, leaseMs: 1000 });
        const from = action.kind === 'move' ? 'waiting' : 'reserved';
        const settling = storage.settle([
          ...ids.map((id) => ({ queue: QUEUE, id, group: '', from, token: null, action }) as const),
          { queue: QUEUE, id: ids[0] ?? '', group: '', from, token: null, action: { kind: 'finish' } },
        ]);
        assert.ok((await readyIn(engine)) <= MAX_PER_STEP);
        const outcome = action.kind === 'move' ? 'done' : 'dead-lettered';
        const outcomes = (await settling).map((each) => each.outcome);
        assert.deepEqual(outcomes, [...ids.map(() => outcome), 'not-found']);
        assert.equal(await readyIn(engine), COUNT);
      });
    });
  }

  it('are all moved before the engine stops if the call preceded the stop', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const ids = await engine.storage.insert(QUEUE, large({}));
      const action = { kind: 'move', to: DEAD, groups: [''], tries: null, head: null } as const;
      const item = { queue: QUEUE, group: '', from: 'waiting', token: null, action } as const;
      const settling = engine.storage.settle(ids.map((id) => ({ ...item, id })));
      const [results] = await Promise.all([settling, engine.stop()]);
      assert.deepEqual(
        results.map(({ outcome }) => outcome),
        ids.map(() => 'done'),
      );
    });
  });
});
