import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import { FINISH, type Queue } from '../../src/broker/queue.ts';
import { type OwnOptions, showOptions } from '../../src/broker/queue-options.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Delivery } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { MAIN_ENGINES, type TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { engineWith, engineWithDefinitions } from '../support/engine-with.ts';

const POLICY = plain('N', {
  queues: [
    { pattern: 'short-*', options: { ttlMs: 5000, leaseMs: 9000 } },
    { pattern: 'bound-*', options: { maxElements: 2 } },
  ],
});
const FULL = { code: 'queue-full' };

for (const engine of MAIN_ENGINES) {
  describe(`Options of queues on two nodes: ${engine.name}`, () => {
    let opened: TestEngine;
    let nodes: Broker[];

    beforeEach(async () => {
      opened = await engine.open({ namespaces: [POLICY] });
      const shared = betweenProcesses(opened.engine);
      nodes = [1, 2].map((seed) => brokerOn([{ policy: POLICY, engine: shared }], opened.clock, seed));
      for (const node of nodes) await node.start();
    });
    afterEach(async () => {
      for (const node of nodes) await node.stop();
      await opened.close();
    });

    const at = (node: number, name: string): Queue => {
      const broker = nodes[node];
      if (broker === undefined) throw new Error('there are two nodes');
      return broker.namespace('N').queue(name);
    };
    const insert = (queue: Queue, element: Parameters<typeof newElement>[0] = {}): Promise<string[]> =>
      queue.insert([newElement(element)]);
    /** Waits until a node has these options as stored; the change arrives by a notification of the engine. */
    const seen = async (queue: Queue, options: OwnOptions | null): Promise<void> => {
      for (let attempt = 0; ; attempt++) {
        assert.ok(attempt < 10_000, 'the other node is notified');
        const stored = queue.namespace.options.storedOf(queue.key.name);
        if (JSON.stringify(stored) === JSON.stringify(showOptions(options ?? {}))) return;
        await opened.engine.ping();
      }
    };
    const reserve = async (queue: Queue): Promise<Delivery | null> => {
      const { deliveries } = await opened.engine.storage.take(queue.key, {
        group: '',
        count: 1,
        leaseMs: queue.settings.leaseMs,
      });
      return deliveries[0] ?? null;
    };

    it('are known to both nodes, and to one that starts later', async () => {
      const options = { leaseMs: 1000, maxElements: 5 };
      await at(0, 'q').storeOptions(options);
      await seen(at(1, 'q'), options);
      assert.equal(at(1, 'q').settings.leaseMs, 1000);
      const late = brokerOn([{ policy: POLICY, engine: betweenProcesses(opened.engine) }], opened.clock, 3);
      nodes.push(late);
      await late.start();
      assert.equal(late.namespace('N').visit('q').settings.maxElements, 5);
      await at(1, 'q').storeOptions(null);
      await seen(at(0, 'q'), null);
      assert.equal(at(0, 'q').settings.leaseMs, 120_000);
    });

    it('are those of a single write on both nodes and in the engine if both nodes write concurrently', async () => {
      const first = { deadLetter: { maxTries: 1, queue: 'first' } };
      const second = { deadLetter: { maxTries: 1, queue: 'second' } };
      await Promise.all([at(0, 'q').storeOptions(first), at(1, 'q').storeOptions(second)]);
      await Promise.all(nodes.map((node) => node.namespace('N').reload()));
      const known = [0, 1].map((node) => at(node, 'q').settings.deadLetter?.queue);
      assert.equal(known[0], known[1]);
      await insert(at(0, 'q'), { body: 'failed' });
      const delivery = await reserve(at(0, 'q'));
      const receipt = { id: delivery?.id ?? '', group: null, token: null };
      await at(0, 'q').settle(receipt, { kind: 'release', delayMs: 0, countTry: true });
      const dead = await reserve(at(0, known[0] ?? ''));
      assert.equal(dead === null ? null : bodyText(dead), 'failed');
    });

    it('that a killed node stored but did not declare to the engine are declared by the next node that starts', async () => {
      const isOver = (): Promise<never> =>
        Promise.reject(new QuaysideError('storage-unavailable', 'It was killed.'));
      // A part of the change was made.
      const killed = { code: 'outcome-unknown' };
      const start = async (given: Engine): Promise<Queue> => {
        const node = brokerOn([{ policy: POLICY, engine: betweenProcesses(given) }], opened.clock, 3);
        nodes.push(node);
        await node.start();
        return node.namespace('N').queue('q');
      };
      const stateAfterFailure = async (queue: Queue): Promise<string | undefined> => {
        await insert(queue, { body: 'failed' });
        const delivery = await reserve(queue);
        const receipt = { id: delivery?.id ?? '', group: null, token: null };
        return (await queue.settle(receipt, { kind: 'release', delayMs: 0, countTry: true })).outcome;
      };
      const options = { deadLetter: { maxTries: 1, queue: 'dead' } };
      const dying = await start(engineWith(opened.engine, () => ({ declare: isOver })));
      await assert.rejects(dying.storeOptions(options), killed);
      const queue = await start(opened.engine);
      assert.deepEqual(queue.settings.deadLetter, options.deadLetter);
      assert.equal(await stateAfterFailure(queue), 'dead-lettered');

      const definitions = engineWithDefinitions(opened.engine, () => ({ delete: isOver }));
      const deleting = await start(definitions);
      await assert.rejects(deleting.storeOptions(null), killed);
      const restored = await start(opened.engine);
      assert.deepEqual(restored.settings.deadLetter, options.deadLetter);
      assert.equal(await stateAfterFailure(restored), 'dead-lettered');

      // Stored by another version: the engine keeps the options that that version declared.
      const key = JSON.stringify(['N', 'q']);
      await opened.engine.definitions.put('queue-options', key, { ofAnotherVersion: 1 }, 'any');
      await start(opened.engine);
      assert.equal(await stateAfterFailure(restored), 'dead-lettered');
    });

    it('limit a queue on both nodes, and stop rejecting once another node has consumed elements', async () => {
      const [here, there] = [at(0, 'bound-1'), at(1, 'bound-1')];
      await insert(here);
      await insert(there);
      await assert.rejects(insert(there), FULL);
      await opened.passTime(1001);
      await assert.rejects(insert(here), FULL);
      const delivery = await reserve(there);
      await there.settle({ id: delivery?.id ?? '', group: null, token: null }, FINISH);
      await opened.passTime(21);
      await insert(here);
      await assert.rejects(insert(there), FULL, 'the node reads the size of the queue again');
      await assert.rejects(there.insert([newElement(), newElement()]), FULL);
    });

    it('limit concurrent inserts on a node that does not know the size of the queue yet', async () => {
      const queue = at(0, 'bound-2');
      const outcomes = await Promise.allSettled(Array.from({ length: 10 }, () => insert(queue)));
      assert.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, 2);
      assert.equal((await opened.engine.storage.counts(queue.key)).ready, 2);
    });

    it('do not prevent a waiting consumer of a bounded queue from being woken', async () => {
      const queue = at(0, 'bound-3');
      let got: Delivery | null = null;
      const request = { group: null, leaseMs: null, timeoutMs: null, tid: 't', owner: null };
      const deliver = (delivery: Delivery): void => {
        got = delivery;
      };
      queue.get(request, { deliver, end: () => {} });
      await opened.engine.ping();
      await insert(queue, { body: 'woken' });
      for (let attempt = 0; attempt < 1000 && got === null; attempt++) await opened.engine.ping();
      assert.equal(got === null ? null : bodyText(got), 'woken');
    });

    it('apply to transfers: a full queue rejects them, and a copy gets the time to live', async () => {
      const source = at(0, 'source');
      const [bound, short] = [at(0, 'bound-4'), at(0, 'short-1')];
      await source.insert([newElement(), newElement(), newElement()]);
      const move = async (to: Queue): Promise<void> => {
        const delivery = await reserve(source);
        const finish = { id: delivery?.id ?? '', group: '', token: delivery?.lease?.token ?? null };
        await source.transfer([{ finish, inserts: [{ queue: to, element: newElement() }] }]);
      };
      await move(bound);
      await insert(bound);
      await assert.rejects(move(bound), FULL);
      await move(short);
      assert.equal((await opened.engine.storage.counts(short.key)).ready, 1);
      await opened.passTime(5100);
      await opened.engine.storage.sweep();
      assert.equal((await opened.engine.storage.counts(short.key)).ready, 0);
    });

    it('survive a pause and a resume', async () => {
      await at(0, 'q').storeOptions({ ttlMs: 1000 });
      await at(1, 'q').pause();
      await at(1, 'q').resume();
      await Promise.all(nodes.map((node) => node.namespace('N').reload()));
      assert.equal(at(1, 'q').settings.ttlMs, 1000);
    });
  });
}

describe('Options of a queue that are read again unchanged', () => {
  it('keep its settings and its capacity, which counts inserts that the engine has not confirmed', async () => {
    const opened = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    const sent = Promise.withResolvers<void>();
    const confirmed = Promise.withResolvers<void>();
    const engine = engineWith(opened.engine, (real) => ({
      insert: async (key, elements, options) => {
        if (elements.some(({ body }) => body.toString() === 'slow')) {
          sent.resolve();
          await confirmed.promise;
        }
        return real.insert(key, elements, options);
      },
    }));
    const broker = brokerOn([{ policy: POLICY, engine }], opened.clock);
    try {
      await broker.start();
      const queue = broker.namespace('N').queue('q');
      await queue.storeOptions({ maxElements: 2 });
      const { settings } = queue;
      const slow = queue.insert([newElement({ body: 'slow' })]);
      await sent.promise;
      await broker.namespace('N').reload();
      assert.equal(queue.settings, settings);
      await queue.insert([newElement()]);
      await assert.rejects(queue.insert([newElement()]), FULL);
      confirmed.resolve();
      await slow;
      assert.equal((await queue.counts()).ready, 2);
    } finally {
      confirmed.resolve();
      await broker.stop();
      await opened.close();
    }
  });
});
