import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { sharedSandbox } from '../sandbox/elements.ts';
import type { TestNamespace } from '../support/broker.ts';
import { bodyText } from '../support/elements.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, header, openEngine } from './node.ts';

const MAX_QUEUES = 3;

describe('an exchange in a namespace with the maximum number of queues', () => {
  const sandbox = sharedSandbox();
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let namespaces: readonly TestNamespace[];
  let node: ExchangeNode;
  const restart = async (): Promise<void> => {
    await node.stop();
    node = await new ExchangeNode(namespaces, opened.clock, sandbox).start();
  };

  before(async () => {
    await sandbox.start();
    opened = await openEngine('N');
    namespaces = opened.namespaces.map((namespace) => ({ ...namespace, maxQueues: MAX_QUEUES }));
    node = await new ExchangeNode(namespaces, opened.clock, sandbox).start();
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await opened.close();
  });

  it('runs after a restart with a destination that was never used, and has a queue for its unroutable elements', async () => {
    await node.exchanges.create('x', declare('N/from', [['N/to', 'env.msg.payload === "yes"']]));
    for (let i = 1; i < MAX_QUEUES; i += 1) await node.insert('N', `full ${i - 1}`, 'x');
    assert.throws(() => node.broker.namespace('N').queue('another'), { code: 'too-many-queues' });
    await restart();
    await node.insert('N', 'from', 'no');
    await until(() => node.exchanges.record('x').stats.no_route !== 0);
    const unroutable = await node.pop('N', '__no_route__');
    assert.deepEqual([bodyText(unroutable), header(unroutable, 'x-exchange-name')], ['no', 'x']);
    await node.insert('N', 'from', 'yes');
    await until(() => node.exchanges.record('x').stats.dst[0]?.matched === 1);
    assert.equal(bodyText(await node.pop('N', 'to')), 'yes');
    await node.exchanges.delete('x');
  });

  it('is rejected if its source or destination would be a new queue', async () => {
    for (const declaration of [declare('N/new', ['N/full 0']), declare('N/full 0', ['N/full 1', 'N/new'])]) {
      await assert.rejects(node.exchanges.create('z', declaration), { code: 'too-many-queues' });
      assert.equal(await opened.engine.definitions.get('exchange', 'z'), null);
    }
  });
});
