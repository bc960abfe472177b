import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { bodyText } from '../support/elements.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode } from './node.ts';

const CAPACITY = 3;
const QUEUES = [{ pattern: 'bounded-*', options: { maxElements: CAPACITY } }];
const BOUNDED = 'env => env.msg.payload.startsWith("b")';
const FREE = 'env => env.msg.payload.startsWith("f")';

describe('an exchange with a full destination', () => {
  const sandbox = sharedSandbox();
  let here: TestEngine;
  let there: TestEngine;
  let node: ExchangeNode;
  let lines: [message: string, fields: Record<string, unknown>][] = [];

  before(async () => {
    await sandbox.start();
    here = await MEMORY_SQLITE.open({ namespaces: [plain('N', { queues: QUEUES })] });
    there = await MEMORY_SQLITE.open({ namespaces: [plain('far', { queues: QUEUES })] });
  });

  beforeEach(async () => {
    lines = [];
    const warn = (fields: object, message: string): number => lines.push([message, { ...fields }]);
    node = await new ExchangeNode(
      [
        { policy: plain('N', { queues: QUEUES }), engine: here.engine },
        { policy: plain('far', { queues: QUEUES }), engine: there.engine },
      ],
      here.clock,
      sandbox,
      { log: { info: () => {}, warn } },
    ).start();
  });

  afterEach(async () => {
    for (const [id] of node.exchanges.visible()) await node.exchanges.delete(id);
    await node.stop();
  });

  after(async () => {
    await sandbox.stop();
    await here.close();
    await there.close();
  });

  for (const to of ['N', 'far']) {
    it(`forwards the other elements of a batch, and as many as the destination has capacity for, in ${to}`, async () => {
      const src = `from-${to}`;
      await node.insert('N', src, ...['f1', 'b1', 'f2', 'b2', 'f3', 'b3', 'f4', 'b4', 'f5', 'b5']);
      const declaration = declare(
        `N/${src}`,
        [
          [`${to}/bounded-${to}`, BOUNDED],
          [`${to}/free-${to}`, FREE],
        ],
        { reserve: true },
      );
      await node.exchanges.create('x', declaration);
      // The clock does not advance, so requeued elements stay at the source.
      await until(() => node.exchanges.record('x').stats.put_back === 2);
      await until(() => Object.keys(node.exchanges.record('x').pending_acks).length === 0);
      assert.equal(await node.total('N', src), 2);
      assert.deepEqual((await node.popMany(to, `free-${to}`, 5)).map(bodyText), [
        'f1',
        'f2',
        'f3',
        'f4',
        'f5',
      ]);
      assert.deepEqual((await node.popMany(to, `bounded-${to}`, CAPACITY)).map(bodyText), ['b1', 'b2', 'b3']);
      const { stats, errors } = node.exchanges.record('x');
      assert.deepEqual(stats.dst, [
        { matched: CAPACITY, skipped: 5, failed: 2 },
        { matched: 5, skipped: CAPACITY, failed: 0 },
      ]);
      assert.deepEqual(
        errors.map(({ destination, message }) => [destination, message.split(':')[0]]),
        [[0, 'queue-full']],
      );
      // The next try forwards the others, which are counted once.
      await here.passTime(5_000);
      await until(() => node.exchanges.record('x').stats.dst[0]?.matched === 5);
      assert.equal(node.exchanges.record('x').stats.dst[1]?.skipped, 5);
    });
  }

  it('logs one line per minute and cause, with the number of those left out', async () => {
    const bodies = Array.from({ length: 50 }, (_, i) => `f${i}`);
    await node.exchanges.create(
      'x',
      declare('N/src', [['N/never', 'env => env.msg.payload.no.such.member']]),
    );
    await node.insert('N', 'src', ...bodies);
    await until(() => node.exchanges.record('x').stats.dst[0]?.failed === bodies.length);
    assert.deepEqual(
      lines.map(([message]) => message),
      ['a selector failed'],
    );
    await node.exchanges.delete('x');
    await here.passTime(60_000);
    await until(() => lines.length === 2);
    assert.equal(lines[1]?.[1].leftOut, bodies.length - 1);
  });
});
