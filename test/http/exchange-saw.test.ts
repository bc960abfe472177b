import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { toByteString } from '../../src/util/byte-string.ts';
import { plain } from '../support/broker.ts';
import { jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

interface Tried {
  readonly saw: object;
  readonly overrun: string | null;
  readonly logs: string[];
  readonly dst: { error: string | null; line: number | null; column: number | null; logs: string[] }[];
}

describe('What a selector saw, logged and threw', () => {
  const harness = sharedHarness({ namespaces: [plain('N'), plain('M')] });
  const fresh = (): TestExchange => new TestExchange(harness());
  const tryWith = async (selectors: readonly string[], sample: object = {}): Promise<Tried> => {
    const x = fresh();
    const dst = selectors.map((selector) => ({ ns: 'M', queue: x.dst, selector }));
    const body = JSON.stringify({ ...sample, declaration: x.declaration({ dst }) });
    const answer = await x.client.request('POST', `/x/${x.id}/test`, { body });
    assert.equal(answer.status, 200, answer.body.toString());
    return jsonOf(answer);
  };

  it('is returned by a dry run: the form of the payload and the content type that decided it', async () => {
    for (const [content_type, payload] of [
      ['application/json', 'json'],
      ['application/problem+json', 'json'],
      ['text/plain', 'text'],
      ['text/csv; charset=latin1', 'text'],
      ['application/x-www-form-urlencoded', 'bytes'],
    ]) {
      const { saw } = await tryWith(['env => true'], { content_type, msg: { payload: '{}' } });
      assert.deepEqual(saw, { payload, content_type, content_encoding: null });
    }
  });

  it('is in the record for the last element and for the last one that went to __no_route__ without an error', async () => {
    const x = fresh();
    await x.create({ dst: [{ ns: 'M', queue: x.dst, selector: 'env => env.msg.payload.amount > 100' }] });
    assert.deepEqual((await x.record()).saw, { last: null, last_no_route: null });
    const body = '{"amount":101}';
    const form = { contentType: 'application/x-www-form-urlencoded' };
    const { id } = jsonOf<{ id: string }>(await x.client.insert('N', x.src, body, form));
    await until(async () => (await x.record()).stats.no_route === 1);
    const contentType = 'application/json; from="Z\u00fcrich"';
    await x.client.insert('N', x.src, body, { contentType: toByteString(contentType) });
    await x.client.get('M', x.dst);
    const { saw, errors } = await x.record();
    assert.deepEqual(errors, []);
    assert.deepEqual(
      [saw.last_no_route?.id, saw.last_no_route?.payload, saw.last_no_route?.content_type],
      [id, 'bytes', form.contentType],
    );
    assert.deepEqual([saw.last?.payload, saw.last?.content_type], ['json', contentType]);
  });

  it('is returned by a dry run: a bounded console log per destination', async () => {
    const { dst } = await tryWith([
      'env => { console.log("got", env.msg.payload, 1n, undefined, null); console.warn([1]); return true }',
      'env => { console.error("second"); throw new Error("after") }',
      'env => true',
    ]);
    assert.deepEqual(
      dst.map(({ logs }) => logs),
      [['got  1 undefined null', '[1]'], ['second'], []],
    );
    const [whole] = (await tryWith(['env => { console.log(env); console.log(JSON.stringify(env.msg)) }']))
      .dst;
    const [text = '', message = ''] = whole?.logs ?? [];
    assert.deepEqual(JSON.parse(text), { msg: JSON.parse(message), state: {} });
    assert.deepEqual(Object.keys(JSON.parse(message)), ['id', 'tries', 'mature', 'hdrs', 'payload']);
    const loud = await tryWith(['env => { for (let i = 0; i < 1e3; i += 1) console.log("x".repeat(5000)) }']);
    const [{ logs } = { logs: [] }] = loud.dst;
    assert.equal(logs.length, 51);
    assert.equal(logs[0]?.length, 1000);
    assert.equal(logs[50], '… and more');
  });

  it('is returned by a dry run even if the selector took too long: what it logged before', async () => {
    const { overrun, logs } = await tryWith(['env => { console.log("begins"); while (1); }']);
    assert.match(overrun ?? '', /too long|interrupted/);
    assert.deepEqual(logs, ['begins']);
  });

  it('cannot be leaked to another element or out of the sandbox through console', async () => {
    const { dst } = await tryWith([
      'env => { console.kept = 1 }',
      'env => { console.log = 1 }',
      'env => { globalThis.console = 1 }',
      'env => { console.log({ toJSON() { throw 1 }, toString() { throw 2 } }); return true }',
    ]);
    for (const { error } of dst.slice(0, 3)) assert.match(error ?? '', /TypeError/);
    assert.deepEqual(dst[3]?.logs, ['[not printable]']);
  });

  for (const [selector, line, column] of [
    ['env => env.no.thing', 1, 8],
    ['env.no.thing', 1, 1],
    ['env => {\n  const a = 1;\n  return env.no.thing\n}', 3, 10],
    ['env => {\r\n  throw new Error("x") }', 2, 9],
    ['function (env) {\n  return [1].map(() => env.no.thing) }', 2, 24],
  ] as const) {
    it(`is returned with the position of a run-time error: ${JSON.stringify(selector)}`, async () => {
      const { dst } = await tryWith([selector]);
      const [tried] = dst;
      assert.match(tried?.error ?? '', new RegExp(`\\(line ${line}, column \\d+\\)$`));
      assert.equal(tried?.line, line);
      // The VM reports the column of the expression or of the failing part in it.
      const start = tried?.column ?? 0;
      assert.ok(start >= column && start <= column + 8, `column ${start}, the expression is at ${column}`);
    });
  }

  it('is in the errors of the record with the position of the error', async () => {
    const x = fresh();
    await x.create({ dst: [{ ns: 'M', queue: x.dst, selector: 'env =>\n  env.no.thing' }] });
    await x.client.insert('N', x.src, 'x');
    await until(async () => (await x.record()).errors.length === 1);
    const [{ line, message } = { line: 0, message: '' }] = (await x.record()).errors;
    assert.equal(line, 2);
    assert.match(message, /^TypeError: .* \(line 2, column \d+\)$/);
  });
});
