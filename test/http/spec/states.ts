import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { headerOf, jsonOf } from '../../support/http-client.ts';
import type { Harness } from '../harness.ts';

/** The spec's section 3, a test for each row of 3.1 to 3.3. */
export function stateRows(harness: () => Harness): void {
  describe('3.1 Element lifecycle', () => {
    it('insert: waiting, not eligible until mature, the answer carries the new id', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const inserted = await client.insert('N', queue, 'a', { delay: 2 });
      assert.equal(inserted.status, 200);
      assert.match(jsonOf<{ id: string }>(inserted).id, /^[\w-]{1,64}$/);
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
      await harness().passTime(2_000);
      assert.equal((await client.get('N', queue)).status, 200);
    });

    it('pop: taken out of the queue', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      assert.equal((await client.get('N', queue)).body.toString(), 'a');
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
    });

    it('get with reserve truthy: reserved, with x-ks-id', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, 'a'));
      const answer = await client.reserve('N', queue);
      assert.equal(headerOf(answer, 'x-ks-id'), id);
      assert.equal(jsonOf<{ resvSize: number }>(await client.status('N', queue)).resvSize, 1);
    });

    it('commit: finished, answers {}', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const id = headerOf(await client.reserve('N', queue), 'x-ks-id');
      const answer = await client.commit('N', queue, id);
      assert.equal(answer.status, 200);
      assert.equal(answer.body.toString(), '{}');
      assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 0);
    });

    it('rollback: waiting again, eligible after delay, one try more, answers {}', async () => {
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

    it('remove by id: removed, answers 204', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, 'a'));
      const answer = await client.remove('N', queue, id);
      assert.equal(answer.status, 204);
      assert.equal(answer.body.length, 0);
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
    });
  });

  describe('3.2 Queue consumers', () => {
    it('pause and resume: paused holds all consumers back, running lets them continue', async () => {
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
    it('element becomes eligible: answered with 200', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.get('N', queue);
      await harness().waiting(1);
      await client.insert('N', queue, 'a');
      const answer = await waiting;
      assert.equal(answer.status, 200);
      assert.equal(answer.body.toString(), 'a');
    });

    it('cancel: the blocked call answers 410, the cancel call 200 with an empty body', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.reserve('N', queue, { tid: 't1' });
      await harness().waiting(1);
      const cancel = await client.cancel('N', queue, 't1');
      assert.equal(cancel.status, 200);
      assert.equal(cancel.body.length, 0);
      assert.equal((await waiting).status, 410);
      await client.insert('N', queue, 'a');
      assert.equal(jsonOf<{ size: number }>(await client.status('N', queue)).size, 1);
    });
  });
}
