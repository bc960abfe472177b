import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { QuaysideError } from '../../src/model/errors.ts';
import { patientSandbox } from '../sandbox/elements.ts';
import { FakeClock } from '../support/clock.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

describe('An exchange whose owner was removed while its engine was unavailable', () => {
  const sandbox = patientSandbox();
  let opened: Awaited<ReturnType<typeof openEngine>>;
  let node: ExchangeNode;
  /** Who is a user. */
  let users: Set<string>;
  let isAway = false;
  let puts = 0;

  before(() => sandbox.start());
  after(() => sandbox.stop());
  beforeEach(async () => {
    users = new Set(['ann', 'bob']);
    opened = await openEngine('N');
    const { definitions } = opened.engine;
    const put = definitions.put.bind(definitions);
    definitions.put = async (...args) => {
      puts += 1;
      if (isAway) throw new QuaysideError('storage-unavailable', 'planted');
      return put(...args);
    };
    const owners = (name: string) => (users.has(name) ? { may: () => true } : null);
    node = await new ExchangeNode(opened.namespaces, opened.clock, sandbox, { owners }).start();
    await node.exchanges.create('x', declare('N/from', ['N/to']), {
      name: 'ann',
      maySee: () => true,
      maySeeBodies: () => true,
    });
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

  /** Lets the time of the next try come. */
  const tryAgain = (): void => {
    assert.ok(opened.clock instanceof FakeClock);
    opened.clock.advance(1_000);
  };

  it('is stopped when the engine is back', async () => {
    tryAgain();
    await until(() => node.exchanges.record('x').stopped === true);
    assert.match(node.exchanges.record('x').lastError ?? '', /^User "ann", .* is no longer a user/);
  });

  it('continues if its owner has been added again by then', async () => {
    users.add('ann');
    const before = puts;
    tryAgain();
    await until(() => puts > before);
    assert.equal(node.exchanges.record('x').stopped, null);
  });

  it('may have been deleted by then', async () => {
    await node.exchanges.delete('x');
    tryAgain();
    await node.exchanges.create('x', declare('N/from', ['N/to']), {
      name: 'bob',
      maySee: () => true,
      maySeeBodies: () => true,
    });
    tryAgain();
    assert.equal(node.exchanges.record('x').stopped, null);
  });
});
