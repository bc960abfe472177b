import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { ScanPage } from '../../../src/engine/storage.ts';
import type { Delivery, DeliveryState } from '../../../src/model/element.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement } from '../../support/elements.ts';
import { Fixture } from '../fixture.ts';

export function browseContract(open: EngineUnderTest['open']): void {
  describe('browse', () => {
    const on = new Fixture(open);

    async function pages(
      queue: QueueKey,
      state: DeliveryState,
      limit: number,
      group = '',
    ): Promise<Delivery[][]> {
      const all: Delivery[][] = [];
      let after: string | null = null;
      do {
        const page: ScanPage = await on.storage.scan(queue, {
          group,
          states: [state],
          bodies: true,
          after,
          limit,
        });
        all.push(page.deliveries);
        after = page.next;
      } while (after !== null);
      return all;
    }

    async function filledQueue(): Promise<QueueKey> {
      const queue = on.queue();
      const now = on.opened.now();
      await on.storage.insert(queue, [
        newElement({ body: 'r3', matureAt: now - 1 }),
        newElement({ body: 'r4', matureAt: now - 1 }),
        newElement({ body: 'r1', matureAt: now - 9 }),
        newElement({ body: 'r2', matureAt: now - 9 }),
        newElement({ body: 's2', matureAt: now + 7_200_000 }),
        newElement({ body: 's1', matureAt: now + 3_600_000 }),
      ]);
      return queue;
    }

    it('pages through each state in the order of delivery, without gaps or repeats', async () => {
      const queue = await filledQueue();
      for (const limit of [1, 2, 3, 4, 5, 1000]) {
        const ready = await pages(queue, 'ready', limit);
        assert.deepEqual(bodyTexts(ready.flat()), ['r1', 'r2', 'r3', 'r4']);
        assert.ok(ready.every((page) => page.length <= limit));
        assert.deepEqual(bodyTexts((await pages(queue, 'scheduled', limit)).flat()), ['s1', 's2']);
        assert.deepEqual(await pages(queue, 'reserved', limit), [[]]);
      }
      assert.equal((await pages(queue, 'ready', 4)).length, 1);
    });

    it('returns all fields except the token', async () => {
      const queue = on.queue();
      const headers = ['h', 'v'];
      await on.storage.insert(queue, [newElement({ body: 'x', tries: 2, headers, contentEncoding: 'gzip' })]);
      const [ready] = (await pages(queue, 'ready', 9)).flat();
      assert.deepEqual(ready?.headers, headers);
      assert.equal(ready?.tries, 2);
      assert.equal(ready?.contentEncoding, 'gzip');
      assert.equal(ready?.contentType, 'text/plain');
      assert.equal(ready?.lease, null);
      const reserved = await on.reserveOne(queue);
      assert.equal(ready?.id, reserved.id);
      const [shown] = (await pages(queue, 'reserved', 9)).flat();
      assert.deepEqual(shown?.lease, { token: '', until: reserved.lease.until });
      assert.equal(shown?.matureAt, reserved.matureAt);
    });

    it('changes neither the counts nor the order', async () => {
      const queue = await filledQueue();
      await on.reserveOne(queue, '', 60_000);
      const before = await on.storage.counts(queue);
      for (const state of ['ready', 'scheduled', 'reserved'] as const) await pages(queue, state, 2);
      assert.deepEqual(await on.storage.counts(queue), before);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['r2', 'r3', 'r4']);
    });

    it('continues after a page although its elements are gone', async () => {
      const queue = await filledQueue();
      const first = await on.storage.scan(queue, {
        group: '',
        states: ['ready'],
        bodies: true,
        after: null,
        limit: 2,
      });
      await on.pop(queue, 2);
      const rest = await on.storage.scan(queue, {
        group: '',
        states: ['ready'],
        bodies: true,
        after: first.next,
        limit: 9,
      });
      assert.deepEqual(bodyTexts(rest.deliveries), ['r3', 'r4']);
      assert.equal(rest.next, null);
    });

    it('pages through one group', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [
        newElement({ body: 'a', groups: ['g1', 'g2'] }),
        newElement({ body: 'b', groups: ['g2'] }),
      ]);
      assert.deepEqual(bodyTexts((await pages(queue, 'ready', 1, 'g2')).flat()), ['a', 'b']);
      assert.deepEqual(bodyTexts((await pages(queue, 'ready', 1, 'g1')).flat()), ['a']);
      assert.deepEqual(await pages(queue, 'ready', 1, 'none'), [[]]);
    });

    it('returns an empty page for an unknown queue', async () => {
      assert.deepEqual(await pages(on.queue(), 'ready', 5), [[]]);
    });

    it('starts from the beginning if the cursor is invalid', async () => {
      const queue = await filledQueue();
      for (const after of ['', 'nonsense', '.', 'NaN.x', '1.2.3', "'"]) {
        const page = await on.storage.scan(queue, {
          group: '',
          states: ['ready'],
          bodies: true,
          after,
          limit: 1,
        });
        assert.deepEqual(bodyTexts(page.deliveries), ['r1']);
      }
    });
  });
}
