import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { GetRequest } from '../../src/broker/consumer.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { Delivery } from '../../src/model/element.ts';
import { LIMITS } from '../../src/model/limits.ts';
import { MAIN_ENGINES } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { bodyText, newElement, newElements } from '../support/elements.ts';

const POLICY = plain('N');
const MIB = 1024 * 1024;

/** A call with timeout 0 may end only if the queue is empty, not because a take of the engine returned early. */
describe('gets with timeout 0 that share a take', { timeout: 300_000 }, () => {
  for (const kind of MAIN_ENGINES) {
    const onQueue = async (test: (queue: Queue, now: () => number) => Promise<void>): Promise<void> => {
      const opened = await kind.open({ namespaces: [POLICY] });
      const broker = brokerOn([{ policy: POLICY, engine: opened.engine }], opened.clock);
      try {
        await broker.start();
        await test(broker.namespace('N').queue('q'), () => opened.now());
      } finally {
        await broker.stop();
        await opened.close();
      }
    };

    it(`each receive an element if the elements are too large for one reply of ${kind.name}`, async () => {
      await onQueue(async (queue) => {
        const count = 20;
        for (let i = 0; i < count; i += 1) await queue.insert([newElement({ body: Buffer.alloc(MIB, i) })]);
        const got = await Promise.all(Array.from({ length: count }, () => get(queue)));
        assert.deepEqual(
          got.map(({ body }) => body[0]),
          Array.from({ length: count }, (_, i) => i),
        );
      });
    });

    it(`receive elements that a take of ${kind.name} left because its byte limit was reached`, async () => {
      await onQueue(async (queue) => {
        for (let i = 0; i < 4; i += 1) await queue.insert([newElement({ body: Buffer.alloc(MIB, i) })]);
        // The second and third get wait for the first take. The second one, which requests many elements, is matched
        // alone.
        const bounded = { count: LIMITS.takeCount, maxBytes: MIB };
        const got = await Promise.all([get(queue), get(queue, bounded), get(queue)]);
        assert.deepEqual(
          got.map(({ body }) => body[0]),
          [0, 1, 2],
        );
      });
    });

    it(`receive elements behind more expired ones than a take of ${kind.name} removes`, async () => {
      await onQueue(async (queue, now) => {
        const expired = Array.from({ length: 1000 }, () => newElement({ body: '', expiresAt: now() - 1 }));
        for (let i = 0; i < 3; i += 1) await queue.insert(expired);
        await queue.insert(newElements('a', 'b'));
        const got = await Promise.all([get(queue), get(queue)]);
        assert.deepEqual(got.map(bodyText), ['a', 'b']);
      });
    });
  }
});

function get(queue: Queue, bounds: Pick<GetRequest, 'count' | 'maxBytes'> = {}): Promise<Delivery> {
  const request = { group: null, leaseMs: null, timeoutMs: 0, tid: null, owner: null, ...bounds };
  return new Promise((deliver, end) => queue.get(request, { deliver, end }));
}
