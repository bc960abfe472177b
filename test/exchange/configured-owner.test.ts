import assert from 'node:assert/strict';
import { it } from 'node:test';
import { patientSandbox } from '../sandbox/elements.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

it('an exchange of the configuration file belongs to the server, though a user who is gone declared the same', async () => {
  const sandbox = patientSandbox();
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
