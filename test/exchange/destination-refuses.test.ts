import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Storage } from '../../src/engine/storage.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { bodyText } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { nextDueAt } from '../support/settle.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, FILLS_ITS_MEMORY, header } from './node.ts';

const MAX_TRIES = 2;
/** More than would move the element to the dead-letter queue if they counted as tries. */
const REFUSALS = 2 * MAX_TRIES;
const REQUEUE_MS = 5_000;

describe('an element whose copy a destination rejects', () => {
  const sandbox = sharedSandbox();
  let here: TestEngine;
  let there: TestEngine;
  let node: ExchangeNode;
  let refusals = 0;

  const refusing = <T>(real: () => Promise<T>): Promise<T> => {
    if (refusals === 0) return real();
    refusals -= 1;
    return Promise.reject(new QuaysideError('storage-unavailable', 'planted'));
  };

  before(async () => {
    await sandbox.start();
    const policy = plain('N', { deadLetter: { maxTries: MAX_TRIES, queue: '__deadletter__' } });
    here = await MEMORY_SQLITE.open({ namespaces: [policy] });
    there = await MEMORY_SQLITE.open({ namespaces: [plain('far')] });
    const verbs = (real: Storage): Partial<Storage> => ({
      settle: (items) =>
        items[0]?.action.kind === 'finish' ? refusing(() => real.settle(items)) : real.settle(items),
    });
    const far = (real: Storage): Partial<Storage> => ({
      insert: (...args) => refusing(() => real.insert(...args)),
    });
    node = await new ExchangeNode(
      [
        { policy, engine: engineWith(here.engine, verbs) },
        { policy: plain('far'), engine: engineWith(there.engine, far) },
      ],
      here.clock,
      sandbox,
    ).start();
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await here.close();
    await there.close();
  });

  afterEach(async () => {
    for (const [id] of node.exchanges.visible()) await node.exchanges.delete(id);
    assert.equal(refusals, 0);
  });

  for (const to of ['far', 'N']) {
    it(`is retried every 5 s without counting a try or becoming a dead letter, in ${to}`, async () => {
      const src = `from-${to}`;
      await node.exchanges.create('x', declare(`N/${src}`, [`${to}/to`], { reserve: true }));
      await until(() => Object.keys(node.exchanges.record('x').pending_tids).length === 1);
      refusals = REFUSALS;
      const queue = node.broker.namespace('N').queue(src);
      await node.insert('N', src, 'patient');
      for (let refused = 1; refused <= REFUSALS; refused += 1) {
        await until(async () => (await node.broker.namespace('N').visit(src).status(null)).schedSize === 1);
        const due = await nextDueAt(here.engine.storage, queue.key, '');
        assert.equal(due, here.now() + REQUEUE_MS);
        const page = { group: '', states: ['scheduled'], bodies: true, after: null, limit: 1 } as const;
        const { deliveries } = await here.engine.storage.scan(queue.key, page);
        assert.equal(deliveries[0]?.tries, 0);
        const { put_back, dst } = node.exchanges.record('x').stats;
        assert.deepEqual([put_back, dst[0]?.failed], [refused, refused]);
        await passTime(
          src,
          () => node.exchanges.record('x').stats.put_back > refused || refused === REFUSALS,
        );
      }
      let isThere = false;
      const popped = node.pop(to, 'to').finally(() => {
        isThere = true;
      });
      await passTime(src, () => isThere);
      assert.equal(bodyText(await popped), 'patient');
      assert.equal(await node.total('N', '__deadletter__'), 0);
      assert.deepEqual(node.exchanges.record('x').stats.dst, [{ matched: 1, skipped: 0, failed: REFUSALS }]);
    });
  }

  it('becomes a dead letter if its selector exceeds a limit instead', async () => {
    const src = 'hopeless';
    await node.exchanges.create('x', declare(`N/${src}`, [['N/to', FILLS_ITS_MEMORY]]));
    await node.insert('N', src, 'poison');
    let isThere = false;
    const dead = node.pop('N', '__deadletter__').finally(() => {
      isThere = true;
    });
    await passTime(src, () => isThere);
    assert.equal(header(await dead, 'x-dl-tries'), String(MAX_TRIES));
    assert.equal(header(await dead, 'x-dl-reason'), 'the selector used too much memory');
    assert.equal(node.exchanges.record('x').stats.put_back, MAX_TRIES);
  });

  /**
   * Advances the clock only while nothing is reserved, so that no lease expires. After a failure the exchange pauses as
   * well, for up to 7.5 s.
   */
  async function passTime(src: string, isOver: () => boolean): Promise<void> {
    while (!isOver()) {
      const { resvSize } = await node.broker.namespace('N').visit(src).status(null);
      if (resvSize === 0) await here.passTime(500);
      await turn();
    }
  }
});
