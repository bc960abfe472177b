import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { QueueReading } from '../../src/broker/activity.ts';
import type { Broker } from '../../src/broker/broker.ts';
import type { Namespace } from '../../src/broker/namespace.ts';
import { type QueueFollower, QueueWatch } from '../../src/broker/queue-watch.ts';
import { unavailable } from '../../src/engine/calls.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';

class Follower implements QueueFollower {
  readonly seen = new Map<string, QueueReading>();
  readonly gone: string[] = [];
  filled = 0;
  rounds = 0;

  onQueue(_: Namespace, name: string, reading: QueueReading): void {
    this.seen.set(name, reading);
  }

  onGone(_: Namespace, name: string): void {
    this.gone.push(name);
  }

  onRound(_: Namespace, isFilled: boolean): void {
    if (isFilled) this.filled += 1;
    this.rounds += 1;
  }

  readyIn(name: string): number | undefined {
    return this.seen.get(name)?.counts.ready;
  }
}

describe('The watch of queues', () => {
  let opened: TestEngine;
  let broker: Broker;
  let other: Broker;
  let shared: Engine;
  let namespace: Namespace;
  let watch: QueueWatch;
  let counted: string[] = [];
  let isAway = false;
  /** Queues that cannot be read, while others of the same engine can. */
  let lost = new Set<string>();
  /** The queue names that the engine returns; null: the real ones. */
  let names: string[] | null = null;
  const follower = (): Follower => {
    const one = new Follower();
    watch.follow(one);
    return one;
  };

  beforeEach(async () => {
    counted = [];
    isAway = false;
    lost = new Set();
    names = null;
    const policy = plain('N');
    opened = await MEMORY_SQLITE.open({ namespaces: [policy] });
    shared = betweenProcesses(opened.engine);
    const engine = engineWith(shared, (real) => ({
      queues: async (ns) => names ?? real.queues(ns),
      counts: async (queue, group) => {
        counted.push(queue.name);
        if (isAway || lost.has(queue.name))
          throw unavailable('The engine is unavailable.', new Error('planted'));
        return real.counts(queue, group);
      },
    }));
    broker = brokerOn([{ policy, engine }], opened.clock);
    other = brokerOn([{ policy, engine: shared }], opened.clock, 2);
    await broker.start();
    await other.start();
    namespace = broker.namespace('N');
    watch = new QueueWatch(broker.namespaces());
    await watch.start();
  });

  afterEach(async () => {
    await watch.stop();
    await other.stop();
    await broker.stop();
    await opened.close();
  });

  const insert = (on: Broker, name: string): Promise<unknown> =>
    on
      .namespace('N')
      .queue(name)
      .insert([newElement({ body: 'a' })]);

  /** Advances the clock in small steps until `holds` returns true. Returns the time passed; throws after an hour. */
  async function passUntil(holds: () => boolean, stepMs = 100): Promise<number> {
    for (let ms = 0; ms < 3_600_000; ms += stepMs) {
      for (let i = 0; i < 20; i += 1) {
        if (holds()) return ms;
        await turn();
        await watch.idle();
      }
      await opened.passTime(stepMs);
    }
    throw new Error('The condition was not met within an hour.');
  }

  it('provides rates for a status even if nobody follows', async () => {
    await insert(broker, 'q');
    await passUntil(() => counted.filter((name) => name === 'q').length >= 3, 1_000);
    for (let i = 0; i < 59; i += 1) await insert(broker, 'q');
    const { rates, oldestReadyAge } = await namespace.visit('q').status(null);
    assert.ok(rates);
    assert.ok(Math.abs(rates['1m'].insert - 1) < 0.02, `${rates['1m'].insert} a second`);
    assert.ok((oldestReadyAge ?? 0) >= 10);
    const { size, insert: inserted } = namespace.visit('q').history();
    assert.ok((size.at(-1) ?? 0) >= 1);
    assert.ok((inserted.at(-1) ?? -1) >= 0);
  });

  it('takes no queue for a new one because it is paused, has options or gets an element while the node starts', async () => {
    const names = ['paused', 'leased', 'busy'];
    for (let i = 0; i < 180; i += 1) await insert(other, names[i % 3] ?? '');
    await other.namespace('N').queue('paused').pause();
    await other.namespace('N').queue('leased').storeOptions({ leaseMs: 1_000 });
    const engine = engineWith(shared, (real) => ({
      queues: async (ns) => {
        await insert(other, 'busy');
        await turn();
        return real.queues(ns);
      },
    }));
    const restarted = brokerOn([{ policy: plain('N'), engine }], opened.clock, 3);
    await restarted.start();
    const ownWatch = new QueueWatch(restarted.namespaces());
    await ownWatch.start();
    const { activity } = restarted.namespace('N');
    await passUntil(() => names.every((name) => (activity.last(name)?.totals.put ?? 0) >= 60));
    await ownWatch.stop();
    for (const name of names) {
      const { rates } = await restarted.namespace('N').visit(name).status(null);
      assert.equal(rates?.['1m'].insert, 0, name);
    }
    assert.equal(activity.sumHistory().insert.at(-1) ?? 0, 0);
    await restarted.stop();
  });

  it('reads each idle queue every ten seconds, and not in between', async () => {
    await insert(broker, 'q');
    await passUntil(() => counted.includes('q'));
    const before = counted.length;
    await passUntil(() => counted.length > before);
    assert.deepEqual(counted.slice(before), ['q']);
    const ms = await passUntil(() => counted.length > before + 1);
    assert.ok(ms >= 9_000, `${ms} ms between two reads`);
  });

  it('notifies a follower of every queue, then of changes made by this node without delay', async () => {
    for (const name of ['a', 'b']) await insert(other, name);
    await namespace.reload();
    const one = follower();
    await passUntil(() => one.filled === 1);
    assert.deepEqual([...one.seen.keys()].sort(), ['a', 'b']);
    await insert(broker, 'a');
    const ms = await passUntil(() => one.readyIn('a') === 2);
    assert.ok(ms <= 500, `${ms} ms until a change of this node was seen`);
  });

  it('reads a busy queue at most about twice a second', async () => {
    const one = follower();
    await passUntil(() => one.filled === 1);
    counted = [];
    const start = opened.clock.monotonic();
    while (opened.clock.monotonic() < start + 5_000) {
      await insert(broker, 'busy');
      await turn();
      await watch.idle();
      await opened.passTime(50);
    }
    const times = counted.filter((name) => name === 'busy').length;
    assert.ok(times >= 5 && times <= 12, `${times} reads in five seconds`);
  });

  it('sees within seconds what another node inserted or consumed', async () => {
    const one = follower();
    await insert(broker, 'q');
    await passUntil(() => one.readyIn('q') === 1);
    await insert(other, 'q');
    assert.ok((await passUntil(() => one.readyIn('q') === 2)) <= 600, 'a signal announced the insert');
    const queue = other.namespace('N').queue('q');
    const { storage } = other.namespace('N');
    await storage.take(queue.key, { group: '', count: 1, leaseMs: null });
    assert.ok((await passUntil(() => one.readyIn('q') === 1)) <= 5_000);
  });

  it('reads a queue when its next element becomes eligible', async () => {
    const one = follower();
    await passUntil(() => one.filled === 1);
    await namespace.queue('q').insert([newElement({ body: 'a', delayMs: 1_000 })]);
    await passUntil(() => one.seen.get('q')?.counts.scheduled === 1);
    assert.ok((await passUntil(() => one.readyIn('q') === 1)) <= 1_600);
  });

  it('continues when the engine recovers, and knows all queues even if it was unavailable at first', async () => {
    await insert(broker, 'q');
    isAway = true;
    const one = follower();
    await passUntil(() => one.filled === 1);
    assert.equal(one.seen.size, 0);
    isAway = false;
    await passUntil(() => one.readyIn('q') === 1);
  });

  for (const { some, isLost, count = 100, withinMs } of [
    { some: 'one queue', isLost: (i: number) => i === 0, withinMs: 200 },
    { some: 'every other one', isLost: (i: number) => i % 2 === 0, withinMs: 200 },
    { some: 'the first 40', isLost: (i: number) => i < 40, withinMs: 1_000 },
    { some: 'the first 400', isLost: (i: number) => i < 400, count: 410, withinMs: 10_000 },
  ]) {
    it(`reports all other queues while ${some} cannot be read, and these once they can be`, async () => {
      const all = Array.from({ length: count }, (_, i) => `q${i}`);
      const last = all.at(-1) ?? '';
      for (const name of all) await insert(broker, name);
      lost = new Set(all.filter((_, i) => isLost(i)));
      const readable = all.filter((name) => !lost.has(name)).sort();
      const one = follower();
      const { clock } = opened;
      const from = clock.monotonic();
      await passUntil(() => one.seen.size >= readable.length || clock.monotonic() > from + withinMs);
      assert.deepEqual([...one.seen.keys()].sort(), readable);
      await passUntil(() => one.filled === 1);
      for (const ready of [2, 3]) {
        await insert(broker, 'q0');
        await insert(broker, last);
        const ms = await passUntil(() => one.readyIn(last) === ready);
        assert.ok(ms <= 600, `${ms} ms until a change was seen`);
      }
      counted = [];
      const since = clock.monotonic();
      await passUntil(() => clock.monotonic() >= since + 30_000);
      const times = counted.filter((name) => name === 'q0').length;
      assert.ok(times >= 2 && times <= 7, `${times} failed reads within half a minute`);
      for (const left of [Math.floor(lost.size * 0.8), 0]) {
        lost = new Set([...lost].slice(0, left));
        const at = clock.monotonic();
        const expected = all.length - left;
        await passUntil(() => one.seen.size >= expected || clock.monotonic() > at + 15_000);
        assert.equal(one.seen.size, expected);
      }
      assert.equal(one.readyIn('q0'), 3);
    });
  }

  it('continues although its follower throws, even while the engine is unavailable', async () => {
    await insert(broker, 'gone');
    await passUntil(() => counted.includes('gone'));
    const called = new Set<keyof QueueFollower>();
    const failing = (name: keyof QueueFollower) => () => {
      called.add(name);
      throw new Error('planted');
    };
    isAway = true;
    watch.follow({
      onQueue: failing('onQueue'),
      onGone: failing('onGone'),
      onRound: failing('onRound'),
    });
    await passUntil(() => called.has('onRound'));
    isAway = false;
    names = [];
    await namespace.reload();
    await insert(broker, 'q');
    await passUntil(() => called.size === 3);
    counted = [];
    await insert(broker, 'q');
    await passUntil(() => counted.includes('q'));
  });

  it('reports a queue that this node or another one drops at once, although reading all others takes long', async () => {
    const read = (name: string) => passUntil(() => one.seen.has(name));
    const drop = (on: Broker, name: string) => on.namespace('N').drop({ ns: 'N', name });
    names = Array.from({ length: 1_000 }, (_, i) => `q${i}`);
    for (const name of ['own', 'foreign']) {
      await broker.namespace('N').storage.declare([{ ns: 'N', name }]);
      names.push(name);
    }
    await namespace.reload();
    const one = follower();
    await read('own');
    await read('foreign');
    await passUntil(() => one.filled === 1);
    assert.equal(await drop(broker, 'own'), true);
    assert.ok((await passUntil(() => one.gone.includes('own'))) <= 1_000);
    assert.equal(await drop(other, 'foreign'), true);
    assert.ok((await passUntil(() => one.gone.includes('foreign'))) <= 3_000);
    one.seen.clear();
    await passUntil(() => one.seen.size >= 500);
    assert.deepEqual(one.gone, ['own', 'foreign']);
    assert.ok(!one.seen.has('own') && !one.seen.has('foreign'), 'they do not come back');
  });

  it('reports queues that are gone, and stops when nobody follows any more', async () => {
    const one = follower();
    await insert(broker, 'q');
    await passUntil(() => one.readyIn('q') === 1);
    names = [];
    await namespace.reload();
    await passUntil(() => one.gone.length > 0);
    assert.deepEqual(one.gone, ['q']);
    watch.follow(null);
    const { rounds } = one;
    await insert(broker, 'q');
    await passUntil(() => counted.at(-1) === 'q' && !namespace.activity.hasChanged);
    assert.equal(one.rounds, rounds);
  });
});
