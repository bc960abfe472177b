import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { codeOf, type ExchangeRecord, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

const HTML = 'text/html; charset=utf-8';

describe('HTTP interface of exchanges', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M'), plain('hidden')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'maker', password: 'm', rights: { N: ['exchange', 'read'], M: ['write'] } },
      { name: 'reader', password: 'r', rights: { N: ['read'], M: ['write'] } },
      { name: 'other', password: 'o', rights: { M: ['read', 'write', 'exchange'] } },
    ],
  });
  const fresh = (): TestExchange => new TestExchange(harness());

  describe('4.2 Create', () => {
    for (const method of ['POST', 'PUT']) {
      it(`${method} /x/:id is answered with 201 and an empty body, and the exchange runs`, async () => {
        const x = fresh();
        const answer = await x.create({}, method);
        assert.equal(answer.status, 201);
        assert.equal(answer.body.length, 0);
        await x.client.insert('N', x.src, 'hello', { contentType: 'text/plain' });
        const got = await x.client.get('M', x.dst);
        assert.equal(got.body.toString(), 'hello');
        assert.equal(headerOf(got, 'x-ks-hdr-x-hop-count'), '1');
        assert.equal((await x.record()).stopped, null);
      });
    }

    it('is idempotent for the same declaration, and answered with 409 for another one', async () => {
      const x = fresh();
      await x.create();
      assert.equal((await x.create()).status, 201);
      const other = await x.create({ consumer: { parallel: 2 } });
      assert.equal(other.status, 409);
      assert.equal(codeOf(other), 'exchange-exists');
    });

    it('names the loops of the graph in x-ks-loops and in the status', async () => {
      const x = fresh();
      await x.create();
      const answer = await x.client.request('PUT', `/x/${x.id}-back`, {
        body: JSON.stringify({
          src: { ns: 'M', queue: x.dst },
          dst: [{ ns: 'N', queue: x.src }],
          consumer: {},
        }),
      });
      assert.equal(headerOf(answer, 'x-ks-loops'), `${x.id}-back>${x.id}>${x.id}-back`);
      assert.deepEqual((await x.record()).loops, [[x.id, `${x.id}-back`, x.id]]);
      await x.client.request('DELETE', `/x/${x.id}-back`);
    });

    const bad: [what: string, change: Record<string, unknown> | string, code: string, parameter?: string][] =
      [
        ['a body that is not JSON', '{', 'invalid-body'],
        ['a body that is not an object', '[]', 'invalid-parameter', ''],
        ['no src', { src: undefined }, 'invalid-parameter', 'src'],
        ['src without queue', { src: { ns: 'N' } }, 'invalid-parameter', 'src.queue'],
        ['an empty queue name', { src: { ns: 'N', queue: '' } }, 'invalid-name', 'src.queue'],
        ['an unknown source namespace', { src: { ns: 'Z', queue: 'q' } }, 'invalid-parameter', 'src.ns'],
        [
          'an unknown destination namespace',
          { dst: [{ ns: 'Z', queue: 'q' }] },
          'invalid-parameter',
          'dst[0].ns',
        ],
        ['no dst', { dst: undefined }, 'invalid-parameter', 'dst'],
        ['an empty dst', { dst: [] }, 'invalid-parameter', 'dst'],
        ['dst that is not an array', { dst: {} }, 'invalid-parameter', 'dst'],
        [
          'a selector that is not a string',
          { dst: [{ ns: 'N', queue: 'q', selector: 1 }] },
          'invalid-parameter',
          'dst[0].selector',
        ],
        [
          'a selector with a syntax error',
          { dst: [{ ns: 'N', queue: 'q', selector: 'env => {\n (' }] },
          'invalid-body',
          'dst[0].selector',
        ],
        [
          'an async selector',
          { dst: [{ ns: 'N', queue: 'q', selector: 'async env => true' }] },
          'invalid-body',
          'dst[0].selector',
        ],
        [
          'a selector over 8 KiB',
          { dst: [{ ns: 'N', queue: 'q', selector: `'${'x'.repeat(8192)}'` }] },
          'invalid-body',
          'dst[0].selector',
        ],
        ['no consumer', { consumer: undefined }, 'invalid-parameter', 'consumer'],
        [
          'a misspelled selector',
          { dst: [{ ns: 'N', queue: 'q', selectr: 'false' }] },
          'invalid-parameter',
          'dst[0].selectr',
        ],
        ['an unknown member', { destination: [] }, 'invalid-parameter', 'destination'],
        ['a member named __proto__', `{"__proto__":{}}`, 'invalid-parameter', '__proto__'],
        [
          'a member name with spaces and control characters',
          { src: { ns: 'N', queue: 'q', ['x y\n'.repeat(40)]: 1 } },
          'invalid-parameter',
          `src["${'x y\\n'.repeat(16)}"…]`,
        ],
        ['an unknown consumer option', { consumer: { paralel: 2 } }, 'invalid-parameter', 'consumer.paralel'],
        ['parallel 0', { consumer: { parallel: 0 } }, 'invalid-parameter', 'consumer.parallel'],
        ['parallel 17', { consumer: { parallel: 17 } }, 'invalid-parameter', 'consumer.parallel'],
        ['wsize 1.5', { consumer: { wsize: 1.5 } }, 'invalid-parameter', 'consumer.wsize'],
        ['wsize 65537', { consumer: { wsize: 65_537 } }, 'invalid-parameter', 'consumer.wsize'],
        ['reserve as a string', { consumer: { reserve: 'yes' } }, 'invalid-parameter', 'consumer.reserve'],
      ];
    for (const [what, change, code, parameter] of bad) {
      it(`rejects ${what} with 400 and names the field`, async () => {
        const x = fresh();
        const answer = await (typeof change === 'string'
          ? x.client.request('PUT', `/x/${x.id}`, { body: change })
          : x.create(change));
        assert.equal(answer.status, 400);
        assert.equal(codeOf(answer), code);
        if (parameter !== undefined) assert.equal(jsonOf<{ parameter: string }>(answer).parameter, parameter);
        assert.equal((await x.client.request('GET', `/x/${x.id}`)).status, 404);
      });
    }

    it('suggests the correct name of a misspelled member, or else lists the allowed members', async () => {
      const x = fresh();
      const detail = async (change: Record<string, unknown>): Promise<string> =>
        jsonOf<{ detail: string }>(await x.create(change)).detail;
      assert.equal(
        await detail({ dst: [{ ns: 'N', queue: 'q', selectr: 'false' }] }),
        'Unknown member dst[0].selectr. Did you mean "selector"?',
      );
      assert.equal(
        await detail({ consumer: { priority: 1 } }),
        'Unknown member consumer.priority. Allowed: parallel, wsize, reserve.',
      );
      assert.equal(
        await detail({ consumer: { parallel: 17 } }),
        'consumer.parallel must be a whole number from 1 to 16, not 17.',
      );
      assert.equal(await detail({ src: undefined }), 'src is missing; it must be a JSON object.');
    });

    it('returns the line and column of a syntax error', async () => {
      const x = fresh();
      const answer = await x.create({ dst: [{ ns: 'N', queue: 'q', selector: 'env =>\n  env.(' }] });
      const { line, column } = jsonOf<{ line: number; column: number }>(answer);
      assert.deepEqual([line, column], [2, 7]);
    });

    it('rejects a body that is not UTF-8 instead of storing a converted one', async () => {
      const x = fresh();
      const dst = [{ ns: 'M', queue: x.dst, selector: 'env.msg.hdrs.name === "Müller"' }];
      const text = JSON.stringify(x.declaration({ dst }));
      for (const path of [`/x/${x.id}`, `/x/${x.id}/test`]) {
        const answer = await x.client.request('POST', path, { body: Buffer.from(text, 'latin1') });
        assert.deepEqual([answer.status, codeOf(answer)], [400, 'invalid-body'], path);
        assert.match(jsonOf<{ detail: string }>(answer).detail, /UTF-8/);
      }
      assert.equal((await x.client.request('GET', `/x/${x.id}`)).status, 404);
      assert.equal((await x.create({ dst })).status, 201);
      assert.deepEqual((await x.record()).dst, [{ q: x.dst, ns: 'M', selector: dst[0]?.selector }]);
    });

    it('rejects a body over 64 KiB with 413', async () => {
      const x = fresh();
      const answer = await x.client.request('PUT', `/x/${x.id}`, { body: ' '.repeat(65_537) });
      assert.equal(answer.status, 413);
    });
  });

  describe('4.2 List, 2.4 Exchange record', () => {
    it('GET /x returns records by id', async () => {
      const x = fresh();
      await x.create({ consumer: { reserve: true, wsize: 7 } });
      const records = jsonOf<Record<string, ExchangeRecord>>(await x.client.request('GET', '/x'));
      const record = records[x.id];
      assert.ok(record !== undefined);
      assert.deepEqual(record.src, { q: x.src, ns: 'N' });
      assert.deepEqual(record.dst, [{ q: x.dst, ns: 'M', selector: 'env => true' }]);
      assert.deepEqual(record.opts, { reserve: true, wsize: 7 });
      assert.equal(typeof record.cid, 'string');
      assert.deepEqual(record.pending_acks, {});
      assert.equal(record.wsize, 7);
      assert.equal(record.stopped, null);
    });

    it('shows opts {} and wsize 1000 by default, and the tid of an idle loop', async () => {
      const x = fresh();
      await x.create();
      await until(async () => Object.keys((await x.record()).pending_tids).length === 1);
      const record = await x.record();
      assert.deepEqual(record.opts, {});
      assert.equal(record.wsize, 1000);
      for (const since of Object.values(record.pending_tids)) assert.match(since, /^\d{4}-.*Z$/);
    });

    it('array=1 and tree=1 return the listings of the console, and reload=1 is accepted', async () => {
      const x = fresh();
      await x.create();
      const array = jsonOf<{ data: { id: string }[] }>(await x.client.request('GET', '/x?array=1&reload=1'));
      assert.ok(array.data.some(({ id }) => id === x.id));
      const tree = jsonOf<{ title: string; folder: boolean; children: { key: string }[] }[]>(
        await x.client.request('GET', '/x?tree=1'),
      );
      const folder = tree.find(({ title }) => title === 'N');
      assert.equal(folder?.folder, true);
      assert.ok(folder?.children.some(({ key }) => key === x.id));
      assert.equal((await x.client.request('GET', '/x?tree=1&array=1')).status, 400);
    });
  });

  describe('4.2 Status, 7 Errors', () => {
    it('every operation on an unknown id is answered with 404 and "no such exchange [<id>]" as HTML', async () => {
      const { client } = fresh();
      for (const [method, path] of [
        ['GET', '/x/none'],
        ['POST', '/x/none/stop'],
        ['PUT', '/x/none/stop'],
        ['POST', '/x/none/start'],
        ['PUT', '/x/none/start'],
        ['DELETE', '/x/none'],
      ] as const) {
        const answer = await client.request(method, path);
        assert.equal(answer.status, 404, `${method} ${path}`);
        assert.equal(headerOf(answer, 'content-type'), HTML);
        assert.equal(answer.body.toString(), 'no such exchange [none]');
      }
    });

    it('the id is HTML-escaped, and clients that accept problem details receive them', async () => {
      const { client } = fresh();
      const answer = await client.request('GET', '/x/%3Cscript%3E%22%27%26');
      assert.equal(answer.body.toString(), 'no such exchange [&lt;script&gt;&quot;&#39;&amp;]');
      assert.equal(headerOf(answer, 'x-content-type-options'), 'nosniff');
      const problem = await client.request('GET', '/x/none', {
        headers: { accept: 'application/problem+json' },
      });
      assert.equal(codeOf(problem), 'exchange-not-found');
    });
  });

  describe('3.4 Exchange', () => {
    it('stop and start are answered with 201 and an empty body, are idempotent, and set stopped', async () => {
      const x = fresh();
      await x.create();
      for (const method of ['POST', 'PUT']) {
        for (const [verb, stopped] of [
          ['stop', true],
          ['stop', true],
          ['start', false],
          ['start', false],
        ] as const) {
          const answer = await x.client.request(method, `/x/${x.id}/${verb}`);
          assert.deepEqual([answer.status, answer.body.length], [201, 0]);
          assert.equal((await x.record()).stopped, stopped);
        }
      }
    });

    it('delete is answered with 201, later reads with 404, and the queues stay', async () => {
      const x = fresh();
      await x.create();
      await x.client.insert('N', x.src, 'x');
      await x.client.get('M', x.dst);
      const answer = await x.client.request('DELETE', `/x/${x.id}`);
      assert.deepEqual([answer.status, answer.body.length], [201, 0]);
      assert.equal((await x.client.request('GET', `/x/${x.id}`)).status, 404);
      const queues = jsonOf<Record<string, unknown>>(await x.client.request('GET', '/q/M'));
      assert.ok(Object.hasOwn(queues, x.dst));
    });
  });

  describe('rights', () => {
    it('a change of an exchange requires exchange and read on the source and write on each destination', async () => {
      const x = fresh();
      const maker = harness().client('maker:m');
      const reader = harness().client('reader:r');
      const other = harness().client('other:o');
      assert.equal((await x.create({}, 'PUT', reader)).status, 403);
      assert.equal((await x.create({ dst: [{ ns: 'N', queue: 'q' }] }, 'PUT', maker)).status, 403);
      const hidden = await x.create({ dst: [{ ns: 'hidden', queue: 'q' }] }, 'PUT', maker);
      assert.deepEqual([hidden.status, codeOf(hidden)], [400, 'invalid-parameter']);
      assert.equal((await x.create({}, 'PUT', maker)).status, 201);
      for (const [method, path] of [
        ['POST', '/stop'],
        ['POST', '/start'],
        ['DELETE', ''],
        ['POST', '/test'],
      ] as const) {
        const body = path === '/test' ? '{}' : '';
        assert.equal((await reader.request(method, `/x/${x.id}${path}`, { body })).status, 403, path);
        assert.equal((await other.request(method, `/x/${x.id}${path}`, { body })).status, 404, path);
      }
      assert.equal((await maker.request('POST', `/x/${x.id}/stop`)).status, 201);
    });

    it('a namespace in which the user has no rights is rejected like one that does not exist', async () => {
      const x = fresh();
      const maker = harness().client('maker:m');
      const places = [
        ['src.ns', (ns: string) => ({ src: { ns, queue: 'q' } })],
        ['dst[1].ns', (ns: string) => ({ dst: ['M', ns].map((name) => ({ ns: name, queue: 'q' })) })],
      ] as const;
      for (const [path, change] of places) {
        const hidden = await x.create(change('hidden'), 'PUT', maker);
        assert.deepEqual([hidden.status, jsonOf<{ parameter: string }>(hidden).parameter], [400, path]);
        const absent = await x.create(change('absent'));
        assert.equal(hidden.body.toString(), absent.body.toString().replaceAll('absent', 'hidden'));
      }
    });

    it('lists contain only what the user may see', async () => {
      const x = fresh();
      await x.create();
      const seen = jsonOf<object>(await harness().client('reader:r').request('GET', '/x'));
      assert.ok(Object.hasOwn(seen, x.id));
      const unseen = jsonOf<object>(await harness().client('other:o').request('GET', '/x'));
      assert.ok(!Object.hasOwn(unseen, x.id));
      assert.equal((await harness().client('other:o').request('GET', `/x/${x.id}`)).status, 404);
    });
  });
});
