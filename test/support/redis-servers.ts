import { type ChildProcess, execFile, execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { needDebian } from './debian.ts';
import { freePort } from './free-port.ts';
import { spawnOwned } from './owned-process.ts';
import type { RedisCommand, RedisOutcome, RedisThreadData } from './redis-thread.ts';

/** A Redis server that a test started. */
export interface RedisServer {
  readonly port: number;
  readonly url: string;
  readonly isRunning: boolean;
  /** Freezes it: connections stay open, and nothing is replied. `thaw` lets it continue. */
  freeze(): void;
  thaw(): void;
  /** Kills it, as `kill -9` does. */
  kill(): Promise<void>;
  /** Starts it again with the same port and data. */
  restart(): Promise<void>;
  /** Stops it and removes its data. */
  stop(): Promise<void>;
}

/** Ways in which a server can be unavailable. */
export const AWAY = {
  frozen: { begin: async (server) => server.freeze(), end: async (server) => server.thaw() },
  killed: { begin: (server) => server.kill(), end: (server) => server.restart() },
} satisfies Record<string, Record<'begin' | 'end', (server: RedisServer) => Promise<void>>>;

export interface RedisCluster {
  /** Masters first. */
  readonly servers: readonly RedisServer[];
  readonly url: string;
  stop(): Promise<void>;
}

export interface RedisSentinel {
  readonly master: RedisServer;
  readonly replica: RedisServer;
  /** Contains the addresses of the Sentinels and the name of the master. */
  readonly url: string;
  /** Returns the port of the current master according to the Sentinels. */
  masterPort(): Promise<number>;
  stop(): Promise<void>;
}

const HOST = '127.0.0.1';
/** A program used instead of Redis in all suites: `npm run test:valkey` sets Valkey's. */
const PROGRAM = process.env.TEST_REDIS_SERVER ?? 'redis-server';
/** How long to wait for a reply: a busy machine may delay a server for seconds. */
const ANSWER_MS = 10_000;
const READY_MS = 60_000;
const MOST_TRIES = 3;

const run = promisify(execFile);

/** Servers that run now and must not outlive this process. Only processes that were started here are ever stopped. */
const running = new Set<OwnServer>();
process.on('exit', () => {
  for (const server of running) server.killNow();
});

/**
 * Starts a server on a free port, with its data in its own folder and an append-only file that is fsynced every second.
 */
export async function startRedis(...options: readonly string[]): Promise<RedisServer> {
  ensureInstalled();
  return startOn(async (port) => {
    return new OwnServer(port, ['--appendonly', 'yes', '--appendfsync', 'everysec', ...options]);
  });
}

/** Another process may take the port before the server uses it: then another port is tried. */
async function startOn(make: (port: number) => Promise<OwnServer>): Promise<OwnServer> {
  for (let tries = 1; ; tries++) {
    const server = await make(await freePort());
    try {
      await server.start();
      return server;
    } catch (error) {
      await server.stop();
      if (tries === MOST_TRIES) throw error;
    }
  }
}

/** Starts three masters with a replica each. Resolves when replicas acknowledge writes. */
export async function startCluster(...options: readonly string[]): Promise<RedisCluster> {
  ensureInstalled();
  const servers = await Promise.all(
    Array.from({ length: 6 }, () =>
      startOn(async (port) => {
        const cluster = ['--cluster-enabled', 'yes', '--cluster-node-timeout', '1500'];
        const bus = ['--cluster-port', String(await freePort()), '--repl-diskless-sync-delay', '0'];
        return new OwnServer(port, ['--appendonly', 'yes', ...cluster, ...bus, ...options]);
      }),
    ),
  );
  const addresses = servers.map(({ port }) => `${HOST}:${port}`);
  // Not `execFileSync`: this takes seconds, and this process must serve other things in that time.
  await run('redis-cli', ['--cluster', 'create', ...addresses, '--cluster-replicas', '1', '--cluster-yes']);
  await Promise.all(servers.map((server) => until(() => isInCluster(server), 'the cluster to be ready')));
  await Promise.all(servers.slice(0, 3).map(streams));
  return {
    servers,
    url: `redis://${addresses.slice(0, 3).join(',')}`,
    stop: async () => {
      await Promise.all(servers.map((server) => server.stop()));
    },
  };
}

/**
 * Starts a master with one replica, monitored by three Sentinels. @param downAfterMs how long a server must be silent
 * to be considered down
 */
export async function startSentinel(downAfterMs = 1_000): Promise<RedisSentinel> {
  ensureInstalled();
  const master = (await startRedis('--repl-diskless-sync-delay', '0')) as OwnServer;
  const replica = (await startRedis('--replicaof', HOST, String(master.port))) as OwnServer;
  await until(
    () => master.ask('INFO', 'replication').then((info) => info.includes('state=online')),
    'the replica',
  );
  await streams(master);
  const sentinels = await Promise.all(
    Array.from({ length: 3 }, () => startWatching(master.port, downAfterMs)),
  );
  const [first] = sentinels;
  if (first === undefined) throw new Error('there are three Sentinels');
  const askOthers = async (): Promise<boolean> =>
    (await Promise.all(sentinels.map((sentinel) => sentinel.ask('SENTINEL', 'CKQUORUM', 'watched')))).every(
      (answer) => answer.includes('OK 3 usable'),
    );
  await until(askOthers, 'the Sentinels to know each other');
  return {
    master,
    replica,
    url: `redis://${sentinels.map(({ port }) => `${HOST}:${port}`).join(',')}?sentinel=watched`,
    masterPort: async () => {
      const answer = await first.ask('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', 'watched');
      return Number(/\r\n(\d+)\r\n$/.exec(answer)?.[1]);
    },
    stop: async () => {
      await Promise.all([...sentinels, replica, master].map((server) => server.stop()));
    },
  };
}

async function startWatching(masterPort: number, downAfterMs: number): Promise<OwnServer> {
  const sentinel = await startOn(async (port) => new OwnServer(port, [], 'sentinel'));
  const ask = async (...command: string[]): Promise<void> => {
    const answer = await sentinel.ask(...command);
    if (!answer.startsWith('+OK')) throw new Error(`${command.join(' ')}: ${answer}`);
  };
  await ask('SENTINEL', 'MONITOR', 'watched', HOST, String(masterPort), '2');
  await ask('SENTINEL', 'SET', 'watched', 'down-after-milliseconds', String(downAfterMs));
  await ask('SENTINEL', 'SET', 'watched', 'failover-timeout', '3000');
  return sentinel;
}

export type RedisReply = string | number | null | readonly RedisReply[];

interface RedisThread {
  readonly replied: Int32Array;
  readonly port: MessagePort;
}

let redisThread: RedisThread | null = null;

function startRedisThread(): RedisThread {
  const replied = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT));
  const { port1, port2 } = new MessageChannel();
  const workerData: RedisThreadData = { replied, port: port2 };
  const file = new URL('./redis-thread.ts', import.meta.url);
  new Worker(file, { workerData, transferList: [port2], execArgv: [] }).unref();
  port1.unref();
  return { replied, port: port1 };
}

