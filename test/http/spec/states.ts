import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { headerOf, jsonOf } from '../../support/http-client.ts';
import type { Harness } from '../harness.ts';

/** Tests of the spec's section 3: the rows of 3.1 to 3.3, but those that section 4.1 repeats. */
export function stateRows(harness: () => Harness): void {
  describe('3.1 Element lifecycle', () => {
    it('insert returns the new id, and the element waits and is not eligible until it is mature', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const inserted = await client.insert('N', queue, 'a', { delay: 2 });
      assert.equal(inserted.status, 200);
      assert.match(jsonOf<{ id: string }>(inserted).id, /^[\w-]{1,64}$/);
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
      await harness().passTime(2_000);
      assert.equal((await client.get('N', queue)).status, 200);
    });

    it('pop removes the element from the queue', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      assert.equal((await client.get('N', queue)).body.toString(), 'a');
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
    });

    it('get with a truthy reserve reserves the element and returns x-ks-id', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, 'a'));
      const answer = await client.reserve('N', queue);
      assert.equal(headerOf(answer, 'x-ks-id'), id);
      assert.equal(jsonOf<{ resvSize: number }>(await client.status('N', queue)).resvSize, 1);
    });

    it('commit finishes the element and returns {}', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const id = headerOf(await client.reserve('N', queue), 'x-ks-id');
      const answer = await client.commit('N', queue, id);
      assert.equal(answer.status, 200);
      assert.equal(headerOf(answer, 'content-type'), 'application/json');
      assert.equal(answer.body.toString(), '{}');
      assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 0);
    });

    it('rollback returns {}, counts a try, and makes the element eligible again after the delay', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const id = headerOf(await client.reserve('N', queue), 'x-ks-id');
      const answer = await client.rollback('N', queue, id, { delay: 1500 });
      assert.equal(answer.status, 200);
      assert.equal(answer.body.toString(), '{}');
      await harness().passTime(1_400);
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
      await harness().passTime(100);
      const again = await client.get('N', queue);
      assert.equal(headerOf(again, 'x-ks-id'), id);
      assert.equal(headerOf(again, 'x-ks-tries'), '1');
    });
  });

  describe('3.2 Queue consumers', () => {
    it('pause makes all consumers wait, and resume lets them continue', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.pause('N', queue);
      assert.equal(jsonOf<{ paused: boolean }>(await client.status('N', queue)).paused, true);
      await client.insert('N', queue, 'a');
      const waiting = client.get('N', queue);
      await harness().waiting(1);
      await client.resume('N', queue);
      assert.equal(jsonOf<{ paused: boolean }>(await client.status('N', queue)).paused, false);
      assert.equal((await waiting).body.toString(), 'a');
    });
  });

  describe('3.3 Blocked get or reserve call', () => {
    it('is answered with 200 when an element becomes eligible', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.get('N', queue);
      await harness().waiting(1);
      await client.insert('N', queue, 'a');
      const answer = await waiting;
      assert.equal(answer.status, 200);
      assert.equal(answer.body.toString(), 'a');
    });

    it('is answered with 410 Queue Pop Cancelled, text/html; charset=utf-8 and the body cancel when it is cancelled, and the cancel with 200 and an empty body', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.reserve('N', queue, { tid: 'a/b ü' });
      await harness().waiting(1);
      const cancel = await client.cancel('N', queue, 'a/b ü');
      assert.equal(cancel.status, 200);
      assert.equal(cancel.body.length, 0);
      const answer = await waiting;
      assert.deepEqual([answer.status, answer.reason], [410, 'Queue Pop Cancelled']);
      assert.equal(headerOf(answer, 'content-type'), 'text/html; charset=utf-8');
      assert.equal(answer.body.toString('latin1'), 'cancel');
      await client.insert('N', queue, 'a');
      assert.equal(jsonOf<{ size: number }>(await client.status('N', queue)).size, 1);
    });
  });
}
