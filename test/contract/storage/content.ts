import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LIMITS } from '../../../src/model/limits.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { sampleBodies } from '../../support/bodies.ts';
import { newElement } from '../../support/elements.ts';
import { rollback } from '../../support/settle.ts';
import { byToken, DEAD_LETTERS, Fixture, MAX_TRIES } from '../fixture.ts';

export function contentContract(open: EngineUnderTest['open']): void {
  describe('content', () => {
    const on = new Fixture(open);

    for (const { name, contentType, contentEncoding, bytes } of sampleBodies()) {
      it(`keeps the ${name} body byte for byte when browsed, reserved, rolled back, popped and returned`, async () => {
        const queue = on.queue();
        await on.storage.insert(queue, [newElement({ body: bytes, contentType, contentEncoding })]);
        const browsed = await on.storage.scan(queue, {
          group: '',
          states: ['ready'],
          bodies: true,
          after: null,
          limit: 1,
        });
        const reserved = await on.reserveOne(queue);
        await rollback(on.storage, queue, [{ ...byToken(reserved), delayMs: 0, countTry: true }]);
        const popped = await on.pop(queue);
        await on.storage.undoTake(queue, popped);
        const again = await on.pop(queue);
        for (const delivery of [...browsed.deliveries, reserved, ...popped, ...again]) {
          assert.ok(bytes.equals(delivery.body));
          assert.equal(delivery.contentType, contentType);
          assert.equal(delivery.contentEncoding, contentEncoding);
        }
        assert.equal(again.length, 1);
      });
    }

    // While other tests run, an engine may need longer for such a body than a call may take.
    if (process.env.CONTRACT === 'whole') {
      it('keeps a body of the largest configurable size when browsed, reserved, dead-lettered and returned', async () => {
        const queue = on.queue('jobs');
        const body = Buffer.alloc(LIMITS.maxBodyLimit, 'x');
        await on.storage.insert(queue, [newElement({ body, tries: MAX_TRIES - 1 })]);
        const page = { group: '', states: ['ready'] as const, bodies: true, after: null, limit: 1 };
        const browsed = await on.storage.scan(queue, page);
        const reserved = await on.reserveOne(queue);
        await rollback(on.storage, queue, [{ ...byToken(reserved), delayMs: 0, countTry: true }]);
        const dead = { ns: 'jobs', name: DEAD_LETTERS };
        const popped = await on.pop(dead);
        await on.storage.undoTake(dead, popped);
        const again = await on.pop(dead);
        const all = [...browsed.deliveries, reserved, ...popped, ...again];
        assert.deepEqual(
          all.map((delivery) => body.equals(delivery.body)),
          [true, true, true, true],
        );
      });
    }

    it('returns bodies of all sizes in one batch, each with its own element', async () => {
      const queue = on.queue();
      const bodies = sampleBodies().flatMap(({ bytes }) => [bytes, bytes.subarray(1), bytes.subarray(0, 3)]);
      await on.storage.insert(
        queue,
        bodies.map((body) => newElement({ body })),
      );
      const popped = await on.pop(queue);
      assert.equal(popped.length, bodies.length);
      for (const [index, body] of bodies.entries()) assert.ok(body.equals(popped[index]?.body ?? body));
    });

    it('is copied: later writes to the array of the caller change nothing', async () => {
      const queue = on.queue();
      const bodies = [Buffer.from('before'), Buffer.alloc(100_000, 'b')];
      await on.storage.insert(
        queue,
        bodies.map((body) => newElement({ body })),
      );
      for (const body of bodies) body.fill('x');
      const popped = await on.pop(queue);
      assert.equal(Buffer.from(popped[0]?.body ?? []).toString(), 'before');
      assert.ok(Buffer.alloc(100_000, 'b').equals(popped[1]?.body ?? Buffer.alloc(0)));
    });

    it('does not detach the arrays of the caller', async () => {
      const queue = on.queue();
      const body = Buffer.alloc(50_000, 'z');
      await on.storage.insert(queue, [newElement({ body }), newElement({ body })]);
      assert.equal(body.byteLength, 50_000);
      const popped = await on.pop(queue);
      await on.storage.undoTake(queue, popped);
      assert.ok(popped.every(({ body: kept }) => kept.byteLength === 50_000));
    });

    it('keeps content types and headers character for character', async () => {
      const queue = on.queue();
      const contents = [
        { contentType: null, headers: [] },
        { contentType: '', headers: ['empty', ''] },
        {
          contentType: 'Text/HTML; Charset="X"; a=\'b\'',
          headers: ['__proto__', 'polluted', 'constructor', '1'],
        },
        { contentType: 'ä/ö', headers: ['latin', 'é£', 'quote', '"', 'backslash', '\\', 'percent', '%00'] },
        { contentType: 'null', headers: ['same', '1', 'same', '2'] },
        { contentType: 'x'.repeat(255), headers: Array.from({ length: 128 }, (_, at) => `h${at}`) },
      ];
      await on.storage.insert(
        queue,
        contents.map((content) => newElement(content)),
      );
      const popped = await on.pop(queue);
      assert.deepEqual(
        popped.map(({ contentType, headers }) => ({ contentType, headers: [...headers] })),
        contents,
      );
    });
  });
}