/**
 * Executes a Redis command on a connection of its own, and blocks this thread until the reply. Not by `redis-cli`:
 * copying the page tables of a test process for each command took a third of the processor time of the Redis suites.
 * @returns the reply, or the message of an error reply; undefined if the server closed the connection without a reply
 */
export function redisReply(serverPort: number, ...command: readonly string[]): RedisReply | undefined {
  redisThread ??= startRedisThread();
  const { replied, port } = redisThread;
  Atomics.store(replied, 0, 0);
  port.postMessage({ serverPort, command } satisfies RedisCommand);
  Atomics.wait(replied, 0, 0);
  const { message: outcome } = receiveMessageOnPort(port) as { message: RedisOutcome };
  if ('error' in outcome) throw outcome.error;
  return outcome.reply;
}

/** Like {@link redisReply}, but returns the reply as `redis-cli` prints it into a pipe. */
export function redisCli(serverPort: number, ...command: readonly string[]): string {
  const reply = redisReply(serverPort, ...command);
  return reply === undefined ? '' : `${printed(reply)}\n`;
}

function printed(reply: RedisReply): string {
  if (typeof reply !== 'object') return String(reply);
  return reply === null ? '' : reply.map(printed).join('\n');
}

class OwnServer implements RedisServer {
  readonly port: number;
  readonly #folder = mkdtempSync(join(tmpdir(), 'quayside-redis-'));
  readonly #args: readonly string[];
  #process: { readonly child: ChildProcess; readonly ended: Promise<void> } | null = null;

