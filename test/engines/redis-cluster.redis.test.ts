import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { SLOTS, slotOf, Topology } from '../../src/engines/redis/client/topology.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { FakeClock, patient, skewed } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { type RedisCluster, type RedisServer, redisCli, startCluster } from '../support/redis-servers.ts';
import { commit, rollback, transfer } from '../support/settle.ts';
import { until } from '../support/until.ts';
import { passGently, passTo, settledOf, stopped, turns } from './fake-time.ts';
import { freshPrefix, redisEngine } from './redis.ts';
import { Traffic } from './traffic.ts';

const NAMESPACES = [plain('plain'), plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } })];
const POP = { group: '', count: 10, leaseMs: null };
const RESERVE = { group: '', count: 10, leaseMs: 60_000 };

const trafficQueue = (index: number): QueueKey => ({ ns: 'plain', name: `traffic ${index}` });
const TRAFFIC = Array.from({ length: 6 }, (_, index) => trafficQueue(index));

const slotOfQueue = (queue: QueueKey): number => slotOf(new Keys('any').queue(queue).hash);

async function assertNothingLost(traffic: Traffic): Promise<void> {
  const { lost, twice, changed } = await traffic.end();
  assert.deepEqual({ lost, twice, changed }, { lost: [], twice: [], changed: [] });
}

