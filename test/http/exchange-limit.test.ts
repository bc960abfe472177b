import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { parseDeclaration } from '../../src/exchange/declaration.ts';
import { ExchangeNode } from '../exchange/node.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import type { Answer } from '../support/http-client.ts';
import { codeOf, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

const MAX_EXCHANGES = 3;

describe('The number of exchanges that read from a namespace', () => {
  const harness = sharedHarness({ namespaces: [plain('N'), plain('M')], maxExchanges: MAX_EXCHANGES });
  const fresh = (): TestExchange => new TestExchange(harness());
  const remove = async (...made: readonly TestExchange[]): Promise<void> => {
    for (const { client, id } of made) {
      assert.equal((await client.request('DELETE', `/x/${id}`)).status, 201);
    }
  };
  const outcome = (answer: Answer): string => (answer.status === 201 ? 'made' : codeOf(answer));

  it('is limited: a create beyond the limit is rejected and stores nothing, until another exchange is deleted', async () => {
    const made = Array.from({ length: MAX_EXCHANGES }, fresh);
    for (const x of made) assert.equal((await x.create()).status, 201);
    const late = fresh();
    const rejected = await late.create();
    assert.deepEqual([rejected.status, codeOf(rejected)], [507, 'too-many-exchanges']);
    assert.equal((await late.client.request('GET', `/x/${late.id}`)).status, 404);
    assert.equal(await harness().opened.engine.definitions.get('exchange', late.id), null);
    const again = await Promise.all(made.map((x) => x.create()));
    assert.deepEqual(again.map(outcome), Array(MAX_EXCHANGES).fill('made'));
    const elsewhere = fresh();
    assert.equal((await elsewhere.create({ src: { ns: 'M', queue: elsewhere.src } })).status, 201);
    await remove(...made.splice(0, 1));
    assert.equal((await late.create()).status, 201);
    await remove(...made, late, elsewhere);
  });

  it('is limited for concurrent creates', async () => {
    const all = Array.from({ length: MAX_EXCHANGES + 4 }, fresh);
    const answers = await Promise.all(all.map((x) => x.create()));
    assert.deepEqual(answers.map(outcome).sort(), [
      ...Array(MAX_EXCHANGES).fill('made'),
      ...Array(4).fill('too-many-exchanges'),
    ]);
    await remove(...all.filter((_, i) => answers[i]?.status === 201));
  });

  it('does not include creates that failed', async () => {
    const { definitions } = harness().opened.engine;
    const put = definitions.put.bind(definitions);
    definitions.put = () => Promise.reject(new Error('planted'));
    try {
      for (let i = 0; i < MAX_EXCHANGES; i += 1)
        await assert.rejects(harness().exchanges.create(`f${i}`, parsed(fresh())));
    } finally {
      definitions.put = put;
    }
    const made = Array.from({ length: MAX_EXCHANGES }, fresh);
    for (const x of made) assert.equal((await x.create()).status, 201);
    await remove(...made);
  });

  it('may exceed the limit for stored and configured exchanges, which all run', async () => {
    const { engine, clock } = harness().opened;
    const sandbox = sharedSandbox();
    const namespaces = [plain('N'), plain('M')].map((policy) => ({
      policy,
      engine,
      maxExchanges: MAX_EXCHANGES,
    }));
    const configured = new Map(
      Array.from({ length: MAX_EXCHANGES + 2 }, fresh).map((x) => [x.id, parsed(x)]),
    );
    const node = await new ExchangeNode(namespaces, clock, sandbox, { configured }).start();
    try {
      await harness().exchanges.reload();
      for (const exchanges of [node.exchanges, harness().exchanges]) {
        const running = exchanges.visible().map(([id, key]) => [id, exchanges.record(key).stopped]);
        assert.deepEqual(
          running,
          [...configured.keys()].sort().map((id) => [id, null]),
        );
      }
      assert.equal(outcome(await fresh().create()), 'too-many-exchanges');
    } finally {
      for (const id of configured.keys()) await node.exchanges.delete(id);
      await node.stop();
      await sandbox.stop();
    }
  });
});

function parsed(x: TestExchange) {
  return parseDeclaration(x.declaration());
}
