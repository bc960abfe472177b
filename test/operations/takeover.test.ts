import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Engine } from '../../src/engine/engine.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { toProgress } from '../../src/operations/stored.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { betweenProcesses, plain } from '../support/broker.ts';
import { engineWith, engineWithDefinitions, engineWithoutNotifications } from '../support/engine-with.ts';
import { rollback } from '../support/settle.ts';
import { until } from '../support/until.ts';
import { type Cut, DyingNode } from './dying-node.ts';
import { OPERATOR, OperationNode } from './node.ts';

const COUNT = 150;
const DAY_MS = 24 * 3_600_000;
/** Longer than a node may be silent, and the others take to look for its operations. */
const SILENT_MS = 13_000;
/**
 * A node that runs an operation makes these changing calls: it stores the operation, claims it, stores the first page
 * as pending, and changes that page.
 */
const STORES_PENDING = 3;
const CHANGES_PAGE = 4;

describe('A node that continues a bulk operation of another one', () => {
  const policy = plain('N');
  const source = { ns: 'N', queue: 'from' };
  const sandbox = sharedSandbox();
  let opened: TestEngine;
  let mortal: DyingNode;
  let doomed: OperationNode;
  let survivor: OperationNode;

  async function startNodes(dyingCall: number, cut: Cut, hasNews = true): Promise<void> {
    const shared = betweenProcesses(opened.engine);
    const engine = hasNews ? shared : engineWithoutNotifications(shared);
    mortal = new DyingNode(dyingCall, cut);
    survivor = await new OperationNode([{ policy, engine }], opened.clock, sandbox, 1).start();
    const view = mortal.view(engine);
    doomed = await new OperationNode([{ policy, engine: view }], opened.clock, sandbox, 2).start();
    mortal.calls = 0;
  }

  /** Starts an operation on the node that dies, and returns its id once the node is dead. */
  async function startAndDie(request: object): Promise<string> {
    const id = await doomed.create({ source, ...request });
    await until(async () => {
      if (mortal.isDead) return true;
      await opened.passTime(1);
      return false;
    });
    return id;
  }

  /** Lets time pass until the other node has noticed the silence. */
  async function passSilence(id: string): Promise<void> {
    for (let passed = 0; passed < SILENT_MS; passed += 250) {
      await opened.passTime(250);
      // When this call is answered, so are those that the other node made at this time.
      await survivor.get(id);
    }
  }

  /** Lets time pass until at most `count` elements are left in the source. */
  async function untilWaiting(count: number): Promise<void> {
    while ((await survivor.elements('N', 'from')).length > count) await opened.passTime(1000);
  }

  beforeEach(async () => {
    opened = await MEMORY_SQLITE.open({ namespaces: [policy] });
  });
  afterEach(async () => {
    mortal.end();
    await doomed.stop();
    await survivor.stop();
    await sandbox.stop();
    await opened.close();
  });

  it('does not release elements that a consumer reserved after their release by the other node', async () => {
    await startNodes(CHANGES_PAGE, 'after');
    await survivor.insertMany('N', 'from', COUNT);
    await survivor.reserve('N', 'from', COUNT, DAY_MS);
    const id = await startAndDie({ action: 'release' });
    await opened.passTime(100);
    const held = await survivor.reserve('N', 'from', 10, 2 * DAY_MS);
    await passSilence(id);
    const record = await survivor.ended(id, opened);
    assert.deepEqual([record.state, record.changed, held.length], ['done', COUNT, 10]);
    const reserved = await survivor.elements('N', 'from', ['reserved']);
    assert.deepEqual(
      reserved.map((one) => one.id),
      held.map((one) => one.id),
    );
  });

  it('continues it although the signal of its creation was lost', async () => {
    await startNodes(STORES_PENDING, 'before', false);
    await survivor.insertMany('N', 'from', COUNT);
    await startAndDie({ action: 'delete' });
    await untilWaiting(0);
  });

  it('cancels its operation although the signal of the cancel was lost', async () => {
    await startNodes(0, 'before', false);
    await survivor.insertMany('N', 'from', COUNT);
    const id = await survivor.create({ source, action: 'delete', rate: 1 });
    const cancelling = doomed.operations.cancel(id, OPERATOR);
    const record = await survivor.ended(id, opened, 250);
    await cancelling;
    assert.equal(record.state, 'cancelled');
  });

  it('ends it after one page at most if it was cancelled while no node ran it', async () => {
    await startNodes(CHANGES_PAGE, 'before');
    await survivor.insertMany('N', 'from', COUNT);
    const id = await startAndDie({ action: 'delete' });
    const cancelling = survivor.operations.cancel(id, OPERATOR);
    await passSilence(id);
    await cancelling;
    const record = await survivor.ended(id, opened);
    assert.equal(record.state, 'cancelled');
    assert.ok(record.changed < COUNT, `${record.changed} changed`);
    assert.equal((await survivor.elements('N', 'from')).length, COUNT - record.changed);
  });

  it('does not continue an operation that the other node still runs, however slowly', async () => {
    await startNodes(0, 'before');
    await survivor.insertMany('N', 'from', COUNT);
    const id = await doomed.create({ source, action: 'delete', rate: 10 });
    const runner = async (): Promise<string | null> => {
      const stored = await opened.engine.definitions.get('operation-progress', id);
      return stored === null ? null : toProgress(stored.value).node;
    };
    const runners = new Set<string | null>();
    await until(async () => (await runner()) !== null);
    for (let passed = 0; passed < SILENT_MS; passed += 250) {
      runners.add(await runner());
      await opened.passTime(250);
    }
    assert.equal(runners.size, 1);
    const record = await survivor.ended(id, opened, 100);
    assert.deepEqual([record.state, record.changed], ['done', COUNT]);
  });

  it('completes it once: the other node does not continue it after it has reconnected to the engine', async () => {
    await startNodes(STORES_PENDING, 'before');
    await survivor.insertMany('N', 'from', 400);
    const id = await startAndDie({ action: 'delete', limit: 300 });
    await passSilence(id);
    const record = await survivor.ended(id, opened);
    assert.deepEqual([record.state, record.changed], ['done', 300]);
    mortal.reconnect();
    for (let i = 0; i < 20; i += 1) {
      await opened.passTime(250);
      // When this call is answered, so are those that the other node made at this time.
      await survivor.elements('N', 'from');
    }
    assert.equal((await survivor.elements('N', 'from')).length, 100);
    assert.deepEqual(await survivor.get(id), record);
  });

  it('counts each element once although the other node returns and continues, too', async () => {
    await startNodes(STORES_PENDING, 'before');
    await survivor.insertMany('N', 'from', COUNT);
    const id = await startAndDie({ action: 'delete', rate: 10 });
    await passSilence(id);
    while ((await survivor.get(id)).changed === 0) {
      await opened.passTime(100);
      await turn();
    }
    mortal.thaw();
    const record = await survivor.ended(id, opened, 100);
    assert.deepEqual([record.state, record.changed], ['done', COUNT]);
    assert.deepEqual(await survivor.elements('N', 'from'), []);
  });
});

