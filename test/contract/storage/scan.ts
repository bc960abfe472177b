import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { ScannedDelivery, ScanOptions, ScanPage, TakeOptions } from '../../../src/engine/storage.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { rollback } from '../../support/settle.ts';
import { byToken, Fixture } from '../fixture.ts';

export function scanContract({ open }: EngineUnderTest): void {
  describe('scan of several states', () => {
    const on = new Fixture(open);
    const all = ['ready', 'scheduled', 'reserved'] as const;

    async function scanAll(queue: QueueKey, options: Partial<ScanOptions> = {}): Promise<ScannedDelivery[]> {
      const found: ScannedDelivery[] = [];
      let after: string | null = null;
      do {
        const page: ScanPage = await on.storage.scan(queue, {
          group: '',
          states: all,
          limit: 100,
          bodies: true,
          ...options,
          after,
        });
        assert.ok(page.deliveries.length <= (options.limit ?? 100), 'a page is no longer than its limit');
        found.push(...page.deliveries);
        after = page.next;
      } while (after !== null);
      return found;
    }

    /** Two elements in each state: r1, r2 ready, s1, s2 scheduled, h1, h2 reserved. */
    async function fill(queue: QueueKey): Promise<Map<string, string>> {
      const held = await on.storage.insert(queue, newElements('h1', 'h2'));
      await on.reserve(queue, 2);
      const ids = await on.storage.insert(queue, [
        newElement({ body: 's1', delayMs: 3_600_000 }),
        newElement({ body: 'r1' }),
        newElement({ body: 's2', delayMs: 7_200_000 }),
        newElement({ body: 'r2' }),
      ]);
      const names = ['h1', 'h2', 's1', 'r1', 's2', 'r2'];
      return new Map([...held, ...ids].map((id, i) => [names[i] ?? '', id]));
    }

    it('returns ready, scheduled, then reserved deliveries, in whatever order the states are given', async () => {
      const queue = on.queue();
      await fill(queue);
      const expected = [
        ['r1', 'ready'],
        ['r2', 'ready'],
        ['s1', 'scheduled'],
        ['s2', 'scheduled'],
        ['h1', 'reserved'],
        ['h2', 'reserved'],
      ];
      const bodiesAndStates = (found: readonly ScannedDelivery[]): string[][] =>
        found.map((delivery) => [...bodyTexts([delivery]), delivery.state]);
      assert.deepEqual(bodiesAndStates(await scanAll(queue)), expected);
      const backwards = { states: ['reserved', 'scheduled', 'ready'] } as const;
      assert.deepEqual(bodiesAndStates(await scanAll(queue, backwards)), expected);
      for (const limit of [1, 2, 3, 4, 5, 6])
        assert.deepEqual(bodiesAndStates(await scanAll(queue, { limit })), expected, `pages of ${limit}`);
      const two = { states: ['reserved', 'ready'], limit: 3 } as const;
      assert.deepEqual(bodyTexts(await scanAll(queue, two)), ['r1', 'r2', 'h1', 'h2']);
      assert.deepEqual(await scanAll(queue, { states: [] }), []);
    });

    it('ends a page with the body that exceeds 2 MiB, because other calls wait behind a page', async () => {
      const queue = on.queue();
      const count = 7;
      for (let i = 0; i < count; i++)
        await on.storage.insert(queue, [newElement({ body: Buffer.alloc(1_000_000, i) })]);
      const options = { group: '', states: ['ready'], limit: 100, bodies: true } as const;
      const found: ScannedDelivery[] = [];
      let after: string | null = null;
      do {
        const page: ScanPage = await on.storage.scan(queue, { ...options, after });
        assert.ok(page.deliveries.length > 0 && page.deliveries.length <= 3, `${page.deliveries.length}`);
        found.push(...page.deliveries);
        after = page.next;
      } while (after !== null);
      assert.deepEqual(
        found.map(({ body }) => body[0]),
        Array.from({ length: count }, (_, i) => i),
      );
    });

    it('continues after the cursor of any delivery, even if that delivery is gone', async () => {
      const queue = on.queue();
      await fill(queue);
      const found = await scanAll(queue);
      const rest = async (cursor: string | null): Promise<string[]> => {
        const options = { group: '', states: all, limit: 100, bodies: true };
        return bodyTexts((await on.storage.scan(queue, { ...options, after: cursor })).deliveries);
      };
      for (const [i, { cursor }] of found.entries())
        assert.deepEqual(await rest(cursor), bodyTexts(found.slice(i + 1)), `behind ${i}`);
      await on.pop(queue, 1);
      assert.deepEqual(await rest(found[0]?.cursor ?? null), ['r2', 's1', 's2', 'h1', 'h2']);
    });

    it('continues after the cursor of any delivery of a group of a stream', async () => {
      const queue = on.queue('stream');
      const groups = ['g1', 'g2'];
      await on.storage.insert(
        queue,
        ['a', 'b', 'c'].map((body) => newElement({ body, groups })),
      );
      const found = await scanAll(queue, { group: 'g2' });
      const options = { group: 'g2', states: all, limit: 100, bodies: true };
      for (const [i, { cursor }] of found.entries()) {
        const { deliveries } = await on.storage.scan(queue, { ...options, after: cursor });
        assert.deepEqual(bodyTexts(deliveries), ['a', 'b', 'c'].slice(i + 1));
      }
    });

    it('returns those of the given ids that are in one of the states, in the usual order, on one page', async () => {
      const [queue, other] = [on.queue(), on.queue()];
      const ids = await fill(queue);
      const [foreign = ''] = await on.storage.insert(other, newElements('foreign'));
      const wanted = ['h2', 'r2', 's1'].map((name) => ids.get(name) ?? '');
      const page = (states: ScanOptions['states']): Promise<ScanPage> =>
        on.storage.scan(queue, {
          group: '',
          states,
          ids: [...wanted, foreign, 'none', ...wanted],
          after: null,
          limit: 1000,
          bodies: true,
        });
      const found = await page(all);
      assert.deepEqual(bodyTexts(found.deliveries), ['r2', 's1', 'h2']);
      assert.equal(found.next, null);
      assert.deepEqual(bodyTexts((await page(['reserved'])).deliveries), ['h2']);
    });

    it('omits bodies on request, but returns their lengths and all other fields', async () => {
      const queue = on.queue();
      const body = Buffer.alloc(100_000, 7);
      const content = { contentType: 'text/x', contentEncoding: 'gzip', headers: ['a', '1', 'b', 'é'] };
      await on.storage.insert(queue, [newElement({ body, ...content, tries: 2 }), newElement({ body: '' })]);
      const [withBodies, withoutBodies] = [await scanAll(queue), await scanAll(queue, { bodies: false })];
      assert.deepEqual(
        withBodies.map(({ bytes, body: { byteLength } }) => [bytes, byteLength]),
        [
          [100_000, 100_000],
          [0, 0],
        ],
      );
      const empty = withBodies.map((delivery) => ({ ...delivery, body: new Uint8Array(0) }));
      assert.deepEqual(
        withoutBodies.map((delivery) => ({ ...delivery, body: new Uint8Array(delivery.body) })),
        empty,
      );
      const { contentType, contentEncoding, headers, tries } = withoutBodies[0] ?? {};
      assert.deepEqual({ contentType, contentEncoding, headers, tries }, { ...content, tries: 2 });
    });

    it('returns when each delivery was inserted and when it expires, and no token', async () => {
      const queue = on.queue();
      const before = on.opened.now();
      const expiresAt = before + 3_600_000;
      await on.storage.insert(queue, [newElement({ expiresAt }), newElement({ delayMs: 60_000 })]);
      const after = on.opened.now();
      await on.opened.passTime(1000);
      await on.reserveOne(queue);
      const found = await scanAll(queue);
      assert.deepEqual(
        found.map((delivery) => [delivery.state, delivery.expiresAt, delivery.lease?.token]),
        [
          ['scheduled', null, undefined],
          ['reserved', expiresAt, ''],
        ],
      );
      for (const { insertedAt } of found) {
        assert.ok(insertedAt >= before && insertedAt <= after, `${before} <= ${insertedAt} <= ${after}`);
      }
    });

    it('returns who holds each reservation, and since when, until it ends', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b', 'c', 'd', 'e'));
      const before = on.opened.now();
      const reserve = (count: number, options: Partial<TakeOptions> = {}) =>
        on.storage.take(queue, { group: '', count, leaseMs: 60_000, ...options });
      await Promise.all([
        reserve(1, { owner: 'ann' }),
        reserve(2, { owner: 'ann', tids: ['w1', null] }),
        reserve(1, { owner: 'ann', tids: 'wé' }),
        reserve(1, { tids: 'loop' }),
      ]);
      const after = on.opened.now();
      const reserved = await scanAll(queue, { states: ['reserved'] });
      const holders = reserved.map(({ body, holder }) => [
        Buffer.from(body).toString(),
        holder?.user,
        holder?.tid,
      ]);
      assert.deepEqual(holders.toSorted(), [
        ['a', 'ann', null],
        ['b', 'ann', 'w1'],
        ['c', 'ann', null],
        ['d', 'ann', 'wé'],
        ['e', null, 'loop'],
      ]);
      for (const { holder } of reserved) {
        assert.ok(holder !== null && holder.since >= before && holder.since <= after, `${holder?.since}`);
      }
      const [held] = reserved;
      assert.ok(held);
      await on.opened.passTime(1000);
      const item = { queue, id: held.id, group: '', from: 'reserved', token: null } as const;
      const extend = { ...item, action: { kind: 'extend', leaseMs: 120_000 } } as const;
      assert.equal((await on.storage.settle([extend]))[0]?.outcome, 'done');
      const holderOf = async (): Promise<ScannedDelivery['holder'] | undefined> =>
        (await scanAll(queue, { ids: [held.id] }))[0]?.holder;
      assert.deepEqual(await holderOf(), held.holder, 'an extension changes no holder');
      const release = { kind: 'release', delayMs: 0, countTry: true, reason: 'why' } as const;
      await on.storage.settle([{ ...item, action: release }]);
      assert.equal(await holderOf(), null);
      await on.storage.take(queue, { group: '', count: 1, leaseMs: 60_000, tids: ['again'] });
      assert.equal((await holderOf())?.tid, 'again');
      assert.equal((await scanAll(queue, { ids: [held.id] }))[0]?.reason, 'why', 'the reason is kept');
    });

    it('returns the right holder of each of many reservations', async () => {
      const queue = on.queue('stream');
      const bodies = Array.from({ length: 150 }, (_, n) => String(n));
      await on.storage.insert(
        queue,
        bodies.map((body) => newElement({ body, groups: ['g1', 'g2'] })),
      );
      await on.storage.take(queue, {
        group: 'g2',
        count: 200,
        leaseMs: 60_000,
        owner: 'ann',
        tids: Array.from({ length: 200 }, (_, n) => `w${n}`),
      });
      const found = await scanAll(queue, { group: 'g2' });
      assert.deepEqual(
        found.map(({ body, holder }) => [Buffer.from(body).toString(), holder?.tid]),
        bodies.map((body) => [body, `w${body}`]),
      );
    });

    it('returns why the last counted try failed, in any state of the delivery', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reasons = async (): Promise<(string | null)[]> =>
        (await scanAll(queue)).map(({ reason }) => reason);
      const fail = async (terms: { countTry: boolean; reason?: string | null }): Promise<void> => {
        const ref = byToken(await on.reserveOne(queue));
        await rollback(on.storage, queue, [{ ...ref, delayMs: 0, ...terms }]);
      };
      assert.deepEqual(await reasons(), [null]);
      await fail({ countTry: true, reason: 'no such customer' });
      assert.deepEqual(await reasons(), ['no such customer']);
      await on.reserveOne(queue, '', 1000);
      assert.deepEqual(await reasons(), ['no such customer'], 'while it is reserved');
      await on.opened.passTime(1001);
      await on.storage.sweep();
      assert.deepEqual(await reasons(), ['lease-expired']);
      await fail({ countTry: false, reason: 'not counted' });
      assert.deepEqual(
        await reasons(),
        ['lease-expired'],
        'a try that is not counted does not replace the reason',
      );
      await fail({ countTry: true });
      assert.deepEqual(await reasons(), [null], 'a counted try without a reason removes it');
    });
  });
}
