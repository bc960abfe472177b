import assert from 'node:assert/strict';
import { createHook } from 'node:async_hooks';
import { describe, it } from 'node:test';
import { newElement } from '../support/elements.ts';
import { WaitQueueNode } from './wait-queue-node.ts';

describe('the cost of a request', () => {
  it('one promise apart from that of the engine for an insert, and for a commit', async () => {
    const { queue } = new WaitQueueNode();
    const { storage } = queue.namespace;
    await queue.insert([newElement()]);
    const element = { id: 'e', group: null, token: null };
    const [insert, settle] = [Promise.resolve(['e']), Promise.resolve([{ outcome: 'not-found' }])];
    Object.assign(storage, { insert: () => insert, settle: () => settle });
    assert.equal(await promisesIn(() => queue.insert([newElement()])), 1);
    assert.equal(await promisesIn(() => queue.settle(element, { kind: 'finish' }).catch(() => {})), 1 + 1);
    assert.equal(await promisesIn(() => queue.settleAll([queue.item(element, { kind: 'finish' })])), 1);
  });
});

/** How many promises a call creates before it returns. */
async function promisesIn(call: () => Promise<unknown>): Promise<number> {
  let count = 0;
  const hook = createHook({
    init: (_, type) => {
      if (type === 'PROMISE') count += 1;
    },
  });
  hook.enable();
  const result = call();
  hook.disable();
  await result;
  return count;
}
