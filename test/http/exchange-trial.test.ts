import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { toByteString } from '../../src/util/byte-string.ts';
import { plain } from '../support/broker.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { codeOf, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

describe('POST /x/:id/test', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M'), plain('hidden')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'maker', password: 'm', rights: { N: ['exchange', 'read'], M: ['write'] } },
    ],
  });
  const fresh = (): TestExchange => new TestExchange(harness());

  it('returns the result of a sample for each destination and stores nothing', async () => {
    const x = fresh();
    await x.create({
      dst: [
        {
          ns: 'M',
          queue: x.dst,
          selector: 'env => { env.msg.hdrs.k = "v"; return env.msg.payload.n > 1 && { delay: 5 } }',
        },
      ],
    });
    const answer = await x.client.request('POST', `/x/${x.id}/test`, {
      body: JSON.stringify({ msg: { payload: { n: 2 }, hdrs: { A: 'b' } } }),
    });
    assert.equal(answer.status, 200);
    const { dst } = jsonOf<{ dst: Record<string, unknown>[] }>(answer);
    assert.deepEqual(dst, [
      {
        q: x.dst,
        ns: 'M',
        accepted: true,
        error: null,
        line: null,
        column: null,
        logs: [],
        mature: null,
        delay: 5,
        tries: null,
        hdrs: { a: 'b', k: 'v', 'x-hop-count': '1' },
        payload: '{"n":2}',
        payload_encoding: 'text',
        payload_bytes: 7,
      },
    ]);
    const none = await x.client.request('POST', `/x/${x.id}/test`, { body: '{"msg":{"payload":{"n":1}}}' });
    assert.equal(jsonOf<{ strays_to: string }>(none).strays_to, '__no_route__');
    assert.equal(jsonOf<{ totalSize: number }>(await x.client.status('M', x.dst)).totalSize, 0);
  });

  it('truncates payloads that are large together, at a whole character', async () => {
    const x = fresh();
    const dst = (count: number, text: string) =>
      Array.from({ length: count }, () => ({
        ns: 'M',
        queue: x.dst,
        selector: `env => { env.msg.payload = "${text}".repeat(500000); return true }`,
      }));
    const attempt = async (declaration: object, content_type?: string) => {
      const body = JSON.stringify({ content_type, declaration });
      const answer = await x.client.request('POST', `/x/${x.id}/test`, { body });
      const { dst } = jsonOf<{ dst: { payload: string; payload_encoding: string; payload_bytes: number }[] }>(
        answer,
      );
      return { length: answer.body.length, dst };
    };
    const many = await attempt(x.declaration({ dst: dst(14, '\u00e4') }));
    assert.ok(many.length < 4.1 * 2 ** 20, `${many.length} bytes`);
    for (const { payload, payload_encoding, payload_bytes } of many.dst) {
      assert.deepEqual([payload_encoding, payload_bytes], ['text', 1_000_000]);
      assert.match(payload, /^\u00e4{140000,150000}$/);
    }
    const [one] = (await attempt(x.declaration({ dst: dst(1, '\u00e4') }))).dst;
    assert.equal(one?.payload.length, 500_000);
    assert.equal(one?.payload_bytes, 1_000_000);
  });

  it('accepts only a content type that an insert accepts, and shows it as it was given', async () => {
    const x = fresh();
    await x.create();
    const attempt = (content_type: string) =>
      x.client.request('POST', `/x/${x.id}/test`, { body: JSON.stringify({ content_type }) });
    for (const bad of ['a\n', 'x'.repeat(256), ' ', '\ud800']) {
      const answer = await attempt(bad);
      assert.equal(answer.status, 400, JSON.stringify(bad));
      assert.equal(jsonOf<{ parameter: string }>(answer).parameter, 'content_type');
    }
    for (const [given, shown] of [
      ['text/z\u00fcrich', 'text/z\u00fcrich'],
      ['', 'application/octet-stream'],
    ] as const) {
      const { saw } = jsonOf<{ saw: { content_type: string } }>(await attempt(given));
      assert.equal(saw.content_type, shown);
    }
  });

  it('returns the headers of the copy as they would be stored, non-ASCII and the hop count included', async () => {
    const x = fresh();
    const selector = 'env => { env.msg.hdrs.price = "5 \u20ac"; return env.msg.hdrs.city === "Z\u00fcrich" }';
    await x.create({ dst: [{ ns: 'M', queue: x.dst, selector }] });
    const hdrs = { city: 'Z\u00fcrich', 'x-hop-count': '3' };
    const answer = await x.client.request('POST', `/x/${x.id}/test`, {
      body: JSON.stringify({ msg: { hdrs } }),
    });
    const [shown] = jsonOf<{ dst: { accepted: boolean; hdrs: Record<string, string> }[] }>(answer).dst;
    assert.equal(shown?.accepted, true);
    assert.deepEqual(shown.hdrs, { ...hdrs, price: '5 \u20ac', 'x-hop-count': '4' });
    await x.client.insert('N', x.src, '', {
      headers: { 'x-ks-hdr-city': toByteString(hdrs.city), 'x-ks-hdr-x-hop-count': '3' },
    });
    const stored = await x.client.get('M', x.dst);
    for (const [name, value] of Object.entries(shown.hdrs)) {
      assert.equal(headerOf(stored, `x-ks-hdr-${name}`), toByteString(value));
    }
  });

  it('tests the declaration in the body, if given, instead of the stored one', async () => {
    const x = fresh();
    const declaration = x.declaration({ dst: [{ ns: 'M', queue: x.dst, selector: 'throw 1' }] });
    const rejected = await x.client.request('POST', `/x/${x.id}/test`, {
      body: JSON.stringify({ declaration }),
    });
    assert.equal(codeOf(rejected), 'invalid-body');
    const failing = x.declaration({ dst: [{ ns: 'M', queue: x.dst, selector: 'env => env.no.thing' }] });
    const answer = await x.client.request('POST', `/x/${x.id}/test`, {
      body: JSON.stringify({ declaration: failing }),
    });
    const [tried] = jsonOf<{ dst: { accepted: boolean; error: string }[] }>(answer).dst;
    assert.equal(tried?.accepted, false);
    assert.match(tried?.error ?? '', /TypeError/);
    assert.equal((await x.client.request('GET', `/x/${x.id}`)).status, 404);
  });

  it('rejects samples that could not be stored', async () => {
    const x = fresh();
    await x.create();
    for (const [body, code] of [
      ['{"msg":1}', 'invalid-parameter'],
      ['[]', 'invalid-parameter'],
      ['{"msg":{"tries":-1}}', 'invalid-parameter'],
      ['{"msg":{"id":7}}', 'invalid-parameter'],
      ['{"msg":{"id":""}}', 'invalid-parameter'],
      [`{"msg":{"id":"${'i'.repeat(65)}"}}`, 'invalid-parameter'],
      ['{"msg":{"mature":"soon"}}', 'invalid-parameter'],
      ['{"msg":{"hdrs":{"a":1}}}', 'invalid-parameter'],
      ['{"msg":{"hdrs":{"a":"\\ud800"}}}', 'invalid-parameter'],
      ['{"msg":{"hdrs":{"a b":"c"}}}', 'invalid-header'],
      ['{"mesg":{}}', 'invalid-parameter'],
      ['{"msg":{"headers":{}}}', 'invalid-parameter'],
      ['no json', 'invalid-body'],
    ] as const) {
      const answer = await x.client.request('POST', `/x/${x.id}/test`, { body });
      assert.deepEqual([answer.status, codeOf(answer)], [400, code], body);
    }
  });

  it('names the path of a header that could not be stored', async () => {
    const x = fresh();
    await x.create();
    for (const [hdrs, code, parameter] of [
      [{ 'a b': 'c' }, 'invalid-header', 'msg.hdrs["a b"]'],
      [{ a: 'b\nc' }, 'invalid-header', 'msg.hdrs.a'],
      [{ a: 'b', A: 'c' }, 'invalid-parameter', 'msg.hdrs.A'],
    ] as const) {
      const body = JSON.stringify({ msg: { hdrs } });
      const answer = await x.client.request('POST', `/x/${x.id}/test`, { body });
      const { code: given, parameter: named } = jsonOf<{ code: string; parameter: string }>(answer);
      assert.deepEqual([answer.status, given, named], [400, code, parameter]);
    }
  });

  const faults: [
    what: string,
    declaration: (x: TestExchange) => unknown,
    parameter: string,
    credentials?: string,
  ][] = [
    ['a string as its value', () => 'x', 'declaration'],
    ['null as its value', () => null, 'declaration'],
    ['no source queue', (x) => x.declaration({ src: { ns: 'N' } }), 'declaration.src.queue'],
    ['an empty name', (x) => x.declaration({ src: { ns: 'N', queue: '' } }), 'declaration.src.queue'],
    ['no destination', (x) => x.declaration({ dst: [] }), 'declaration.dst'],
    ['an unknown option', (x) => x.declaration({ consumer: { a: 1 } }), 'declaration.consumer.a'],
    [
      'a misspelled selector',
      (x) => x.declaration({ dst: [{ ns: 'M', queue: 'q', selectr: 'false' }] }),
      'declaration.dst[0].selectr',
    ],
    ['a wrong option', (x) => x.declaration({ consumer: { wsize: 0 } }), 'declaration.consumer.wsize'],
    [
      'an unknown namespace',
      (x) => x.declaration({ dst: [{ ns: 'Z', queue: 'q' }] }),
      'declaration.dst[0].ns',
    ],
    [
      'a namespace that the user may not see',
      (x) => x.declaration({ src: { ns: 'hidden', queue: 'q' } }),
      'declaration.src.ns',
      'maker:m',
    ],
    [
      'a selector that does not parse',
      (x) => x.declaration({ dst: [{ ns: 'M', queue: 'q', selector: '(' }] }),
      'declaration.dst[0].selector',
    ],
  ];
  for (const [what, declaration, parameter, credentials] of faults) {
    it(`rejects a declaration with ${what} and names its path in the body`, async () => {
      const x = fresh();
      const body = JSON.stringify({ declaration: declaration(x) });
      const answer = await harness().client(credentials).request('POST', `/x/${x.id}/test`, { body });
      assert.equal(answer.status, 400);
      const rejected = jsonOf<{ parameter: string; detail: string }>(answer);
      assert.equal(rejected.parameter, parameter);
    });
  }
});
