import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { codeOf, type ExchangeRecord, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

describe('An exchange with a destination in a namespace that its reader may not see', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M'), plain('secret')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'reader', password: 'r', rights: { N: ['read', 'exchange'], M: ['write'] } },
    ],
  });
  const dst = (x: TestExchange) => [
    { ns: 'secret', queue: 'vault', selector: 'env => env.msg.hdrs.secretHeader.length' },
    { ns: 'M', queue: x.dst },
  ];

  it('reveals no name, selector, counter or error of that destination in any response', async () => {
    const x = new TestExchange(harness());
    await x.create({ dst: dst(x) });
    await x.client.insert('N', x.src, 'x');
    await x.client.get('M', x.dst);
    await until(async () => (await x.record()).errors.length === 1);
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

  it('has no version and no ETag for that reader, because these would confirm a guessed declaration', async () => {
    const x = new TestExchange(harness());
    await x.create({ dst: dst(x) });
    const reader = harness().client('reader:r');
    const own = await reader.request('GET', `/x/${x.id}`);
    assert.equal(own.headers.etag, undefined);
    assert.equal(jsonOf<Partial<ExchangeRecord>>(own).version, undefined);
    const listed = jsonOf<Record<string, Partial<ExchangeRecord>>>(await reader.request('GET', '/x'));
    assert.equal(listed[x.id]?.version, undefined);
    const { version } = await x.record();
    assert.equal(headerOf(await x.client.request('GET', `/x/${x.id}`), 'etag'), `"${version}"`);
  });

  it('cannot be stopped, started, changed, tested or deleted by that reader, and the error reveals no name', async () => {
    const x = new TestExchange(harness());
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

  it('does not add metrics of queues that its reader may only write to', async () => {
    const x = new TestExchange(harness());
    await x.client.insert('M', x.dst, 'a');
    await x.client.insert('N', x.src, 'a');
    await harness().passTime(1000);
    const metricsOf = async (client = x.client): Promise<string> =>
      (await client.request('GET', '/metrics')).body.toString();
    const own = await metricsOf(harness().client('reader:r'));
    assert.ok(own.includes('quayside_elements{namespace="M",state="ready"}'));
    assert.ok(own.includes(`quayside_queue_elements{namespace="N",queue="${x.src}",state="ready"} 1`));
    assert.doesNotMatch(own, /namespace="M",queue=/);
    assert.ok(
      (await metricsOf()).includes(`quayside_queue_elements{namespace="M",queue="${x.dst}",state="ready"} 1`),
    );
  });

  it('is counted only in the metrics of users who may see its source', async () => {
    const x = new TestExchange(harness());
    await x.create({ src: { ns: 'secret', queue: x.src } });
    const text = (await harness().client('reader:r').request('GET', '/metrics')).body.toString();
    assert.doesNotMatch(text, /secret/);
    assert.match(text, /^quayside_exchanges\{namespace="N"\} \d+$/m);
  });
});

describe('An id that an exchange of a hidden namespace already has', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M'), plain('secret')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'maker', password: 'm', rights: { N: ['read', 'write', 'exchange'], M: ['read', 'write'] } },
    ],
  });
  const declared = (ns: string, queue: string) => ({
    src: { ns, queue },
    dst: [{ ns: 'M', queue: `${queue}-to`, selector: 'env => env.msg.tries === 0' }],
  });

  it('can be used by the user as if the other exchange did not exist', async () => {
    const x = new TestExchange(harness());
    const maker = harness().client('maker:m');
    assert.equal((await x.create(declared('secret', x.src))).status, 201);
    const path = `/x/${x.id}`;
    const free = new TestExchange(harness());
    const unknown = async (method: string, to: string, body = '') => {
      const [taken, none] = [
        await maker.request(method, path + to, { body }),
        await maker.request(method, `/x/${free.id}${to}`, { body }),
      ];
      assert.equal(taken.status, none.status);
      assert.equal(taken.body.toString().replaceAll(x.id, ''), none.body.toString().replaceAll(free.id, ''));
    };
    await unknown('GET', '');
    await unknown('POST', '/stop');
    await unknown('POST', '/start');
    await unknown('POST', '/test', '{}');
    await unknown('DELETE', '');
    const own = declared('N', x.src);
    assert.equal((await x.create(own, 'PUT', maker)).status, 201);
    assert.equal((await x.create(own, 'PUT', maker)).status, 201);
    assert.equal(codeOf(await x.create(declared('N', 'other'), 'PUT', maker)), 'exchange-exists');
    const record = jsonOf<ExchangeRecord>(await maker.request('GET', path));
    assert.deepEqual(record.src, { q: x.src, ns: 'N' });
    const listed = jsonOf<Record<string, ExchangeRecord>>(await maker.request('GET', '/x'));
    assert.deepEqual(listed[x.id]?.src, { q: x.src, ns: 'N' });
    await maker.insert('N', x.src, 'own');
    assert.equal((await maker.get('M', `${x.src}-to`)).body.toString(), 'own');
    const changed = await maker.request('PUT', path, {
      body: JSON.stringify(x.declaration({ ...own, consumer: { wsize: 7 } })),
      headers: { 'if-match': `"${record.version}"` },
    });
    assert.equal(changed.status, 201);
    assert.equal((await maker.request('POST', `${path}/stop`)).status, 201);
    await harness().passTime(1000);
    const metrics = (await maker.request('GET', '/metrics')).body.toString();
    assert.ok(metrics.includes(`quayside_exchange_stopped{exchange="${x.id}",namespace="N"} 1`));
    assert.doesNotMatch(metrics, /secret/);
    assert.equal((await x.record()).stopped, null, 'the other exchange is still running');
    assert.equal((await maker.request('DELETE', path)).status, 201);
    assert.equal((await maker.request('GET', path)).status, 404);
    assert.deepEqual((await x.record()).src, { q: x.src, ns: 'secret' });
  });

  it('names the first exchange for users who see both; the other is listed as id@namespace', async () => {
    const x = new TestExchange(harness());
    const maker = harness().client('maker:m');
    await x.create(declared('secret', x.src));
    await x.create(declared('N', x.src), 'PUT', maker);
    const listed = jsonOf<Record<string, ExchangeRecord>>(await x.client.request('GET', '/x'));
    assert.deepEqual(listed[x.id]?.src, { q: x.src, ns: 'secret' });
    assert.deepEqual(listed[`${x.id}@N`]?.src, { q: x.src, ns: 'N' });
    // Scrapes within a second share one collection.
    await harness().passTime(1000);
    const metrics = (await x.client.request('GET', '/metrics')).body.toString();
    for (const ns of ['N', 'secret']) {
      assert.ok(metrics.includes(`quayside_exchange_stopped{exchange="${x.id}",namespace="${ns}"} 0`));
    }
    assert.equal((await x.client.request('POST', `/x/${x.id}@N/stop`)).status, 201);
    assert.equal(jsonOf<ExchangeRecord>(await maker.request('GET', `/x/${x.id}`)).stopped, true);
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
    assert.deepEqual((await x.record()).src, { q: x.src, ns: 'N' });
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
  });

  it('is written to unroutable elements without the namespace, as the creator of the exchange knows it', async () => {
    const x = new TestExchange(harness());
    const maker = harness().client('maker:m');
    await x.create(declared('secret', x.src));
    const never = { ...declared('N', x.src), dst: [{ ns: 'M', queue: x.dst, selector: 'false' }] };
    await x.create(never, 'PUT', maker);
    await maker.insert('N', x.src, 'lost');
    const lost = await maker.get('N', '__no_route__');
    assert.equal(headerOf(lost, 'x-ks-hdr-x-exchange-name'), x.id);
  });
});

