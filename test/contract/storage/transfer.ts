import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, settle, type Transfer, transfer } from '../../support/settle.ts';
import { byId, byToken, Fixture } from '../fixture.ts';

export function transferContract(open: EngineUnderTest['open']): void {
  describe('transfer', () => {
    const on = new Fixture(open);

    it('finishes the element and inserts others into several queues and namespaces', async () => {
      const [from, one] = [on.queue(), on.queue()];
      const two = on.queue('stream');
      await on.storage.insert(from, newElements('source'));
      const reserved = await on.reserveOne(from);
      const outcomes = await transfer(on.storage, [
        {
          from,
          finish: byToken(reserved),
          inserts: [
            { queue: one, element: newElement({ body: 'copy', headers: ['x-hop-count', '1'] }) },
            { queue: two, element: newElement({ body: 'copy', groups: ['g1', 'g2'] }) },
            { queue: one, element: newElement({ body: 'delayed', delayMs: 3_600_000 }) },
          ],
        },
      ]);
      assert.deepEqual(outcomes, ['done']);
      assert.deepEqual(await commit(on.storage, from, [byToken(reserved)]), ['not-found']);
      const [copy] = await on.pop(one);
      assert.deepEqual(copy?.headers, ['x-hop-count', '1']);
      assert.notEqual(copy?.id, reserved.id);
      assert.equal((await on.storage.counts(one)).scheduled, 1);
      assert.deepEqual(bodyTexts(await on.pop(two, 9, 'g1')), ['copy']);
      assert.deepEqual(bodyTexts(await on.pop(two, 9, 'g2')), ['copy']);
    });

    it('applies the retention of the target namespace to copies, not that of the source', async () => {
      const [kept, long] = [on.queue('kept'), on.queue('stream')];
      const moveAndCopy = async (from: QueueKey, to: QueueKey, group: string): Promise<void> => {
        await on.storage.insert(
          from,
          newElements('moved', 'copied').map((each) => ({ ...each, groups: [group] })),
        );
        const [moved, copied] = [await on.reserveOne(from, group), await on.reserveOne(from, group)];
        const inserts = [{ queue: to, element: newElement({ body: 'copied', groups: ['g1'] }) }];
        const finish = { kind: 'finish', inserts } as const;
        const move = { kind: 'move', to, groups: ['g1'], tries: null, head: null } as const;
        assert.deepEqual(await settle(on.storage, from, [byToken(copied)], finish), ['done']);
        assert.deepEqual(await settle(on.storage, from, [byToken(moved)], move), ['done']);
      };
      await moveAndCopy(on.queue('stream'), kept, 'g1');
      await moveAndCopy(on.queue('kept'), long, 'g1');
      await on.opened.passTime(60_000);
      await on.storage.sweep();
      assert.equal((await on.storage.counts(kept)).ready, 0);
      assert.equal((await on.storage.counts(long)).ready, 2);
    });

    it('inserts nothing if its element is not reserved, without affecting the other transfers of the call', async () => {
      const [from, to] = [on.queue(), on.queue()];
      await on.storage.insert(from, newElements('a', 'b'));
      const a = await on.reserveOne(from);
      const inserts = (body: string) => [{ queue: to, element: newElement({ body }) }];
      const outcomes = await transfer(on.storage, [
        { from, finish: byId({ id: 'none', group: '' }), inserts: inserts('ghost') },
        { from, finish: { ...byToken(a), token: 'older' }, inserts: inserts('late') },
        { from, finish: byToken(a), inserts: inserts('right') },
        { from, finish: byToken(a), inserts: inserts('again') },
      ]);
      assert.deepEqual(outcomes, ['not-found', 'lease-lost', 'done', 'not-found']);
      assert.deepEqual(bodyTexts(await on.pop(to)), ['right']);
      assert.deepEqual(bodyTexts(await on.pop(from)), ['b']);
    });

    it('inserts nothing if its source queue does not exist, without affecting the other transfers of the call', async () => {
      const [from, to, unknown] = [on.queue(), on.queue(), on.queue()];
      await on.storage.insert(from, newElements('a'));
      const a = await on.reserveOne(from);
      const inserts = (body: string) => [{ queue: to, element: newElement({ body }) }];
      const outcomes = await transfer(on.storage, [
        { from: unknown, finish: byToken(a), inserts: inserts('ghost') },
        { from: unknown, finish: byId(a), inserts: inserts('ghost') },
        { from, finish: byToken(a), inserts: inserts('right') },
      ]);
      assert.deepEqual(outcomes, ['not-found', 'not-found', 'done']);
      assert.deepEqual(bodyTexts(await on.pop(to)), ['right']);
    });

    it('may insert nothing, and may insert into its source queue', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('drop', 'turn'));
      const [drop, reinsert] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      const outcomes = await transfer(on.storage, [
        { from: queue, finish: byToken(drop), inserts: [] },
        {
          from: queue,
          finish: byToken(reinsert),
          inserts: [{ queue, element: newElement({ body: 'turned' }) }],
        },
      ]);
      assert.deepEqual(outcomes, ['done', 'done']);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['turned']);
    });

    it('honors the dedup keys of the inserted elements', async () => {
      const [from, to] = [on.queue(), on.queue()];
      await on.storage.insert(from, newElements('a', 'b'));
      const element = newElement({ body: 'once', dedupKey: 'k' });
      for (const reserved of [await on.reserveOne(from), await on.reserveOne(from)]) {
        await transfer(on.storage, [{ from, finish: byToken(reserved), inserts: [{ queue: to, element }] }]);
      }
      assert.deepEqual(bodyTexts(await on.pop(to)), ['once']);
    });

    it('keeps the order of the elements it inserts into one queue, whatever else the call inserts', async () => {
      const [from, to, stream] = [on.queue(), on.queue(), on.queue('stream')];
      const bodies = ['1', '2 also for a stream', '3', '4 with a key', '5'];
      await on.storage.insert(from, newElements(...bodies));
      const moves: Transfer[] = [];
      for (const [place, body] of bodies.entries()) {
        const copy = { body, dedupKey: place === 3 ? 'k' : null };
        const inserts = [{ queue: to, element: newElement(copy) }];
        if (place === 1) inserts.push({ queue: stream, element: newElement({ ...copy, groups: ['g1'] }) });
        moves.push({ from, finish: byToken(await on.reserveOne(from)), inserts });
      }
      assert.deepEqual(new Set(await transfer(on.storage, moves)), new Set(['done']));
      assert.deepEqual(bodyTexts(await on.pop(to)), bodies);
      assert.deepEqual(bodyTexts(await on.pop(stream, 9, 'g1')), [bodies[1]]);
    });

    it('inserts one element into several queues, and leaves out those of items that are not reserved', async () => {
      const [from, one, two] = [on.queue(), on.queue(), on.queue()];
      const bodies = ['1', '2', '3', '4'];
      await on.storage.insert(from, newElements(...bodies));
      const moves: Transfer[] = [];
      for (const body of bodies) {
        const headers = body === '4' ? ['x-hop-count', '2'] : ['x-hop-count', '1'];
        const element = newElement({ body, headers });
        const inserts = [one, ...(body === '2' ? [] : [two])].map((queue) => ({ queue, element }));
        const finish = byToken(await on.reserveOne(from));
        moves.push({ from, finish: body === '3' ? { ...finish, token: 'older' } : finish, inserts });
      }
      assert.deepEqual(await transfer(on.storage, moves), ['done', 'done', 'lease-lost', 'done']);
      const [inOne, inTwo] = [await on.pop(one), await on.pop(two)];
      assert.deepEqual(bodyTexts(inOne), ['1', '2', '4']);
      assert.deepEqual(bodyTexts(inTwo), ['1', '4']);
      const headersOf = (deliveries: typeof inOne): string[] =>
        deliveries.map(({ headers }) => headers.join());
      assert.deepEqual(headersOf(inOne), ['x-hop-count,1', 'x-hop-count,1', 'x-hop-count,2']);
      assert.deepEqual(headersOf(inTwo), ['x-hop-count,1', 'x-hop-count,2']);
    });

    it('finishes a stream element for one group only', async () => {
      const [from, to] = [on.queue('stream'), on.queue()];
      await on.storage.insert(from, [newElement({ body: 'shared', groups: ['g1', 'g2'] })]);
      const reserved = await on.reserveOne(from, 'g1');
      const inserts = [{ queue: to, element: newElement({ body: 'copy' }) }];
      assert.deepEqual(await transfer(on.storage, [{ from, finish: byToken(reserved), inserts }]), ['done']);
      assert.deepEqual(bodyTexts(await on.pop(from, 9, 'g2')), ['shared']);
      assert.deepEqual(bodyTexts(await on.pop(to)), ['copy']);
    });
  });
}
