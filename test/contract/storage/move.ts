import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { MoveAction, SettleOutcome } from '../../../src/engine/storage.ts';
import type { Delivery } from '../../../src/model/element.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, settle } from '../../support/settle.ts';
import { byId, byToken, Fixture, MAX_GROUPS } from '../fixture.ts';

export function moveContract({ open }: EngineUnderTest): void {
  describe('move', () => {
    const on = new Fixture(open);

    const action = (to: QueueKey, terms: Partial<MoveAction> = {}): MoveAction => ({
      kind: 'move',
      to,
      groups: [''],
      tries: null,
      head: null,
      ...terms,
    });

    async function moveWaiting(
      queue: QueueKey,
      id: string,
      terms: MoveAction,
      group = '',
    ): Promise<SettleOutcome> {
      const item = { queue, id, group, from: 'waiting', token: null, action: terms } as const;
      const [result] = await on.storage.settle([item]);
      return result?.outcome ?? 'not-found';
    }

    it('stores a copy with a new id, the same content, maturity and tries, and finishes the original', async () => {
      const [from, to] = [on.queue(), on.queue()];
      const matureAt = on.opened.now() - 5000;
      const body = Buffer.from([0, 255, 10, 0]);
      const content = { contentType: 'a/b', contentEncoding: 'br', headers: ['x', '1', 'x', '2', 'é', 'ü'] };
      await on.storage.insert(from, [newElement({ body, ...content, tries: 4, matureAt })]);
      const held = await on.reserveOne(from);
      assert.deepEqual(await settle(on.storage, from, [byToken(held)], action(to)), ['done']);
      assert.deepEqual(await commit(on.storage, from, [byToken(held)]), ['not-found']);
      const [copy] = await on.pop(to);
      assert.ok(copy !== undefined && copy.id !== held.id);
      assert.ok(body.equals(copy.body));
      const { contentType, contentEncoding, headers } = copy;
      assert.deepEqual({ contentType, contentEncoding, headers: [...headers] }, content);
      assert.deepEqual([copy.tries, copy.matureAt], [4, matureAt]);
    });

    it('moves waiting elements, ready or scheduled; a scheduled one stays scheduled', async () => {
      const [from, to] = [on.queue(), on.queue()];
      const matureAt = on.opened.now() + 3_600_000;
      const [a = '', b = ''] = await on.storage.insert(from, [
        newElement({ body: 'ready' }),
        newElement({ body: 'scheduled', matureAt }),
      ]);
      assert.equal(await moveWaiting(from, a, action(to)), 'done');
      assert.equal(await moveWaiting(from, b, action(to, { tries: 0 })), 'done');
      assert.equal(await moveWaiting(from, b, action(to)), 'not-found');
      assert.deepEqual(bodyTexts(await on.pop(to)), ['ready']);
      assert.equal((await on.storage.counts(to, '')).nextMatureAt, matureAt);
    });

    it('replaces content type, encoding and headers, or removes them, and sets tries', async () => {
      const given = { contentType: 'a/b', contentEncoding: 'br', headers: ['old', '1', 'old', '2'] };
      const heads = [
        { contentType: 'c/d', contentEncoding: 'gzip', headers: ['new', 'é"\\', 'new', 'n'] },
        { contentType: null, contentEncoding: null, headers: [] },
      ];
      for (const head of heads) {
        const [from, to] = [on.queue(), on.queue()];
        const [id = ''] = await on.storage.insert(from, [newElement({ body: 'e', ...given, tries: 7 })]);
        assert.equal(await moveWaiting(from, id, action(to, { head, tries: 1 })), 'done');
        const [copy] = await on.pop(to);
        assert.ok(copy);
        const { contentType, contentEncoding, headers, tries } = copy;
        assert.deepEqual({ contentType, contentEncoding, headers: [...headers] }, head);
        assert.deepEqual([bodyTexts([copy]), tries], [['e'], 1]);
      }
    });

    it('keeps the moment at which the element expires', async () => {
      const [from, to] = [on.queue(), on.queue()];
      const expiresAt = on.opened.now() + 60_000;
      const [id = ''] = await on.storage.insert(from, [newElement({ expiresAt }), newElement()]);
      assert.equal(await moveWaiting(from, id, action(to)), 'done');
      const options = { group: '', states: ['ready'], after: null, limit: 9, bodies: false } as const;
      assert.equal((await on.storage.scan(to, options)).deliveries[0]?.expiresAt, expiresAt);
      await on.opened.passTime(60_000);
      assert.deepEqual(await on.pop(to), []);
    });

    it('moves one group’s delivery of a stream to groups of another stream, and from there to a plain queue', async () => {
      const [stream, other, plain] = [on.queue('stream'), on.queue('stream'), on.queue()];
      const [id = ''] = await on.storage.insert(stream, [newElement({ body: 'e', groups: ['g1', 'g2'] })]);
      const groups = ['x', 'y'];
      assert.equal(await moveWaiting(stream, id, action(other, { groups }), 'g1'), 'done');
      assert.deepEqual(await on.pop(stream, 9, 'g1'), []);
      assert.deepEqual(bodyTexts(await on.pop(stream, 9, 'g2')), ['e']);
      assert.deepEqual(bodyTexts(await on.pop(other, 9, 'x')), ['e']);
      const [copy] = await on.reserve(other, 1, 'y');
      assert.equal(await moveWaiting(other, copy?.id ?? '', action(plain), 'y'), 'reserved');
      assert.deepEqual(await settle(on.storage, other, [byId(copy as Delivery)], action(plain)), ['done']);
      assert.deepEqual(bodyTexts(await on.pop(plain)), ['e']);
    });

    it('moves an element within its queue behind those of the same maturity', async () => {
      const queue = on.queue();
      const matureAt = on.opened.now() - 1000;
      const [id = ''] = await on.storage.insert(queue, [
        newElement({ body: 'a', matureAt }),
        newElement({ body: 'b', matureAt }),
      ]);
      assert.equal(await moveWaiting(queue, id, action(queue)), 'done');
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['b', 'a']);
    });

    it('changes nothing with a token of an older reservation, or after the lease ended', async () => {
      const [from, to] = [on.queue(), on.queue()];
      await on.storage.insert(from, newElements('a'));
      const held = await on.reserveOne(from, '', 1000);
      const older = { ...byToken(held), token: 'older' };
      assert.deepEqual(await settle(on.storage, from, [older], action(to)), ['lease-lost']);
      await on.opened.passTime(1001);
      await on.storage.sweep();
      assert.deepEqual(await settle(on.storage, from, [byToken(held)], action(to)), ['lease-lost']);
      assert.deepEqual(await on.pop(to), []);
      assert.deepEqual(bodyTexts(await on.pop(from)), ['a']);
    });

    it('creates its target, which is listed from then on', async () => {
      const [from, to] = [on.queue(), on.queue()];
      const [id = ''] = await on.storage.insert(from, newElements('a'));
      assert.ok(!(await on.storage.queues(to.ns)).includes(to.name));
      assert.equal(await moveWaiting(from, id, action(to)), 'done');
      assert.ok((await on.storage.queues(to.ns)).includes(to.name));
    });

    it('is rejected if the target would exceed its maximum of groups, and changes nothing', async () => {
      const [from, to] = [on.queue('crowded'), on.queue('crowded')];
      const many = Array.from({ length: MAX_GROUPS }, (_, i) => `n${i}`);
      for (const group of many) await on.storage.insert(to, [newElement({ groups: [group] })]);
      const [id = ''] = await on.storage.insert(from, [newElement({ body: 'e', groups: ['g1'] })]);
      await assert.rejects(moveWaiting(from, id, action(to, { groups: ['one more'] }), 'g1'), {
        code: 'too-many-groups',
      });
      assert.deepEqual(bodyTexts(await on.pop(from, 9, 'g1')), ['e']);
    });
  });
}
