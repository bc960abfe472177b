import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Ops } from '../../src/engines/mongodb/ids.ts';
import type { Store } from '../../src/engines/mongodb/store.ts';
import { Undo } from '../../src/engines/mongodb/undo.ts';
import { FakeClock } from '../support/clock.ts';
import { SILENT } from './postgres.ts';

const QUEUE = { ns: 'n', name: 'q' };

/** A store that takes what it is sent, or is away. */
function stage() {
  const clock = new FakeClock();
  const sent: { ids: readonly string[]; op: string }[] = [];
  const touched: string[] = [];
  const bulkWrite = async (
    statements: { updateMany: { filter: { _id: { $in: string[] }; op: string } } }[],
  ) => {
    for (const { updateMany } of statements) {
      sent.push({ ids: updateMany.filter._id.$in, op: updateMany.filter.op });
    }
    return { matchedCount: 0 };
  };
  const store = { isUp: true, settings: {}, collections: { elements: { bulkWrite } } };
  const undo = new Undo({
    store: store as unknown as Store,
    ops: new Ops(),
    clock,
    log: SILENT,
    touched: ({ name }) => touched.push(name),
  });
  const pass = async (ms: number): Promise<void> => {
    clock.advance(ms);
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
  };
  return { clock, store, sent, touched, undo, pass };
}

describe('A take whose answer was lost on the way from MongoDB', () => {
  it('is undone when it surely takes nothing more, and only what it has taken', async () => {
    const { clock, sent, touched, undo, pass } = stage();
    undo.add(QUEUE, 'claim', ['a', 'b']);
    await pass(4999);
    assert.deepEqual(sent, []);
    await pass(1);
    assert.deepEqual(sent, [{ ids: ['a', 'b'], op: 'claim' }]);
    assert.deepEqual(touched, ['q']);
    assert.equal(clock.pending, 0);
  });

  it('is undone when the store is back, and not after the server has deleted it', async () => {
    const { clock, store, sent, undo, pass } = stage();
    store.isUp = false;
    undo.add(QUEUE, 'soon', ['a']);
    for (let tries = 0; tries < 3; tries++) await pass(5000);
    assert.deepEqual(sent, []);
    store.isUp = true;
    await pass(5000);
    assert.deepEqual(sent, [{ ids: ['a'], op: 'soon' }]);
    store.isUp = false;
    undo.add(QUEUE, 'never', ['b']);
    for (let tries = 0; tries < 60; tries++) await pass(5000);
    assert.equal(sent.length, 1);
    assert.equal(clock.pending, 0);
  });

  it('is undone at once when the engine stops', async () => {
    const { clock, sent, undo } = stage();
    undo.add(QUEUE, 'claim', ['a']);
    await undo.stop();
    assert.equal(sent.length, 1);
    assert.equal(clock.pending, 0);
    undo.add(QUEUE, 'late', ['b']);
    assert.equal(clock.pending, 0);
  });
});
