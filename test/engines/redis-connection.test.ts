import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, it, type TestContext } from 'node:test';
import type { EngineOptions } from '../../src/engine/engine.ts';
import {
  CommandLost,
  RedisConnection,
  type Reply,
  ReplyError,
} from '../../src/engines/redis/client/connection.ts';
import { Executor } from '../../src/engines/redis/client/executor.ts';
import { Master, NotReplicated } from '../../src/engines/redis/client/master.ts';
import { slotOf, Topology } from '../../src/engines/redis/client/topology.ts';
import type { Library } from '../../src/engines/redis/library.ts';
import { readSettings, type Settings } from '../../src/engines/redis/settings.ts';
import { FakeClock, SuspendedClock } from '../support/clock.ts';
import { until } from '../support/until.ts';
import { passGently, turns } from './fake-time.ts';
import { redisEngine } from './redis.ts';

const LOGIN = { username: null, password: null, db: 0, tls: null };

/** A test whose reply never arrives fails. */
const TIMEOUT = { timeout: 120_000 };

describe('A connection to Redis', TIMEOUT, () => {
  /** A server whose replies the test writes. */
  let server: Server;
  let clock: SuspendedClock;
  let connection: RedisConnection;
  const sockets: Socket[] = [];
  const requests: string[] = [];
  const downs: string[] = [];
  let connects: number;

  beforeEach(async () => {
    for (const list of [sockets, requests, downs]) list.length = 0;
    connects = 0;
    server = createServer({ noDelay: true }, (socket) => {
      sockets.push(socket);
      socket.on('error', () => {});
      socket.on('data', (data) => {
        // The driver's first command sets the name of the connection.
        if (/setname/.test(`${data}`)) socket.write('+OK\r\n');
        else requests.push(`${data}`);
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    clock = new SuspendedClock();
    connection = new RedisConnection({
      clock,
      login: LOGIN,
      locate: async () => ({ host: '127.0.0.1', port: (server.address() as AddressInfo).port }),
      setUp: async () => void connects++,
      onDown: ({ message }) => downs.push(message),
    });
    await connection.ready;
  });

  afterEach(async () => {
    connection.close();
    for (const socket of sockets) socket.destroy();
    server.close();
    await once(server, 'close');
    assert.equal(clock.pending, 0);
  });

  const write = (reply: string): boolean | undefined => sockets.at(-1)?.write(reply);

  /** Advances the clock and lets due callbacks run. */
  const pass = async (ms: number): Promise<void> => {
    clock.advance(ms);
    await turns();
  };

  it('rejects commands in flight when it closes, and those sent while it is closed, and never sends them again', async () => {
    const lost = assert.rejects(connection.send('INCR', ['a']), (error) => isLost(error, true));
    await until(() => requests.length === 1);
    sockets.at(-1)?.destroy();
    await lost;
    await assert.rejects(connection.send('INCR', ['b']), (error) => isLost(error, false));
    await until(() => downs.length === 1);
    await pass(49);
    assert.equal(sockets.length, 1);
    clock.advance(1);
    await until(() => connects === 2);
    const reply = connection.send('INCR', ['c']);
    await until(() => requests.length === 2);
    write(':1\r\n');
    assert.equal(await reply, 1);
    assert.match(requests[1] ?? '', /^\*2\r\n\$4\r\nINCR\r\n\$1\r\nc\r\n$/);
  });

  it('is unhealthy when a reply is due for a second, and is closed after three', async () => {
    const lost = assert.rejects(connection.send('GET', ['a']), (error) => isLost(error, true));
    await pass(999);
    assert.ok(connection.isHealthy);
    await pass(1);
    assert.ok(!connection.isHealthy);
    await pass(2_000);
    assert.deepEqual(downs, []);
    await pass(500);
    await lost;
    await until(() => downs.length === 1);
    assert.deepEqual(downs, ['no answer in time']);
  });

  it('stays open while a long reply arrives', async () => {
    const reply = connection.send('GET', ['a']);
    await until(() => requests.length === 1);
    write('$10\r\n');
    for (let sent = 0; sent < 10; sent++) {
      clock.advance(1_100);
      assert.ok(!connection.isHealthy);
      write('x');
      await until(() => connection.isHealthy);
    }
    write('\r\n');
    assert.deepEqual(await reply, Buffer.from('xxxxxxxxxx'));
    assert.deepEqual(downs, []);
  });

  it('reads replies that arrived while this process was suspended before it judges the server silent', async () => {
    const reply = connection.send('GET', ['a']);
    await until(() => requests.length === 1);
    write('+late\r\n');
    clock.suspend();
    assert.equal(String(await reply), 'late');
    assert.deepEqual(downs, []);
  });

  it('does not put arguments of a command into its error', async () => {
    const failing = connection.send('SET', ['a', 'secret']);
    await until(() => requests.length === 1);
    write('-ERR no\r\n');
    await assert.rejects(failing, (error) => {
      assert.ok(error instanceof ReplyError);
      assert.ok(!JSON.stringify({ ...error, message: error.message, stack: error.stack }).includes('secret'));
      return error.message === 'ERR no';
    });
  });
});

/** Replies of a server to the commands that check a new connection. */
const CHECK: Readonly<Record<string, string>> = {
  client: '+OK\r\n',
  INFO: infoOf('online'),
  TIME: `*2\r\n${bulk('1767225600')}${bulk('0')}`,
  FUNCTION: '*1\r\n:1\r\n',
  CONFIG: '*0\r\n',
  FCALL: '*0\r\n',
};

const LIBRARY: Library = { name: 'test', source: '', commands: [] };

/** Returns a master's reply to INFO. @param replica state of its only replica; null: it has none */
function infoOf(replica: string | null, more = ''): string {
  const replicas = replica === null ? '0' : `1\r\nslave0:ip=127.0.0.1,port=1,state=${replica},offset=1,lag=0`;
  const checked = 'redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction';
  return bulk(`${checked}\r\nconnected_slaves:${replicas}${more}`);
}

describe('A Redis master with a replica', TIMEOUT, () => {
  interface Served {
    readonly clock: FakeClock;
    /** The server's reply to INFO. */
    info: string;
    /** The Sentinel setting of the URL. */
    readonly sentinel: Settings['sentinel'];
    /** The arguments of all calls of `onReplicas`. */
    readonly noticed: boolean[];
  }

  const served = (given: Partial<Served> = {}): Served => ({
    clock: new FakeClock(),
    info: infoOf('online'),
    sentinel: null,
    noticed: [],
    ...given,
  });

  /**
   * Connects a master to a server that passes commands to `onPacket`, except checks of new connections and heartbeats.
   */
  async function masterOn(
    t: TestContext,
    onPacket: (names: readonly string[], socket: Socket) => void,
    by = served(),
  ): Promise<Master> {
    const { clock, sentinel, noticed } = by;
    const server = createServer({ noDelay: true }, (socket) => {
      socket.on('error', () => {});
      socket.on('data', (data) => {
        const names = namesIn(data);
        const isCheck = names.every((name) => name in CHECK);
        if (isCheck) socket.write(names.map((name) => (name === 'INFO' ? by.info : CHECK[name])).join(''));
        else onPacket(names, socket);
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const settings = { login: LOGIN, wait: null, sentinel, givenTime: null } as unknown as Settings;
    const master = new Master({
      clock,
      library: LIBRARY,
      loadsLibrary: true,
      settings,
      server: 'master',
      locate: async () => ({ host: '127.0.0.1', port }),
      isSuccessor: false,
      serverTime: clock.now(),
      onReady: () => {},
      onDown: () => {},
      onReplicas: (_, areThere) => noticed.push(areThere),
      onAlone: () => {},
    });
    t.after(() => {
      master.stop();
      server.close();
    });
    await master.ready;
    return master;
  }

  it('is sent the commands of a turn in one packet, followed by one WAIT on which only writes depend', async (t) => {
    const packets: (readonly string[])[] = [];
    const master = await masterOn(t, (names, socket) => {
      packets.push(names);
      socket.write('+OK\r\n-ERR no\r\n+OK\r\n$1\r\n1\r\n:0\r\n:0\r\n');
    });
    const follower = { name: 'PUBLISH', args: ['c', 'm'] };
    const written = master.execute({ name: 'SET', args: ['a', '1'], writes: true });
    const failed = master.execute({ name: 'SET', args: ['b', '1'], writes: true });
    const read = master.execute({ name: 'GET', args: ['a'], writes: false, asking: true, follower });
    await Promise.all([
      assert.rejects(written, NotReplicated),
      assert.rejects(failed, new ReplyError('ERR no')),
      read.then((reply) => assert.deepEqual(reply, Buffer.from('1'))),
    ]);
    assert.deepEqual(packets, [['SET', 'SET', 'ASKING', 'GET', 'PUBLISH', 'WAIT']]);
  });

  /** Returns for each heartbeat whether a change sent after it has a `WAIT`. @param heartbeats the replies to INFO */
  async function waits(t: TestContext, by: Served, heartbeats: readonly string[]): Promise<boolean[]> {
    let isAwaited = false;
    const master = await masterOn(
      t,
      (names, socket) => {
        isAwaited ||= names.includes('WAIT');
        socket.write(names.map((name) => (name === 'WAIT' ? ':1\r\n' : '+OK\r\n')).join(''));
      },
      by,
    );
    const found: boolean[] = [];
    for (const info of heartbeats) {
      by.info = info;
      for (let ms = 0; ms < 2_000; ms += 500) {
        by.clock.advance(500);
        // Earlier commands on both connections have been replied to when these have.
        await Promise.all([1, 2].map(() => turns().then(() => master.execute(READ))));
      }
      isAwaited = false;
      await master.execute({ name: 'SET', args: ['a', '1'], writes: true });
      found.push(isAwaited);
    }
    return found;
  }
  const READ = { name: 'GET', args: ['a'], writes: false };
  const SENTINEL = { master: 'm', login: LOGIN };
  const GONE = infoOf(null);

  it('gets no WAIT after five heartbeats without the replica, and gets it again once the replica is online', async (t) => {
    const by = served();
    const heartbeats = [
      GONE,
      GONE,
      GONE,
      GONE,
      GONE,
      infoOf('wait_bgsave'),
      infoOf('send_bulk'),
      infoOf('online'),
    ];
    const found = await waits(t, by, heartbeats);
    assert.deepEqual(found, [true, true, true, true, false, false, false, true]);
    assert.deepEqual(by.noticed, [false, true]);
  });

  it('still gets WAIT if the replica is back before five heartbeats have passed', async (t) => {
    const by = served();
    const found = await waits(t, by, [GONE, GONE, GONE, GONE, infoOf('online'), GONE, GONE, GONE, GONE]);
    assert.ok(!found.includes(false));
    assert.deepEqual(by.noticed, []);
  });

  for (const [where, by] of [
    ['behind Sentinels', { sentinel: SENTINEL }],
    ['in a cluster', { info: infoOf('online', '\r\ncluster_enabled:1') }],
  ] as const) {
    it(`still gets WAIT if the replica is gone for long but the master is ${where}, as it may be cut off`, async (t) => {
      const found = await waits(t, served(by), Array<string>(20).fill(GONE));
      assert.ok(!found.includes(false));
    });
  }

  it('has one pending WAIT per connection, however many turns wait for a stalled replica', async (t) => {
    let waits = 0;
    // The server executes no command of a connection that waits for a replica: this many replies are due afterwards.
    const stalled = new Map<Socket, number>();
    let isStalled = true;
    const master = await masterOn(t, (names, socket) => {
      for (const name of names) {
        const due = stalled.get(socket);
        if (name === 'WAIT') waits++;
        if (due !== undefined) stalled.set(socket, due + 1);
        else if (name === 'SET') socket.write('+OK\r\n');
        else if (isStalled) stalled.set(socket, 0);
        else socket.write(':1\r\n');
      }
    });
    const write = (value: string) => master.execute({ name: 'SET', args: ['a', value], writes: true });
    const outcomes: Promise<unknown>[] = [];
    for (let i = 0; i < 20; i++) {
      outcomes.push(
        write(`${i}`).then(
          () => 'done',
          (error) => error,
        ),
      );
      await turns();
      await until(() => stalled.size > 0);
    }
    await until(() => [...stalled.values()].reduce((sum, due) => sum + due + 1, 0) >= 20);
    assert.equal(waits, stalled.size);
    isStalled = false;
    for (const [socket, due] of stalled) {
      stalled.delete(socket);
      socket.write(`:0\r\n${'+OK\r\n'.repeat(due)}`);
    }
    const failed = (await Promise.all(outcomes)).filter((outcome) => outcome !== 'done');
    assert.equal(failed.length, waits / 2);
    assert.ok(failed.every((error) => error instanceof NotReplicated));
    assert.deepEqual(await write('late'), Buffer.from('OK'));
  });
});

describe('A Redis cluster, discovered from its servers', TIMEOUT, () => {
  const HOST = '127.0.0.2';

  /**
   * Starts a server that replies to checks as a cluster node, and to the given commands as the test says. Returns its
   * port.
   */
  async function serve(t: TestContext, replies: Readonly<Record<string, () => string>>): Promise<number> {
    const known: Readonly<Record<string, () => string>> = { ASKING: () => '+OK\r\n', ...replies };
    const info = bulk('redis_version:7.0.15\r\nrole:master\r\ncluster_enabled:1');
    const server = createServer({ noDelay: true }, (socket) => {
      socket.on('error', () => {});
      socket.on('data', (data) => {
        for (const name of namesIn(data)) {
          socket.write(name === 'INFO' ? info : (known[name]?.() ?? CHECK[name] ?? '-ERR unknown\r\n'));
        }
      });
    });
    server.listen(0, HOST);
    await once(server, 'listening');
    t.after(() => server.close());
    return (server.address() as AddressInfo).port;
  }

  /** Returns a slot map without hosts: the first server has all slots but the last one, which the last server has. */
  function mapTo(...ports: number[]): string {
    const range = (from: number, to: number, port = 0): string =>
      `*3\r\n:${from}\r\n:${to}\r\n*2\r\n$-1\r\n:${port}\r\n`;
    return `*2\r\n${range(0, 16_382, ports[0])}${range(16_383, 16_383, ports.at(-1))}`;
  }

  /** Returns the reply to a `GET` through the cluster. */
  async function read(...ports: number[]): Promise<Reply> {
    const clock = new FakeClock();
    const url = `redis://${ports.map((port) => `${HOST}:${port}`).join(',')}`;
    const [topology, settings] = topologyOf(clock, url);
    await topology.start();
    const log = { info: () => {}, warn: () => {} };
    const executor = new Executor({ clock, log, settings, topology }, 'none');
    try {
      return await passGently(clock, executor.read('key', 'GET', ['key']));
    } finally {
      executor.stop();
      topology.stop();
    }
  }

  for (const redirection of ['MOVED', 'ASK']) {
    it(`is followed to the host of the redirecting server if ${redirection} names no host`, async (t) => {
      const there = await serve(t, { GET: () => bulk('found') });
      const here = await serve(t, {
        GET: () => `-${redirection} ${slotOf('key')} :${there}\r\n`,
        CLUSTER: () => mapTo(here),
      });
      assert.deepEqual(await read(here), Buffer.from('found'));
    });
  }

  it('is found although the first server in the URL is cut off from the others, which have replaced it', async (t) => {
    const cutOff: number = await serve(t, {
      GET: () => '-CLUSTERDOWN The cluster is down\r\n',
      CLUSTER: () => mapTo(cutOff, other),
    });
    const other: number = await serve(t, { GET: () => bulk('found'), CLUSTER: () => mapTo(other) });
    assert.deepEqual(await read(cutOff), Buffer.from('found'));
  });

  it('is found although the first server in the URL has left it', async (t) => {
    const left = await serve(t, { CLUSTER: () => '*0\r\n' });
    const here = await serve(t, { GET: () => bulk('found'), CLUSTER: () => mapTo(here) });
    assert.deepEqual(await read(left, here), Buffer.from('found'));
  });
});

function bulk(text: string): string {
  return `$${text.length}\r\n${text}\r\n`;
}

describe('Redis servers that accept connections and never reply', TIMEOUT, () => {
  /** Returns after how many seconds of the fake clock the promise that `run` returns is rejected because of silence. */
  async function silenceOf(
    t: TestContext,
    run: (clock: FakeClock, port: number) => Promise<unknown>,
  ): Promise<number> {
    const sockets = new Set<Socket>();
    const server = createServer((socket) => sockets.add(socket.on('error', () => {})));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => {
      for (const socket of sockets) socket.destroy();
      server.close();
    });
    const clock = new FakeClock();
    const outcome = run(clock, (server.address() as AddressInfo).port).then(String, String);
    let isSettled = false;
    void outcome.finally(() => {
      isSettled = true;
    });
    let passedMs = 0;
    await until(async () => {
      await turns();
      if (isSettled) return true;
      clock.advance(100);
      passedMs += 100;
      return false;
    });
    assert.match(await outcome, /no answer in time/);
    return passedMs / 1000;
  }

  it('delay a start by ten seconds if there is no other server to try', async (t) => {
    const only = await silenceOf(t, (clock, port) =>
      topologyOf(clock, `redis://127.0.0.1:${port}`)[0].start(),
    );
    assert.ok(only > 10 && only < 11, `${only} s`);
    const several = await silenceOf(t, (clock, port) =>
      topologyOf(clock, `redis://127.0.0.1:${port},127.0.0.1:${port}`)[0].start(),
    );
    assert.ok(several > 11 && several < 12.5, `${several} s`);
  });

  for (const [isSuccessor, from, to] of [
    [false, 10, 11],
    [true, 2, 3],
  ] as const) {
    it(`delay ${isSuccessor ? 'the use of another master by two' : 'the first connection to a master by ten'} seconds`, async (t) => {
      const seconds = await silenceOf(t, async (clock, port) => {
        const master = new Master({
          clock,
          library: LIBRARY,
          loadsLibrary: false,
          settings: { login: LOGIN, wait: null, givenTime: null } as unknown as Settings,
          server: 'master',
          locate: async () => ({ host: '127.0.0.1', port }),
          isSuccessor,
          serverTime: clock.now(),
          onReady: () => {},
          onDown: () => {},
          onReplicas: () => {},
          onAlone: () => {},
        });
        t.after(() => master.stop());
        await master.ready;
      });
      assert.ok(seconds > from && seconds < to, `${seconds} s`);
    });
  }
});

describe('A start of the Redis engine', TIMEOUT, () => {
  for (const [when, replies] of [
    ['while it looks for the server', 0],
    ['while it sets up its connections', 1],
  ] as const) {
    it(`fails if the engine is stopped ${when}`, async (t) => {
      let left: number = replies;
      const silent = Promise.withResolvers<void>();
      const sockets = new Set<Socket>();
      const server = createServer({ noDelay: true }, (socket) => {
        sockets.add(socket.on('error', () => {}));
        socket.on('data', (data) => {
          for (const name of namesIn(data)) {
            if (name === 'client') socket.write('+OK\r\n');
            else if (left-- > 0) socket.write(infoOf(null));
            else silent.resolve();
          }
        });
      });
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
      const clock = new FakeClock();
      const engine = redisEngine({
        url: `redis://127.0.0.1:${(server.address() as AddressInfo).port}`,
        clock: null,
        ownClock: clock,
        namespaces: [],
      });
      t.after(() => {
        for (const socket of sockets) socket.destroy();
        server.close();
      });
      const starting = assert.rejects(engine.start(), {
        message: 'The engine was stopped while it started.',
      });
      await silent.promise;
      await engine.stop();
      await starting;
      assert.equal(clock.pending, 0);
    });
  }
});

/** Returns the names of the commands in a packet. */
function namesIn(packet: Buffer): string[] {
  return [...`${packet}`.matchAll(/\*\d+\r\n\$\d+\r\n(\w+)/g)].map(([, name = '']) => name);
}

function isLost(error: unknown, sent: boolean): boolean {
  return error instanceof CommandLost && error.sent === sent;
}

function topologyOf(clock: FakeClock, url: string): [Topology, Settings] {
  const settings = readSettings({ url, settings: {} } as EngineOptions);
  const topology = new Topology({
    clock,
    settings,
    library: LIBRARY,
    loadsLibrary: false,
    onReady: () => {},
    onDown: () => {},
    onReplicas: () => {},
  });
  return [topology, settings];
}
