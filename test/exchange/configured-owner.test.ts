import assert from 'node:assert/strict';
import { it } from 'node:test';
import { sharedSandbox } from '../sandbox/elements.ts';
import { engineWithDefinitions } from '../support/engine-with.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

it('an exchange of the configuration file belongs to the server, even if a removed user created the same exchange', async () => {
  const sandbox = sharedSandbox();
  await sandbox.start();
  const { namespaces, clock, close } = await openEngine('N');
  const declaration = declare('N/from', ['N/to']);
  const node = await new ExchangeNode(namespaces, clock, sandbox).start();
  await node.exchanges.create('x', declaration, {
    name: 'ann',
    maySee: () => true,
    maySeeBodies: () => true,
  });
  await node.stop();
  const options = { configured: new Map([['x', declaration]]), owners: () => null };
  const later = await new ExchangeNode(namespaces, clock, sandbox, options).start();
  const { stopped, lastError } = later.exchanges.record('x');
  await later.stop();
  await sandbox.stop();
  await close();
  assert.deepEqual([stopped, lastError], [null, null]);
});

it('an exchange of the configuration file stays stopped if it is stopped while a node with a different declaration starts', async () => {
  const sandbox = sharedSandbox();
  await sandbox.start();
  const { namespaces, clock, close } = await openEngine('N');
  const node = await new ExchangeNode(namespaces, clock, sandbox, {
    configured: new Map([['x', declare('N/from', ['N/to'])]]),
  }).start();
  let isStopped = false;
  /** Stops the exchange as soon as the starting node has read it. */
  const stopped = namespaces.map((namespace) => ({
    ...namespace,
    engine: engineWithDefinitions(namespace.engine, (real) => ({
      get: async (kind, key) => {
        const found = await real.get(kind, key);
        if (!isStopped) await node.exchanges.stopExchange(key);
        isStopped = true;
        return found;
      },
    })),
  }));
  const later = await new ExchangeNode(stopped, clock, sandbox, {
    configured: new Map([['x', declare('N/from', ['N/elsewhere'])]]),
  }).start();
  const record = later.exchanges.record('x');
  await later.stop();
  await node.stop();
  await sandbox.stop();
  await close();
  assert.deepEqual([record.dst[0]?.q, record.stopped], ['elsewhere', true]);
});
