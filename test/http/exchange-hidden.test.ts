import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { jsonOf } from '../support/http-client.ts';
import { codeOf, type ExchangeRecord, Names } from './exchange-names.ts';
import { sharedHarness } from './harness.ts';

describe('An exchange with a destination in a namespace that its reader may not see', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M'), plain('secret')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'reader', password: 'r', rights: { N: ['read', 'exchange'], M: ['write'] } },
    ],
  });
  const dst = (x: Names) => [
    { ns: 'secret', queue: 'vault', selector: 'env => env.msg.hdrs.secretHeader.length' },
    { ns: 'M', queue: x.dst },
  ];

  it('shows nothing of it: no names, selector, counters or errors, in any form', async () => {
    const x = new Names(harness());
    await x.create({ dst: dst(x) });
    await x.client.insert('N', x.src, 'x');
    await x.client.get('M', x.dst);
    await harness().until(async () => (await x.record()).errors.length === 1);
    const reader = harness().client('reader:r');
    const own = jsonOf<ExchangeRecord>(await reader.request('GET', `/x/${x.id}`));
    assert.deepEqual(own.dst, [
      { q: '', ns: '', hidden: true },
      { q: x.dst, ns: 'M' },
    ]);
    assert.deepEqual(own.stats.dst, [
      { matched: 0, skipped: 0, failed: 0 },
      { matched: 1, skipped: 0, failed: 0 },
    ]);
    assert.deepEqual(own.errors, []);
    for (const path of [`/x/${x.id}`, '/x', '/x?array=1', '/x?tree=1', '/metrics']) {
      const answer = await reader.request('GET', path);
      assert.equal(answer.status, 200);
      assert.ok(answer.body.includes(x.id), path);
      assert.doesNotMatch(answer.body.toString(), /secret|vault/, path);
    }
    assert.match((await x.client.request('GET', '/metrics')).body.toString(), /secret\/vault/);
  });

  it('is not stopped, started, changed, tried or deleted by that reader, and the refusal names nothing', async () => {
    const x = new Names(harness());
    await x.create({ dst: dst(x) });
    const reader = harness().client('reader:r');
    const { version } = await x.record();
    for (const [method, path, body] of [
      ['POST', '/stop', ''],
      ['POST', '/start', ''],
      ['POST', '/test', '{}'],
      ['DELETE', '', ''],
      ['PUT', '', JSON.stringify(x.declaration())],
    ] as const) {
      const headers = { 'if-match': `"${version}"` };
      const answer = await reader.request(method, `/x/${x.id}${path}`, { body, headers });
      assert.deepEqual([answer.status, codeOf(answer)], [403, 'forbidden'], method + path);
      assert.doesNotMatch(answer.body.toString(), /secret|vault/);
    }
  });

  it('counts in the metrics of those who see its source alone', async () => {
    const x = new Names(harness());
    await x.create({ src: { ns: 'secret', queue: x.src } });
    const text = (await harness().client('reader:r').request('GET', '/metrics')).body.toString();
    assert.doesNotMatch(text, /secret/);
    assert.match(text, /^quayside_exchanges\{namespace="N"\} \d+$/m);
  });
});
