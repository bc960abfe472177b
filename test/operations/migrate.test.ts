import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { MigrationTargetMissing } from '../../src/broker/migration.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { scopedKey } from '../../src/exchange/declaration.ts';
import { zeroExchangeCounters } from '../../src/exchange/record.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { Searches } from '../../src/operations/search.ts';
import { openMemory } from '../engines/sqlite.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { betweenProcesses, plain, type TestNamespace } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { engineWith, engineWithDefinitions } from '../support/engine-with.ts';
import { until } from '../support/until.ts';
import { OPERATOR, OperationNode } from './node.ts';

const MIGRATE = { action: 'migrate', source: { ns: 'A' }, to: { ns: 'B' } };
const POLICY = plain('A', { deadLetter: { maxTries: 2, queue: 'dead' } });
const STREAM = plain('stream', { groups: ['g'] });
const OTHER_STREAM = plain('other stream', { groups: ['h'] });
const POLICIES = [POLICY, plain('B'), plain('other'), STREAM, OTHER_STREAM];

describe('A namespace that moves to another engine', () => {
  const sandbox = sharedSandbox();
  let clock: FakeClock;
  let oldEngine: Engine;
  let newEngine: Engine;
  let node: OperationNode;

  const passTime = async (ms: number): Promise<void> => clock.advance(ms);
  /** For `OperationNode.ended`: a migration takes seconds, and each check of it is a call of the engine. */
  const inSteps = { passTime: () => passTime(100) };
  /** The engine as if its store were a file. */
  const inFile = (engine: Engine): Engine =>
    Object.create(engine, { disk: { value: () => Promise.reject(new Error('is not read')) } });
  const namespaces = (): TestNamespace[] => [
    { policy: POLICY, engine: inFile(oldEngine) },
    { policy: plain('other'), engine: inFile(oldEngine) },
    { policy: OTHER_STREAM, engine: inFile(oldEngine) },
    { policy: STREAM, engine: newEngine },
    { policy: plain('B'), engine: newEngine },
  ];
  const newNode = (given: readonly TestNamespace[]): OperationNode =>
    new OperationNode(given, clock, sandbox);

  async function restart(): Promise<void> {
    await node.stop();
    node = await newNode(namespaces()).start();
  }

  /** Starts the migration; returns its id once the engines are joined. */
  async function migrate(): Promise<string> {
    const id = await node.create(MIGRATE);
    while (node.broker.namespace('A').migration === null) await newEngine.ping();
    await node.broker.migrate('A', 'B');
    return id;
  }

  const pop = async (): Promise<string | undefined> => {
    const { storage } = node.broker.namespace('A');
    const { deliveries } = await storage.take({ ns: 'A', name: 'q' }, { group: '', count: 1, leaseMs: null });
    return deliveries[0] && Buffer.from(deliveries[0].body).toString();
  };
  const sizeIn = async (engine: Engine): Promise<number> => (await engine.storage.usage('A')).elements;

  beforeEach(async () => {
    clock = new FakeClock();
    oldEngine = await openMemory({ namespaces: POLICIES }, clock);
    newEngine = await openMemory({ namespaces: POLICIES }, clock);
    node = await newNode(namespaces()).start();
  });

  afterEach(async () => {
    await node.stop();
    await Promise.all([oldEngine.stop(), newEngine.stop()]);
    assert.equal(clock.pending, 0);
  });

  it('stores new elements there, drains the old engine in order, and has moved when that is empty, across restarts', async () => {
    await node.insert('A', 'q', '1', '2', '3');
    const id = await migrate();
    await node.insert('A', 'q', '4', '5');
    assert.deepEqual([await sizeIn(oldEngine), await sizeIn(newEngine)], [3, 2]);
    assert.equal(await pop(), '1');
    await restart();
    await node.insert('A', 'q', '6');
    assert.deepEqual([await sizeIn(oldEngine), await sizeIn(newEngine)], [2, 3]);
    assert.equal((await node.get(id)).state, 'running');
    for (const body of ['2', '3', '4', '5', '6']) assert.equal(await pop(), body);
    const { state, source, to, estimate, changed } = await node.ended(id, inSteps);
    assert.deepEqual(
      { state, source, to, estimate, changed },
      { state: 'done', source: { ns: 'A' }, to: { ns: 'B' }, estimate: 3, changed: 3 },
    );
    await node.insert('A', 'q', '7');
    assert.deepEqual([await sizeIn(oldEngine), await sizeIn(newEngine)], [0, 1]);
    // The configuration after the migration.
    await node.stop();
    node = await newNode([{ policy: POLICY, engine: newEngine }]).start();
    assert.equal(await pop(), '7');
  });

  it('can be browsed on from a page that was read before', async () => {
    await node.insert('A', 'q', '1', '2');
    const searches = new Searches({ sandbox, clock, selectors: true });
    const read = (after: string | null) =>
      searches.page(
        node.broker.namespace('A').queue('q'),
        { states: ['ready'], group: null },
        { payer: 'op', path: 'where', bodies: true, hidesBodies: false },
        after,
        1,
      );
    const { next } = await read(null);
    await migrate();
    const { matches } = await read(next);
    assert.deepEqual(bodyTexts(matches), ['2']);
  });

  it('can move back to the engine that it came from, and then starts there alone', async () => {
    await node.ended(await migrate(), inSteps);
    await node.stop();
    node = await newNode([
      { policy: POLICY, engine: inFile(newEngine) },
      { policy: plain('B'), engine: oldEngine },
    ]).start();
    await node.insert('A', 'q', '1');
    const id = await migrate();
    assert.equal(await pop(), '1');
    await node.ended(id, inSteps);
    await node.insert('A', 'q', '2');
    await node.stop();
    node = await newNode([{ policy: POLICY, engine: inFile(oldEngine) }]).start();
    assert.equal(await pop(), '2');
  });

  it('stores operations that are started during the move in the new engine, which has them after the move', async () => {
    await node.insertMany('A', 'q', 5);
    await migrate();
    const id = await node.create({
      action: 'delete',
      source: { ns: 'A', queue: 'q' },
      rate: 1,
      where: { ids: ['none'] },
    });
    await node.ended(id, inSteps);
    await node.stop();
    node = await newNode([{ policy: POLICY, engine: newEngine }]).start();
    assert.equal((await node.get(id)).state, 'done');
  });

  it('lets an operation continue where it was when the move is done, so that it counts each element once', async () => {
    await migrate();
    await node.insertMany('A', 'q', 1_500);
    const source = { ns: 'A', queue: 'q' };
    const id = await node.create({ action: 'count', source, rate: 1_000 });
    await until(async () => (await node.get(id)).seen > 0);
    await node.stop();
    node = await newNode([{ policy: POLICY, engine: newEngine }]).start();
    const { seen, matched } = await node.ended(id, inSteps);
    assert.deepEqual([seen, matched], [1_500, 1_500]);
  });

  it('has moved only when the old engine has been empty for a while, since popped elements may return to it', async () => {
    await node.insert('A', 'q', 'x');
    const id = await migrate();
    const { storage } = node.broker.namespace('A');
    const queue = { ns: 'A', name: 'q' };
    /**
     * Lets time pass until `count` elements have left the old engine, or the migration has ended. Returns its state.
     */
    const untilLeft = async (count: number): Promise<string> => {
      for (;;) {
        const { state, changed } = await node.get(id);
        if (state !== 'running' || changed === count) return state;
        await passTime(100);
        await turn();
      }
    };
    const { deliveries } = await storage.take(queue, { group: '', count: 1, leaseMs: null });
    assert.equal(await untilLeft(1), 'running');
    await storage.undoTake(queue, deliveries);
    assert.equal(await untilLeft(0), 'running');
    assert.equal(await pop(), 'x');
    assert.equal((await node.ended(id, inSteps)).state, 'done');
  });

  it('counts the elements of both engines towards its limits', async () => {
    await node.stop();
    const bounded = namespaces().map((one) => (one.policy === POLICY ? { ...one, maxElements: 3 } : one));
    node = await newNode(bounded).start();
    await node.insert('A', 'q', '1', '2');
    await migrate();
    await node.insert('A', 'q', '3');
    await assert.rejects(node.insert('A', 'q', '4'), { code: 'namespace-full' });
    assert.equal(await pop(), '1');
    await node.stop();
    node = await newNode(bounded).start();
    await node.insert('A', 'q', '5');
    await assert.rejects(node.insert('A', 'q', '6'), { code: 'namespace-full' });
  });

  it('settles leases in the engine that granted them, and expires them in both', async () => {
    await node.insert('A', 'q', 'old');
    const [held] = await node.reserve('A', 'q', 1);
    await migrate();
    await node.insert('A', 'q', 'new');
    const [other] = await node.reserve('A', 'q', 1);
    const queue = node.broker.namespace('A').queue('q');
    for (const delivery of [held, other]) {
      const receipt = { id: delivery?.id ?? '', group: null, token: delivery?.lease?.token ?? null };
      assert.equal((await queue.settle(receipt, { kind: 'finish' })).outcome, 'done');
    }
    assert.deepEqual([await sizeIn(oldEngine), await sizeIn(newEngine)], [0, 0]);
    await node.insert('A', 'q', 'late');
    await node.reserve('A', 'q', 1, 1_000);
    clock.advance(1_001);
    await node.broker.namespace('A').storage.sweep();
    assert.equal(await pop(), 'late');
  });

  it('keeps its policy, and pauses and options set before or during the move', async () => {
    const { broker } = node;
    await node.insert('A', 'old', 'z');
    await broker.namespace('A').queue('paused before').pause();
    await broker.namespace('A').queue('stays paused').pause();
    await broker
      .namespace('A')
      .queue('q')
      .storeOptions({ deadLetter: { maxTries: 1, queue: 'own' } });
    await migrate();
    await broker.namespace('A').queue('paused later').pause();
    await broker.namespace('A').queue('paused before').resume();
    await node.insert('A', 'q', 'x');
    await node.insert('A', 'plain', 'y');
    await broker
      .namespace('A')
      .queue('old')
      .storeOptions({ deadLetter: { maxTries: 1, queue: 'own old' } });
    const [held] = await node.reserve('A', 'old', 1);
    const receipt = { id: held?.id ?? '', group: null, token: held?.lease?.token ?? null };
    await broker.namespace('A').queue('old').settle(receipt, { kind: 'release', delayMs: 0, countTry: true });
    assert.deepEqual(await node.bodies('A', 'own old'), ['z']);
    // The stored options already apply before a restart passes them to the new engine.
    const [first] = await node.reserve('A', 'q', 1);
    const receiptOfFirst = { id: first?.id ?? '', group: null, token: first?.lease?.token ?? null };
    await broker
      .namespace('A')
      .queue('q')
      .settle(receiptOfFirst, { kind: 'release', delayMs: 0, countTry: true });
    assert.deepEqual(await node.bodies('A', 'own'), ['x']);
    await node.insert('A', 'q', 'w');
    await node.stop();
    node = await newNode([{ policy: POLICY, engine: newEngine }]).start();
    const namespace = node.broker.namespace('A');
    assert.deepEqual([...namespace.pausedNames].sort(), ['paused later', 'stays paused']);
    for (const [name, tries] of [
      ['q', 1],
      ['plain', 2],
    ] as const) {
      for (let i = 0; i < tries; i += 1) {
        const [held] = await node.reserve('A', name, 1);
        const receipt = { id: held?.id ?? '', group: null, token: held?.lease?.token ?? null };
        await namespace.queue(name).settle(receipt, { kind: 'release', delayMs: 0, countTry: true });
      }
    }
    assert.deepEqual(await node.bodies('A', 'own'), ['x', 'w']);
    assert.deepEqual(await node.bodies('A', 'dead'), ['y']);
  });

  it('cannot be moved twice at once, and the move cannot be cancelled', async () => {
    await node.insert('A', 'q', 'x');
    const id = await migrate();
    await assert.rejects(node.operations.cancel(id, OPERATOR), { code: 'definition-conflict' });
    await assert.rejects(node.create(MIGRATE), { code: 'definition-conflict' });
    assert.equal((await node.get(id)).state, 'running');
  });

  it('moves once if moves to two engines begin at the same moment: the second one fails', async () => {
    const third = await openMemory({ namespaces: [POLICY, plain('C')] }, clock);
    const joined = Promise.withResolvers<void>();
    let estimates = 0;
    const slow = engineWith(oldEngine, (real) => ({
      usage: async (ns, needsBytes) => {
        estimates += 1;
        if (estimates === 2) await joined.promise;
        return real.usage(ns, needsBytes);
      },
    }));
    await node.stop();
    node = await newNode([
      { policy: POLICY, engine: inFile(slow) },
      { policy: plain('B'), engine: newEngine },
      { policy: plain('C'), engine: third },
    ]).start();
    try {
      const creating = [MIGRATE, { ...MIGRATE, to: { ns: 'C' } }].map((one) => node.create(one));
      while (node.broker.namespace('A').migration === null) await newEngine.ping();
      joined.resolve();
      const records = [];
      for (const id of await Promise.all(creating)) records.push(await node.ended(id, inSteps));
      assert.deepEqual(
        records.map(({ state }) => state),
        ['done', 'failed'],
      );
      assert.match(records[1]?.error ?? '', /already moving to the engine of namespace "B"/);
      await node.stop();
    } finally {
      await third.stop();
    }
  });

  it('keeps a resume that happens while its pause flags are copied', async () => {
    const read = Promise.withResolvers<void>();
    const release = Promise.withResolvers<void>();
    let isHeld = false;
    const slow = engineWithDefinitions(inFile(oldEngine), (real) => ({
      list: async (kind) => {
        const all = await real.list(kind);
        if (!isHeld || kind !== 'queue') return all;
        read.resolve();
        await release.promise;
        return all;
      },
    }));
    await node.stop();
    node = await newNode([
      { policy: POLICY, engine: slow },
      { policy: plain('B'), engine: newEngine },
    ]).start();
    const queue = node.broker.namespace('A').queue('q');
    await queue.pause();
    isHeld = true;
    const migrating = node.broker.migrate('A', 'B');
    await read.promise;
    await queue.resume();
    release.resolve();
    await migrating;
    const copy = await newEngine.definitions.get('queue', JSON.stringify(['A', 'q']));
    assert.deepEqual(copy?.value, { paused: false });
  });

  it('has no options that were deleted while they were copied', async () => {
    const held = Promise.withResolvers<void>();
    const release = Promise.withResolvers<void>();
    const slow = engineWithDefinitions(newEngine, (real) => ({
      put: async (kind, ...rest) => {
        if (kind === 'queue-options') {
          held.resolve();
          await release.promise;
        }
        return real.put(kind, ...rest);
      },
    }));
    await node.stop();
    node = await newNode([
      { policy: POLICY, engine: inFile(oldEngine) },
      { policy: plain('B'), engine: slow },
    ]).start();
    const queue = node.broker.namespace('A').queue('q');
    await queue.storeOptions({ leaseMs: 5_000 });
    const migrating = node.broker.migrate('A', 'B');
    await held.promise;
    await queue.storeOptions(null);
    release.resolve();
    await migrating;
    assert.deepEqual(await newEngine.definitions.list('queue-options'), []);
  });

  it('copies pause flags and options once, and again only those that have changed', async () => {
    const puts: string[] = [];
    const noted = engineWithDefinitions(newEngine, (real) => ({
      put: (kind, key, ...rest) => {
        puts.push(`${kind} ${key}`);
        return real.put(kind, key, ...rest);
      },
    }));
    await node.stop();
    node = await newNode([
      { policy: POLICY, engine: inFile(oldEngine) },
      { policy: plain('B'), engine: noted },
    ]).start();
    const queue = node.broker.namespace('A').queue('q');
    await queue.pause();
    await queue.storeOptions({ leaseMs: 5_000 });
    for (let i = 0; i < 3; i += 1) await node.broker.migrate('A', 'B');
    assert.deepEqual(puts, ['queue ["A","q"]', 'queue-options ["A","q"]']);
    await oldEngine.definitions.put('queue', JSON.stringify(['A', 'q']), { paused: false }, 'any');
    await node.broker.migrate('A', 'B');
    assert.deepEqual(puts.slice(2), ['queue ["A","q"]']);
  });

  it('reports an unknown outcome if only the old engine stored a pause or options, which are copied later', async (t) => {
    await migrate();
    const { definitions } = newEngine;
    const away = new QuaysideError('storage-unavailable', 'planted');
    const put = t.mock.method(definitions, 'put', () => Promise.reject(away));
    const queue = node.broker.namespace('A').queue('q');
    await assert.rejects(queue.pause(), { code: 'outcome-unknown' });
    await assert.rejects(queue.storeOptions({ leaseMs: 5_000 }), { code: 'outcome-unknown' });
    put.mock.restore();
    await node.broker.migrate('A', 'B');
    const key = JSON.stringify(['A', 'q']);
    assert.deepEqual((await definitions.get('queue', key))?.value, { paused: true });
    assert.deepEqual((await definitions.get('queue-options', key))?.value, { lease: 5 });
  });

  it('joins the two engines once for two concurrent calls', async () => {
    const usages: PromiseWithResolvers<void>[] = [];
    const slow = engineWith(newEngine, (real) => ({
      usage: async (ns, needsBytes) => {
        const usage = Promise.withResolvers<void>();
        usages.push(usage);
        await usage.promise;
        return real.usage(ns, needsBytes);
      },
    }));
    await node.stop();
    node = await newNode([
      { policy: POLICY, engine: inFile(oldEngine) },
      { policy: plain('B'), engine: slow },
    ]).start();
    const [first, second] = [node.broker.migrate('A', 'B'), node.broker.migrate('A', 'B')];
    usages[0]?.resolve();
    const migration = await first;
    usages[1]?.resolve();
    assert.equal(await second, migration);
    assert.equal(node.broker.namespace('A').migration, migration);
  });

  it('is not moved while an exchange uses it; the error names the exchange to users who may see it', async () => {
    const destination = { ns: 'A', queue: 'q' };
    const declaration = { src: { ns: 'other', queue: 'q' }, dst: [destination], consumer: {} };
    const counters = zeroExchangeCounters(1);
    const key = scopedKey('copy', 'other');
    const state = { stopped: false, isStopStored: false, lastError: null };
    node.exchanges = [{ key, declaration, ...state, counters }];
    const code = 'definition-conflict';
    await assert.rejects(node.create(MIGRATE), { code, message: /: exchange "copy" names it\./ });
    const caller = { ...OPERATOR, maySee: (ns: string) => ns !== 'other' };
    const message = /: an exchange that you may not see names it\./;
    await assert.rejects(node.create(MIGRATE, caller), { code, message });
  });

  it('takes along the exchanges that were created when the move began', async () => {
    await node.ended(await migrate(), inSteps);
    assert.deepEqual(new Set(node.moved), new Set(['A']));
  });

  it('is not moved while an operation runs on it', async () => {
    await node.insertMany('A', 'q', 5);
    const source = { ns: 'A', queue: 'q' };
    const id = await node.create({ action: 'delete', source, rate: 1 });
    await assert.rejects(node.create(MIGRATE), { code: 'definition-conflict' });
    await node.operations.cancel(id, OPERATOR);
    await migrate();
  });

  it('is not moved to its own engine, to another variant, from an engine that other nodes may use, or to an unknown namespace', async () => {
    for (const [request, code, message] of [
      [{ ...MIGRATE, to: { ns: 'other' } }, 'invalid-parameter', /same engine/],
      [{ ...MIGRATE, to: { ns: 'stream' } }, 'invalid-parameter', /variants differ/],
      [
        { ...MIGRATE, source: { ns: 'other stream' }, to: { ns: 'stream' } },
        'invalid-parameter',
        /groups differ, h and g/,
      ],
      [{ ...MIGRATE, source: { ns: 'B' }, to: { ns: 'A' } }, 'not-supported', /it is in memory/],
      [{ ...MIGRATE, to: { ns: 'none' } }, 'namespace-not-found', /none/],
    ] as const) {
      await assert.rejects(node.create(request), { code, message });
      assert.equal(node.broker.namespace('A').migration, null);
    }
    const engine = betweenProcesses(inFile(oldEngine));
    const shared = await newNode([
      { policy: POLICY, engine },
      { policy: plain('B'), engine: newEngine },
    ]).start();
    await assert.rejects(shared.create(MIGRATE), { code: 'not-supported', message: /other nodes/ });
    await shared.stop();
    await newEngine.storage.insert({ ns: 'A', name: 'q' }, newElements('x'));
    await assert.rejects(node.create(MIGRATE), { code: 'invalid-parameter', message: /has elements/ });
  });

  it('prevents a node from starting without the engine that has its elements', async () => {
    await migrate();
    await node.stop();
    const alone = newNode(namespaces().slice(0, 3));
    await assert.rejects(alone.broker.start(), MigrationTargetMissing);
    await alone.stop();
    node = await newNode(namespaces()).start();
  });

  it('in a file of this node is not affected by an operation of another node on a namespace of the same name', async () => {
    await node.insertMany('A', 'q', 5);
    const other = await new OperationNode([{ policy: POLICY, engine: newEngine }], clock, sandbox, 2).start();
    await other.insertMany('A', 'q', 5);
    const id = await other.create({ action: 'delete', source: { ns: 'A', queue: 'q' }, rate: 1 });
    while ((await other.get(id)).changed === 0) {
      await passTime(100);
      await turn();
    }
    await other.stop();
    // The other node has stopped: a node that may continue its operation does so within seconds.
    for (let passed = 0; passed < 10_000; passed += 100) {
      await passTime(100);
      await turn();
    }
    assert.equal((await node.bodies('A', 'q')).length, 5);
    assert.equal((await node.get(id)).state, 'running');
  });

  it('rejects members of the request that choose elements', async () => {
    for (const more of [{ where: {} }, { limit: 1 }, { rate: 1 }, { dryRun: true }, { delay: 1 }]) {
      await assert.rejects(async () => node.create({ ...MIGRATE, ...more }), { code: 'invalid-parameter' });
    }
    await assert.rejects(async () => node.create({ ...MIGRATE, to: { ns: 'B', queue: 'q' } }), {
      code: 'invalid-parameter',
    });
  });
});
