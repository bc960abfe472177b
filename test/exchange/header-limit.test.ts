import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { LIMITS } from '../../src/model/limits.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { newElement } from '../support/elements.ts';
import { declare, ExchangeNode, header, openEngine } from './node.ts';

describe('an element with the maximum number of client headers', () => {
  const sandbox = sharedSandbox();
  const own = Array.from({ length: LIMITS.headerCount }, (_, i) => [`h${i}`, 'v'.repeat(100)]).flat();
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let node: ExchangeNode;

  before(async () => {
    await sandbox.start();
    opened = await openEngine('N');
    node = await new ExchangeNode(opened.namespaces, opened.clock, sandbox).start();
    await node.exchanges.create('first', declare('N/from', ['N/next']));
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await opened.close();
  });

  it('passes exchanges that change one header, whatever headers the service added', async () => {
    const serviceHeaders = [
      'x-exchange-name',
      'x',
      'x-dl-from-queue',
      'q',
      'x-dl-at',
      'a',
      'x-dl-tries',
      '1',
    ];
    serviceHeaders.push('x-ks-origin-id', 'i');
    await node.exchanges.create(
      'second',
      declare('N/next', [['N/to', 'env => { env.msg.hdrs.h0 = "changed"; return true }']]),
    );
    await node.broker
      .namespace('N')
      .queue('from')
      .insert([newElement({ headers: [...own, ...serviceHeaders] })]);
    const copy = await node.pop('N', 'to');
    assert.equal(header(copy, 'h0'), 'changed');
    assert.equal(header(copy, 'x-hop-count'), '2');
    assert.equal(header(copy, 'x-dl-from-queue'), 'q');
    await node.exchanges.delete('second');
  });

  it('is rejected if a selector adds another header, whatever its name', async () => {
    for (const write of ['env.msg.hdrs.more = "v"', 'env.msg.hdrs["x-hop-count"] = "v".repeat(256)']) {
      await node.exchanges.create(
        'second',
        declare('N/next', [['N/to', `env => { ${write}; return true }`]]),
      );
      await node.broker
        .namespace('N')
        .queue('from')
        .insert([newElement({ headers: own })]);
      await node.pop('N', '__no_route__');
      const [fault] = node.exchanges.record('second').errors;
      assert.match(fault?.message ?? '', /at most 64 headers/);
      await node.exchanges.delete('second');
    }
  });
});
