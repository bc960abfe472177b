import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { headerOf, jsonOf, queuePath } from '../../support/http-client.ts';
import type { Harness } from '../harness.ts';

/** Tests of the spec's sections 4.1 and 4.3, one per row and parameter. */
export function operationRows(harness: () => Harness): void {
  listingRows(harness);
  insertRows(harness);
  takeRows(harness);
  settleRows(harness);
  controlRows(harness);
  streamRows(harness);
}

function listingRows(harness: () => Harness): void {
  describe('4.1 List namespaces and queues', () => {
    it('GET /q returns an array of namespace names', async () => {
      const answer = await harness().client().namespaces();
      assert.equal(answer.status, 200);
      assert.equal(headerOf(answer, 'content-type'), 'application/json');
      assert.deepEqual(jsonOf(answer), ['N', 'jobs', 'events', 'hidden']);
    });

    it('GET /q accepts array=1, tree=1 and reload=1', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const array = jsonOf<{ data: { id: string }[] }>(await client.namespaces({ query: { array: 1 } }));
      assert.ok(array.data.some(({ id }) => id === `${queue}@N`));
      const tree = jsonOf<{ title: string; children: { key: string }[] }[]>(
        await client.namespaces({ query: { tree: 1 } }),
      );
      assert.deepEqual(
        tree.map(({ title }) => title),
        ['N', 'jobs', 'events', 'hidden'],
      );
      assert.ok(tree[0]?.children.some(({ key }) => key === `${queue}@N`));
      const reloaded = await client.namespaces({ query: { reload: 1 } });
      assert.deepEqual(jsonOf(reloaded), ['N', 'jobs', 'events', 'hidden']);
    });

    it('GET /q/:namespace returns queue information records by queue name', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('jobs', queue, 'a');
      const answer = await client.queues('jobs');
      assert.equal(answer.status, 200);
      const records = jsonOf<Record<string, { size: number; factory: { name: string } }>>(answer);
      assert.equal(records[queue]?.size, 1);
      assert.equal(records[queue]?.factory.name, 'jobs');
      // Both change over time.
      const still = (record: object | undefined): object => ({ ...record, oldestReadyAge: 0, rates: {} });
      assert.deepEqual(still(records[queue]), still(jsonOf(await client.status('jobs', queue))));
    });

    it('GET /q/:namespace with array=1 or tree=1 returns only that namespace', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('events', queue, 'a');
      const array = jsonOf<{ data: { id: string }[] }>(
        await client.queues('events', { query: { array: 1 } }),
      );
      assert.ok(array.data.every(({ id }) => id.endsWith('@events')));
      const tree = jsonOf<{ title: string }[]>(await client.queues('events', { query: { tree: 1 } }));
      assert.deepEqual(
        tree.map(({ title }) => title),
        ['events'],
      );
    });
  });
}

function insertRows(harness: () => Harness): void {
  describe('4.1 Insert', () => {
    for (const method of ['PUT', 'POST']) {
      it(`${method} /q/:namespace/:queue is answered with 200 and the id`, async () => {
        const client = harness().client();
        const queue = harness().queue();
        const answer = await client.request(method, queuePath('N', queue), { body: 'a' });
        assert.equal(answer.status, 200);
        assert.equal(headerOf(answer, 'content-type'), 'application/json');
        assert.deepEqual(Object.keys(jsonOf(answer)), ['id']);
        assert.equal((await client.get('N', queue)).body.toString(), 'a');
      });
    }

    it('mature is a unix timestamp in seconds', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const matureAt = harness().opened.now() + 3_000;
      await client.insert('N', queue, 'a', { mature: matureAt / 1000 });
      const { next_mature_t } = jsonOf<{ next_mature_t: string }>(await client.status('N', queue));
      assert.equal(next_mature_t, new Date(matureAt).toISOString());
    });

    it('delay is in seconds and ignored if mature is given', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const later = harness().opened.now() + 3_000;
      await client.insert('N', queue, 'a', { delay: 1, mature: later / 1000 });
      const { next_mature_t } = jsonOf<{ next_mature_t: string }>(await client.status('N', queue));
      assert.equal(next_mature_t, new Date(later).toISOString(), 'mature beats delay');
      const other = harness().queue();
      await client.insert('N', other, 'a', { delay: 1.5 });
      await harness().passTime(1_499);
      assert.equal((await client.get('N', other, { to: 0 })).status, 504);
      await harness().passTime(1);
      assert.equal((await client.get('N', other)).status, 200);
    });

    it('tries is the initial retry counter', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a', { tries: 3 });
      assert.equal(headerOf(await client.get('N', queue), 'x-ks-tries'), '3');
    });
  });
}