describe('The error that a selector threw', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'browser', password: 'pw', rights: { N: ['browse'], M: ['write'] } },
      { name: 'masked', password: 'pw', rights: { N: ['browse'], M: ['write'] }, maskBodies: true },
      { name: 'writer', password: 'pw', rights: { N: ['write'], M: ['write'] } },
    ],
  });

  it('is shown only to users who may see bodies of the source, because it may quote one', async () => {
    const x = new TestExchange(harness());
    const selector = 'env => { throw new Error(env.msg.payload) }';
    await x.create({ dst: [{ ns: 'M', queue: x.dst, selector }] });
    await x.client.insert('N', x.src, 'a body', { headers: { 'content-type': 'text/plain' } });
    await until(async () => (await x.record()).errors.length === 1);
    const errors = async (user: string): Promise<ExchangeRecord['errors']> =>
      jsonOf<ExchangeRecord>(await harness().client(`${user}:pw`).request('GET', `/x/${x.id}`)).errors;
    const [shown] = (await x.record()).errors;
    assert.match(shown?.message ?? '', /a body/);
    assert.deepEqual(await errors('browser'), [shown]);
    const message = 'The selector threw an error. Its message may quote the body, which you may not see.';
    for (const user of ['masked', 'writer'])
      assert.deepEqual(await errors(user), [{ ...shown, message }], user);
  });
});
