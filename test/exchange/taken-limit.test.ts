import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { sharedSandbox } from '../sandbox/elements.ts';
import { newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

const MiB = 2 ** 20;
const EXCHANGES = 40;
/** Two batches of each loop: one waits while the selectors of the other run. */
const ELEMENTS = 6;
/** What one user may have in progress, and again before the selectors; engine replies may bring a little more. */
const MAX_TAKEN = 64 + 16;
const SAME = { name: 'same', maySee: () => true, maySeeBodies: () => true };
/** A user may have ten of these in progress. */
const LARGE = Buffer.alloc(3 * MiB, 'x');
const FILLING = Array.from({ length: 16 }, (_, i) => `x${i}`);
const PER_FILLING = 3;

/** Namespace N, whose exchanges forward to R. That does not respond until `respond` is called. */
async function openNode(t: TestContext): Promise<{ node: ExchangeNode; respond: () => void }> {
  const [opened, remote] = [await openEngine('N'), await openEngine('R')];
  const held = Promise.withResolvers<void>();
  const engine = engineWith(remote.engine, (real) => ({
    insert: async (...args) => {
      await held.promise;
      return real.insert(...args);
    },
  }));
  const away = remote.namespaces.map(({ policy }) => ({ policy, engine }));
  const node = await new ExchangeNode([...opened.namespaces, ...away], opened.clock, sharedSandbox()).start();
  t.after(async () => {
    held.resolve();
    await node.stop();
    await opened.close();
    await remote.close();
  });
  return { node, respond: held.resolve };
}

/** Creates an exchange whose source has so many large elements. */
async function createWith(
  node: ExchangeNode,
  id: string,
  dst: string,
  count: number,
  consumer: Record<string, unknown> = { reserve: true },
): Promise<void> {
  await node.exchanges.create(id, declare(`N/of ${id}`, [dst], consumer), SAME);
  const source = node.broker.namespace('N').queue(`of ${id}`);
  await source.insert(Array.from({ length: count }, () => newElement({ body: LARGE })));
}

/** Whether all loops of an exchange wait for capacity: none waits for an element, and none has any. */
function isCrowded(node: ExchangeNode, exchange: string): boolean {
  const { pending_tids: idle, pending_acks: taken } = node.exchanges.record(exchange);
  return Object.keys({ ...idle, ...taken }).length === 0;
}

describe('Large elements that exchanges have taken', () => {
  it('are bounded for all exchanges of a node together, while small ones of the same user are forwarded', async (t) => {
    const { node, respond } = await openNode(t);
    const ids = Array.from({ length: EXCHANGES }, (_, i) => i);
    const queue = (i: number) => node.broker.namespace('N').queue(`large${i}`);
    const body = Buffer.alloc(MiB, 'x');
    for (const i of ids) {
      await node.exchanges.create(`x${i}`, declare(`N/large${i}`, ['R/out'], { reserve: true }), SAME);
      await queue(i).insert(Array.from({ length: ELEMENTS }, () => newElement({ body })));
    }
    const forwardSmall = async (user: string): Promise<void> => {
      const caller = { ...SAME, name: user };
      await node.exchanges.create(user, declare(`N/in ${user}`, [`N/of ${user}`]), caller);
      for (let turns = 0; turns < 50; turns += 1) {
        await node.insert('N', `in ${user}`, 'small');
        await node.pop('N', `of ${user}`);
      }
    };
    await forwardSmall('other');
    let reserved = 0;
    for (const i of ids) {
      const { totalSize, resvSize } = await queue(i).status(null);
      assert.equal(totalSize, ELEMENTS);
      reserved += resvSize;
    }
    assert.ok(reserved > 0);
    assert.ok(reserved <= MAX_TAKEN, `${reserved} MiB are taken`);
    await forwardSmall(SAME.name);
    respond();
    for (let n = 0; n < EXCHANGES * ELEMENTS; n += 1) assert.equal((await node.pop('R', 'out')).tries, 0);
    for (const i of ids) assert.equal((await queue(i).status(null)).totalSize, 0);
    assert.equal(await node.total('R', 'out'), 0);
  });

  it('do not wait for loops that have found their queues empty behind other loops of their exchanges', async (t) => {
    const { node, respond } = await openNode(t);
    for (const id of FILLING) await createWith(node, id, 'R/out', PER_FILLING);
    await until(() => FILLING.some((id) => isCrowded(node, id)));
    for (const id of ['a', 'b']) {
      await createWith(node, id, 'N/unused', 1, { parallel: 16 });
      await until(() => isCrowded(node, id));
      await node.pop('N', `of ${id}`);
    }
    respond();
    for (let n = 0; n < FILLING.length * PER_FILLING; n += 1) await node.pop('R', 'out');
    await createWith(node, 'c', 'N/forwarded', 3);
    assert.equal((await node.popMany('N', 'forwarded', 3)).length, 3);
  });

  it('are returned if their exchange is changed while it waits for capacity, and the changed one starts', async (t) => {
    const { node } = await openNode(t);
    const changed = async (id: string): Promise<void> => {
      const declaration = declare(`N/small ${id}`, [`N/from ${id}`]);
      await node.exchanges.change(id, { declaration, caller: SAME, versions: null }, () => {});
      await node.insert('N', `small ${id}`, 'small');
      await node.pop('N', `from ${id}`);
      assert.equal((await node.pop('N', `of ${id}`)).tries, 0);
    };
    const hasTaken = (id: string) => () => Object.keys(node.exchanges.record(id).pending_acks).length === 1;
    for (const id of FILLING.slice(0, 10)) {
      await createWith(node, id, 'R/out', 1);
      await until(hasTaken(id));
    }
    await createWith(node, 'behind', 'N/unused', 1);
    await until(hasTaken('behind'));
    await changed('behind');
    for (const id of FILLING.slice(10)) await createWith(node, id, 'R/out', PER_FILLING);
    await until(() => FILLING.some((id) => isCrowded(node, id)));
    await createWith(node, 'crowded', 'N/unused', 1);
    await until(() => isCrowded(node, 'crowded'));
    await changed('crowded');
  });
});