describe('The Redis engine on a cluster', () => {
  let cluster: RedisCluster;

  before(async () => {
    cluster = await startCluster();
  });

  after(() => cluster.stop());

  /** @param settings default: writes do not wait for a replica, which may take too long on a busy machine */
  const open = async (
    prefix = freshPrefix(),
    clock: FakeClock | null = null,
    ownClock = systemClock,
    settings: Readonly<Record<string, unknown>> = { wait: 0 },
  ): Promise<Engine> => {
    const engine = redisEngine({
      url: cluster.url,
      namespaces: NAMESPACES,
      clock,
      prefix,
      ownClock,
      settings,
    });
    await engine.start();
    return engine;
  };

  const cli = (port: number, ...args: string[]): string => redisCli(port, ...args).trim();

  /** Returns the master that has this slot now. */
  function ownerOf(slot: number): RedisServer {
    const owner = cluster.servers.find(({ port }) =>
      cli(port, 'CLUSTER', 'NODES')
        .split('\n')
        .some(
          (line) => line.includes('myself,master') && slotsIn(line).some(([a, b]) => slot >= a && slot <= b),
        ),
    );
    assert.ok(owner);
    return owner;
  }

  it('detects the cluster from the URL of one server, and uses all of its masters', async () => {
    const [first] = cluster.servers;
    const engine = redisEngine({ url: first?.url ?? '', namespaces: NAMESPACES, clock: null });
    await engine.start();
    const names = Array.from({ length: 20 }, (_, index) => `spread ${index}`);
    const queues = names.map((name): QueueKey => ({ ns: 'plain', name }));
    await Promise.all(queues.map((queue) => engine.storage.insert(queue, newElements(queue.name))));
    const taken = await Promise.all(queues.map((queue) => engine.storage.take(queue, POP)));
    assert.deepEqual(
      taken.flatMap(({ deliveries }) => bodyTexts(deliveries)),
      names,
    );
    assert.equal(
      new Set(queues.map((queue) => ownerOf(slotOf(new Keys('x').queue(queue).hash)).port)).size,
      3,
    );
    await engine.stop();
  });

  it('loses no element and delivers none twice when a master is killed, with WAIT 1', async () => {
    const engine = await open(freshPrefix(), null, systemClock, {});
    const traffic = new Traffic([engine.storage], TRAFFIC);
    await traffic.acknowledged(200);
    const victim = ownerOf(slotOfQueue(trafficQueue(0)));
    await victim.kill();
    await traffic.acknowledged(400);
    await victim.restart();
    await traffic.acknowledged(200);
    await assertNothingLost(traffic);
    await engine.stop();
  });

  it('loses no element and delivers none twice when a master freezes and resumes after a failover, with WAIT 1', async () => {
    const engine = await open(freshPrefix(), null, systemClock, {});
    const traffic = new Traffic([engine.storage], TRAFFIC);
    await traffic.acknowledged(200);
    const victim = ownerOf(slotOfQueue(trafficQueue(0)));
    const witness = cluster.servers.find((server) => server !== victim);
    victim.freeze();
    const isDeposed = (): boolean =>
      cli(witness?.port ?? 0, 'CLUSTER', 'NODES')
        .split('\n')
        .some((line) => line.includes(`:${victim.port}@`) && line.includes('master,fail '));
    while (!isDeposed()) await traffic.acknowledged(20);
    await traffic.acknowledged(400);
    victim.thaw();
    await traffic.acknowledged(400);
    await assertNothingLost(traffic);
    await engine.stop();
  });

  it('loses no element while slots and their keys move', async () => {
    const prefix = freshPrefix();
    const engine = await open(prefix, null, systemClock, {});
    const traffic = new Traffic([engine.storage], TRAFFIC.slice(0, 2));
    await traffic.acknowledged(100);
    for (const slot of TRAFFIC.slice(0, 2).map(slotOfQueue)) {
      await moveSlot(slot, () => traffic.acknowledged(50));
      await traffic.acknowledged(50);
    }
    await assertNothingLost(traffic);
    await engine.stop();
  });

  /**
   * Moves a slot to another master as an operator does. `between` runs while both masters have the slot, before and
   * after its keys move.
   */
  async function moveSlot(slot: number, between: (from: number, to: number) => Promise<void>): Promise<void> {
    const from = ownerOf(slot).port;
    const to = [0, 6000, 12_000].map((other) => ownerOf(other).port).find((port) => port !== from) ?? 0;
    const [fromId, toId] = [cli(from, 'CLUSTER', 'MYID'), cli(to, 'CLUSTER', 'MYID')];
    cli(to, 'CLUSTER', 'SETSLOT', String(slot), 'IMPORTING', fromId);
    cli(from, 'CLUSTER', 'SETSLOT', String(slot), 'MIGRATING', toId);
    await between(from, to);
    for (;;) {
      const [key] = cli(from, 'CLUSTER', 'GETKEYSINSLOT', String(slot), '1').split('\n');
      if (key === undefined || key === '') break;
      cli(from, 'MIGRATE', '127.0.0.1', String(to), key, '0', '5000');
    }
    await between(from, to);
    for (const port of [to, from]) cli(port, 'CLUSTER', 'SETSLOT', String(slot), 'NODE', toId);
  }

  it('inserts into lists and pops from them while their slots move', async () => {
    const prefix = freshPrefix();
    const engine = await open(prefix, null, systemClock, { wait: 0, variant: 'list' });
    const { storage } = engine;
    const queue: QueueKey = { ns: 'plain', name: 'moving list' };
    const insert = (...bodies: string[]) => storage.insert(queue, newElements(...bodies));
    const popped: string[] = [];
    const pop = async (count: number): Promise<void> => {
      popped.push(...bodyTexts((await storage.take(queue, { ...POP, count })).deliveries));
    };
    const slot = slotOf(new Keys(prefix).list(queue));
    await insert('a', 'b', 'c');
    let isFirst = true;
    await moveSlot(slot, async () => {
      // Each of these groups is one batch, which pops everything, looks for more, and inserts later elements.
      if (isFirst) await Promise.all([pop(1), pop(9), storage.counts(queue), insert('d', 'e')]);
      if (isFirst) await Promise.all([pop(1), pop(9), storage.counts(queue)]);
      isFirst = false;
      assert.equal((await storage.counts(queue)).ready, 0);
      await insert('f');
      await pop(9);
    });
    await insert('g');
    await moveSlot(slot, async () => {
      await insert('h');
      await pop(1);
    });
    await pop(9);
    assert.deepEqual(popped, ['a', 'b', 'c', 'd', 'e', 'f', 'f', 'g', 'h', 'h']);
    await engine.stop();
  });

  it('counts a try for a lease that expires while the slot of another queue moves', async () => {
    const [prefix, clock] = [freshPrefix(), new FakeClock()];
    // A node that was suspended assumes an outage, in which leases expire without a try; hence the patient clock.
    const engine = await open(prefix, clock, patient(systemClock));
    const [held, moving] = queuesTogether(new Keys(prefix));
    for (const queue of [held, moving]) await engine.storage.insert(queue, newElements('x'));
    await engine.storage.take(held, RESERVE);
    clock.advance(RESERVE.leaseMs + 1);
    const { hash } = new Keys(prefix).queue(moving);
    let inserting: Promise<unknown> | null = null;
    await moveSlot(slotOf(hash), async (from, to) => {
      if (inserting !== null) return;
      const tryAgainErrors = (): string => cli(from, 'INFO', 'errorstats');
      cli(from, 'CONFIG', 'RESETSTAT');
      // Only one of the queue's two keys: the server replies TRYAGAIN until the other one has followed.
      cli(from, 'MIGRATE', '127.0.0.1', String(to), hash, '0', '5000');
      inserting = engine.storage.insert(moving, newElements('y'));
      await until(() => /errorstat_TRYAGAIN:count=([2-9]|\d\d)/.test(tryAgainErrors()));
    });
    await inserting;
    const [again] = (await engine.storage.take(held, POP)).deliveries;
    assert.equal(again?.tries, 1);
    await engine.stop();
  });

  /** Returns two queues of different slots on one server. */
  function queuesTogether(keys: Keys): [QueueKey, QueueKey] {
    const slot = ({ ns, name }: QueueKey): number => slotOf(keys.queue({ ns, name }).hash);
    const first: QueueKey = { ns: 'plain', name: 'together' };
    for (let i = 0; ; i++) {
      const second: QueueKey = { ns: 'plain', name: `together ${i}` };
      if (slot(second) !== slot(first) && ownerOf(slot(second)) === ownerOf(slot(first)))
        return [first, second];
    }
  }

  it('receives signals after their channel has moved to another server', async () => {
    const prefix = freshPrefix();
    const [one, two] = [await open(prefix), await open(prefix)];
    let received = 0;
    const stop = two.signaller.subscribe('moving', () => received++);
    const publishing = setInterval(() => one.signaller.publish('moving', 'x'), 20);
    await until(() => received > 0);
    await moveSlot(slotOf(new Keys(prefix).signalChannel('moving')), async () => {});
    const before = received;
    await until(() => received > before + 5);
    clearInterval(publishing);
    stop();
    await Promise.all([one.stop(), two.stop()]);
  });

  it('moves an element to another server once, although that was paused, when another node sweeps', async () => {
    const prefix = freshPrefix();
    const clock = new FakeClock();
    const engine = await open(prefix, clock);
    const { from, to } = queuesApart(new Keys(prefix));
    await engine.storage.insert(from, newElements('moved'));
    await engine.storage.insert(to, newElements('before'));
    const [reserved] = (await engine.storage.take(from, RESERVE)).deliveries;
    const finish = { id: reserved?.id ?? '', group: '', token: null };
    const inserts = [{ queue: to, element: newElement({ body: 'copy' }) }];
    const target = ownerOf(slotOf(new Keys(prefix).queue(to).hash));
    cli(target.port, 'CLIENT', 'PAUSE', '30000', 'WRITE');
    // The finish was applied and cannot be undone, so the transfer is done; its copy is still in the outbox.
    assert.deepEqual(await transfer(engine.storage, [{ from, finish, inserts }]), ['done']);
    // Stopped before the server resumes, so its last request is not executed either.
    await engine.stop();
    cli(target.port, 'CLIENT', 'UNPAUSE');
    const other = await open(prefix, clock);
    clock.advance(61_000);
    await other.storage.sweep();
    await until(async () => (await other.storage.counts(to)).ready === 2);
    const { deliveries } = await other.storage.take(to, POP);
    assert.deepEqual(bodyTexts(deliveries), ['before', 'copy']);
    await other.stop();
  });

  it('expires leases on servers that reply while another does not, and there when it replies again', async () => {
    const clock = new FakeClock();
    const prefix = prefixOnThird(0);
    const engine = await open(prefix, clock);
    const { from: near, to: away } = queuesApart(new Keys(prefix));
    for (const queue of [near, away]) {
      await engine.storage.insert(queue, newElements('x'));
      await engine.storage.take(queue, RESERVE);
    }
    const silent = ownerOf(slotOf(new Keys(prefix).queue(away).hash));
    cli(silent.port, 'CLIENT', 'PAUSE', '30000', 'WRITE');
    clock.advance(60_000);
    const again = clock.now() + 5_000;
    assert.equal(await engine.storage.sweep(), again);
    assert.deepEqual(engine.storage.takeAffected(), [near]);
    cli(silent.port, 'CLIENT', 'UNPAUSE');
    clock.advance(5_000);
    assert.equal(await engine.storage.sweep(), null);
    assert.deepEqual(engine.storage.takeAffected(), [away]);
    await engine.stop();
  });

  it('replies to a ping while a master is frozen, but not while the cluster is down', async () => {
    const prefix = freshPrefix();
    const clock = new FakeClock();
    const engine = await open(prefix, null, clock);
    const frozen = ownerOf(slotOf(new Keys(prefix).due));
    frozen.freeze();
    const ping = codeOf(engine.ping());
    await passGently(clock, ping);
    frozen.thaw();
    assert.equal(await ping, 'done');
    assert.ok(clock.monotonic() < 800, `after ${clock.monotonic()} ms`);

    const slot = slotOf('no key');
    const owner = ownerOf(slot);
    const masters = cluster.servers.filter(({ port }) => cli(port, 'ROLE').startsWith('master'));
    for (const { port } of masters) cli(port, 'CLUSTER', 'DELSLOTS', String(slot));
    assert.equal(await passTo(clock, codeOf(engine.ping())), 'storage-unavailable');
    cli(owner.port, 'CLUSTER', 'ADDSLOTS', String(slot));
    await until(() => masters.every(({ port }) => cli(port, 'CLUSTER', 'INFO').includes('cluster_state:ok')));
    await stopped(engine, clock);
  });

  it('executes commits and inserts of the same batch although a silent server blocks a reserve', async () => {
    const prefix = prefixOnThird(0);
    const engine = await open(prefix);
    const { storage } = engine;
    const { to: queue } = queuesApart(new Keys(prefix));
    await storage.insert(queue, newElements('held', 'next'));
    const [held] = (await storage.take(queue, { ...RESERVE, count: 1 })).deliveries;
    const silent = ownerOf(slotOf(new Keys(prefix).due));
    cli(silent.port, 'CLIENT', 'PAUSE', '30000', 'WRITE');
    const reserving = codeOf(storage.take(queue, { ...RESERVE, leaseMs: 5_000 }));
    const committing = commit(storage, queue, [{ id: held?.id ?? '', group: '', token: null }]);
    const inserting = storage.insert(queue, newElements('last'));
    await inserting;
    assert.deepEqual(await committing, ['done']);
    assert.equal(await reserving, 'storage-unavailable');
    cli(silent.port, 'CLIENT', 'UNPAUSE');
    assert.deepEqual(bodyTexts((await storage.take(queue, POP)).deliveries), ['next', 'last']);
    await engine.stop();
  });

  it('answers an insert of an element that expires after two seconds, and a read in its batch immediately, although a silent server has the lists', async () => {
    const prefix = prefixOnThird(0);
    const ownClock = new FakeClock();
    const engine = await open(prefix, null, ownClock);
    const { storage } = engine;
    const { to: queue } = queuesApart(new Keys(prefix));
    await storage.insert(queue, newElements('before'));
    const silent = ownerOf(slotOf(new Keys(prefix).due));
    cli(silent.port, 'CLIENT', 'PAUSE', '30000', 'WRITE');
    const expiresAt = storage.now(queue) + 3_600_000;
    const inserting = storage.insert(queue, [newElement({ expiresAt })]);
    assert.equal((await storage.counts(queue)).ready, 2);
    assert.deepEqual(await settledOf([inserting]), [false]);
    ownClock.advance(2_000);
    await turns();
    assert.deepEqual(await settledOf([inserting]), [true]);
    cli(silent.port, 'CLIENT', 'UNPAUSE');
    await stopped(engine, ownClock);
  });

  it('uses the time of the other servers for a new master that has not replied yet', async (t) => {
    const prefix = freshPrefix();
    const engine = await open(prefix, null, skewed(systemClock, 3_600_000));
    const { storage } = engine;
    const queue: QueueKey = { ns: 'plain', name: 'expiring' };
    await storage.insert(queue, newElements('before'));
    const old = ownerOf(slotOf(new Keys(prefix).queue(queue).hash));
    const successor = replicaOf(old);
    const learning = t.mock.method(Topology.prototype, 'moved');
    cli(successor.port, 'CLUSTER', 'FAILOVER', 'TAKEOVER');
    await until(() => cli(old.port, 'ROLE').startsWith('slave'));
    successor.freeze();
    const during = storage.insert(queue, newElements('during'));
    await until(() => learning.mock.callCount() > 0);
    const now = storage.now(queue);
    const expiring = storage.insert(queue, [newElement({ body: 'expiring', expiresAt: now + 60_000 })]);
    successor.thaw();
    await Promise.all([during, expiring]);
    assert.ok(Math.abs(now - Date.now()) < 60_000, `${now}`);
    assert.deepEqual(bodyTexts((await storage.take(queue, POP)).deliveries), [
      'before',
      'during',
      'expiring',
    ]);
    await engine.stop();
  });

  function replicaOf(master: RedisServer): RedisServer {
    const id = cli(master.port, 'CLUSTER', 'MYID');
    const found = cluster.servers.find(({ port }) =>
      new RegExp(`myself,slave ${id}`).test(cli(port, 'CLUSTER', 'NODES')),
    );
    assert.ok(found);
    return found;
  }

  it('stores dead letters in a queue of another server before the rollback resolves', async () => {
    const engine = await open();
    for (const name of ['a', 'b', 'c', 'd']) {
      const queue = { ns: 'jobs', name };
      await engine.storage.insert(queue, newElements(name));
      const [reserved] = (await engine.storage.take(queue, RESERVE)).deliveries;
      const item = { id: reserved?.id ?? '', group: '', token: null, delayMs: 0, countTry: true };
      assert.deepEqual(await rollback(engine.storage, queue, [item]), ['dead-lettered']);
      assert.deepEqual(bodyTexts((await engine.storage.take({ ns: 'jobs', name: 'dead' }, POP)).deliveries), [
        name,
      ]);
    }
    await engine.stop();
  });

  it('delivers signals and changes of definitions to other nodes', async () => {
    const prefix = freshPrefix();
    const [one, two] = [await open(prefix), await open(prefix)];
    const received = Promise.withResolvers<unknown>();
    const stop = two.signaller.subscribe('topic', received.resolve);
    const changed = Promise.withResolvers<unknown>();
    const unwatch = two.definitions.watch(changed.resolve);
    const publishing = setInterval(() => one.signaller.publish('topic', { n: 1 }), 20);
    assert.deepEqual(await received.promise, { n: 1 });
    clearInterval(publishing);
    await one.definitions.put('exchange', 'x', 1, null);
    assert.deepEqual(await changed.promise, { kind: 'exchange', key: 'x' });
    stop();
    unwatch();
    await Promise.all([one.stop(), two.stop()]);
  });
});

/** Returns a prefix whose due lists are on the server that has this third of the slots. */
function prefixOnThird(third: number): string {
  for (;;) {
    const prefix = freshPrefix();
    const { due, tidy } = new Keys(prefix);
    if ([due, tidy].every((key) => Math.floor((3 * slotOf(key)) / SLOTS) === third)) return prefix;
  }
}

/** Returns two queues whose slots are so far apart that no server has both. */
function queuesApart(keys: Keys): { from: QueueKey; to: QueueKey } {
  const queues = Array.from(
    { length: 200 },
    (_, index): QueueKey => ({ ns: 'plain', name: `apart ${index}` }),
  );
  const from = queues.find((queue) => slotOf(keys.queue(queue).hash) < 4000);
  const to = queues.find((queue) => slotOf(keys.queue(queue).hash) > 12_500);
  assert.ok(from !== undefined && to !== undefined);
  return { from, to };
}

function slotsIn(line: string): [number, number][] {
  const ranges = line
    .split(' ')
    .slice(8)
    .filter((word) => /^\d/.test(word));
  return ranges.map((range) => {
    const [first = '', last = first] = range.split('-');
    return [Number(first), Number(last)];
  });
}
