import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { codeOf, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

const MAX_COPIES = 8;
/** With the default, an unbounded loop would run for hours. */
const MAX_HOPS = 5;

describe('Copies of an element', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M')],
    maxCopies: MAX_COPIES,
    maxHops: MAX_HOPS,
  });
  const fresh = (): TestExchange => new TestExchange(harness());
  const total = async (x: TestExchange, ns: string, queue: string): Promise<number> =>
    jsonOf<{ totalSize: number }>(await x.client.status(ns, queue)).totalSize;

  it('to a destination listed twice without a selector are rejected by create and dry run, with the path', async () => {
    const x = fresh();
    const to = { ns: 'M', queue: x.dst };
    const rejected = await x.create({ dst: [to, { ns: 'M', queue: 'other' }, to] });
    assert.deepEqual([rejected.status, codeOf(rejected)], [400, 'invalid-parameter']);
    const { parameter, detail } = jsonOf<{ parameter: string; detail: string }>(rejected);
    assert.equal(parameter, 'dst[2]');
    assert.match(detail, new RegExp(`dst\\[2\\] is queue "${x.dst}" of namespace "M", as dst\\[0\\] is`));
    const body = JSON.stringify({ declaration: x.declaration({ dst: [to, to] }) });
    const tried = await x.client.request('POST', `/x/${x.id}/test`, { body });
    assert.deepEqual(
      [tried.status, jsonOf<{ parameter: string }>(tried).parameter],
      [400, 'declaration.dst[1]'],
    );
    const selected = { ...to, selector: 'env => true' };
    assert.equal((await x.create({ dst: [to, selected, selected, { ns: 'N', queue: x.dst }] })).status, 201);
  });

  it('in a loop are bounded: surplus elements go to __too_many_hops__ with the exchange’s name', async () => {
    const x = fresh();
    const back = Array.from({ length: 4 }, () => ({ ns: 'N', queue: x.src, selector: 'env => true' }));
    await x.create({ dst: [...back, { ns: 'M', queue: x.dst }] });
    await x.client.insert('N', x.src, 'x');
    // 1 element becomes 4. Each of those would become 4 more, 16 in total, which exceeds the limit.
    await until(async () => (await x.record()).stats.too_many_hops >= 4);
    assert.equal(await total(x, 'N', x.src), 0);
    assert.equal(await total(x, 'N', '__too_many_hops__'), 4);
    assert.equal(await total(x, 'M', x.dst), 1, 'copies outside the loop are not counted');
    const given = await x.client.get('N', '__too_many_hops__');
    assert.equal(headerOf(given, 'x-ks-hdr-x-exchange-name'), x.id);
    assert.equal(headerOf(given, 'x-ks-hdr-x-copy-count'), '4');
    for (let i = 0; i < 3; i += 1) await x.client.get('N', '__too_many_hops__');
  });

  it('in a loop are shown by a dry run as they would be stored, even before the exchange is created', async () => {
    const x = fresh();
    const back = Array.from({ length: 3 }, () => ({ ns: 'N', queue: x.src, selector: 'env => true' }));
    const dst = [...back, { ns: 'M', queue: x.dst }];
    const attempt = async (hdrs: object, given: object = {}) => {
      const body = JSON.stringify({ msg: { hdrs }, ...given });
      const answer = await x.client.request('POST', `/x/${x.id}/test`, { body });
      const { dst, strays_to } = jsonOf<{
        dst: { hdrs: Record<string, string> }[];
        strays_to: string | null;
      }>(answer);
      return [strays_to, dst.map(({ hdrs }) => hdrs['x-copy-count'])];
    };
    const once = [null, ['3', '3', '3', undefined]];
    assert.deepEqual(await attempt({}, { declaration: x.declaration({ dst }) }), once);
    await x.create({ dst });
    assert.deepEqual(await attempt({}), once);
    assert.equal((await attempt({ 'x-copy-count': '3' }))[0], '__too_many_hops__');
  });

  it('are counted across all exchanges of a loop, and selectors cannot reset the count', async () => {
    const [x, y] = [fresh(), fresh()];
    const reset = 'env => { delete env.msg.hdrs["x-copy-count"]; return true }';
    const twice = (ns: string, queue: string) => [
      { ns, queue, selector: reset },
      { ns, queue, selector: 'env => { env.msg.hdrs["x-copy-count"] = "1"; return true }' },
    ];
    await x.create({ dst: twice('M', x.dst) });
    await y.create({ src: { ns: 'M', queue: x.dst }, dst: twice('N', x.src) });
    await x.client.insert('N', x.src, 'x');
    const tooMany = async () =>
      (await x.record()).stats.too_many_hops + (await y.record()).stats.too_many_hops;
    await until(async () => (await tooMany()) >= MAX_COPIES);
    assert.equal(await tooMany(), MAX_COPIES);
    for (const [ns, queue] of [
      ['N', x.src],
      ['M', x.dst],
    ] as const) {
      assert.equal(await total(x, ns, queue), 0);
    }
  });

  it('outside a loop are not bounded', async () => {
    const x = fresh();
    const many = Array.from({ length: MAX_COPIES * 2 }, () => ({
      ns: 'M',
      queue: x.dst,
      selector: 'env => true',
    }));
    await x.create({ dst: many });
    await x.client.insert('N', x.src, 'x');
    await until(async () => (await total(x, 'M', x.dst)) === MAX_COPIES * 2);
    const { headers } = await x.client.get('M', x.dst);
    assert.ok(!Object.hasOwn(headers, 'x-ks-hdr-x-copy-count'));
  });
});
