import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { presentDefinitions } from '../../src/operations/definitions-document.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

describe('a stored exchange with a selector on a node with selectors: off', () => {
  const sandbox = sharedSandbox();
  const declaration = declare('N/from', ['N/to', ['N/selected', 'true']]);
  const off = /^dst\[1\]\.selector: .*selectors: off/;
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let on: ExchangeNode;
  let node: ExchangeNode;

  before(async () => {
    await sandbox.start();
    opened = await openEngine('N');
    on = await new ExchangeNode(opened.namespaces, opened.clock, sandbox).start();
    await on.exchanges.create('x', declaration);
    await on.exchanges.create('plain', declare('N/plain', ['N/to']));
    await on.stop();
    node = await new ExchangeNode(opened.namespaces, opened.clock, sandbox, { selectors: false }).start();
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await opened.close();
  });

  it('does not run, and its record explains why; one without a selector runs', async () => {
    await node.insert('N', 'from', 'stays');
    await node.insert('N', 'plain', 'goes');
    assert.equal(bodyText(await node.pop('N', 'to')), 'goes');
    const { stopped, lastError, pending_tids } = node.exchanges.record('x');
    assert.equal(stopped, null);
    assert.match(lastError ?? '', off);
    assert.deepEqual(pending_tids, {});
    assert.equal(await node.total('N', 'from'), 1);
    assert.deepEqual(
      node.exchanges.overview().map((overview) => [overview.key, overview.stopped]),
      [
        ['plain', false],
        ['x', true],
      ],
    );
  });

  it('is not shown as stopped in the document of definitions, because other nodes run it', async () => {
    const { exchanges } = presentDefinitions(node);
    assert.deepEqual(
      Object.entries(exchanges).map(([id, { stopped }]) => [id, stopped]),
      [
        ['plain', false],
        ['x', false],
      ],
    );
    await node.exchanges.stopExchange('x');
    assert.equal(presentDefinitions(node).exchanges.x?.stopped, true);
    await node.exchanges.startExchange('x');
  });

  it('does not run when it is started, and rejects dry runs', async () => {
    await node.exchanges.stopExchange('x');
    await node.exchanges.startExchange('x');
    const { stopped, lastError, pending_tids } = node.exchanges.record('x');
    assert.equal(stopped, false);
    assert.match(lastError ?? '', off);
    assert.deepEqual(pending_tids, {});
    const sample = { ...newElement({ body: '1' }), id: 'sample', matureAt: 0 };
    await assert.rejects(node.exchanges.dryRun('x', sample, null), {
      code: 'invalid-parameter',
      details: { parameter: 'dst[1].selector' },
    });
  });

  it('runs on a node whose selectors are on', async () => {
    on = await new ExchangeNode(opened.namespaces, opened.clock, sandbox).start();
    assert.equal(bodyText(await on.pop('N', 'selected')), 'stays');
    assert.equal(on.exchanges.record('x').lastError, null);
    await on.stop();
  });
});
