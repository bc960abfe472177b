import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { QuaysideError } from '../../src/model/errors.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement } from '../support/elements.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

const callerNamed = (name: string) => ({ name, maySee: () => true, maySeeBodies: () => true });

/** Resolves when all earlier changes of the exchange `x` are done: they run one after the other. */
async function changesDone(node: ExchangeNode): Promise<void> {
  const rejection = new Error('Nothing is stopped.');
  const last = node.exchanges.stopExchange('x', () => {
    throw rejection;
  });
  await assert.rejects(last, rejection);
}

describe('An exchange whose owner was removed while its engine was unavailable', () => {
  const sandbox = sharedSandbox();
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let node: ExchangeNode;
  /** The names of the current users. */
  let users: Set<string>;
  let isAway = false;
  let puts = 0;
  let warnings: string[];

  before(() => sandbox.start());
  after(() => sandbox.stop());
  beforeEach(async () => {
    users = new Set(['ann', 'bob']);
    warnings = [];
    opened = await openEngine('N');
    const { definitions } = opened.engine;
    const put = definitions.put.bind(definitions);
    definitions.put = async (...args) => {
      puts += 1;
      if (isAway) throw new QuaysideError('storage-unavailable', 'planted');
      return put(...args);
    };
    const owners = (name: string) => (users.has(name) ? { may: () => true } : null);
    const log = { info: () => {}, warn: (_: object, message: string) => void warnings.push(message) };
    node = await new ExchangeNode(opened.namespaces, opened.clock, sandbox, { owners, log }).start();
    await node.exchanges.create('x', declare('N/from', ['N/to']), callerNamed('ann'));
    users.delete('ann');
    isAway = true;
    await node.exchanges.stopUnowned();
    isAway = false;
    assert.equal(node.exchanges.record('x').stopped, null);
  });
  afterEach(async () => {
    await node.stop();
    await opened.close();
  });

  /** Advances the clock to the next attempt. */
  const tryAgain = (): void => {
    assert.ok(opened.clock instanceof FakeClock);
    opened.clock.advance(1_000);
  };

  it('is stopped when the engine recovers, as the log says', async () => {
    tryAgain();
    await until(() => node.exchanges.record('x').stopped === true);
    await changesDone(node);
    assert.deepEqual(warnings, [
      'an exchange could not be stopped yet',
      'an exchange was stopped: its owner may not run it any more',
    ]);
    assert.match(node.exchanges.record('x').lastError ?? '', /^User "ann", .* is no longer a user/);
  });

  it('continues if its owner has been added again in time', async () => {
    users.add('ann');
    const before = puts;
    tryAgain();
    await until(() => puts > before);
    await changesDone(node);
    assert.equal(node.exchanges.record('x').stopped, null);
  });

  it('is not stopped if another user has created it again in time', async () => {
    await node.exchanges.delete('x');
    await node.exchanges.create('x', declare('N/from', ['N/to']), callerNamed('bob'));
    tryAgain();
    await turn();
    await changesDone(node);
    assert.equal(node.exchanges.record('x').stopped, null);
  });
});