describe('A node that was frozen during a bulk move to another engine', () => {
  const policies = [plain('N'), plain('far')] as const;
  const sandbox = sharedSandbox();
  const source = { ns: 'N', queue: 'from' };
  let near: TestEngine;
  let far: TestEngine;
  let mortal: DyingNode;
  let doomed: OperationNode;
  let survivor: OperationNode;
  /** Whether inserts of the frozen node into the far engine fail, and how many did. */
  let isAway = false;
  let failures = 0;

  const passTime = async (ms: number): Promise<void> => {
    await far.passTime(ms);
    await near.passTime(ms);
  };
  const start = (engines: readonly [Engine, Engine], seed: number): Promise<OperationNode> => {
    const namespaces = policies.map((policy, i) => ({ policy, engine: engines[i] as Engine }));
    return new OperationNode(namespaces, near.clock, sandbox, seed).start();
  };

  beforeEach(async () => {
    near = await MEMORY_SQLITE.open({ namespaces: [policies[0]] });
    far = await MEMORY_SQLITE.open({ namespaces: [policies[1]] });
    mortal = new DyingNode(CHANGES_PAGE, 'before');
    const [nearEngine, farEngine] = [betweenProcesses(near.engine), betweenProcesses(far.engine)];
    const insertsUnlessAway = engineWith(farEngine, (real) => ({
      insert: async (...args) => {
        if (!isAway) return real.insert(...args);
        failures += 1;
        throw new QuaysideError('storage-unavailable', 'The far engine is away.');
      },
    }));
    survivor = await start([nearEngine, farEngine], 1);
    doomed = await start([mortal.view(nearEngine), insertsUnlessAway], 2);
    mortal.calls = 0;
  });
  afterEach(async () => {
    mortal.end();
    await doomed.stop();
    await survivor.stop();
    await sandbox.stop();
    await far.close();
    await near.close();
  });

  /** Lets time pass until a silent node counts as gone, and what failed was tried again. */
  const passSilence = async (): Promise<void> => {
    for (let passed = 0; passed < SILENT_MS; passed += 250) {
      await passTime(250);
      // When this call is answered, so are those that the other node made at this time.
      await survivor.elements('far', 'to');
    }
  };

  it('moves to the destination what it put in transit after another node had completed the move', async () => {
    await survivor.insertMany('N', 'from', COUNT);
    const id = await doomed.create({ action: 'move', source, to: { ns: 'far', queue: 'to' } });
    await until(() => mortal.isDead);
    // The other node does not move this element, which is reserved, and returned to the source after the move has
    // ended.
    const [held] = await survivor.reserve('N', 'from', 1);
    assert.ok(held !== undefined);
    await passSilence();
    assert.equal((await survivor.ended(id, { passTime })).state, 'done');
    const ref = { id: held.id, group: held.group, token: held.lease?.token ?? null };
    const { storage } = survivor.broker.namespace('N');
    const back = { ...ref, delayMs: 0, countTry: false };
    assert.deepEqual(await rollback(storage, { ns: 'N', name: 'from' }, [back]), ['done']);
    assert.equal((await survivor.elements('far', 'to')).length, COUNT - 1);

    isAway = true;
    mortal.thaw();
    await until(() => failures !== 0);
    isAway = false;
    await passSilence();
    const left = [`__operation__${id}`, 'from'].map((queue) => survivor.elements('N', queue));
    assert.deepEqual((await Promise.all(left)).flat(), []);
    assert.equal((await survivor.elements('far', 'to')).length, COUNT);
  });
});

