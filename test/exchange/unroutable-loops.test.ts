import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { toDeclaration } from '../../src/exchange/declaration.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, header, openEngine } from './node.ts';

const MAX_HOPS = 5;
const MAX_COPIES = 9;

describe('an exchange that consumes unroutable elements', () => {
  const sandbox = sharedSandbox();
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let node: ExchangeNode;

  before(async () => {
    await sandbox.start();
    opened = await openEngine('N', 'M', 'stored');
    node = await new ExchangeNode(opened.namespaces, opened.clock, sandbox, {
      maxHops: MAX_HOPS,
      maxCopies: MAX_COPIES,
    }).start();
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await opened.close();
  });

  it('does not take the same element forever if it cannot forward it either', async () => {
    const loops = await node.exchanges.create('again', declare('N/__no_route__', [['N/a', 'false']]));
    assert.deepEqual(loops, [['again', 'again']]);
    await node.insert('N', '__no_route__', 'nowhere');
    const lost = await node.pop('N', '__too_many_hops__');
    assert.equal(bodyText(lost), 'nowhere');
    assert.equal(header(lost, 'x-hop-count'), String(MAX_HOPS));
    assert.equal(header(lost, 'x-exchange-name'), 'again');
    assert.equal(node.exchanges.record('again').stats.no_route, MAX_HOPS);
    assert.equal(await node.total('N', '__no_route__'), 0);
    await node.exchanges.delete('again');
  });

  it('limits the copies of an element even if the path back is not declared', async () => {
    await node.exchanges.create('rejects', declare('M/in', [['M/a', 'false']]));
    const back = ['1', '2', '3'].map((selector): [string, string] => ['M/in', selector]);
    const loops = await node.exchanges.create('back', declare('M/__no_route__', [...back, 'N/aside']));
    assert.deepEqual(loops, [
      ['back', 'back'],
      ['back', 'rejects', 'back'],
    ]);
    await node.insert('M', 'in', 'x');
    await until(() => node.exchanges.record('back').stats.too_many_hops >= MAX_COPIES);
    await until(async () => (await node.total('M', 'in')) + (await node.total('M', '__no_route__')) === 0);
    // 1 becomes 3, these become 9, and each of those would become 3 of 27.
    assert.equal(node.exchanges.record('rejects').stats.no_route, 1 + 3 + 9);
    assert.equal(await node.total('M', '__too_many_hops__'), MAX_COPIES);
    assert.equal(await node.total('N', 'aside'), 1 + 3, 'copies that do not lead back are not bounded');
    await node.exchanges.delete('back');
  });

  it('is rejected if its source is __too_many_hops__, and does not run if it is stored nevertheless', async () => {
    const declaration = declare('stored/__too_many_hops__', ['N/a']);
    await assert.rejects(node.exchanges.create('x', declaration), {
      code: 'invalid-parameter',
      details: { parameter: 'src.queue' },
    });
    const definitions = node.broker.namespace('stored').currentDefinitions;
    await definitions.put('exchange', 'old', { declaration: toDeclaration(declaration) }, null);
    await node.exchanges.reload();
    const queue = node.broker.namespace('stored').visit('__too_many_hops__');
    await queue.insert([newElement({ body: 'stays', headers: ['x-hop-count', '17'] })]);
    const { lastError, pending_tids, stats } = node.exchanges.record('old');
    assert.match(lastError ?? '', /^src\.queue: exchanges do not consume "__too_many_hops__"/);
    assert.deepEqual(pending_tids, {});
    assert.equal(stats.too_many_hops, 0);
  });
});
