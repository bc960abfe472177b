import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Storage } from '../../../src/engine/storage.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest, TestEngine } from '../../engines.ts';
import { bodyTexts, newElement } from '../../support/elements.ts';
import { rollback, transfer } from '../../support/settle.ts';
import { byToken, Fixture, MAX_GROUPS } from '../fixture.ts';

const TOO_MANY = { code: 'too-many-groups' };
const HOUR_MS = 3_600_000;

/** Names that no list with another prefix has. */
function names(prefix: string, count: number): string[] {
  return Array.from({ length: count }, (_, index) => `${prefix} ${index}`);
}

/** As many groups as a queue may have. */
const FULL = names('full', MAX_GROUPS);

export function groupsContract(open: EngineUnderTest['open']): void {
  describe('the bound on groups', () => {
    const on = new Fixture(open);

    /** A queue with as many groups as it may have, each with one element. */
    const fullQueue = async (): Promise<QueueKey> => {
      const queue = on.queue('crowded');
      await on.storage.insert(queue, [newElement({ body: 'first', groups: FULL })]);
      return queue;
    };

    it('rejects an insert that would create one group too many, and stores none of its elements', async () => {
      const queue = await fullQueue();
      const elements = [
        newElement({ body: 'known', groups: FULL.slice(0, 1) }),
        newElement({ body: 'new', groups: ['one more', ...FULL.slice(1)] }),
      ];
      await assert.rejects(on.storage.insert(queue, elements), TOO_MANY);
      assert.deepEqual(await on.pop(queue, 9, 'one more'), []);
      for (const group of FULL) assert.deepEqual(bodyTexts(await on.pop(queue, 9, group)), ['first'], group);
      assert.equal((await on.storage.counts(queue)).groups.size, 0);
    });

    it('rejects an insert with more groups than an empty queue may have, and creates no queue', async () => {
      const queue = on.queue('crowded');
      const elements = [newElement({ groups: [...FULL, 'one more'] })];
      await assert.rejects(on.storage.insert(queue, elements), TOO_MANY);
      assert.equal((await on.storage.queues('crowded')).includes(queue.name), false);
    });

    it('leaves the last place free if it rejects two new groups', async () => {
      for (const groups of [[['x', 'y']], [['x'], ['y']]]) {
        const queue = on.queue('crowded');
        await on.storage.insert(queue, [newElement({ groups: FULL.slice(1) })]);
        const elements = groups.map((each) => newElement({ groups: each }));
        await assert.rejects(on.storage.insert(queue, elements), TOO_MANY);
        const taken = await on.reserveOne(queue, FULL[1]);
        const inserts = elements.map((element) => ({ queue, element }));
        await assert.rejects(
          transfer(on.storage, [{ from: queue, finish: byToken(taken), inserts }]),
          TOO_MANY,
        );
        await on.storage.insert(queue, [newElement({ body: 'fits', groups: ['z'] })]);
        assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'z')), ['fits']);
      }
    });

    it('allows existing groups and the default ones in a full queue', async () => {
      const queue = await fullQueue();
      await on.storage.insert(queue, [newElement({ body: 'more', groups: [FULL[0] ?? '', 'g1', 'g2'] })]);
      for (const group of ['g1', 'g2']) assert.deepEqual(bodyTexts(await on.pop(queue, 9, group)), ['more']);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, FULL[0])), ['first', 'more']);
    });

    it('applies to each queue separately', async () => {
      await fullQueue();
      await on.storage.insert(on.queue('crowded'), [newElement({ groups: ['one more'] })]);
    });

    it('rejects only those calls of a batch that exceed it', async () => {
      const queue = await fullQueue();
      const inserts = [FULL.slice(0, 1), ['one more'], ['g1'], ['another'], FULL.slice(1, 2)].map(
        (groups, index) => on.storage.insert(queue, [newElement({ body: `call ${index}`, groups })]),
      );
      const ended = await Promise.allSettled(inserts);
      const refused = ended.flatMap(({ status }, index) => (status === 'rejected' ? [index] : []));
      assert.deepEqual(refused, [1, 3]);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, FULL[0])), ['first', 'call 0']);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g1')), ['call 2']);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, FULL[1])), ['first', 'call 4']);
    });

    it('rejects a transfer that exceeds it, and finishes nothing', async () => {
      const queue = await fullQueue();
      const taken = await on.reserveOne(queue, FULL[0]);
      const move = (groups: string[]) => [
        {
          from: queue,
          finish: byToken(taken),
          inserts: [{ queue, element: newElement({ body: 'moved', groups }) }],
        },
      ];
      await assert.rejects(transfer(on.storage, move(['one more'])), TOO_MANY);
      assert.deepEqual(await transfer(on.storage, move(['g1', 'g2'])), ['done']);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g2')), ['moved']);
    });

    it('does not reject dead letters', async () => {
      const deadLetters = { ns: 'crowded', name: 'dead-letters' };
      await on.storage.insert(deadLetters, [newElement({ groups: FULL })]);
      const queue = on.queue('crowded');
      await on.storage.insert(queue, [newElement({ body: 'dying', groups: ['one more'], tries: 2 })]);
      const taken = await on.reserveOne(queue, 'one more');
      const failed = { ...byToken(taken), delayMs: 0, countTry: true };
      assert.deepEqual(await rollback(on.storage, queue, [failed]), ['dead-lettered']);
      assert.deepEqual(bodyTexts(await on.pop(deadLetters, 9, 'g2')), ['dying']);
    });

    it('allows undoing a pop although other groups have filled the queue since', async () => {
      await on.alone(async (opened) => {
        const queue = { ns: 'crowded', name: 'q' };
        const { storage } = opened.engine;
        await storage.insert(queue, [newElement({ body: 'popped', groups: ['early'] })]);
        const { deliveries } = await storage.take(queue, { group: 'early', count: 1, leaseMs: null });
        await passIdleTime(opened);
        await storage.insert(queue, [newElement({ groups: FULL })]);
        await storage.undoTake(queue, deliveries);
        assert.deepEqual(await popped(storage, queue, 'early'), ['popped']);
      });
    });

    it('evicts groups that have been empty for a while, but none that has an element', async () => {
      await on.alone(async (opened) => {
        const queue = { ns: 'crowded', name: 'q' };
        const { storage } = opened.engine;
        await storage.insert(queue, [newElement({ body: 'first', groups: FULL })]);
        const [reserved = '', delayed = '', kept = '', ...gone] = FULL;
        await storage.take(queue, { group: reserved, count: 1, leaseMs: 9 * HOUR_MS });
        const { deliveries } = await storage.take(queue, { group: delayed, count: 1, leaseMs: 9 * HOUR_MS });
        const [{ id, lease }] = deliveries as [(typeof deliveries)[number]];
        const rollbackRef = {
          id,
          group: delayed,
          token: lease?.token ?? null,
          delayMs: 9 * HOUR_MS,
          countTry: false,
        };
        assert.deepEqual(await rollback(storage, queue, [rollbackRef]), ['done']);
        for (const group of gone) await storage.take(queue, { group, count: 9, leaseMs: null });
        await passIdleTime(opened);
        const fresh = names('fresh', gone.length);
        await storage.insert(queue, [newElement({ body: 'second', groups: fresh })]);
        await assert.rejects(storage.insert(queue, [newElement({ groups: ['one more'] })]), TOO_MANY);
        for (const group of fresh) assert.deepEqual(await popped(storage, queue, group), ['second'], group);
        assert.deepEqual(await popped(storage, queue, kept), ['first']);
        await opened.passTime(9 * HOUR_MS);
        assert.deepEqual(await popped(storage, queue, reserved), ['first']);
        assert.deepEqual(await popped(storage, queue, delayed), ['first']);
      });
    });

    it('delivers an element to all its groups, existing or new, while empty groups are evicted for them', async () => {
      await on.alone(async (opened) => {
        const queue = { ns: 'crowded', name: 'q' };
        const { storage } = opened.engine;
        await storage.insert(queue, [newElement({ groups: FULL })]);
        for (const group of FULL) await storage.take(queue, { group, count: 9, leaseMs: null });
        await passIdleTime(opened);
        const elements = [FULL.slice(0, 3), names('new', 3), ['g1', ...names('newer', 4)]].map((groups) =>
          newElement({ body: String(groups), groups }),
        );
        await storage.insert(queue, elements);
        for (const { groups } of elements) {
          for (const group of groups)
            assert.deepEqual(await popped(storage, queue, group), [String(groups)], group);
        }
      });
    });
  });
}

/** Long enough for every engine to evict empty groups. */
async function passIdleTime({ engine, passTime }: TestEngine): Promise<void> {
  for (let times = 0; times < 3; times++) {
    await passTime(HOUR_MS);
    await engine.storage.sweep();
  }
}

async function popped(storage: Storage, queue: QueueKey, group: string): Promise<string[]> {
  const { deliveries } = await storage.take(queue, { group, count: 9, leaseMs: null });
  return bodyTexts(deliveries);
}
