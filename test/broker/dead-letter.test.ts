import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Delivery } from '../../src/model/element.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { skewed } from '../support/clock.ts';
import { newElement } from '../support/elements.ts';

const POLICY = plain('N', { deadLetter: { maxTries: 3, queue: 'dead' } });
const SKEW_MS = 3_600_000;

describe('an element that its consumer sends to the dead-letter queue', () => {
  let opened: TestEngine;
  let broker: Broker;

  beforeEach(async () => {
    opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    broker = brokerOn(
      [{ policy: POLICY, engine: opened.engine, maxQueues: 1 }],
      skewed(opened.clock, SKEW_MS),
    );
    await broker.start();
  });
  afterEach(async () => {
    await broker.stop();
    await opened.close();
  });

  const get = (name: string, leaseMs: number | null): Promise<Delivery> =>
    new Promise((deliver, end) => {
      const request = { group: null, leaseMs, timeoutMs: 0, tid: null, owner: null };
      broker.namespace('N').queue(name).get(request, { deliver, end });
    });

  it('is moved with the engine’s time, even if the namespace has as many queues as allowed', async () => {
    const namespace = broker.namespace('N');
    const queue = namespace.queue('q');
    await queue.insert([newElement({ body: 'hopeless' })]);
    assert.throws(() => namespace.queue('another'), { code: 'too-many-queues' });
    const { id, group, lease } = await get('q', 60_000);
    const ref = { id, group, token: lease?.token ?? null };
    const action = { kind: 'dead-letter', countTry: true, reason: null } as const;
    assert.equal((await queue.settle(ref, action)).outcome, 'dead-lettered');
    const { headers } = await get('dead', null);
    const moved = new Date(opened.now()).toISOString();
    assert.deepEqual(headers, [
      'x-dl-from-queue',
      'q',
      'x-dl-at',
      moved,
      'x-dl-tries',
      '1',
      'x-ks-origin-id',
      id,
    ]);
  });
});
