import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { sharedSandbox } from '../sandbox/elements.ts';
import { newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

const MiB = 2 ** 20;
const EXCHANGES = 40;
/** Two batches of each loop: one waits while the selectors of the other run. */
const ELEMENTS = 6;
/** What one user may have in progress, and again before the selectors; engine replies may bring a little more. */
const MAX_TAKEN = 64 + 16;
const SAME = { name: 'same', maySee: () => true, maySeeBodies: () => true };

describe('Large elements that exchanges have taken', () => {
  it('are bounded for all exchanges of a node together, while small ones of the same user are forwarded', async (t) => {
    const [opened, remote] = [await openEngine('N'), await openEngine('R')];
    const held = Promise.withResolvers<void>();
    // The engine of the large elements' destination does not respond.
    const engine = engineWith(remote.engine, (real) => ({
      insert: async (...args) => {
        await held.promise;
        return real.insert(...args);
      },
    }));
    const away = remote.namespaces.map(({ policy }) => ({ policy, engine }));
    const node = await new ExchangeNode(
      [...opened.namespaces, ...away],
      opened.clock,
      sharedSandbox(),
    ).start();
    t.after(async () => {
      held.resolve();
      await node.stop();
      await opened.close();
      await remote.close();
    });
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
    held.resolve();
    for (let n = 0; n < EXCHANGES * ELEMENTS; n += 1) assert.equal((await node.pop('R', 'out')).tries, 0);
    for (const i of ids) assert.equal((await queue(i).status(null)).totalSize, 0);
    assert.equal(await node.total('R', 'out'), 0);
  });
});