describe('An exchange whose owner was removed while the server was stopped', () => {
  const sandbox = sharedSandbox();
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let warnings: string[];

  before(() => sandbox.start());
  after(() => sandbox.stop());
  /** Starts a node with these users. */
  const start = (...users: readonly string[]): Promise<ExchangeNode> => {
    const owners = (name: string) => (users.includes(name) ? { may: () => true } : null);
    const warn = (_fields: object, message: string): number => warnings.push(message);
    const log = { info: () => {}, warn };
    return new ExchangeNode(opened.namespaces, opened.clock, sandbox, { owners, log }).start();
  };
  beforeEach(async () => {
    warnings = [];
    opened = await openEngine('N');
    const node = await start('ann');
    await node.exchanges.create('x', declare('N/from', ['N/to']), callerNamed('ann'));
    await node.stop();
  });
  afterEach(() => opened.close());

  it('is stopped before it forwards anything, as the log says', async () => {
    await opened.engine.storage.insert({ ns: 'N', name: 'from' }, [newElement({ body: 'stays' })]);
    const node = await start();
    assert.equal(node.exchanges.record('x').stopped, true);
    assert.match(node.exchanges.record('x').lastError ?? '', /^User "ann", .* is no longer a user/);
    assert.deepEqual(warnings, ['an exchange was stopped: its owner may not run it any more']);
    await node.stop();
    assert.equal(await node.total('N', 'from'), 1);
  });

  it('does not keep a node from starting if the stop cannot be stored yet', async (t) => {
    const { definitions } = opened.engine;
    const full = new QuaysideError('storage-full', 'planted');
    const put = t.mock.method(definitions, 'put', () => Promise.reject(full));
    const node = await start();
    put.mock.restore();
    assert.ok(opened.clock instanceof FakeClock);
    opened.clock.advance(1_000);
    await until(() => node.exchanges.record('x').stopped === true);
    await node.stop();
  });
});

describe('An exchange that is being stored while its owner is removed', () => {
  const sandbox = sharedSandbox();
  const plain = declare('N/from', ['N/to']);
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let node: ExchangeNode;
  /** The names of the current users. */
  let users: Set<string>;
  /** Whether the next write is held until ann is no longer a user. */
  let isHeld = false;
  /** Whether the reply of the held write is lost. */
  let losesReply = false;

  before(() => sandbox.start());
  after(() => sandbox.stop());
  beforeEach(async () => {
    users = new Set(['ann', 'bob']);
    losesReply = false;
    opened = await openEngine('N');
    const { definitions } = opened.engine;
    const put = definitions.put.bind(definitions);
    definitions.put = async (...args) => {
      if (!isHeld) return put(...args);
      isHeld = false;
      users.delete('ann');
      await node.exchanges.stopUnowned();
      const version = await put(...args);
      if (losesReply) throw new QuaysideError('outcome-unknown', 'planted');
      return version;
    };
    const owners = (name: string) => (users.has(name) ? { may: () => true } : null);
    node = await new ExchangeNode(opened.namespaces, opened.clock, sandbox, { owners }).start();
  });
  afterEach(async () => {
    await node.stop();
    await opened.close();
  });

  const isStopped = async (): Promise<void> => {
    await changesDone(node);
    assert.equal(node.exchanges.record('x').stopped, true);
    assert.match(node.exchanges.record('x').lastError ?? '', /^User "ann", .* is no longer a user/);
  };

  it('is stopped if it is new', async () => {
    isHeld = true;
    await node.exchanges.create('x', plain, callerNamed('ann'));
    await isStopped();
  });

  it('is stopped if it is new and the reply of its engine was lost', async () => {
    [isHeld, losesReply] = [true, true];
    const creating = node.exchanges.create('x', plain, callerNamed('ann'));
    await assert.rejects(creating, { code: 'outcome-unknown' });
    await isStopped();
  });

  it('is stopped if it was changed by that user', async () => {
    await node.exchanges.create('x', plain, callerNamed('bob'));
    isHeld = true;
    const declaration = declare('N/from', ['N/other']);
    const change = { declaration, caller: callerNamed('ann'), versions: null };
    await node.exchanges.change('x', change, () => {});
    await isStopped();
  });

  it('is stopped if it was started by that user', async () => {
    await node.exchanges.create('x', plain, callerNamed('bob'));
    await node.exchanges.stopExchange('x');
    users.delete('bob');
    isHeld = true;
    await node.exchanges.startExchange('x', () => {}, callerNamed('ann'));
    await isStopped();
  });

  it('keeps running if another user owns it', async () => {
    await node.exchanges.create('x', plain, callerNamed('bob'));
    await node.exchanges.stopExchange('x');
    isHeld = true;
    await node.exchanges.startExchange('x', () => {}, callerNamed('ann'));
    await node.insert('N', 'from', 'goes');
    await node.pop('N', 'to');
    assert.equal(node.exchanges.record('x').stopped, false);
  });
});
