import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { slotOf } from '../../src/engines/redis/client/topology.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import { ownerOf } from '../faults/slots.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { type RedisCluster, type RedisServer, redisCli, startCluster } from '../support/redis-servers.ts';
import { EXCHANGES, FailoverLoad, QUEUES } from './failover-load.ts';
import { eventually, Nodes } from './nodes.ts';

/** `npm run test:cluster:failover` uses ten. */
const FAILOVERS = Number(process.env.FAILOVERS ?? 2);
/** The service answers any engine call within 5 s; the rest is for the network and HTTP. */
const ANSWERED_MS = 5_500;
const LEASE_MS = 1_000;

describe(`Two nodes with exchanges in both directions on a Redis cluster, through ${FAILOVERS} failovers`, () => {
  const keys = new Keys('quayside');
  let cluster: RedisCluster;
  let nodes: Nodes;
  let load: FailoverLoad;

  before(async () => {
    cluster = await startCluster();
    nodes = await Nodes.start(cluster.url, 2, { deadLetter: { maxTries: 2, queue: QUEUES.dead } });
    for (const [id, declaration] of Object.entries(EXCHANGES)) {
      const body = JSON.stringify(declaration);
      assert.equal((await nodes.client(0).request('PUT', `/x/${id}`, { body })).status, 201);
    }
    load = new FailoverLoad(nodes);
    load.start();
    await answered(300);
  });

  after(async () => {
    await load?.stop();
    await nodes?.stop();
    await cluster?.stop();
  });

  const answered = async (more: number): Promise<void> => {
    const goal = load.answered + more;
    await eventually(`${more} more calls are answered`, async () => load.answered >= goal);
  };

  const masterOf = (queue: string): RedisServer => {
    const port = ownerOf(slotOf(keys.queue({ ns: 'N', name: queue }).hash), anyPort());
    return cluster.servers.find((server) => server.port === port) ?? assert.fail();
  };

  const anyPort = (): number => cluster.servers.find(({ isRunning }) => isRunning)?.port ?? assert.fail();

  it('use queues on different masters', () => {
    assert.notEqual(masterOf(QUEUES.here), masterOf(QUEUES.there));
  });

  it('answer every call in time, whichever master is killed', async (t) => {
    const victims = [QUEUES.here, QUEUES.there, QUEUES.done];
    for (let round = 0; round < FAILOVERS; round++) {
      const queue = victims[round % victims.length] ?? QUEUES.here;
      const victim = masterOf(queue);
      await victim.kill();
      await eventually('another master took over', async () => masterOf(queue) !== victim);
      await answered(200);
      await victim.restart();
      await eventually('the restarted server is a replica of the new master', async () =>
        redisCli(victim.port, 'INFO', 'replication').includes('master_link_status:up'),
      );
      await answered(200);
    }
    t.diagnostic(
      `answered=${load.answered} inserted=${load.inserted.size} longest=${Math.round(load.longestMs)} ms (${load.longest})`,
    );
    assert.deepEqual(load.unexpected, []);
    assert.ok(load.longestMs <= ANSWERED_MS, `${load.longest} took ${load.longestMs} ms`);
  });

  it('expire leases on every server afterwards', async () => {
    const queues = Array.from({ length: 6 }, (_, i) => `lease ${i}`);
    await Promise.all(
      queues.map(async (queue) => {
        assert.equal((await nodes.client(0).insert('N', queue, 'x')).status, 200);
        const held = await nodes.client(0).reserve('N', queue, { to: 0, lease: LEASE_MS });
        assert.equal(held.status, 200);
        const again = await nodes.client(1).reserve('N', queue, { to: 60_000, lease: 60_000 });
        assert.equal(headerOf(again, 'x-ks-id'), headerOf(held, 'x-ks-id'));
        assert.equal(headerOf(again, 'x-ks-tries'), '1');
        await nodes.client(1).commit('N', queue, headerOf(again, 'x-ks-id') ?? '');
      }),
    );
  });

  it('lose and duplicate nothing', async () => {
    await load.stopProducing();
    const isEmpty = async (queue: string): Promise<boolean> => {
      const { status, body } = await nodes.client(0).status('N', queue);
      return status === 200 && JSON.parse(body.toString()).totalSize === 0;
    };
    await eventually('every queue is empty and every insert was delivered', async () => {
      const empty = await Promise.all(Object.values(QUEUES).map(isEmpty));
      return empty.every(Boolean) && load.lost.length === 0;
    });
    await load.stop();
    assert.deepEqual(load.duplicated, []);
    for (const id of Object.keys(EXCHANGES)) {
      const record = jsonOf<{ stopped: boolean | null }>(await nodes.client(0).request('GET', `/x/${id}`));
      assert.notEqual(record.stopped, true);
    }
  });

  it('stop on SIGTERM', async () => {
    for (const at of [0, 1]) {
      const server = nodes.server(at);
      const exit = await server.stop();
      assert.deepEqual(exit, { code: 0, signal: null }, server.output.slice(-2_000));
      assert.doesNotMatch(server.output, /STALE/, 'no batch was overtaken by a later one');
    }
  });
});