describe('A bulk operation whose target no node serves', () => {
  it('ends when it is cancelled, with an error that says why it could not run', async () => {
    const [policy, target, other] = [plain('N'), plain('M'), plain('other')];
    const opened = await MEMORY_SQLITE.open({ namespaces: [policy, target, other] });
    const sandbox = sharedSandbox();
    const engine = betweenProcesses(opened.engine);
    const all = [policy, target, other].map((one) => ({ policy: one, engine }));
    const starter = await new OperationNode(all, opened.clock, sandbox, 1).start();
    await starter.insertMany('N', 'from', COUNT);
    const source = { ns: 'N', queue: 'from' };
    const request = { source, to: { ns: 'M', queue: 'to' }, action: 'move', rate: 1 };
    const ids = [await starter.create(request), await starter.create(request)];
    await opened.passTime(100);
    await until(async () => (await starter.elements('M', 'to')).length >= 2);
    await starter.stop();
    for (const [i, served] of [policy, other].entries()) {
      const id = ids[i] ?? '';
      const node = await new OperationNode(
        [{ policy: served, engine }],
        opened.clock,
        sandbox,
        2 + i,
      ).start();
      const cancelling = node.operations.cancel(id, OPERATOR);
      const record = await node.ended(id, opened, 250);
      await cancelling;
      assert.equal(record.state, 'cancelled');
      assert.match(record.error ?? '', /^No node has the namespaces that the operation needs\./);
      assert.equal(record.changed, 1);
      await node.stop();
    }
    assert.equal((await opened.engine.storage.counts({ ns: 'N', name: 'from' })).ready, COUNT - 2);
    await sandbox.stop();
    await opened.close();
  });

  it('is logged once by each node, however often that checks it', async () => {
    const [policy, target] = [plain('N'), plain('M')];
    const opened = await MEMORY_SQLITE.open({ namespaces: [policy, target] });
    const sandbox = sharedSandbox();
    const engine = betweenProcesses(opened.engine);
    const both = [policy, target].map((one) => ({ policy: one, engine }));
    const starter = await new OperationNode(both, opened.clock, sandbox, 1).start();
    await starter.insertMany('N', 'from', COUNT);
    await starter.create({
      source: { ns: 'N', queue: 'from' },
      to: { ns: 'M', queue: 'to' },
      action: 'move',
      rate: 1,
    });
    await starter.stop();
    const remaining = await new OperationNode([{ policy, engine }], opened.clock, sandbox, 2).start();
    for (let passed = 0; passed < 60_000; passed += 250) {
      await opened.passTime(250);
      // When this call is answered, so are those of the node's check.
      await remaining.elements('N', 'from');
    }
    assert.deepEqual(remaining.warnings, ['a stored operation cannot run on this node']);
    await remaining.stop();
    await sandbox.stop();
    await opened.close();
  });
});

describe('A list of bulk operations', () => {
  for (const [which, served] of [
    ['', 'N'],
    [', even in a namespace that this node does not serve', 'M'],
  ] as const) {
    it(`has those of an unavailable engine${which}, with the progress that the node saw last`, async () => {
      const sandbox = sharedSandbox();
      const policy = plain('N');
      const opened = await MEMORY_SQLITE.open({ namespaces: [policy, plain('M')] });
      const shared = betweenProcesses(opened.engine);
      let isAway = false;
      const engine = engineWithDefinitions(shared, (real) => ({
        get: async (kind, key) => {
          if (isAway) throw new QuaysideError('storage-unavailable', 'planted');
          return real.get(kind, key);
        },
      }));
      const runs = await new OperationNode([{ policy, engine: shared }], opened.clock, sandbox, 1).start();
      const lists = await new OperationNode(
        [{ policy: plain(served), engine }],
        opened.clock,
        sandbox,
        2,
      ).start();
      const listed = () => lists.operations.list({ ns: null, queue: null, state: null }, OPERATOR);
      try {
        await runs.insertMany('N', 'q', COUNT);
        const id = await runs.create({ action: 'delete', source: { ns: 'N', queue: 'q' }, rate: 1 });
        await until(async () => {
          if ((await listed())[0]?.changed === 5) return true;
          await opened.passTime(250);
          return false;
        });
        isAway = true;
        const [operation] = await listed();
        assert.deepEqual([operation?.id, operation?.state, operation?.changed], [id, 'running', 5]);
        isAway = false;
      } finally {
        await lists.stop();
        await runs.stop();
        await sandbox.stop();
        await opened.close();
      }
    });
  }
});
