import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import { WAITING_STATES } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { deleteQueue, purgeQueue } from '../../src/operations/removal.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { newElements } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';

describe('A removal in several steps', () => {
  let opened: TestEngine;
  let broker: Broker;
  let queue: Queue;
  /** How many steps of a purge, and of drops after them, succeed. */
  let steps: number;

  const step = <T>(call: () => Promise<T>): Promise<T> => {
    steps -= 1;
    return steps < 0 ? Promise.reject(new QuaysideError('storage-unavailable', 'planted')) : call();
  };

  beforeEach(async () => {
    opened = await MEMORY_SQLITE.open({ namespaces: [plain('N')] });
    const engine = engineWith(opened.engine, (real) => ({
      purge: (key, states) => step(async () => ({ ...(await real.purge(key, states)), isDone: false })),
      drop: (key) => step(() => real.drop(key)),
    }));
    broker = brokerOn([{ policy: plain('N'), engine }], opened.clock);
    await broker.start();
    queue = broker.namespace('N').queue('q');
    await queue.insert(newElements('a', 'b'));
  });
  afterEach(async () => {
    await broker.stop();
    await opened.close();
  });

  it('changes nothing if the engine fails at the first one', async () => {
    steps = 0;
    await assert.rejects(purgeQueue(queue, WAITING_STATES), { code: 'storage-unavailable' });
    await assert.rejects(deleteQueue(queue, { force: true, exchanges: { overview: () => [] } }), {
      code: 'storage-unavailable',
    });
    assert.equal((await queue.counts()).ready, 2);
  });

  it('has an unknown outcome if the engine fails after elements were removed', async () => {
    steps = 1;
    await assert.rejects(deleteQueue(queue, { force: true, exchanges: { overview: () => [] } }), {
      code: 'outcome-unknown',
    });
    assert.equal((await queue.counts()).ready, 0);
  });

  it('has an unknown outcome if the engine fails in the middle of a purge', async (t) => {
    // As if there were another element that this step did not reach.
    const counts = { ready: 3, scheduled: 0, reserved: 0, nextMatureAt: null, groups: new Map() };
    t.mock.method(queue.namespace.storage, 'counts', async () => counts);
    steps = 1;
    await assert.rejects(purgeQueue(queue, WAITING_STATES), { code: 'outcome-unknown' });
  });
});