  constructor(port: number, options: readonly string[], kind: 'redis' | 'sentinel' = 'redis') {
    this.port = port;
    const common = ['--port', String(port), '--bind', HOST, '--dir', this.#folder, '--logfile', 'log'];
    this.#args =
      kind === 'sentinel'
        ? [this.#sentinelFile(), '--sentinel', ...common]
        : [...common, ...SMALL, ...options];
  }

  get url(): string {
    return `redis://${HOST}:${this.port}`;
  }

  async start(): Promise<void> {
    const child = spawnOwned(PROGRAM, this.#args, { stdio: 'ignore' });
    const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
    // The process of a test may end while the server runs.
    child.unref();
    this.#process = { child, ended };
    running.add(this);
    const failed = ended.then(() => {
      throw new Error(`Redis on port ${this.port} ended at once`);
    });
    failed.catch(() => {});
    await Promise.race([until(() => this.#isUp(child.pid), `Redis on port ${this.port}`), failed]);
  }

  /** Whether the server that was started here replies, and not another one on the same port. */
  async #isUp(pid: number | undefined): Promise<boolean> {
    if ((await this.ask('PING')).includes('LOADING')) return false;
    const info = await this.ask('INFO', 'server');
    // A server with a password does not report its process id.
    return info.includes(`process_id:${pid}\r`) || info.includes('NOAUTH');
  }

  get isRunning(): boolean {
    return running.has(this);
  }

  freeze(): void {
    this.#signal('SIGSTOP');
  }

  thaw(): void {
    this.#signal('SIGCONT');
  }

  async kill(): Promise<void> {
    this.#process?.child.ref();
    this.#signal('SIGKILL');
    if (running.has(this)) await this.#process?.ended;
    running.delete(this);
  }

  restart(): Promise<void> {
    return this.start();
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  killNow(): void {
    this.#signal('SIGKILL');
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** Sends one inline command, and returns the raw reply. */
  ask(...command: readonly string[]): Promise<string> {
    return new Promise((resolve, reject) => {
      const socket = connect(this.port, HOST);
      let answer = '';
      socket.setEncoding('utf8');
      socket.setTimeout(ANSWER_MS, () => socket.destroy(new Error('no answer')));
      socket.once('connect', () => socket.end(`${command.join(' ')}\r\n`));
      socket.on('data', (data: string) => {
        answer += data;
      });
      socket.once('error', reject);
      socket.once('close', () => resolve(answer));
    });
  }

  #signal(signal: NodeJS.Signals): void {
    if (running.has(this)) this.#process?.child.kill(signal);
  }

  /** Sentinel writes to its configuration, so it needs a file. */
  #sentinelFile(): string {
    const file = join(this.#folder, 'sentinel.conf');
    execFileSync('touch', [file]);
    return file;
  }
}

/** No automatic snapshots: a fork during a test only costs time. */
const SMALL = ['--save', '', '--maxmemory-policy', 'noeviction', '--enable-debug-command', 'yes'];

async function isInCluster(server: OwnServer): Promise<boolean> {
  const [info, replication, persistence] = await Promise.all([
    server.ask('CLUSTER', 'INFO'),
    server.ask('INFO', 'replication'),
    server.ask('INFO', 'persistence'),
  ]);
  // A replica that has just been synchronized rewrites its append-only file, and acknowledges late until that is done.
  const calm = /aof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0/.test(persistence);
  const whole = info.includes('cluster_state:ok') && info.includes('cluster_slots_ok:16384');
  const linked = replication.includes('state=online') || replication.includes('master_link_status:up');
  return whole && linked && calm;
}

/**
 * Resolves when the replica receives writes: an online replica gets none before its first acknowledgement, up to a
 * second later.
 */
async function streams(master: OwnServer): Promise<void> {
  await master.ask('FUNCTION', 'FLUSH');
  await until(async () => {
    const info = await master.ask('INFO', 'replication');
    const [, sent] = /master_repl_offset:([1-9]\d*)/.exec(info) ?? [];
    return sent !== undefined && info.includes(`state=online,offset=${sent},`);
  }, 'a replica to acknowledge');
}

async function until(holds: () => Promise<boolean>, what: string): Promise<void> {
  const end = performance.now() + READY_MS;
  while (!(await holds().catch(() => false))) {
    if (performance.now() > end) throw new Error(`waited ${READY_MS} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

let installed = false;

/** @throws Error if the package is missing and cannot be installed */
function ensureInstalled(): void {
  if (installed) return;
  needDebian('redis-server', 'redis-tools');
  installed = true;
}
