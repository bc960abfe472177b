import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { PLAIN_GROUP } from '../../../src/model/element.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, rollback, transfer } from '../../support/settle.ts';
import { byToken, Fixture, type Reserved } from '../fixture.ts';

const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
const ALL = { group: PLAIN_GROUP, states: ['reserved'], after: null, limit: 100, bodies: false } as const;

export function settleTogetherContract(open: EngineUnderTest['open']): void {
  describe('commit of elements that were reserved together', () => {
    const on = new Fixture(open);
    const back = { delayMs: 0, countTry: true };
    const COUNT = 20;
    const bodies = Array.from({ length: COUNT }, (_, n) => `element ${n}`);
    const reserveAll = async (queue: QueueKey): Promise<Reserved[]> => {
      await on.storage.insert(queue, newElements(...bodies));
      return (await on.reserve(queue)) as Reserved[];
    };
    const countsOf = async (queue: QueueKey): Promise<number[]> => {
      const { ready, scheduled, reserved } = await on.storage.counts(queue);
      return [ready, scheduled, reserved];
    };

    it('commits all of them', async () => {
      const queue = on.queue();
      const reserved = await reserveAll(queue);
      const done = bodies.map(() => 'done');
      assert.deepEqual(await commit(on.storage, queue, reserved.map(byToken)), done);
      assert.deepEqual(await countsOf(queue), [0, 0, 0]);
      assert.deepEqual((await on.storage.scan(queue, ALL)).deliveries, []);
      const notFound = bodies.map(() => 'not-found');
      assert.deepEqual(await commit(on.storage, queue, reserved.map(byToken)), notFound);
    });

    it('commits all except those that were settled before', async () => {
      const queue = on.queue();
      const reserved = await reserveAll(queue);
      await commit(on.storage, queue, reserved.slice(7, 8).map(byToken));
      const second = reserved.slice(12, 13);
      await rollback(
        on.storage,
        queue,
        second.map((one) => ({ ...byToken(one), ...back })),
      );
      const expected = bodies.map((_, n) => (n === 7 ? 'not-found' : n === 12 ? 'lease-lost' : 'done'));
      assert.deepEqual(await commit(on.storage, queue, reserved.map(byToken)), expected);
      assert.deepEqual(await countsOf(queue), [1, 0, 0]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['element 12']);
    });

    it('rejects the token of another element of the same take', async () => {
      const queue = on.queue();
      const reserved = await reserveAll(queue);
      const refs = reserved.map(byToken);
      const swapped = refs.map((ref, n) => ({ ...ref, token: refs[n ^ 1]?.token ?? '' }));
      const leaseLost = bodies.map(() => 'lease-lost');
      assert.deepEqual(await commit(on.storage, queue, swapped), leaseLost);
      const mixed = refs.map((ref, n) => (n === 9 ? { ...ref, token: refs[10]?.token ?? '' } : ref));
      const expected = bodies.map((_, n) => (n === 9 ? 'lease-lost' : 'done'));
      assert.deepEqual(await commit(on.storage, queue, mixed), expected);
      assert.deepEqual(await countsOf(queue), [0, 0, 1]);
    });

    it('rejects a token that differs in the last character', async () => {
      const queue = on.queue();
      const [reserved] = await reserveAll(queue);
      assert.ok(reserved !== undefined);
      const ref = byToken(reserved);
      const lastCharacter = ref.token?.at(-1) ?? '';
      const others = [...DIGITS].filter((digit) => digit !== lastCharacter);
      const refs = others.map((digit) => ({ ...ref, token: `${ref.token?.slice(0, -1)}${digit}` }));
      const lost = refs.map(() => 'lease-lost');
      assert.deepEqual(await commit(on.storage, queue, refs), lost);
      assert.deepEqual(await commit(on.storage, queue, [ref]), ['done']);
    });

    it('commits large and small elements, and inserts the copies that come with their commits', async () => {
      const [queue, to] = [on.queue(), on.queue()];
      const sizes = bodies.map((_, n) => (n % 7 === 3 ? 3000 : 10));
      await on.storage.insert(
        queue,
        sizes.map((bytes) => newElement({ body: Buffer.alloc(bytes, 'x') })),
      );
      const reserved = (await on.reserve(queue)) as Reserved[];
      const outcomes = await transfer(
        on.storage,
        reserved.map((one, n) => ({
          from: queue,
          finish: byToken(one),
          inserts: [{ queue: to, element: newElement({ body: bodies[n] ?? '' }) }],
        })),
      );
      const done = bodies.map(() => 'done');
      assert.deepEqual(outcomes, done);
      assert.deepEqual(await countsOf(queue), [0, 0, 0]);
      assert.deepEqual(bodyTexts(await on.pop(to)), bodies);
    });

    it('follows a take that assigns its tids to the deliveries by position', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements(...bodies));
      const tids = bodies.map((_, n) => `t${n >> 1}`);
      const { deliveries } = await on.storage.take(queue, {
        group: PLAIN_GROUP,
        count: COUNT,
        leaseMs: 60_000,
        owner: 'ann',
        tids,
      });
      const { deliveries: listed } = await on.storage.scan(queue, ALL);
      const holders = new Map(listed.map(({ id, holder }) => [id, holder?.tid]));
      assert.deepEqual(
        deliveries.map(({ id }) => holders.get(id)),
        tids,
      );
    });
  });
}
