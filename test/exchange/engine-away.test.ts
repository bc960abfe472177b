import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Definitions } from '../../src/engine/definitions.ts';
import { toStored, toValue } from '../../src/exchange/declaration.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

type Opened = Awaited<ReturnType<typeof openEngine>>;
type Verb = 'get' | 'list' | 'put' | 'delete';

/** Calls of one method, held between the engine's reply and the node. */
interface Held {
  /** Resolves when a call is held. */
  readonly called: Promise<void>;
  count(): number;
  /** Completes the held calls with the engine's replies or with an error; later calls are not held. */
  release(fault?: Error): void;
}

describe('exchanges of two engines, one of which is unavailable', () => {
  const sandbox = sharedSandbox();
  let here: Opened;
  let there: Opened;
  let node: ExchangeNode;
  let made = 0;
  let near = '';
  let far = '';

  before(async () => {
    await sandbox.start();
    there = await openEngine('far');
    here = await openEngine('N');
    // The unavailable engine is called first.
    node = await new ExchangeNode([...there.namespaces, ...here.namespaces], here.clock, sandbox).start();
  });

  beforeEach(async () => {
    made += 1;
    [near, far] = [`near${made}`, `far${made}`];
    await node.exchanges.create(near, declare(`N/${near}`, [`N/${near}-to`]));
    await node.exchanges.create(far, declare(`far/${far}`, [`far/${far}-to`]));
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await here.close();
    await there.close();
  });

  const has = (id: string): boolean => node.exchanges.visible().some(([known]) => known === id);
  const away = new QuaysideError('storage-unavailable', 'planted');

  it('are created, stopped, started and deleted on the other engine', async () => {
    const gets = hold(there.engine.definitions, 'get');
    const stuck = node.exchanges.stopExchange(far);
    await gets.called;
    await node.exchanges.create(`${near}-2`, declare(`N/${near}`, [`N/${near}-to`]));
    await node.exchanges.stopExchange(near);
    assert.equal(node.exchanges.record(near).stopped, true);
    await node.exchanges.startExchange(near);
    assert.equal(node.exchanges.record(near).stopped, false);
    await node.exchanges.delete(near);
    assert.equal(has(near), false);
    gets.release(away);
    await assert.rejects(stuck, { code: 'storage-unavailable' });
  });

  it('are changed in the order of requests', async () => {
    const gets = hold(there.engine.definitions, 'get');
    const changes = [
      node.exchanges.stopExchange(far),
      node.exchanges.startExchange(far),
      node.exchanges.stopExchange(far),
      node.exchanges.delete(far),
      node.exchanges.create(far, declare(`far/${far}`, [`far/${far}-new`])),
    ];
    await gets.called;
    assert.equal(gets.count(), 1);
    gets.release();
    await Promise.all(changes);
    assert.equal(node.exchanges.record(far).dst[0]?.q, `${far}-new`);
    assert.equal(node.exchanges.record(far).stopped, null);
  });

  it('are reloaded from both engines concurrently, and from one even if the other fails', async () => {
    const lists = [hold(there.engine.definitions, 'list'), hold(here.engine.definitions, 'list')];
    const reloaded = node.exchanges.reload();
    await Promise.all(lists.map(({ called }) => called));
    lists[0]?.release(away);
    lists[1]?.release();
    await assert.rejects(reloaded, { code: 'storage-unavailable' });
    assert.deepEqual([has(near), has(far)], [true, true]);

    const failing = hold(there.engine.definitions, 'list');
    const list = here.engine.definitions.list.bind(here.engine.definitions);
    here.engine.definitions.list = async (kind) => (await list(kind)).filter(({ key }) => key !== near);
    try {
      const again = node.exchanges.reload();
      await failing.called;
      failing.release(away);
      await assert.rejects(again, { code: 'storage-unavailable' });
    } finally {
      here.engine.definitions.list = list;
    }
    assert.deepEqual([has(near), has(far)], [false, true]);
  });

  it('are reloaded without waiting for a pending change', async () => {
    const puts = hold(there.engine.definitions, 'put');
    const stuck = node.exchanges.stopExchange(far);
    await puts.called;
    await node.exchanges.reload();
    puts.release();
    await stuck;
    assert.equal(node.exchanges.record(far).stopped, true);
  });

  it('are deleted wherever they are stored, even if they do not run here; an error reports an unavailable engine', async () => {
    const { definitions } = here.engine;
    const declaration = declare(`absent/${near}`, [`N/${near}-to`]);
    await definitions.put(
      'exchange',
      `${near}-no`,
      toValue({ declaration, owner: '', stopped: null, lastError: null }),
      null,
    );
    for (const [id, refusal] of [
      [`${near}-no`, null],
      [`${near}-none`, { code: 'storage-unavailable' }],
    ] as const) {
      const gets = hold(there.engine.definitions, 'get');
      const deleted = node.exchanges.delete(id);
      // If this node knows the engine with the definition, it does not ask the others.
      if (refusal !== null) await gets.called;
      gets.release(away);
      await (refusal === null ? deleted : assert.rejects(deleted, refusal));
      assert.equal(await definitions.get('exchange', id), null);
    }
  });

  it('are reloaded only from engines with the requested namespaces', async () => {
    const lists = hold(there.engine.definitions, 'list');
    await node.exchanges.reload((namespace) => namespace === 'N');
    assert.equal(lists.count(), 0);
    assert.deepEqual([has(near), has(far)], [true, true]);
    lists.release();
  });

  it('are not reverted by a listing that is older than a change', async () => {
    await node.exchanges.create(`${far}-gone`, declare(`far/${far}`, [`far/${far}-to`]));
    const lists = hold(there.engine.definitions, 'list');
    const reloaded = node.exchanges.reload();
    await lists.called;
    await node.exchanges.stopExchange(far);
    await node.exchanges.delete(`${far}-gone`);
    await node.exchanges.create(`${far}-new`, declare(`far/${far}`, [`far/${far}-to`]));
    lists.release();
    await reloaded;
    assert.equal(node.exchanges.record(far).stopped, true);
    assert.deepEqual([has(`${far}-gone`), has(`${far}-new`)], [false, true]);
  });

  it('are read again if reading another node’s change failed at first', async () => {
    const { definitions } = there.engine;
    const [stored] = (await definitions.list('exchange')).filter(({ key }) => key === far);
    assert.ok(stored !== undefined);
    const gets = hold(definitions, 'get', 1);
    const stopped = toValue({ ...toStored(stored.value), stopped: true });
    await definitions.put('exchange', far, stopped, stored.version);
    await gets.called;
    gets.release(away);
    await turn();
    assert.equal(node.exchanges.record(far).stopped, null);
    await here.passTime(1_000);
    await until(() => node.exchanges.record(far).stopped === true);
  });

  it('are not reverted by a definition that was read before a change', async () => {
    const { definitions } = there.engine;
    const gets = hold(definitions, 'get', 1);
    const stored = (await definitions.list('exchange')).find(({ key }) => key === far);
    assert.ok(stored !== undefined);
    // Another node stops the exchange. This node's read of that is in flight when a client starts it again.
    const stopped = toValue({ ...toStored(stored.value), stopped: true });
    await definitions.put('exchange', far, stopped, stored.version);
    await gets.called;
    await node.exchanges.startExchange(far);
    gets.release();
    for (let turns = 0; turns < 20; turns += 1) {
      await turn();
      assert.equal(node.exchanges.record(far).stopped, false);
    }
  });
});

/** Holds calls of a method: all, or the first `most` ones. */
function hold(definitions: Definitions, verb: Verb, maxHeld = Number.POSITIVE_INFINITY): Held {
  const target = definitions as unknown as Record<Verb, (...args: unknown[]) => Promise<unknown>>;
  const real = target[verb];
  const { promise: released, resolve: release } = Promise.withResolvers<Error | undefined>();
  const { promise: called, resolve: call } = Promise.withResolvers<void>();
  let count = 0;
  target[verb] = async (...args) => {
    const answer = await real.apply(definitions, args);
    count += 1;
    if (count > maxHeld) return answer;
    call();
    const fault = await released;
    if (fault !== undefined) throw fault;
    return answer;
  };
  return {
    called,
    count: () => count,
    release: (fault) => {
      target[verb] = real;
      release(fault);
    },
  };
}
