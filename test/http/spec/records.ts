import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { sampleBodies } from '../../support/bodies.ts';
import { elementHeadersOf, headerOf, jsonOf } from '../../support/http-client.ts';
import type { Harness } from '../harness.ts';

const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

/** Tests of the spec's section 2, one per row. */
export function recordRows(harness: () => Harness): void {
  describe('2.1 Queue element', () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      it(`body may be of any type and is returned as it was inserted: ${name}`, async () => {
        const client = harness().client();
        const queue = harness().queue();
        const encoding = contentEncoding === null ? {} : { 'content-encoding': contentEncoding };
        const options = { contentType, headers: encoding };
        assert.equal((await client.insert('N', queue, bytes, options)).status, 200);
        const answer = await client.get('N', queue);
        assert.equal(answer.status, 200);
        assert.ok(answer.body.equals(bytes), 'the bytes are the same');
        assert.equal(answer.headers['content-type'], contentType);
        assert.equal(answer.headers['content-encoding'], contentEncoding ?? undefined);
      });
    }

    it('content type is stored and returned as the content type of the get', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, '{}', { contentType: 'application/vnd.test+json; v="1"' });
      assert.equal(
        headerOf(await client.get('N', queue), 'content-type'),
        'application/vnd.test+json; v="1"',
      );
    });

    it('element headers are stored from x-ks-hdr- headers and returned on get and on reserve', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const headers = { 'x-ks-hdr-Colour': 'blue', 'X-KS-HDR-size': '10' };
      await client.insert('N', queue, 'a', { headers });
      await client.insert('N', queue, 'b', { headers });
      const expected = new Map([
        ['colour', 'blue'],
        ['size', '10'],
      ]);
      assert.deepEqual(elementHeadersOf(await client.reserve('N', queue)), expected);
      assert.deepEqual(elementHeadersOf(await client.get('N', queue)), expected);
    });

    it('id is a string, returned by the insert and again in x-ks-id', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: unknown }>(await client.insert('N', queue, 'a'));
      assert.equal(typeof id, 'string');
      assert.equal(headerOf(await client.get('N', queue), 'x-ks-id'), id);
    });

    it('tries starts at 0 or at the value of the insert, and counts rollbacks', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      await client.insert('N', queue, 'b', { tries: 7 });
      const first = await client.reserve('N', queue);
      assert.equal(headerOf(first, 'x-ks-tries'), '0');
      assert.equal(headerOf(await client.get('N', queue), 'x-ks-tries'), '7');
      await client.rollback('N', queue, headerOf(first, 'x-ks-id'));
      assert.equal(headerOf(await client.get('N', queue), 'x-ks-tries'), '1');
    });

    it('mature is when the element becomes ready, returned as an ISO 8601 UTC timestamp', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const matureAt = harness().opened.now() + 5_000;
      await client.insert('N', queue, 'a', { mature: matureAt / 1000 });
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
      const waiting = client.get('N', queue);
      await harness().waiting(1);
      await harness().passTime(5_000);
      assert.equal(headerOf(await waiting, 'x-ks-mature'), new Date(matureAt).toISOString());
    });

    it('groups are the only ones that may consume the element', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('events', queue, 'a', { groups: 'G1,G2' });
      assert.equal((await client.get('events', queue, { group: 'G3', to: 0 })).status, 504);
      assert.equal((await client.get('events', queue, { group: 'G2' })).body.toString(), 'a');
      assert.equal((await client.get('events', queue, { group: 'G1' })).body.toString(), 'a');
    });
  });

  describe('2.2 Queue information record', () => {
    it('has every field of the table with its type', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const record = jsonOf<Record<string, unknown>>(await client.status('N', queue));
      const { capabilities, factory, stats, ...plainFields } = record;
      assert.match(String(plainFields.type), /^[a-z]+:[a-z]+$/);
      assert.deepEqual(Object.keys(capabilities as object).sort(), [
        'pipeline',
        'remove',
        'reserve',
        'sched',
        'tape',
      ]);
      for (const able of Object.values(capabilities as object)) assert.equal(typeof able, 'boolean');
      assert.deepEqual(plainFields, {
        type: plainFields.type,
        paused: false,
        next_mature_t: null,
        totalSize: 0,
        size: 0,
        schedSize: 0,
        resvSize: 0,
        // Ours.
        oldestReadyAge: null,
        rates: null,
      });
      assert.equal(typeof stats, 'object');
      checkFactory(factory as Factory);
    });

    it('has size, schedSize and resvSize, their sum totalSize, and next_mature_t', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'reserved');
      await client.reserve('N', queue);
      await client.insert('N', queue, 'ready');
      await client.insert('N', queue, 'later', { delay: 60 });
      const record = jsonOf<Record<string, unknown>>(await client.status('N', queue));
      assert.equal(record.size, 1);
      assert.equal(record.schedSize, 1);
      assert.equal(record.resvSize, 1);
      assert.equal(record.totalSize, 3);
      assert.match(String(record.next_mature_t), ISO);
    });
  });

  describe('2.3 Pending consumer record', () => {
    it('has tid, since, callback, cleanup_timeout and wakeup_timeout of a blocked call, and its user and address', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.get('N', queue, { tid: 'worker 1', to: 10_000 });
      await harness().waiting(1);
      const records = jsonOf<Record<string, string | null>[]>(await client.consumers('N', queue));
      assert.equal(records.length, 1);
      const [record = {}] = records;
      assert.match(String(record.since), ISO);
      assert.deepEqual(
        { ...record, since: null },
        {
          tid: 'worker 1',
          since: null,
          callback: 'set',
          cleanup_timeout: 'set',
          wakeup_timeout: 'unset',
          user: 'test1',
          protocol: 'http',
          address: '127.0.0.1',
          group: null,
        },
      );
      await client.cancel('N', queue, 'worker 1');
      await waiting;
    });
  });
}

interface Factory {
  readonly name: unknown;
  readonly type: unknown;
  readonly opts: Record<string, unknown>;
  readonly signaller: { readonly type: unknown; readonly opts: Record<string, unknown> };
  readonly stats: { readonly type: unknown; readonly opts: Record<string, unknown> };
}

function checkFactory({ name, type, opts, signaller, stats }: Factory): void {
  assert.equal(name, 'N');
  assert.equal(typeof type, 'string');
  assert.equal(opts.name, 'N');
  assert.equal(typeof opts.url, 'string');
  assert.equal(typeof signaller.type, 'string');
  assert.equal(typeof signaller.opts.url, 'string');
  assert.equal(typeof signaller.opts.channel, 'string');
  assert.equal(typeof signaller.opts.mongo_opts, 'object');
  assert.equal(typeof stats.type, 'string');
  assert.equal(typeof stats.opts.url, 'string');
  assert.equal(typeof stats.opts.coll, 'string');
}