function takeRows(harness: () => Harness): void {
  describe('4.1 Get or reserve', () => {
    it('is answered with 200, body, content type, x-ks-tries, x-ks-mature, x-ks-id and the element headers', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, '<p>', { contentType: 'text/html', headers: { 'x-ks-hdr-a': 'b' } });
      const answer = await client.get('N', queue);
      assert.equal(answer.status, 200);
      assert.equal(answer.body.toString(), '<p>');
      assert.equal(headerOf(answer, 'content-type'), 'text/html');
      assert.equal(headerOf(answer, 'x-ks-tries'), '0');
      assert.ok(Date.parse(headerOf(answer, 'x-ks-mature')) <= harness().opened.now());
      assert.ok(headerOf(answer, 'x-ks-id'));
      assert.equal(headerOf(answer, 'x-ks-hdr-a'), 'b');
    });

    it('to is the timeout in milliseconds', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.get('N', queue, { to: 2_000 });
      await harness().waiting(1);
      await harness().passTime(1_999);
      await harness().waiting(1);
      await harness().passTime(1);
      assert.equal((await waiting).status, 504);
    });

    it('tid names the consumer', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.get('N', queue, { tid: 'me' });
      await harness().waiting(1);
      const [consumer] = jsonOf<{ tid: string }[]>(await client.consumers('N', queue));
      assert.equal(consumer?.tid, 'me');
      await client.cancel('N', queue, 'me');
      await waiting;
    });

    it('reserve, if truthy, reserves; the default is pop', async () => {
      const client = harness().client();
      const queue = harness().queue();
      for (const body of ['a', 'b', 'c']) await client.insert('N', queue, body);
      assert.equal((await client.get('N', queue)).headers['x-ks-lease'], undefined);
      for (const reserve of ['true', '1']) {
        const answer = await client.get('N', queue, { query: { reserve } });
        assert.ok(headerOf(answer, 'x-ks-lease'));
      }
      assert.equal(jsonOf<{ resvSize: number }>(await client.status('N', queue)).resvSize, 2);
    });
  });

  describe('4.1 List pending get or reserve', () => {
    it('GET consumers returns an array, which is empty if no call waits', async () => {
      const client = harness().client();
      const answer = await client.consumers('N', harness().queue());
      assert.equal(answer.status, 200);
      assert.deepEqual(jsonOf(answer), []);
    });
  });
}

function settleRows(harness: () => Harness): void {
  describe('4.1 Rollback, remove', () => {
    it('PATCH rollback/:id is answered with 200 {}, and the element is ready at once by default', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const id = headerOf(await client.reserve('N', queue), 'x-ks-id');
      const answer = await client.rollback('N', queue, id);
      assert.equal(answer.status, 200);
      assert.deepEqual(jsonOf(answer), {});
      assert.equal(headerOf(await client.get('N', queue), 'x-ks-id'), id);
    });

    it('DELETE /:id is answered with 204 without a body, and is not supported on stream-backed queues', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, 'a'));
      const answer = await client.remove('N', queue, id);
      assert.equal(answer.status, 204);
      assert.equal(answer.body.length, 0);
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
      const streamed = jsonOf<{ id: string }>(await client.insert('events', queue, 'a'));
      assert.equal((await client.remove('events', queue, streamed.id)).status, 405);
      assert.equal((await client.get('events', queue)).body.toString(), 'a', 'it is still there');
    });
  });
}

function controlRows(harness: () => Harness): void {
  describe('4.1 Status, pause, resume', () => {
    it('GET status is answered with 200 and JSON', async () => {
      const answer = await harness().client().status('N', harness().queue());
      assert.equal(answer.status, 200);
      assert.equal(headerOf(answer, 'content-type'), 'application/json');
    });

    for (const verb of ['pause', 'resume'] as const) {
      it(`PATCH ${verb} is answered with 201 and an empty body`, async () => {
        const answer = await harness().client()[verb]('N', harness().queue());
        assert.equal(answer.status, 201);
        assert.equal(answer.body.length, 0);
      });
    }
  });
}

function streamRows(harness: () => Harness): void {
  describe('4.3 Stream extension', () => {
    it('groups of an insert may differ between elements of a queue', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('events', queue, 'one', { groups: 'G1' });
      await client.insert('events', queue, 'two', { groups: 'G1,G2' });
      assert.equal((await client.get('events', queue, { group: 'G2' })).body.toString(), 'two');
      assert.equal((await client.get('events', queue, { group: 'G1' })).body.toString(), 'one');
      assert.equal((await client.get('events', queue, { group: 'G1' })).body.toString(), 'two');
      assert.equal(jsonOf<{ totalSize: number }>(await client.status('events', queue)).totalSize, 0);
    });

    it('group of a get or reserve is the consumer group to read as', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: string }>(await client.insert('events', queue, 'a', { groups: 'G1,G2' }));
      assert.equal(headerOf(await client.get('events', queue, { group: 'G1' }), 'x-ks-id'), id);
      assert.equal(headerOf(await client.reserve('events', queue, { group: 'G2' }), 'x-ks-id'), id);
    });

    it('group of a commit or rollback must equal that of the reserve', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('events', queue, 'a', { groups: 'G1,G2' });
      const id = headerOf(await client.reserve('events', queue, { group: 'G1' }), 'x-ks-id');
      assert.equal((await client.commit('events', queue, id, { group: 'G2' })).status, 404);
      assert.equal((await client.commit('events', queue, id)).status, 404);
      assert.equal((await client.rollback('events', queue, id, { group: 'G1' })).status, 200);
      await client.reserve('events', queue, { group: 'G1' });
      assert.equal((await client.commit('events', queue, id, { group: 'G1' })).status, 200);
      assert.equal((await client.get('events', queue, { group: 'G2' })).status, 200);
    });

    it('a stream-backed queue can be used like a regular job queue', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('events', queue, 'a');
      const id = headerOf(await client.reserve('events', queue), 'x-ks-id');
      assert.equal((await client.commit('events', queue, id)).status, 200);
      assert.equal(jsonOf<{ totalSize: number }>(await client.status('events', queue)).totalSize, 0);
    });
  });
}
