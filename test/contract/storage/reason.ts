import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MAX_REASON_BYTES } from '../../../src/engine/storage.ts';
import { checkHeaders } from '../../../src/model/headers.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import { SERVICE_HEADERS } from '../../../src/model/service-headers.ts';
import { toByteString } from '../../../src/util/byte-string.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { rollback, settle } from '../../support/settle.ts';
import { byToken, DEAD_LETTERS, Fixture, MAX_TRIES, type Reserved } from '../fixture.ts';

export function reasonContract({ open }: EngineUnderTest): void {
  describe('reasons and dead letters', () => {
    const on = new Fixture(open);
    const dead: QueueKey = { ns: 'jobs', name: DEAD_LETTERS };

    const scanReasons = async (queue: QueueKey): Promise<(string | null)[]> => {
      const states = ['ready', 'scheduled', 'reserved'] as const;
      const page = await on.storage.scan(queue, { group: '', states, after: null, limit: 9, bodies: false });
      return page.deliveries.map(({ reason }) => reason);
    };

    const deadLetterHeaders = async (): Promise<Map<string, string>> => {
      const [deadLetter] = await on.pop(dead);
      const headers = deadLetter?.headers ?? [];
      const pairs = headers.flatMap((name, i) =>
        i % 2 === 0 ? [[name, headers[i + 1] ?? ''] as const] : [],
      );
      assert.equal(new Set(pairs.map(([name]) => name)).size, pairs.length, 'each header once');
      return new Map(pairs);
    };

    it('a dead letter has the reason of its last try', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 2 })]);
      for (const reason of ['first', 'second']) {
        const ref = byToken(await on.reserveOne(queue));
        await rollback(on.storage, queue, [{ ...ref, delayMs: 0, countTry: true, reason }]);
      }
      assert.deepEqual(await scanReasons(dead), ['second']);
      const headers = await deadLetterHeaders();
      assert.equal(headers.get('x-dl-reason'), 'second');
      assert.equal(headers.get('x-dl-tries'), String(MAX_TRIES));
    });

    it('elements that are popped together keep their own reasons and expiries if the pop is undone', async () => {
      const queue = on.queue();
      const inAnHour = on.opened.now() + 3_600_000;
      const expiries = [null, inAnHour, inAnHour + 1000, null, null];
      await on.storage.insert(
        queue,
        expiries.map((expiresAt) => newElement({ expiresAt })),
      );
      const reasons = [null, null, 'of the "first" try: \u00e9', 'of the "first" try: \u00e9', 'another'];
      const reserved = (await on.reserve(queue)) as Reserved[];
      await rollback(
        on.storage,
        queue,
        reserved.map((one, i) => ({
          ...byToken(one),
          delayMs: 0,
          countTry: true,
          reason: reasons[i] ?? null,
        })),
      );
      const facts = async (): Promise<unknown[]> => {
        const options = { group: '', after: null, limit: 9, bodies: false, states: ['ready'] } as const;
        const { deliveries } = await on.storage.scan(queue, options);
        return deliveries.map(({ id, reason, expiresAt }) => [id, reason, expiresAt]);
      };
      const before = await facts();
      assert.deepEqual(
        before,
        reserved.map(({ id }, i) => [id, reasons[i], expiries[i]]),
      );
      await on.storage.undoTake(queue, await on.pop(queue));
      assert.deepEqual(await facts(), before);
    });

    it('a dead letter whose last try had no reason has none', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 2 })]);
      for (const reason of ['of an earlier try', null]) {
        const ref = byToken(await on.reserveOne(queue));
        await rollback(on.storage, queue, [{ ...ref, delayMs: 0, countTry: true, reason }]);
      }
      assert.deepEqual(await scanReasons(dead), [null]);
      assert.equal((await deadLetterHeaders()).has('x-dl-reason'), false);
    });

    it('a reason is cut to 1024 bytes of UTF-8 at a character boundary', async () => {
      const queue = on.queue();
      const cases: [string, string][] = [
        ['x'.repeat(MAX_REASON_BYTES), 'x'.repeat(MAX_REASON_BYTES)],
        ['x'.repeat(MAX_REASON_BYTES + 1), 'x'.repeat(MAX_REASON_BYTES)],
        [`x${'é'.repeat(MAX_REASON_BYTES)}`, `x${'é'.repeat((MAX_REASON_BYTES - 2) / 2)}`],
        ['🙂'.repeat(300), '🙂'.repeat(MAX_REASON_BYTES / 4)],
        [`abc${'🙂'.repeat(300)}`, `abc${'🙂'.repeat(MAX_REASON_BYTES / 4 - 1)}`],
      ];
      for (const [original, kept] of cases) {
        await on.storage.insert(queue, newElements('a'));
        const held = await on.reserveOne(queue);
        await rollback(on.storage, queue, [
          { ...byToken(held), delayMs: 0, countTry: true, reason: original },
        ]);
        assert.deepEqual(await scanReasons(queue), [kept]);
        await on.pop(queue);
      }
    });

    it('a reason keeps every character; in the header, control characters become spaces and are trimmed at the ends', async () => {
      const queue = on.queue('jobs');
      const reason = ' \tline\r\nnext\0 "é" 🙂\u007f \\\r\n';
      await on.storage.insert(queue, newElements('a'));
      const held = await on.reserveOne(queue);
      await rollback(on.storage, queue, [{ ...byToken(held), delayMs: 0, countTry: true, reason }]);
      assert.deepEqual(await scanReasons(queue), [reason]);
      const again = byToken(await on.reserveOne(queue));
      const outcome = await settle(on.storage, queue, [again], {
        kind: 'dead-letter',
        countTry: true,
        reason,
      });
      assert.deepEqual(outcome, ['dead-lettered']);
      assert.deepEqual(await scanReasons(dead), [reason]);
      const expected = toByteString('line  next  "é" 🙂  \\');
      const headers = await deadLetterHeaders();
      assert.equal(headers.get('x-dl-reason'), expected);
      // Valid as headers of a client's insert: an import of an export accepts them, and so does an exchange.
      checkHeaders([...headers].flat(), { exempt: SERVICE_HEADERS });
    });

    it('the reason is lease-expired if the lease of the last try expired', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 1 })]);
      await on.reserveOne(queue, '', 1000);
      await on.opened.passTime(1001);
      await on.sweepInto(dead);
      assert.deepEqual(await scanReasons(dead), ['lease-expired']);
      assert.equal((await deadLetterHeaders()).get('x-dl-reason'), 'lease-expired');
    });

    it('the reason of an earlier dead letter is replaced by the next one, or removed if that has none', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, newElements('mortal'));
      const deadLetterOnce = async (reason: string | null): Promise<Map<string, string>> => {
        const ref = byToken(await on.reserveOne(queue));
        await settle(on.storage, queue, [ref], { kind: 'dead-letter', countTry: true, reason });
        const deadLetter = await on.reserveOne(dead);
        const move = { kind: 'move', to: queue, groups: [''], tries: 0, head: null } as const;
        const { headers } = deadLetter;
        assert.deepEqual(await settle(on.storage, dead, [byToken(deadLetter)], move), ['done']);
        return new Map(headers.flatMap((name, i) => (i % 2 === 0 ? [[name, headers[i + 1] ?? '']] : [])));
      };
      const first = await deadLetterOnce('first');
      const second = await deadLetterOnce('second');
      assert.deepEqual([first.get('x-dl-reason'), second.get('x-dl-reason')], ['first', 'second']);
      assert.equal(second.get('x-ks-origin-id'), first.get('x-ks-origin-id'));
      assert.equal((await deadLetterOnce(null)).has('x-dl-reason'), false);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['mortal']);
    });

    it('the action dead-letter moves a reserved or waiting element immediately, and counts a try if countTry is set', async () => {
      const queue = on.queue('jobs');
      const [, b = ''] = await on.storage.insert(queue, [
        newElement({ body: 'a' }),
        newElement({ body: 'b', tries: 1 }),
      ]);
      const a = byToken(await on.reserveOne(queue));
      const outcomes = await on.storage.settle([
        { queue, ...a, from: 'reserved', action: { kind: 'dead-letter', countTry: true, reason: 'bad' } },
        {
          queue,
          id: b,
          group: '',
          token: null,
          from: 'waiting',
          action: { kind: 'dead-letter', countTry: false, reason: null },
        },
      ]);
      assert.deepEqual(
        outcomes.map(({ outcome }) => outcome),
        ['dead-lettered', 'dead-lettered'],
      );
      const deadLetters = await on.pop(dead);
      assert.deepEqual(bodyTexts(deadLetters), ['a', 'b']);
      const value = (i: number, name: string): string | undefined => {
        const { headers = [] } = deadLetters[i] ?? {};
        const at = headers.indexOf(name);
        return at < 0 ? undefined : headers[at + 1];
      };
      assert.deepEqual([value(0, 'x-dl-tries'), value(0, 'x-dl-reason')], ['1', 'bad']);
      assert.deepEqual([value(1, 'x-dl-tries'), value(1, 'x-dl-reason')], ['1', undefined]);
      assert.deepEqual([value(1, 'x-dl-from-queue'), value(1, 'x-ks-origin-id')], [queue.name, b]);
    });

    it('the action dead-letter releases an element that has no dead-letter queue to go to', async () => {
      const queues: QueueKey[] = [on.queue('plain'), { ns: 'jobs', name: DEAD_LETTERS }];
      for (const queue of queues) {
        await on.storage.insert(queue, newElements('homeless'));
        const ref = byToken(await on.reserveOne(queue));
        const action = { kind: 'dead-letter', countTry: true, reason: 'kept' } as const;
        assert.deepEqual(await settle(on.storage, queue, [ref], action), ['done']);
        assert.deepEqual(await scanReasons(queue), ['kept']);
        const [again] = await on.pop(queue);
        assert.equal(again?.tries, 1);
      }
    });
  });
}
