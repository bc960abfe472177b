import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { EngineUnderTest } from '../engines.ts';
import { plain } from '../support/broker.ts';
import { engineWithoutNotifications } from '../support/engine-with.ts';
import { codeOf, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

const MAX_QUEUES = 10;

/** An engine that sends no signals: changes by other nodes are found only by reading. */
const LATE_NEWS: EngineUnderTest = {
  ...MEMORY_SQLITE,
  open: async (options) => {
    const opened = await MEMORY_SQLITE.open(options);
    return { ...opened, engine: engineWithoutNotifications(opened.engine) };
  },
};

describe('An exchange that this node does not run', () => {
  const harness = sharedHarness({
    engine: LATE_NEWS,
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
  /** Stores an exchange as another node would. */
  const store = (id: string, declaration: object): Promise<string> =>
    harness().opened.engine.definitions.put(
      'exchange',
      id,
      JSON.parse(JSON.stringify({ declaration, owner: '', stopped: null, lastError: null })),
      null,
    );
  const fill = async (ns: string): Promise<void> => {
    for (let i = 0; i < MAX_QUEUES; i += 1) await harness().client().insert(ns, `full ${i}`, 'x');
  };

  it('is not stored if its create is rejected', async () => {
    const x = new TestExchange(harness());
    await fill('M');
    const rejected = await x.create();
    assert.deepEqual([rejected.status, codeOf(rejected)], [507, 'too-many-queues']);
    assert.equal(await stored(x.id), null);
    assert.equal((await x.create({ dst: [{ ns: 'M', queue: 'full 0' }] })).status, 201);
    assert.equal((await x.record()).stopped, null);
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
  });

  it('can be deleted by users with the right if another node stored it', async () => {
    const x = new TestExchange(harness());
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

  it('is started by the first request for it if another node has just stored it', async () => {
    const x = new TestExchange(harness());
    const dst = [{ ns: 'M', queue: x.dst }];
    for (const [method, path, status] of [
      ['GET', '', 200],
      ['POST', '/stop', 201],
      ['POST', '/start', 201],
      ['POST', '/test', 200],
    ] as const) {
      const id = `${x.id}${path.slice(1)}`;
      await store(id, x.declaration({ dst }));
      const body = path === '/test' ? '{}' : '';
      const ask = (credentials: string) =>
        harness().client(credentials).request(method, `/x/${id}${path}`, { body });
      assert.equal((await ask('other:o')).status, 404, path);
      assert.equal((await ask('maker:m')).status, status, path);
      assert.equal((await x.client.request('GET', `/x/${id}`)).status, 200);
      assert.equal((await x.client.request('DELETE', `/x/${id}`)).status, 201);
    }
  });

  it('can be stopped and started for the other nodes if this node cannot run it', async () => {
    const x = new TestExchange(harness());
    await store(x.id, x.declaration({ dst: [{ ns: 'elsewhere', queue: 'q' }] }));
    for (const [verb, stopped] of [
      ['stop', true],
      ['start', false],
    ] as const) {
      const path = `/x/${x.id}/${verb}`;
      assert.equal((await harness().client('reader:r').request('POST', path)).status, 403);
      assert.equal((await harness().client('maker:m').request('POST', path)).status, 201);
      assert.deepEqual((await stored(x.id))?.value, {
        declaration: x.declaration({ dst: [{ ns: 'elsewhere', queue: 'q' }] }),
        owner: '',
        stopped,
        lastError: null,
      });
    }
    assert.equal((await x.client.request('GET', `/x/${x.id}`)).status, 404);
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
  });

  it('can be deleted even if its source namespace is not served by this node', async () => {
    const x = new TestExchange(harness());
    await store(x.id, x.declaration({ src: { ns: 'elsewhere', queue: 'q' } }));
    assert.equal((await harness().client('other:o').request('DELETE', `/x/${x.id}`)).status, 404);
    assert.equal((await x.client.request('DELETE', `/x/${x.id}`)).status, 201);
    assert.equal(await stored(x.id), null);
  });
});
