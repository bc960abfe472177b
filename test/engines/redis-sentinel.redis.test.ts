import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { describe, it, type TestContext } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElement } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { type RedisServer, redisCli, startRedis, startSentinel } from '../support/redis-servers.ts';
import { until } from '../support/until.ts';
import { redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain')];
const QUEUE = { ns: 'plain', name: 'q' };
const POP = { group: '', count: 9, leaseMs: null };

describe('The Redis engine with Sentinel', () => {
  it('follows the master after a failover, and finds what was acknowledged before', async () => {
    const watched = await startSentinel();
    const engine = await startedEngine(watched.url);
    await inserted(engine, 'before');
    const { master, replica } = watched;
    // A machine that stalls for a second causes a failover by itself.
    const isFirst = (await watched.masterPort()) === master.port;
    const [old, successor] = isFirst ? [master, replica] : [replica, master];
    await old.kill();
    await inserted(engine, 'after');
    // The Sentinels notify one another, so this one may learn of the new master later than the engine.
    await until(async () => (await watched.masterPort().catch(() => 0)) === successor.port);
    assert.deepEqual(await popped(engine), ['before', 'after']);
    await engine.stop();
    await watched.stop();
  });

  it('follows a failover that an operator requested while the old master still serves', async () => {
    const watched = await startSentinel();
    const engine = await startedEngine(watched.url);
    await inserted(engine, 'before');
    const oldPort = await watched.masterPort();
    // The Sentinels make the old master a replica only after ten seconds; here, they never can.
    redisCli(oldPort, 'ACL', 'SETUSER', 'default', '-slaveof', '-replicaof');
    const { port: sentinelPort } = new URL(watched.url.replace(/,.*/, ''));
    redisCli(Number(sentinelPort), 'SENTINEL', 'FAILOVER', 'watched');
    await until(async () => (await watched.masterPort()) !== oldPort);
    await inserted(engine, 'after');
    assert.match(redisCli(oldPort, 'INFO', 'replication'), /role:master/);
    assert.deepEqual(await popped(engine), ['before', 'after']);
    await engine.stop();
    await watched.stop();
  });

  it('follows most Sentinels if the first one in the URL still names the old master', async (t) => {
    const { old, successor, sentinels, engine } = await watchedByStubs(t);
    for (const sentinel of sentinels.slice(1)) sentinel.masterPort = successor.port;
    await until(async () => {
      await inserted(engine, 'a');
      return redisCli(successor.port, 'DBSIZE').trim() !== '0';
    });
    await until(() => connectionsTo(old).length === 0);
    assert.deepEqual(await popped(engine), ['a']);
  });

  it('leaves the old master with all connections, also if one has connected to the new one before', async (t) => {
    const { old, successor, sentinels, engine } = await watchedByStubs(t);
    engine.signaller.subscribe('plain', () => {});
    await until(() => connectionsTo(old).length === 3 && connectionsTo(old).some(subscribes));
    for (const sentinel of sentinels) sentinel.masterPort = successor.port;
    const [one] = connectionsTo(old).filter((connection) => !subscribes(connection));
    redisCli(old.port, 'CLIENT', 'KILL', 'ID', /\bid=(\d+)/.exec(one ?? '')?.[1] ?? '');
    await until(() => connectionsTo(old).length === 0);
    await until(() => connectionsTo(successor).some(subscribes));
  });

  it('rejects a pop that no replica acknowledged with outcome-unknown, and returns its elements to the queue', async () => {
    const watched = await startSentinel();
    const engine = await startedEngine(watched.url);
    await inserted(engine, 'a', 'b');
    watched.replica.freeze();
    await assert.rejects(engine.storage.take(QUEUE, POP), { code: 'outcome-unknown' });
    watched.replica.thaw();
    assert.deepEqual(await popped(engine), ['a', 'b']);
    await engine.stop();
    await watched.stop();
  });

  it('does not start if the URL takes a Sentinel for a server, or a server for a Sentinel, and the error says which', async () => {
    const watched = await startSentinel();
    for (const [url, error] of [
      [watched.url.replace(/\?.*/, ''), /: it is a Sentinel; name its master with \?sentinel=NAME$/],
      [
        `${watched.master.url}?sentinel=watched`,
        /: it is not a Sentinel; leave out sentinel, or name the Sentinels$/,
      ],
      [
        `redis://127.0.0.1:${watched.replica.port},127.0.0.1:${watched.master.port}?sentinel=watched`,
        new RegExp(`: 127.0.0.1:${watched.master.port}: it is not a Sentinel; `),
      ],
    ] as const) {
      const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock });
      await assert.rejects(engine.start(), error);
    }
    await watched.stop();
  });

  it('does not start if the Sentinels do not know the master, which the error names', async () => {
    const watched = await startSentinel();
    const url = watched.url.replace('sentinel=watched', 'sentinel=mistyped');
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock });
    await assert.rejects(engine.start(), /knows no master "mistyped"/);
    await watched.stop();
  });
});

