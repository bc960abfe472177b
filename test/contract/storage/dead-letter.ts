import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LEASE_EXPIRED } from '../../../src/engine/storage.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyText, newElement, newElements } from '../../support/elements.ts';
import { commit, rollback, settle, transfer } from '../../support/settle.ts';
import { byId, byToken, DEAD_LETTERS, Fixture, MAX_TRIES } from '../fixture.ts';

const COUNTED = { delayMs: 0, countTry: true };

export function deadLetterContract(open: EngineUnderTest['open']): void {
  describe('dead letter', () => {
    const on = new Fixture(open);
    const dead = (queue: QueueKey): QueueKey => ({ ns: queue.ns, name: DEAD_LETTERS });

    it('is created by the rollback that reaches maxTries, and not before', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [newElement({ body: 'poison' })]);
      for (let tries = 1; tries < MAX_TRIES; tries++) {
        const reserved = await on.reserveOne(queue);
        assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(reserved), ...COUNTED }]), ['done']);
      }
      assert.deepEqual(await on.pop(dead(queue)), []);
      const last = await on.reserveOne(queue);
      assert.equal(last.tries, MAX_TRIES - 1);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(last), ...COUNTED }]), [
        'dead-lettered',
      ]);
      assert.deepEqual(await on.pop(queue), []);
      assert.deepEqual((await on.pop(dead(queue))).map(bodyText), ['poison']);
      assert.deepEqual(await commit(on.storage, queue, [byId(last)]), ['not-found']);
    });

    it('keeps body, type, encoding and headers, and adds its source queue, time and tries', async () => {
      const queue = on.queue('jobs');
      const content = {
        body: Buffer.from([0, 255, 10]),
        contentType: 'application/x-thing; v=1',
        contentEncoding: 'br',
        headers: ['colour', 'blue', '__proto__', 'x'],
      };
      const [id] = await on.storage.insert(queue, [newElement({ ...content, tries: MAX_TRIES - 1 })]);
      const before = on.opened.now();
      await rollback(on.storage, queue, [{ ...byId(await on.reserveOne(queue)), ...COUNTED }]);
      const [deadLetter] = await on.pop(dead(queue));
      assert.ok(deadLetter !== undefined && deadLetter.id !== id);
      assert.deepEqual(Buffer.from(deadLetter.body), content.body);
      assert.equal(deadLetter.contentType, content.contentType);
      assert.equal(deadLetter.contentEncoding, content.contentEncoding);
      assert.equal(deadLetter.tries, 0);
      const headers = deadLetter.headers;
      assert.deepEqual(headers.slice(0, 6), [...content.headers, 'x-dl-from-queue', queue.name]);
      assert.deepEqual([headers[6], headers[8], headers[9]], ['x-dl-at', 'x-dl-tries', String(MAX_TRIES)]);
      const at = headers[7] ?? '';
      assert.equal(new Date(at).toISOString(), at);
      assert.ok(Date.parse(at) >= before && Date.parse(at) <= on.opened.now());
      assert.deepEqual(headers.slice(10), ['x-ks-origin-id', id]);
    });

    it('names its source queue by the bytes of its name in UTF-8, as all headers are bytes', async () => {
      const queue = { ...on.queue('jobs'), name: 'Bestellungen \u2603 \u00fc' };
      await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 1 })]);
      await rollback(on.storage, queue, [{ ...byId(await on.reserveOne(queue)), ...COUNTED }]);
      const [deadLetter] = await on.pop(dead(queue));
      const bytes = Buffer.from(queue.name).toString('latin1');
      assert.deepEqual(deadLetter?.headers.slice(0, 2), ['x-dl-from-queue', bytes]);
    });

    it('replaces the headers of an earlier dead letter', async () => {
      const queue = on.queue('jobs');
      const headers = ['x-dl-from-queue', 'old', 'kept', '1', 'x-dl-at', 'old', 'x-dl-tries', '99'];
      await on.storage.insert(queue, [newElement({ headers, tries: 50 })]);
      await rollback(on.storage, queue, [{ ...byId(await on.reserveOne(queue)), ...COUNTED }]);
      const [deadLetter] = await on.pop(dead(queue));
      assert.deepEqual(deadLetter?.headers.slice(0, 4), ['kept', '1', 'x-dl-from-queue', queue.name]);
      assert.equal(deadLetter?.headers.length, 10);
      assert.equal(deadLetter?.headers[7], '51');
    });

    it('names the original id of the element, even after it was moved back and failed again', async () => {
      const queue = on.queue('jobs');
      const [id] = await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 1 })]);
      await rollback(on.storage, queue, [{ ...byId(await on.reserveOne(queue)), ...COUNTED }]);
      const deadLetter = await on.reserveOne(dead(queue));
      const { body, headers } = deadLetter;
      const element = newElement({ body, headers, tries: MAX_TRIES - 1 });
      await transfer(on.storage, [
        { from: dead(queue), finish: byToken(deadLetter), inserts: [{ queue, element }] },
      ]);
      await rollback(on.storage, queue, [{ ...byId(await on.reserveOne(queue)), ...COUNTED }]);
      const [again] = await on.pop(dead(queue));
      const at = again?.headers.indexOf('x-ks-origin-id') ?? -1;
      assert.equal(again?.headers[at + 1], id);
      assert.equal(again?.headers.lastIndexOf('x-ks-origin-id'), at);
    });

    it('has the same headers and size after many moves between two queues as after a few', async () => {
      const queues = [on.queue(), on.queue()] as const;
      for (const [queue, other] of [queues, queues.toReversed()] as QueueKey[][]) {
        assert.ok(queue && other);
        await on.storage.declare([queue], { deadLetter: { maxTries: 1, queue: other.name } });
      }
      const [id] = await on.storage.insert(queues[0], [newElement({ headers: ['own', '1'] })]);
      const reason = 'broken '.repeat(100);
      /** Lets the element fail in both queues. Returns its headers, without the moment, and the bytes stored. */
      async function fail(): Promise<[headers: string[], bytes: number]> {
        for (const queue of queues) {
          const item = { ...byToken(await on.reserveOne(queue)), ...COUNTED, reason };
          assert.deepEqual(await rollback(on.storage, queue, [item]), ['dead-lettered']);
        }
        const held = await on.reserveOne(queues[0]);
        const back = { ...byToken(held), delayMs: 0, countTry: false };
        assert.deepEqual(await rollback(on.storage, queues[0], [back]), ['done']);
        const { bytes } = await on.storage.usage(queues[0].ns);
        return [held.headers.toSpliced(held.headers.indexOf('x-dl-at') + 1, 1), bytes ?? 0];
      }
      await fail();
      const [headers, bytes] = await fail();
      assert.equal(headers[headers.indexOf('x-ks-origin-id') + 1], id);
      for (let i = 2; i < 99; i += 1) await fail();
      const [later, grown] = await fail();
      assert.deepEqual(later, headers);
      assert.ok(grown < bytes + 65_536, `${bytes} bytes became ${grown}`);
    });

    it('is created when the lease of the last try expires', async () => {
      const queue = on.queue('jobs');
      const [id] = await on.storage.insert(queue, [newElement({ body: 'abandoned', tries: MAX_TRIES - 1 })]);
      const reserved = await on.reserveOne(queue, '', 1000);
      await on.opened.passTime(1001);
      await on.sweepInto(dead(queue));
      assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['not-found']);
      const deadLetters = await on.pop(dead(queue));
      assert.deepEqual(deadLetters.map(bodyText), ['abandoned']);
      const [from, name, , , tries, count, ...rest] = deadLetters[0]?.headers ?? [];
      const why = on.storage.capabilities.expiry ? ['x-dl-reason', LEASE_EXPIRED] : [];
      assert.deepEqual(
        [from, name, tries, count],
        ['x-dl-from-queue', queue.name, 'x-dl-tries', String(MAX_TRIES)],
      );
      assert.deepEqual(rest, [...why, 'x-ks-origin-id', id]);
    });

    it('creates the dead-letter queue, which is not listed before', () =>
      on.alone(async ({ engine: { storage } }) => {
        const queue = { ns: 'jobs', name: 'failing' };
        const reserve = { group: '', count: 1, leaseMs: 60_000, owner: null };
        await storage.insert(queue, [newElement({ tries: MAX_TRIES - 1 })]);
        const [reserved] = (await storage.take(queue, reserve)).deliveries;
        assert.ok(reserved);
        assert.deepEqual(await storage.queues('jobs'), [queue.name]);
        await rollback(storage, queue, [{ ...byId(reserved), ...COUNTED }]);
        assert.deepEqual(await storage.queues('jobs'), [DEAD_LETTERS, queue.name]);
      }));

    it('is not created by a rollback that counts no try', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 1 })]);
      const uncounted = { delayMs: 0, countTry: false };
      const reserved = await on.reserveOne(queue);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(reserved), ...uncounted }]), ['done']);
      assert.equal((await on.pop(queue))[0]?.tries, MAX_TRIES - 1);
    });

    it('stays in the dead-letter queue when it fails there', async () => {
      const queue = dead(on.queue('jobs'));
      const [id] = await on.storage.insert(queue, [newElement({ body: 'stays', tries: 50 })]);
      const reserved = await on.reserveOne(queue);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(reserved), ...COUNTED }]), ['done']);
      const [still] = await on.pop(queue);
      assert.equal(still?.id, id);
      assert.equal(still?.tries, 51);
    });

    it('is never created in a namespace without maxTries', async () => {
      const queue = on.queue('plain');
      await on.storage.insert(queue, [newElement({ tries: 1_000_000 })]);
      const reserved = await on.reserveOne(queue);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(reserved), ...COUNTED }]), ['done']);
      assert.equal((await on.pop(queue))[0]?.tries, 1_000_001);
    });

    it('stays in its queue, ready behind the other elements, if there is no dead-letter queue', async () => {
      for (const countTry of [false, true]) {
        const queue = on.queue('plain');
        await on.storage.insert(queue, newElements('hopeless', 'next'));
        await on.opened.passTime(1_000);
        const reserved = await on.reserveOne(queue);
        const action = { kind: 'dead-letter', countTry, reason: null } as const;
        assert.deepEqual(await settle(on.storage, queue, [byToken(reserved)], action), ['done']);
        assert.deepEqual((await on.pop(queue, 2)).map(bodyText), ['next', 'hopeless']);
      }
    });

    it('of a stream takes the element from the failed group only, and goes to the default groups', async () => {
      const queue = on.queue('strict');
      await on.storage.insert(queue, [newElement({ body: 'shared', groups: ['g1', 'x'], tries: 1 })]);
      const reserved = await on.reserveOne(queue, 'x');
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(reserved), ...COUNTED }]), [
        'dead-lettered',
      ]);
      assert.deepEqual((await on.pop(queue, 9, 'g1')).map(bodyText), ['shared']);
      assert.deepEqual(await on.pop(queue, 9, 'x'), []);
      assert.deepEqual((await on.pop(dead(queue), 9, 'g1')).map(bodyText), ['shared']);
      assert.deepEqual((await on.pop(dead(queue), 9, 'g2')).map(bodyText), ['shared']);
      assert.deepEqual(await on.pop(dead(queue), 9, 'x'), []);
    });

    it('of a stream names the group for which it failed, by rollback or by lease expiry', async () => {
      const queue = on.queue('strict');
      const group = 'Prüfung \u2603';
      const headers = ['x-dl-group', 'old', 'x-dl-from-queue', 'old'];
      await on.storage.insert(
        queue,
        [0, 1].map(() => newElement({ headers, groups: [group], tries: 1 })),
      );
      await rollback(on.storage, queue, [{ ...byToken(await on.reserveOne(queue, group)), ...COUNTED }]);
      await on.reserveOne(queue, group, 1000);
      await on.opened.passTime(1001);
      await on.sweepInto(dead(queue));
      const bytes = Buffer.from(group).toString('latin1');
      const named = (await on.pop(dead(queue), 9, 'g1')).map((deadLetter) => deadLetter.headers.slice(0, 4));
      const expected = ['x-dl-from-queue', queue.name, 'x-dl-group', bytes];
      assert.deepEqual(named, [expected, expected]);
    });

    it('counts as deadletter for its source queue and as put for the dead-letter queue', async () => {
      const queue = on.queue('jobs');
      const { stats } = on.opened.engine;
      const before = (await stats.read(dead(queue))).get('')?.put ?? 0;
      await on.storage.insert(queue, [newElement({ tries: MAX_TRIES })]);
      await rollback(on.storage, queue, [{ ...byToken(await on.reserveOne(queue)), ...COUNTED }]);
      assert.equal((await stats.read(queue)).get('')?.deadletter, 1);
      assert.equal((await stats.read(dead(queue))).get('')?.put, before + 1);
      await on.pop(dead(queue));
    });
  });
}
