import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, it } from 'node:test';
import { ExchangeNode } from '../exchange/node.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { type Answer, headerOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { codeOf, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

describe('PUT /x/:id with If-Match', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M'), plain('hidden')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'maker', password: 'm', rights: { N: ['exchange', 'read'], M: ['write'] } },
    ],
  });
  const fresh = (): TestExchange => new TestExchange(harness());
  const change = (
    x: TestExchange,
    declared: Record<string, unknown>,
    ifMatch: string,
    client = x.client,
  ): Promise<Answer> =>
    client.request('PUT', `/x/${x.id}`, {
      body: JSON.stringify(x.declaration(declared)),
      headers: { 'if-match': ifMatch },
    });
  const selected = (x: TestExchange, selector: string) => ({ dst: [{ ns: 'M', queue: x.dst, selector }] });

  it('changes the declaration and the version, and keeps the counters and the stopped state', async () => {
    const x = fresh();
    await x.create(selected(x, 'env => false'));
    await x.client.insert('N', x.src, 'no');
    await until(async () => (await x.record()).stats.no_route === 1);
    const read = await x.client.request('GET', `/x/${x.id}`);
    const { version } = await x.record();
    assert.equal(headerOf(read, 'etag'), `"${version}"`);
    const changed = await change(x, selected(x, 'env => true'), `"${version}"`);
    assert.deepEqual([changed.status, changed.body.length], [201, 0]);
    const after = await x.record();
    assert.notEqual(after.version, version);
    assert.equal(headerOf(changed, 'etag'), `"${after.version}"`);
    assert.equal(after.stats.no_route, 1);
    assert.equal(after.stopped, null);
    await x.client.insert('N', x.src, 'yes');
    assert.equal((await x.client.get('M', x.dst)).body.toString(), 'yes');
    await until(async () => (await x.record()).stats.dst[0]?.matched === 1);
    await x.client.request('POST', `/x/${x.id}/stop`);
    assert.equal((await change(x, { consumer: { parallel: 2 } }, after.version)).status, 201);
    const stopped = await x.record();
    assert.deepEqual(
      [stopped.stopped, stopped.opts, stopped.stats.dst[0]?.matched],
      [true, { parallel: 2 }, 1],
    );
    await x.client.insert('N', x.src, 'later');
    await x.client.request('POST', `/x/${x.id}/start`);
    assert.equal((await x.client.get('M', x.dst)).body.toString(), 'later');
  });

  it('keeps the counters of each destination by its queue', async () => {
    const x = fresh();
    await x.create({
      dst: [
        { ns: 'M', queue: `${x.dst}a` },
        { ns: 'M', queue: `${x.dst}b`, selector: 'env => true' },
      ],
    });
    await x.client.insert('N', x.src, '1');
    await until(async () => (await x.record()).stats.dst[1]?.matched === 1);
    const to = {
      dst: [
        { ns: 'M', queue: `${x.dst}c` },
        { ns: 'M', queue: `${x.dst}b` },
      ],
    };
    assert.equal((await change(x, to, '*')).status, 201);
    assert.deepEqual(
      (await x.record()).stats.dst.map(({ matched }) => matched),
      [0, 1],
    );
  });

  it('is answered with 412 for another version, and for an id that is unknown or hidden from the user', async () => {
    const x = fresh();
    await x.create();
    const { version } = await x.record();
    for (const wrong of ['"other"', `W/"${version}"`, 'a, b']) {
      const rejected = await change(x, selected(x, 'env => 1'), wrong);
      assert.deepEqual([rejected.status, codeOf(rejected)], [412, 'precondition-failed'], wrong);
    }
    assert.equal((await x.record()).version, version);
    assert.equal((await change(x, {}, `"other", "${version}"`)).status, 201);
    const unknown = await change(fresh(), {}, '*');
    assert.deepEqual([unknown.status, codeOf(unknown)], [412, 'precondition-failed']);
    const hidden = fresh();
    await hidden.create({ src: { ns: 'hidden', queue: 'q' } });
    const maker = harness().client('maker:m');
    const unseen = await change(hidden, {}, '*', maker);
    assert.equal(
      unseen.body.toString().replaceAll(hidden.id, ''),
      (await change(fresh(), {}, '*', maker)).body.toString().replaceAll(/x\d+/g, ''),
    );
    assert.equal(unseen.status, 412);
  });

  it('rejects what a create would reject, and changes nothing', async () => {
    const x = fresh();
    await x.create();
    const { version } = await x.record();
    for (const [declared, code] of [
      [selected(x, 'env =>'), 'invalid-body'],
      [{ dst: [] }, 'invalid-parameter'],
      [{ src: { ns: 'Z', queue: 'q' } }, 'invalid-parameter'],
    ] as const) {
      const rejected = await change(x, declared, version);
      assert.deepEqual([rejected.status, codeOf(rejected)], [400, code]);
    }
    assert.equal((await x.record()).version, version);
  });

  it('applies only one of two concurrent changes', async () => {
    const x = fresh();
    await x.create();
    const { version } = await x.record();
    const answers = await Promise.all(
      ['1', '2'].map((selector) => change(x, selected(x, selector), `"${version}"`)),
    );
    assert.deepEqual(answers.map(({ status }) => status).sort(), [201, 412]);
  });

  it('is followed by other nodes', async () => {
    const x = fresh();
    await x.create();
    const { engine, clock } = harness().opened;
    const sandbox = sharedSandbox();
    const namespaces = ['N', 'M', 'hidden'].map((name) => ({ policy: plain(name), engine }));
    const node = await new ExchangeNode(namespaces, clock, sandbox).start();
    try {
      assert.equal((await change(x, { consumer: { wsize: 7 } }, '*')).status, 201);
      await until(() => node.exchanges.record(x.id).wsize === 7);
      assert.equal(node.exchanges.record(x.id).version, (await x.record()).version);
    } finally {
      await node.stop();
      await sandbox.stop();
    }
  });

  it('logs the hash of each selector that a create or change stores, with user and exchange', async () => {
    const x = fresh();
    await x.create(selected(x, 'env => true'), 'PUT', harness().client('maker:m'));
    await change(x, selected(x, 'env => false'), '*');
    const logged = harness().log.filter(
      ({ fields }) => fields.event === 'selector' && fields.exchange === x.id,
    );
    assert.deepEqual(
      logged.map(({ fields }) => [fields.user, fields.destination, fields.sha256]),
      [
        ['maker', 0, sha256('env => true')],
        ['test1', 0, sha256('env => false')],
      ],
    );
  });
});

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}