/** A server that replies to each Sentinel command with the address of a master. */
class StubSentinel {
  masterPort: number;
  readonly #server: Server;

  constructor(masterPort: number) {
    this.masterPort = masterPort;
    this.#server = createServer({ noDelay: true }, (socket) => {
      socket.on('error', () => {});
      socket.on('data', (data) => {
        for (const [, name] of `${data}`.matchAll(/\*\d+\r\n\$\d+\r\n(\w+)/g)) {
          const port = `${this.masterPort}`;
          const master = `*2\r\n$9\r\n127.0.0.1\r\n$${port.length}\r\n${port}\r\n`;
          socket.write(name === 'SENTINEL' ? master : '+OK\r\n');
        }
      });
    });
  }

  async start(): Promise<string> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.#server.close();
  }
}

/** An engine with a master, another server that may take over, and three Sentinels. */
async function watchedByStubs(t: TestContext): Promise<{
  old: RedisServer;
  successor: RedisServer;
  sentinels: readonly StubSentinel[];
  engine: Engine;
}> {
  const [old, successor] = await Promise.all([startRedis(), startRedis()]);
  const sentinels = Array.from({ length: 3 }, () => new StubSentinel(old.port));
  const addresses = await Promise.all(sentinels.map((sentinel) => sentinel.start()));
  const engine = redisEngine({
    url: `redis://${addresses.join(',')}?sentinel=watched`,
    namespaces: NAMESPACES,
    clock: null,
    ownClock: systemClock,
  });
  t.after(async () => {
    await engine.stop();
    for (const sentinel of sentinels) sentinel.stop();
    await Promise.all([old.stop(), successor.stop()]);
  });
  await engine.start();
  return { old, successor, sentinels, engine };
}

/** The connections of engines to a server, as `CLIENT LIST` describes them. */
function connectionsTo({ port }: RedisServer): string[] {
  return redisCli(port, 'CLIENT', 'LIST')
    .split('\n')
    .filter((line) => line.includes('name=quayside'));
}

function subscribes(connection: string): boolean {
  return !/\bsub=0\b.*\bssub=0\b/.test(connection);
}

async function startedEngine(url: string): Promise<Engine> {
  const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock });
  await engine.start();
  return engine;
}

/**
 * Inserts elements, and repeats the insert with the same dedup keys until it succeeds: a failover, or a replica on a
 * busy machine, may take longer than a call may.
 */
async function inserted({ storage }: Engine, ...bodies: readonly string[]): Promise<void> {
  const elements = bodies.map((body) => newElement({ body, dedupKey: body }));
  await until(async () => {
    const code = await codeOf(storage.insert(QUEUE, elements));
    assert.ok(['done', 'storage-unavailable', 'outcome-unknown'].includes(code), code);
    return code === 'done';
  });
}

/**
 * Pops until it gets elements, and returns their bodies. Elements of a pop with an unknown outcome return to the queue.
 */
async function popped({ storage }: Engine): Promise<string[]> {
  for (;;) {
    try {
      const { deliveries } = await storage.take(QUEUE, POP);
      if (deliveries.length > 0) return bodyTexts(deliveries);
    } catch (error) {
      assert.ok(error instanceof QuaysideError && error.code === 'outcome-unknown', String(error));
    }
  }
}
