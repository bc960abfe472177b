import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, extend, nextDueAt, rollback, transfer } from '../../support/settle.ts';
import { byId, byToken, Fixture, type Reserved } from '../fixture.ts';

export function settleContract(open: EngineUnderTest['open']): void {
  describe('commit and rollback', () => {
    const on = new Fixture(open);
    const back = { delayMs: 0, countTry: true };

    it('commits by token and by id alone, and only once', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      const [a, b] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      assert.deepEqual(await commit(on.storage, queue, [byToken(a), byId(b)]), ['done', 'done']);
      assert.deepEqual(await commit(on.storage, queue, [byToken(a), byId(b)]), ['not-found', 'not-found']);
      const { ready, scheduled, reserved } = await on.storage.counts(queue);
      assert.deepEqual({ ready, scheduled, reserved }, { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('returns one outcome per reference, in order', async () => {
      const queue = on.queue();
      const [waiting] = await on.storage.insert(queue, [newElement({ body: 'later', delayMs: 3_600_000 })]);
      await on.storage.insert(queue, newElements('a', 'b'));
      const [a, b] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      const outcomes = await commit(on.storage, queue, [
        byId({ id: 'no such id', group: '' }),
        byToken(a),
        byId({ id: waiting ?? '', group: '' }),
        { ...byToken(b), token: a.lease.token },
        byToken(b),
        byToken(b),
      ]);
      assert.deepEqual(outcomes, ['not-found', 'done', 'not-reserved', 'lease-lost', 'done', 'not-found']);
    });

    it('does not find an id in another queue, or in one that does not exist', async () => {
      const [queue, other] = [on.queue(), on.queue()];
      await on.storage.insert(queue, newElements('a'));
      await on.storage.insert(other, newElements('b'));
      const reserved = await on.reserveOne(queue);
      const unknownQueue = { ...queue, ns: 'jobs' };
      for (const wrong of [other, unknownQueue]) {
        assert.deepEqual(await commit(on.storage, wrong, [byToken(reserved)]), ['not-found']);
        assert.deepEqual(await rollback(on.storage, wrong, [{ ...byToken(reserved), ...back }]), [
          'not-found',
        ]);
      }
      const refs = [byId(reserved), byToken(reserved)];
      const nowhere = refs.map(() => 'not-found');
      assert.deepEqual(await commit(on.storage, unknownQueue, refs), nowhere);
      const items = refs.map((ref) => ({ ...ref, ...back }));
      assert.deepEqual(await rollback(on.storage, unknownQueue, items), nowhere);
      assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['done']);
    });

    it('accepts an id only exactly as it was returned', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const { id, lease } = await on.reserveOne(queue);
      const wrong = [
        '',
        id.toUpperCase(),
        ` ${id}`,
        `${id} `,
        `0${id}`,
        `${id}0`,
        id.slice(1),
        id.slice(0, -1),
      ];
      wrong.push(
        '-',
        '__proto__',
        `${id}\0`,
        'x'.repeat(64),
        '1',
        '🙂',
        "' OR 1=1 --",
        id.replace('-', '-0'),
      );
      const refs = wrong.filter((text) => text !== id).map((text) => ({ id: text, group: '', token: null }));
      const outcomes = await commit(on.storage, queue, refs);
      assert.deepEqual(new Set(outcomes), new Set(['not-found']));
      assert.deepEqual(await commit(on.storage, queue, [{ id, group: '', token: lease.token }]), ['done']);
    });

    it('returns not-reserved for a waiting element, or lease-lost if a token was given', async () => {
      const queue = on.queue();
      const [id = ''] = await on.storage.insert(queue, newElements('a'));
      const waiting = { id, group: '' };
      assert.deepEqual(await commit(on.storage, queue, [byId(waiting)]), ['not-reserved']);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byId(waiting), ...back }]), ['not-reserved']);
      assert.deepEqual(await commit(on.storage, queue, [{ ...waiting, token: 'made up' }]), ['lease-lost']);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a']);
    });

    it('requires the token if another user reserved the element', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, newElements('a', 'b', 'c', 'd'));
      const take = async (owner: string | null): Promise<Reserved> => {
        const options = { group: '', count: 1, leaseMs: 60_000, owner };
        const { deliveries } = await on.storage.take(queue, options);
        return deliveries[0] as Reserved;
      };
      const [a, b, c, d] = [await take('ann'), await take('ann'), await take('ann'), await take(null)];
      const [ann, ben] = [{ owner: 'ann' }, { owner: 'ben' }];
      const extended = await extend(on.storage, queue, [{ ...byId(a), ...ben, leaseMs: 90_000 }]);
      assert.deepEqual(extended, [{ outcome: 'token-required', until: null }]);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byId(a), ...ben, ...back }]), [
        'token-required',
      ]);
      const moved = { from: queue, finish: { ...byId(a), ...ben }, inserts: [] };
      assert.deepEqual(await transfer(on.storage, [moved]), ['token-required']);
      const refs = [
        { ...byId(a), ...ben },
        { ...byId(a), ...ann },
        { ...byToken(b), ...ben },
        byId(c),
        { ...byId(d), ...ben },
      ];
      assert.deepEqual(await commit(on.storage, queue, refs), [
        'token-required',
        'done',
        'done',
        'done',
        'done',
      ]);
    });

    it('requires the token if another user reserved the element, even after the lease expired', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        const queue = { ns: 'plain', name: 'late' };
        await storage.insert(queue, newElements('a'));
        const options = { group: '', count: 1, leaseMs: 1000, owner: 'ann' };
        const [late] = (await storage.take(queue, options)).deliveries;
        await passTime(1001);
        await storage.sweep();
        const ref = { id: late?.id ?? '', group: '', token: null };
        assert.deepEqual(await commit(storage, queue, [{ ...ref, owner: 'ben' }]), ['token-required']);
        assert.deepEqual(await commit(storage, queue, [{ ...ref, owner: 'ann' }]), ['done']);
      });
    });

    it('creates unique tokens of 128 bits', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements(...'abcdefgh'));
      const tokens = (await on.reserve(queue)).map(({ lease }) => lease?.token ?? '');
      assert.equal(new Set(tokens).size, 8);
      // 22 characters of base64url, or 20 hexadecimal digits and a number of 48 bits.
      for (const token of tokens) assert.match(token, /^[A-Za-z0-9_-]{22}$|^[0-9a-z]{1,10}-[0-9a-f]{20}$/);
    });

    it('rejects the token of an earlier reservation with lease-lost, for every verb', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const late = await on.reserveOne(queue);
      await rollback(on.storage, queue, [{ ...byToken(late), ...back }]);
      const next = await on.reserveOne(queue);
      assert.equal(next.id, late.id);
      assert.deepEqual(await commit(on.storage, queue, [byToken(late)]), ['lease-lost']);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(late), ...back }]), ['lease-lost']);
      assert.deepEqual(await extend(on.storage, queue, [{ ...byToken(late), leaseMs: 1 }]), [
        { outcome: 'lease-lost', until: null },
      ]);
      assert.deepEqual(await commit(on.storage, queue, [byToken(next)]), ['done']);
    });

    it('rejects the old token of each of many elements that were reserved again', async () => {
      const queue = on.queue();
      const bodies = Array.from({ length: 64 }, (_, n) => `element ${n}`);
      const reserved = async () =>
        (await on.reserve(queue)).map(({ id, group, lease }) => ({ id, group, token: lease?.token ?? '' }));
      await on.storage.insert(queue, newElements(...bodies));
      const old = await reserved();
      await rollback(
        on.storage,
        queue,
        old.map((ref) => ({ ...ref, delayMs: 0, countTry: false })),
      );
      const current = await reserved();
      assert.deepEqual(
        current.map(({ id }) => id),
        old.map(({ id }) => id),
      );
      const lost = bodies.map(() => 'lease-lost');
      const rollbacks = old.map((ref) => ({ ...ref, ...back }));
      assert.deepEqual(await rollback(on.storage, queue, rollbacks), lost);
      assert.deepEqual(await commit(on.storage, queue, old), lost);
      assert.deepEqual(
        await commit(on.storage, queue, current),
        bodies.map(() => 'done'),
      );
    });

    for (const countTry of [true, false]) {
      it(`rejects the commit of an element that was rolled back ${countTry ? 'with' : 'without'} a counted try`, async () => {
        const queue = on.queue();
        await on.storage.insert(queue, newElements('a'));
        const reserved = await on.reserveOne(queue);
        await rollback(on.storage, queue, [{ ...byToken(reserved), delayMs: 0, countTry }]);
        assert.deepEqual(await commit(on.storage, queue, [byId(reserved)]), ['not-reserved']);
        assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['lease-lost']);
        assert.deepEqual(bodyTexts(await on.pop(queue)), ['a']);
      });
    }

    it('adds a try to the initial ones at each counted rollback', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, [newElement({ tries: 7 })]);
      const seen: number[] = [];
      for (const countTry of [true, false, true, true]) {
        const reserved = await on.reserveOne(queue);
        seen.push(reserved.tries);
        await rollback(on.storage, queue, [{ ...byId(reserved), delayMs: 0, countTry }]);
      }
      assert.deepEqual(seen, [7, 8, 8, 9]);
      assert.equal((await on.pop(queue))[0]?.tries, 10);
    });

    it('makes a rolled-back element ready after its delay', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      const before = on.opened.now();
      const a = await on.reserveOne(queue);
      await rollback(on.storage, queue, [{ ...byToken(a), delayMs: 3_600_000, countTry: true }]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['b']);
      const due = (await nextDueAt(on.storage, queue, '')) ?? 0;
      assert.ok(due >= before + 3_600_000 && due <= on.opened.now() + 3_600_000);
      await on.opened.passTime(3_600_000);
      const [again] = await on.pop(queue);
      assert.equal(again?.matureAt, due);
    });

    it('matures a rolled-back element at the moment of the rollback', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      await on.opened.passTime(10);
      await on.storage.insert(queue, newElements('b'));
      await on.opened.passTime(10);
      await rollback(on.storage, queue, [{ ...byToken(await on.reserveOne(queue)), ...back }]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['b', 'a']);
    });

    it('returns an element to its place at an uncounted rollback, with the same maturity and tries', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      const a = await on.reserveOne(queue);
      await on.opened.passTime(10);
      await rollback(on.storage, queue, [{ ...byToken(a), delayMs: 0, countTry: false }]);
      const [first, second] = await on.pop(queue);
      assert.equal(first?.id, a.id);
      assert.equal(first?.matureAt, a.matureAt);
      assert.equal(first?.tries, a.tries);
      assert.deepEqual(second === undefined ? [] : bodyTexts([second]), ['b']);
    });

    it('delays an uncounted rollback on request, without counting a try', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue);
      await rollback(on.storage, queue, [{ ...byToken(reserved), delayMs: 3_600_000, countTry: false }]);
      assert.deepEqual(await on.pop(queue), []);
      await on.opened.passTime(3_600_000);
      assert.equal((await on.pop(queue))[0]?.tries, 0);
    });
  });
}
