import assert from 'node:assert/strict';
import { after, before, describe, it, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { eventually } from '../cluster/nodes.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { type RedisCluster, type RedisServer, startCluster, startRedis } from '../support/redis-servers.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { type FaultPlan, type FaultReport, runFault } from './fault-run.ts';
import { mastersAt, moveSlot, ownerOf, usedSlots } from './slots.ts';

/** `npm run test:faults` uses 5 rounds and 30 s. */
const ROUNDS = Number(process.env.FAULT_ROUNDS ?? 1);
const FROZEN_MS = Number(process.env.FAULT_FROZEN_MS ?? 2_000);
const DARK_MS = 1_000;
const LAST_SLOT = 16_383;

async function report(t: TestContext, plan: FaultPlan): Promise<FaultReport> {
  const found = await runFault(plan);
  t.diagnostic(found.summary);
  return found;
}

async function assertNothingLost(t: TestContext, plan: FaultPlan): Promise<void> {
  const { faults, summary, verdict, stories } = await report(t, plan);
  assert.deepEqual(faults, [], [summary, ...stories].join('\n'));
  assert.ok(verdict.counts.deliveries > 0);
}

describe('Two nodes on a Redis cluster', () => {
  let cluster: RedisCluster;

  before(async () => {
    cluster = await startCluster();
  });
  after(() => cluster.stop());

  /** Kills masters one after the other under load; each returns as a replica of its successor. */
  const killMasters: FaultPlan['fault'] = async (answered, outage) => {
    for (let round = 0; round < ROUNDS; round++) {
      const port = ownerOf(Math.round((LAST_SLOT * round) / ROUNDS), anyPort());
      const victim = cluster.servers.find((server) => server.port === port);
      assert.ok(victim);
      const others = cluster.servers.filter((server) => server !== victim);
      await outage(async () => {
        await victim.kill();
        await eventually(
          'another master took over',
          async () => mastersAt(others[0]?.port ?? 0).length === 3,
        );
      });
      await answered();
      await victim.restart();
      await eventually('the restarted server is a replica', async () =>
        cluster.servers.every(({ port: asked }) => mastersAt(asked).length === 3),
      );
      await answered();
    }
  };

  const anyPort = (): number => cluster.servers[0]?.port ?? 0;

  /** Moves each slot with keys to another master. */
  const moveSlots: FaultPlan['fault'] = async (answered) => {
    let moved = 0;
    for (let round = 0; round < ROUNDS; round++) {
      for (const from of mastersAt(anyPort())) {
        const to = mastersAt(anyPort()).find((port) => port !== from);
        for (const slot of usedSlots(from)) {
          moveSlot(slot, from, to ?? 0);
          moved++;
        }
        await answered();
      }
    }
    assert.ok(moved >= ROUNDS, `${moved} slots with keys were moved`);
  };

  it('lose nothing, with WAIT 1, when masters are killed and slots move with their keys', async (t) => {
    await assertNothingLost(t, { url: cluster.url, fault: inTurn(killMasters, moveSlots) });
  });

  it('report how much is lost without WAIT when a master is killed, and change or deliver early nothing', async (t) => {
    const { verdict } = await report(t, { url: `${cluster.url}?wait=0`, fault: killMasters });
    assert.ok(verdict.counts.deliveries > 0);
    assert.deepEqual(verdict.unexpected, []);
    assert.deepEqual(verdict.early, []);
  });
});

describe('Two nodes on one Redis server', () => {
  let server: RedisServer;

  before(async () => {
    server = await startRedis();
  });
  after(() => server.stop());

  it(`lose nothing when it is frozen for ${FROZEN_MS / 1000} s and the connections of one node silently drop packets`, async (t) => {
    await using proxy = await openProxy(server.port);
    const [url, secondUrl] = [server.url, `redis://127.0.0.1:${proxy.port}`];
    const frozen = freeze({ begin: () => server.freeze(), end: () => server.thaw() });
    await assertNothingLost(t, { url, secondUrl, fault: inTurn(frozen, proxy.cut) });
  });
});

describe('Two nodes on PostgreSQL', () => {
  let server: PostgresServer;

  before(async () => {
    server = await PostgresServer.start({ settings: { fsync: 'off' } });
  });
  after(() => server.stop('fast'));

  const stopAtOnce: FaultPlan['fault'] = async (answered, outage) => {
    for (let round = 0; round < ROUNDS; round++) {
      await outage(async () => {
        await server.stop('immediate');
        await server.start();
      });
      await answered();
    }
  };

  it(`lose nothing when it is stopped immediately and restarted, then frozen for ${FROZEN_MS / 1000} s, and the connections of one node silently drop packets`, async (t) => {
    await using proxy = await openProxy(server.port);
    const [url, secondUrl] = [server.url(), server.url({ port: proxy.port })];
    const frozen = freeze({
      begin: () => server.signalAll('SIGSTOP'),
      end: () => server.signalAll('SIGCONT'),
    });
    await assertNothingLost(t, { url, secondUrl, fault: inTurn(stopAtOnce, frozen, proxy.cut) });
  });
});

/** Runs several faults in one history, so that two nodes are started and drained only once. */
function inTurn(...faults: readonly FaultPlan['fault'][]): FaultPlan['fault'] {
  return async (answered, outage) => {
    for (const fault of faults) await fault(answered, outage);
  };
}

function freeze({ begin, end }: { begin(): void; end(): void }): FaultPlan['fault'] {
  return async (answered, outage) => {
    await outage(async () => {
      begin();
      await delay(FROZEN_MS);
      end();
    });
    await answered();
  };
}

/** A proxy for the second node, with a fault that drops the data of one direction, the other, and both. */
async function openProxy(port: number) {
  const proxy = await TcpProxy.start(port);
  const cut: FaultPlan['fault'] = async (answered, outage) => {
    for (let round = 0; round < ROUNDS; round++) {
      for (const state of ['deaf', 'mute', 'dark'] as const) {
        await outage(async () => {
          proxy.state = state;
          await delay(DARK_MS);
          proxy.state = 'open';
          proxy.reset();
        });
        await answered();
      }
    }
  };
  return { port: proxy.port, cut, [Symbol.asyncDispose]: () => proxy.stop() };
}
