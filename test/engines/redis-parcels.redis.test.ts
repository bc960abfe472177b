import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement, newElements } from '../support/elements.ts';
import { freePort, type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { transfer } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { freshPrefix, redisEngine } from './redis.ts';
import { turns, until } from './redis-time.ts';

const SOURCE: QueueKey = { ns: 'plain', name: 'source' };
const TARGET: QueueKey = { ns: 'plain', name: 'target' };
const ACCEPT = /\r\naccept\r\n/;
const STRUCK = /\r\nstruck\r\n/;
const MINUTE = 60_000;

/** One master of a cluster, which is reached through a proxy: elements go between its queues as between servers. */
describe('A parcel between queues of a Redis cluster', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  let engine: Engine;
  /** The time that the library goes by. */
  let clock: FakeClock;
  let keys: Keys;

  const cli = (...args: string[]): string => redisCli('-p', String(server.port), ...args).trim();

  before(async () => {
    server = await startRedis('--cluster-enabled', 'yes', '--cluster-port', String(await freePort()));
    proxy = await TcpProxy.start(server.port);
    cli('CONFIG', 'SET', 'cluster-announce-port', String(proxy.port));
    cli('CLUSTER', 'ADDSLOTSRANGE', '0', '16383');
    await until(() => cli('CLUSTER', 'INFO').includes('cluster_state:ok'));
  });

  beforeEach(async () => {
    const prefix = freshPrefix();
    keys = new Keys(prefix);
    clock = new FakeClock();
    const url = `redis://127.0.0.1:${proxy.port}`;
    engine = redisEngine({ url, namespaces: [plain('plain')], clock, prefix });
    await engine.start();
  });

  afterEach(() => engine.stop());

  after(async () => {
    await proxy.stop();
    await server.stop();
  });

  async function move(): Promise<void> {
    await engine.storage.insert(SOURCE, newElements('moved'));
    const take = { group: '', count: 1, leaseMs: MINUTE };
    const [reserved] = (await engine.storage.take(SOURCE, take)).deliveries;
    const finish = { id: reserved?.id ?? '', group: '', token: null };
    const inserts = [{ queue: TARGET, element: newElement({ body: 'copy' }) }];
    assert.deepEqual(await transfer(engine.storage, [{ from: SOURCE, finish, inserts }]), ['done']);
  }

  /** Moves an element, and what this leaves to be done is done: calls of a queue follow each other. */
  async function moveToTheEnd(): Promise<void> {
    await move();
    await engine.storage.counts(SOURCE);
    await turns();
    await engine.storage.counts(TARGET);
  }

  const remembered = (): number => Number(cli('HLEN', keys.queue(TARGET).hash)) - ownFields();
  /** The queue's tag, its last number, and its elements. */
  const ownFields = (): number => 2 + Number(cli('HGET', keys.queue(TARGET).hash, 's'));

  it('is not taken in again when somebody brings it late, after its source has struck it out', async () => {
    const caught = proxy.catch(ACCEPT, 'deaf');
    const moving = move();
    const late = await caught;
    const struck = proxy.catch(STRUCK, 'mute');
    proxy.reset();
    await Promise.all([moving, struck]);
    proxy.reset();
    clock.advance(2 * MINUTE - 1);
    await engine.storage.sweep();
    const socket = connect(server.port, '127.0.0.1').end(late);
    await once(socket, 'data');
    assert.equal((await engine.storage.counts(TARGET)).ready, 1);
  });

  it('is forgotten two minutes after that, by whoever sweeps', async () => {
    await moveToTheEnd();
    assert.equal(remembered(), 1);
    for (let minute = 0; minute < 4; minute++) {
      await engine.storage.sweep();
      assert.equal(remembered(), minute < 2 ? 1 : 0, `${minute} minutes later`);
      clock.advance(MINUTE);
    }
  });

  it('is forgotten by then, too, where others follow and nobody sweeps', async () => {
    for (let minute = 0; minute < 5; minute++) {
      await moveToTheEnd();
      assert.equal(remembered(), Math.min(minute + 1, 2));
      clock.advance(MINUTE);
    }
  });
});
