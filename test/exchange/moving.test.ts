import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { NODE } from '../../src/exchange/declaration.ts';
import { openMemory } from '../engines/sqlite.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyText } from '../support/elements.ts';
import { declare, ExchangeNode } from './node.ts';

/**
 * Two engines, one of which claims to be stored in a file of the node. `start` starts a node with namespace A on the
 * given engine and B on the other, in this order or the reverse.
 */
async function openBoth() {
  const clock = new FakeClock();
  const sandbox = sharedSandbox();
  const policies = [plain('A'), plain('B')];
  const own = await openMemory({ namespaces: policies }, clock);
  const next = await openMemory({ namespaces: policies }, clock);
  const inFile: Engine = Object.create(own, {
    disk: { value: () => Promise.reject(new Error('is not read')) },
  });
  const start = (engineOfA: Engine, isReversed = false): Promise<ExchangeNode> => {
    const setups = [
      { policy: plain('A'), engine: engineOfA },
      { policy: plain('B'), engine: next },
    ];
    return new ExchangeNode(isReversed ? setups.reverse() : setups, clock, sandbox).start();
  };
  const close = async (): Promise<void> => {
    await sandbox.stop();
    await Promise.all([own.stop(), next.stop()]);
    assert.equal(clock.pending, 0);
  };
  return { inFile, next, start, close };
}

describe('an exchange that is created while the namespace of its source is migrated to another engine', () => {
  it('is moved to the new engine if it was created just before the move', async () => {
    const { inFile, next, start, close } = await openBoth();
    let node = await start(inFile);
    await node.exchanges.create('x', declare('A/src', ['A/dst']));
    await node.exchanges.create('other', declare('B/src', ['A/dst']));
    await node.broker.migrate('A', 'B');
    await node.exchanges.moveDefinitions('A');
    await node.exchanges.moveDefinitions('A');
    assert.deepEqual(await inFile.definitions.list('exchange'), []);
    await node.insert('A', 'src', 'during');
    assert.equal(bodyText(await node.pop('A', 'dst')), 'during');
    await node.exchanges.stopExchange('x');
    await node.stop();

    node = await start(next);
    assert.equal(node.exchanges.record('x').stopped, true);
    assert.equal(node.exchanges.has('other'), true);
    await node.stop();
    await close();
  });

  for (const isReversed of [false, true]) {
    it(`remains stopped if it is stopped between two tries to move it, ${isReversed ? 'the new engine first' : 'the old engine first'}`, async (t) => {
      const { inFile, next, start, close } = await openBoth();
      let node = await start(inFile, isReversed);
      await node.exchanges.create('x', declare('A/src', ['A/dst']));
      await node.broker.migrate('A', 'B');
      const deletion = t.mock.method(inFile.definitions, 'delete', () => Promise.reject(new Error('away')));
      await assert.rejects(node.exchanges.moveDefinitions('A'), /away/);
      deletion.mock.restore();
      await node.exchanges.stopExchange('x');
      await node.exchanges.moveDefinitions('A');
      assert.equal(node.exchanges.record('x').stopped, true);
      assert.deepEqual(await inFile.definitions.list('exchange'), []);
      await node.stop();

      node = await start(next, isReversed);
      assert.equal(node.exchanges.record('x').stopped, true);
      await node.stop();
      await close();
    });
  }

  it('works during the migration and after it', async () => {
    const { inFile, next, start, close } = await openBoth();
    let node = await start(inFile);
    await node.insert('A', 'src', 'old');
    await node.broker.migrate('A', 'B');
    await node.exchanges.create('x', declare('A/src', ['A/dst']));
    await node.insert('A', 'src', 'new');
    assert.deepEqual((await node.popMany('A', 'dst', 2)).map(bodyText), ['old', 'new']);
    await node.exchanges.stopExchange('x');
    await node.stop();

    node = await start(inFile);
    assert.equal(node.exchanges.record('x').stopped, true);
    await node.exchanges.startExchange('x');
    await node.stop();

    node = await start(next);
    await node.insert('A', 'src', 'later');
    assert.equal(bodyText(await node.pop('A', 'dst')), 'later');
    await node.stop();
    await close();
  });
});

it('an exchange of another node does not run on a namespace of the same name that is stored in a file of this node', async () => {
  const { inFile, next: shared, start, close } = await openBoth();
  const other = await start(shared);
  await other.exchanges.create('x', declare('A/src', ['A/dst']));
  const node = await start(inFile);
  await node.insert('A', 'src', 'mine');
  await other.insert('A', 'src', 'theirs');
  assert.equal(bodyText(await other.pop('A', 'dst')), 'theirs');
  assert.equal(node.exchanges.has('x'), false);
  assert.equal(bodyText(await node.pop('A', 'src')), 'mine');
  await node.stop();
  await other.stop();
  await close();
});

it('an exchange cannot move to a namespace in another engine, which is known without trying', async () => {
  const { inFile, start, close } = await openBoth();
  const node = await start(inFile);
  await node.exchanges.create('x', declare('A/src', ['A/dst']));
  const declaration = declare('B/src', ['A/dst']);
  const change = { declaration, caller: NODE, versions: null };
  const expected = { code: 'invalid-parameter', details: { parameter: 'src.ns' } };
  await assert.rejects(node.exchanges.checkChange('x', change), expected);
  await assert.rejects(
    node.exchanges.change('x', change, () => {}),
    expected,
  );
  await node.stop();
  await close();
});
