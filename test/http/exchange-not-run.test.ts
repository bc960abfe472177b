import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { codeOf, Names } from './exchange-names.ts';
import { sharedHarness } from './harness.ts';

const MAX_QUEUES = 10;

describe('An exchange that this node cannot run', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M')],
    maxQueues: MAX_QUEUES,
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'maker', password: 'm', rights: { N: ['exchange', 'read'], '*': ['write'] } },
      { name: 'reader', password: 'r', rights: { N: ['read'], '*': ['write'] } },
      { name: 'other', password: 'o', rights: { M: ['read', 'write', 'exchange'] } },
    ],
  });
  const stored = (id: string) => harness().opened.engine.definitions.get('exchange', id);
  /** As another node stores it. */
  const store = (id: string, declaration: object): Promise<string> =>
    harness().opened.engine.definitions.put(
      'exchange',
      id,
      JSON.parse(JSON.stringify({ declaration, stopped: null, lastError: null })),
      null,
    );
  const fill = async (ns: string): Promise<void> => {
    for (let i = 0; i < MAX_QUEUES; i += 1) await harness().client().insert(ns, `full ${i}`, 'x');
  };

  it('is not stored by the create that refuses it', async () => {
    const x = new Names(harness());
    await fill('M');
    const refused = await x.create();
    assert.deepEqual([refused.status, codeOf(refused)], [507, 'too-many-queues']);
    assert.equal(await stored(x.id), null);
    assert.equal((await x.create({ dst: [{ ns: 'M', queue: 'full 0' }] })).status, 201);
    assert.equal((await x.record()).stopped, null);
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
  });

  it('is deleted by who may, where another node stored it', async () => {
    const x = new Names(harness());
    await store(x.id, x.declaration({ dst: [{ ns: 'elsewhere', queue: 'q' }] }));
    assert.equal((await x.client.request('GET', '/x?reload=1')).status, 200);
    assert.equal((await x.client.request('GET', `/x/${x.id}`)).status, 404);
    for (const [credentials, status] of [
      ['other:o', 404],
      ['reader:r', 403],
      ['maker:m', 201],
      ['maker:m', 404],
    ] as const) {
      const answer = await harness().client(credentials).request('DELETE', `/x/${x.id}`);
      assert.equal(answer.status, status, credentials);
      assert.equal((await stored(x.id)) === null, credentials === 'maker:m');
    }
    assert.equal((await x.create({ dst: [{ ns: 'N', queue: x.src }] })).status, 201);
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
  });

  it('is deleted where its source is in a namespace that this node does not serve', async () => {
    const x = new Names(harness());
    await store(x.id, x.declaration({ src: { ns: 'elsewhere', queue: 'q' } }));
    assert.equal((await harness().client('other:o').request('DELETE', `/x/${x.id}`)).status, 404);
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
    assert.equal(await stored(x.id), null);
  });
});
