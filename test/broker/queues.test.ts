import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Namespace } from '../../src/broker/namespace.ts';
import { FINISH } from '../../src/broker/queue.ts';
import { readQueue } from '../../src/broker/queue-record.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { until } from '../support/until.ts';

const MAX_QUEUES = 5;
const TOO_MANY = { code: 'too-many-queues' };
const STRANGER = { id: 'x', group: null, token: null };

describe('the queues of a namespace', () => {
  let opened: TestEngine;
  let engine: Engine;
  let broker: Broker;
  let namespace: Namespace;
  /** Calls of the engine for queue names wait for this. */
  let held: Promise<void> = Promise.resolve();
  /** Inserts and declarations wait for this; null: for nothing. */
  let unsent: Promise<void> | null = null;
  /** The error of inserts; null: they succeed. */
  let refusal: QuaysideError | null = null;
  /** Messages of the log. */
  let logged: string[] = [];

  beforeEach(async () => {
    const policy = plain('N');
    held = Promise.resolve();
    unsent = null;
    refusal = null;
    logged = [];
    opened = await MEMORY_SQLITE.open({ namespaces: [policy] });
    engine = betweenProcesses(opened.engine);
    const slow = engineWith(engine, (real) => ({
      insert: async (...args) => {
        if (unsent !== null) await unsent;
        if (refusal !== null) throw refusal;
        return real.insert(...args);
      },
      declare: (...args) =>
        unsent === null ? real.declare(...args) : unsent.then(() => real.declare(...args)),
      queues: (ns) => real.queues(ns).then((found) => held.then(() => found)),
    }));
    const note = (_fields: object, message: string): void => {
      logged.push(message);
    };
    const log = { debug: () => {}, info: note, warn: note };
    broker = brokerOn([{ policy, engine: slow, maxQueues: MAX_QUEUES }], opened.clock, undefined, log);
    await broker.start();
    namespace = broker.namespace('N');
  });
  afterEach(async () => {
    await broker.stop();
    await opened.close();
  });

  const store = (name: string): Promise<unknown> =>
    namespace.queue(name).insert([newElement({ body: name })]);

  /** Another node. `next` runs when the engine has dropped a queue for it, before it tells the first node. */
  async function nodeThatDeletes(next: () => unknown): Promise<Broker> {
    const deleting = engineWith(engine, (real) => ({
      drop: async (queue) => {
        const isDropped = await real.drop(queue);
        await next();
        return isDropped;
      },
    }));
    const setup = { policy: plain('N'), engine: deleting, maxQueues: MAX_QUEUES };
    const other = brokerOn([setup], opened.clock, 2);
    await other.start();
    return other;
  }

  it('are limited in number, whatever other names were used before', async () => {
    for (let i = 0; i < MAX_QUEUES; i += 1) {
      await assert.rejects(namespace.queue(`invented ${i}`).settle(STRANGER, FINISH), {
        code: 'element-not-found',
      });
    }
    await namespace.reload();
    for (let i = 0; i < MAX_QUEUES; i += 1) await store(`invented ${i}`);
    assert.throws(() => namespace.queue('one more'), TOO_MANY);
    await namespace.reload();
    assert.throws(() => namespace.queue('one more'), TOO_MANY);
    await store('invented 0');
    assert.equal((await namespace.queueNames()).length, MAX_QUEUES);
  });

  it('have no elements for a group that a client names, as the error says', async () => {
    const [id = ''] = await namespace.queue('plain').insert([newElement({ body: 'e' })]);
    for (const [group, message] of [
      [null, `Element ${id} is not reserved.`],
      ['g', `There is no element ${id} in "plain" for group "g".`],
    ] as const) {
      const settling = namespace.queue('plain').settle({ id, group, token: null }, FINISH);
      await assert.rejects(settling, { message });
    }
    const invented = namespace.queue('plain').settle(STRANGER, FINISH);
    await assert.rejects(invented, { message: 'There is no element x in "plain".' });
  });

  it('are not created by inserts that the engine rejects', async () => {
    refusal = new QuaysideError('storage-full', 'planted');
    for (let i = 0; i < MAX_QUEUES; i += 1) {
      await assert.rejects(store(`refused ${i}`), { code: 'storage-full' });
    }
    refusal = null;
    for (let i = 0; i < MAX_QUEUES; i += 1) await store(`stored ${i}`);
    assert.throws(() => namespace.queue('refused 0'), TOO_MANY);
    assert.equal((await namespace.queueNames()).length, MAX_QUEUES);
  });

  it('stay known if another insert was stored before their first one was rejected', async () => {
    const first = Promise.withResolvers<void>();
    namespace.noteStoring({ ns: 'N', name: 'new' }, first.promise);
    await store('new');
    first.reject(new QuaysideError('overloaded', 'planted'));
    await first.promise.catch(() => {});
    await new Promise(setImmediate);
    assert.equal(namespace.knownNames.has('new'), true);
  });

  it('leave nothing in memory if the engine rejected their first insert', async () => {
    const { activity } = namespace;
    await store('dropped');
    await opened.engine.storage.take({ ns: 'N', name: 'dropped' }, { group: '', count: 1, leaseMs: null });
    activity.noteReading('dropped', await readQueue(namespace.visit('dropped')), null);
    assert.equal(await namespace.drop({ ns: 'N', name: 'dropped' }), true);
    refusal = new QuaysideError('storage-full', 'planted');
    for (const name of ['refused 1', 'refused 2', 'dropped']) {
      await assert.rejects(store(name), { code: 'storage-full' });
    }
    assert.deepEqual(
      activity.forgetUnknown(namespace.knownNames),
      ['dropped'],
      'only the dropped queue was known to followers',
    );
    assert.deepEqual([...activity.changed(Infinity).keys()], []);
  });

  it('whose flags cannot be deleted after the engine dropped them are deleted with an unknown outcome', async (t) => {
    await store('dropped');
    await opened.engine.storage.take({ ns: 'N', name: 'dropped' }, { group: '', count: 1, leaseMs: null });
    const key = { ns: 'N', name: 'dropped' };
    const gone = new QuaysideError('storage-unavailable', 'planted');
    const deletion = t.mock.method(opened.engine.definitions, 'delete', () => Promise.reject(gone));
    await assert.rejects(namespace.drop(key), { code: 'outcome-unknown' });
    deletion.mock.restore();
    assert.equal(await namespace.drop(key), true);
    assert.equal(namespace.knownNames.has('dropped'), false);
  });

  it('are counted on this node when another node creates them', async () => {
    const setup = { policy: plain('N'), engine, maxQueues: MAX_QUEUES };
    const other = brokerOn([setup], opened.clock, 2);
    await other.start();
    for (let i = 0; i < MAX_QUEUES; i += 1) {
      await other.namespace('N').queue(`made elsewhere ${i}`).insert([newElement()]);
    }
    // Signals are published at the end of the event-loop turn.
    await new Promise(setImmediate);
    await opened.engine.ping();
    namespace.queue('made elsewhere 0');
    assert.throws(() => namespace.queue('one more'), TOO_MANY);
    await other.stop();
  });

  it('are known on this node when another node has consumers that wait for them, pauses or resumes them, or stores their options', async () => {
    const other = brokerOn([{ policy: plain('N'), engine }], opened.clock, 2);
    await other.start();
    const ended = Promise.withResolvers<string>();
    const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
    other
      .namespace('N')
      .queue('awaited')
      .get(request, { deliver: () => {}, end: ({ code }) => ended.resolve(code) });
    await other.namespace('N').queue('paused').pause();
    await other.namespace('N').queue('resumed').resume();
    await other.namespace('N').queue('with options').storeOptions({ ttlMs: 1000 });
    await until(() => namespace.knownNames.size === 4);
    assert.deepEqual([...namespace.knownNames].sort(), ['awaited', 'paused', 'resumed', 'with options']);
    await other.stop();
    assert.equal(await ended.promise, 'shutting-down');
  });

  it('are forgotten with their counters when another node deletes them', async () => {
    const key = { ns: 'N', name: 'deleted' };
    await store(key.name);
    for (let i = 1; i < MAX_QUEUES; i += 1) await store(`kept ${i}`);
    await opened.engine.storage.take(key, { group: PLAIN_GROUP, count: 1, leaseMs: null });
    const other = await nodeThatDeletes(() => namespace.stats.add(key, PLAIN_GROUP, { get: 1 }));
    assert.equal(await other.namespace('N').drop(key), true);
    namespace.queue('one more');
    assert.deepEqual(await namespace.stats.read(key), new Map());
    await other.stop();
  });

  it('stay known on this node if it stored an element while another node deleted the old queue', async () => {
    const key = { ns: 'N', name: 'recreated' };
    await store(key.name);
    await opened.engine.storage.take(key, { group: PLAIN_GROUP, count: 1, leaseMs: null });
    const other = await nodeThatDeletes(() => store(key.name));
    assert.equal(await other.namespace('N').drop(key), true);
    // Signals are published at the end of the event-loop turn.
    await new Promise(setImmediate);
    await until(() => namespace.knownNames.has(key.name));
    await other.stop();
  });

  it('stay known on this node if it paused the new queue, or stored its options, before it learned of the deletion', async () => {
    const names = ['paused', 'with options'];
    await namespace.queue('paused').pause();
    await namespace.queue('with options').storeOptions({ ttlMs: 1000 });
    for (const name of names) namespace.noteDeleted({ ns: 'N', name });
    await until(() => namespace.knownNames.size === names.length);
    assert.deepEqual([...namespace.knownNames].sort(), names);
  });

  it('exist again if a consumer of this node began to wait while another node deleted them', async () => {
    const key = { ns: 'N', name: 'awaited' };
    await store(key.name);
    await opened.engine.storage.take(key, { group: PLAIN_GROUP, count: 1, leaseMs: null });
    const other = brokerOn([{ policy: plain('N'), engine, maxQueues: MAX_QUEUES }], opened.clock, 2);
    await other.start();
    const ended = Promise.withResolvers<string>();
    const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
    namespace.queue(key.name).get(request, { deliver: () => {}, end: ({ code }) => ended.resolve(code) });
    assert.equal(await other.namespace('N').drop(key), true);
    assert.deepEqual(await namespace.queueNames(), [key.name]);
    await other.stop();
    await broker.stop();
    assert.equal(await ended.promise, 'shutting-down');
  });

  it('do not exist again because of a get that does not wait, while this or another node deletes them', async () => {
    const key = { ns: 'N', name: 'polled' };
    await opened.engine.storage.declare([key]);
    const taking = Promise.withResolvers<void>();
    const polled = engineWith(engine, (real) => ({
      take: (...args) => taking.promise.then(() => real.take(...args)),
    }));
    const nodes = [2, 3].map((seed) =>
      brokerOn([{ policy: plain('N'), engine: polled }], opened.clock, seed),
    );
    await Promise.all(nodes.map((node) => node.start()));
    const ends = nodes.map((node) => {
      const ended = Promise.withResolvers<string>();
      const request = { group: null, leaseMs: null, timeoutMs: 0, tid: null, owner: null };
      const sink = { deliver: () => {}, end: ({ code }: QuaysideError) => ended.resolve(code) };
      node.namespace('N').queue(key.name).get(request, sink);
      return ended.promise;
    });
    assert.equal(await nodes[0]?.namespace('N').drop(key), true);
    // Signals are published at the end of the event-loop turn.
    await new Promise(setImmediate);
    assert.deepEqual(await namespace.queueNames(), []);
    taking.resolve();
    assert.deepEqual(await Promise.all(ends), ['pop-timeout', 'pop-timeout']);
    await Promise.all(nodes.map((node) => node.stop()));
  });

  it('are not counted if their names are only looked up', async () => {
    for (let i = 0; i < 10 * MAX_QUEUES; i += 1) namespace.queue(`invented ${i}`);
    for (let i = 0; i < MAX_QUEUES; i += 1) await store(`stored ${i}`);
    assert.throws(() => namespace.queue('one more'), TOO_MANY);
  });

  it('are not created by a get that does not wait, which leaves nothing in memory', async () => {
    const ends: string[] = [];
    for (let i = 0; i < 3 * MAX_QUEUES; i += 1) {
      const ended = Promise.withResolvers<void>();
      const request = { group: null, leaseMs: null, timeoutMs: 0, tid: null, owner: null };
      namespace.queue(`polled ${i}`).get(request, {
        deliver: () => {},
        end: ({ code }) => {
          ends.push(code);
          ended.resolve();
        },
      });
      await ended.promise;
    }
    assert.deepEqual(new Set(ends), new Set(['pop-timeout']));
    await new Promise(setImmediate);
    assert.deepEqual(namespace.waitingOfUsers(), new Map());
    assert.deepEqual(await namespace.queueNames(), []);
  });

  it('are not forgotten while a consumer waits', async () => {
    const HOUR_MS = 3_600_000;
    const ended = Promise.withResolvers<string>();
    const request = { group: null, leaseMs: null, timeoutMs: 60 * HOUR_MS, tid: null, owner: null };
    namespace.queue('awaited').get(request, { deliver: () => {}, end: ({ code }) => ended.resolve(code) });
    await store('not awaited');
    await opened.engine.storage.take(
      { ns: 'N', name: 'not awaited' },
      { group: '', count: 1, leaseMs: null },
    );
    for (let hour = 0; hour < 30; hour += 1) {
      await opened.passTime(HOUR_MS);
      await namespace.reload();
      await opened.engine.storage.sweep();
    }
    assert.deepEqual(await namespace.queueNames(), ['awaited']);
    await broker.stop();
    assert.equal(await ended.promise, 'shutting-down');
  });

  it('are paused by another node even if their flag cannot be read at first', async () => {
    const { definitions } = opened.engine;
    const queue = namespace.queue('q');
    const get = definitions.get.bind(definitions);
    const asked = Promise.withResolvers<void>();
    let reads = 0;
    definitions.get = async (kind, key) => {
      reads += 1;
      if (reads <= 2) throw new Error('planted');
      const found = await get(kind, key);
      asked.resolve();
      return found;
    };
    await definitions.put('queue', JSON.stringify(['N', 'q']), { paused: true }, null);
    for (let tries = 1; tries <= 2; tries += 1) {
      await until(() => reads >= tries);
      await new Promise(setImmediate);
      await opened.passTime(1_000);
    }
    await asked.promise;
    await new Promise(setImmediate);
    assert.equal(queue.paused, true);
  });

  it('keep a pause and a first use that happen while names and flags are being read', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    held = promise;
    const reading = namespace.reload();
    const queue = namespace.queue('late');
    await queue.pause();
    for (let i = 1; i < MAX_QUEUES; i += 1) await store(`new ${i}`);
    resolve();
    await reading;
    assert.equal(queue.paused, true);
    assert.throws(() => namespace.queue('one more'), TOO_MANY);
  });

  it('stay known if an element is stored just before this node has noted their deletion', async (t) => {
    await store('again');
    await opened.engine.storage.take({ ns: 'N', name: 'again' }, { group: '', count: 1, leaseMs: null });
    const { definitions } = opened.engine;
    const { delete: deletion } = definitions;
    t.mock.method(definitions, 'delete', async (...args: Parameters<typeof deletion>) => {
      await store('again');
      return deletion.apply(definitions, args);
    });
    assert.equal(await namespace.drop({ ns: 'N', name: 'again' }), true);
    await until(() => namespace.knownNames.has('again'));
  });

  it('stay paused if the next queue of the name is paused before this node has noted the deletion', async (t) => {
    const queue = namespace.queue('again');
    await queue.pause();
    const { definitions } = opened.engine;
    const { delete: deletion } = definitions;
    t.mock.method(definitions, 'delete', async (...args: Parameters<typeof deletion>) => {
      if (args[0] === 'queue-options') await queue.pause();
      return deletion.apply(definitions, args);
    });
    assert.equal(await namespace.drop(queue.key), true);
    assert.equal(queue.paused, true);
    await until(() => namespace.knownNames.has('again'));
  });

  it('stay known if they are created by calls that began before names were read and end before that does', async () => {
    const sending = Promise.withResolvers<void>();
    unsent = sending.promise;
    const storing = store('inserted');
    const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
    const consumer = namespace.queue('awaited').get(request, { deliver: () => {}, end: () => {} });
    const reading = Promise.withResolvers<void>();
    held = reading.promise;
    const reloading = namespace.reload();
    await opened.engine.storage.queues('N');
    sending.resolve();
    await storing;
    await until(async () => (await opened.engine.storage.queues('N')).length === 2);
    await new Promise(setImmediate);
    reading.resolve();
    await reloading;
    assert.deepEqual([...namespace.knownNames].sort(), ['awaited', 'inserted']);
    namespace.queue('awaited').leave(consumer);
  });

  it('are declared again by their next use if it is unknown whether they were', async () => {
    const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
    const wait = () => namespace.queue('awaited').get(request, { deliver: () => {}, end: () => {} });
    unsent = Promise.reject(new QuaysideError('outcome-unknown', 'planted'));
    wait();
    await new Promise(setImmediate);
    unsent = null;
    assert.deepEqual(await namespace.queueNames(), []);
    wait();
    await until(async () => (await namespace.queueNames()).includes('awaited'));
  });

  it('write one line if they cannot be declared, however many uses fail, and one if they can again', async () => {
    const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
    const wait = () => namespace.queue('awaited').get(request, { deliver: () => {}, end: () => {} });
    unsent = Promise.reject(new QuaysideError('storage-unavailable', 'planted'));
    for (let use = 0; use < 3; use += 1) {
      wait();
      await new Promise(setImmediate);
    }
    unsent = null;
    wait();
    await until(async () => (await namespace.queueNames()).includes('awaited'));
    assert.deepEqual(logged, [
      'queues could not be declared; their next uses try again',
      'queues are declared again',
    ]);
  });

  it('are not known any more if they are deleted while names are being read', async () => {
    for (const name of ['deleted', 'created again']) {
      await store(name);
      await opened.engine.storage.take({ ns: 'N', name }, { group: '', count: 1, leaseMs: null });
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    held = promise;
    const reading = namespace.reload();
    for (const name of ['deleted', 'created again']) {
      assert.equal(await namespace.drop({ ns: 'N', name }), true);
    }
    await store('created again');
    resolve();
    await reading;
    assert.deepEqual([...namespace.knownNames], ['created again']);
  });
});

describe('a transfer from queues of two namespaces', () => {
  it('counts each commit in the namespace of its queue', async () => {
    const policies = [plain('A'), plain('B')];
    const opened = await MEMORY_SQLITE.open({ namespaces: policies });
    const broker = brokerOn(
      policies.map((policy) => ({ policy, engine: opened.engine })),
      opened.clock,
    );
    try {
      await broker.start();
      const moves = await Promise.all(
        ['A', 'B', 'B'].map(async (ns) => {
          const from = broker.namespace(ns).queue('q');
          await from.insert([newElement()]);
          const options = { group: PLAIN_GROUP, count: 1, leaseMs: 1000 };
          const { deliveries } = await from.namespace.storage.take(from.key, options);
          const [{ id = '', lease = null } = {}] = deliveries;
          return { from, finish: { id, group: PLAIN_GROUP, token: lease?.token ?? null }, inserts: [] };
        }),
      );
      await broker.namespace('A').queue('q').transfer(moves);
      const commits = ['A', 'B'].map((ns) =>
        broker.namespace(ns).meter.operations().get('commit')?.get('ok'),
      );
      assert.deepEqual(commits, [1, 2]);
    } finally {
      await broker.stop();
      await opened.close();
    }
  });
});
