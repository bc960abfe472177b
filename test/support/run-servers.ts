/**
 * The servers that a whole test run shares: `npm test` names this file with `--test-global-setup`. A cluster takes
 * seconds to form, so starting one in each of forty processes took a quarter of a run. Suites that run for all engines
 * use these servers, each under its own prefix or schema. Tests that kill, freeze, configure or count on a server start
 * their own. Without this set-up, as in `node --test FILE`, each process starts what it needs.
 */
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { MEMORY_DISK } from './memory-disk.ts';
import { moveTemporaryFiles } from './memory-files.ts';
import { spawnOwned } from './owned-process.ts';
import { POSTGRES_TEMPLATE, PostgresServer } from './postgres-server.ts';
import {
  type RedisCluster,
  type RedisSentinel,
  type RedisServer,
  startCluster,
  startRedis,
  startSentinel,
} from './redis-servers.ts';
import type { Bundle } from './server-bundle.ts';
import { COMPILE_CACHE, RUN_PROGRAM } from './server-command.ts';

/** Environment variables that pass the addresses of the run's servers to its test processes. */
export const RUN_SERVERS = {
  redis: 'TEST_RUN_REDIS',
  cluster: 'TEST_RUN_REDIS_CLUSTER',
  postgres: 'TEST_RUN_POSTGRES',
} as const;

/**
 * How long a shared server must be silent to be replaced. Tests of failovers have their own servers; here, a busy
 * machine must not cause a failover, which leaves the outcome of calls unknown.
 */
const FAILOVER_AFTER_MS = 60_000;

export const startSharedRedis = (): Promise<RedisServer> => startRedis();
export const startSharedCluster = (): Promise<RedisCluster> =>
  startCluster('--cluster-node-timeout', `${FAILOVER_AFTER_MS}`);
export const startSharedSentinel = (): Promise<RedisSentinel> => startSentinel(FAILOVER_AFTER_MS);
/** Without fsync: the machine does not fail during a test, and a killed server loses nothing it wrote. */
export const startSharedPostgres = (): Promise<PostgresServer> =>
  PostgresServer.start({ settings: { fsync: 'off', max_connections: '400' } });

/**
 * Returns a function that returns the URL of the run's shared server, or else starts one for this process at the first
 * call.
 * @param variable one of {@link RUN_SERVERS}
 */
export function urlOfShared(variable: string, start: () => Promise<string>): () => Promise<string> {
  let url: Promise<string> | null = null;
  return () => {
    const given = process.env[variable];
    url ??= given === undefined ? start() : Promise.resolve(given);
    return url;
  };
}

/** Adds a parameter to the URL of an engine. It may name several addresses, so the standard `URL` cannot parse it. */
export function withParameter(url: string, name: string, value: string): string {
  return `${url}${url.includes('?') ? '&' : '?'}${name}=${value}`;
}

const stops: (() => unknown)[] = [];

/** Starts everything at once: Redis forms its cluster in seconds, in which Vite bundles the server. */
export async function globalSetup(): Promise<void> {
  moveTemporaryFiles(MEMORY_DISK);
  // Each test process loads the same few hundred files.
  process.env.NODE_COMPILE_CACHE = COMPILE_CACHE;
  const [redis, cluster, bundle, postgres] = await Promise.all([
    stopLater(startSharedRedis(), (server) => server.stop()),
    stopLater(startSharedCluster(), (servers) => servers.stop()),
    stopLater(bundled(), ({ folder }) => rmSync(folder, { recursive: true, force: true })),
    stopLater(startPostgres(), (server) => server.dispose()),
    compileModules(),
  ]);
  process.env[RUN_SERVERS.redis] = redis.url;
  process.env[RUN_SERVERS.cluster] = cluster.url;
  process.env[RUN_SERVERS.postgres] = postgres.url();
  const { warmBundle } = await import('./server-bundle.ts');
  await warmBundle(bundle, [
    'sqlite:N.db',
    withParameter(redis.url, 'prefix', 'warm:'),
    withParameter(postgres.url(), 'schema', 'warm'),
  ]);
  process.env[RUN_PROGRAM] = bundle.program;
}

export async function globalTeardown(): Promise<void> {
  await Promise.all(stops.splice(0).map((stop) => stop()));
}

async function stopLater<T>(starting: Promise<T>, stop: (started: T) => unknown): Promise<T> {
  const started = await starting;
  stops.push(() => stop(started));
  return started;
}

/**
 * Compiles the modules that most test processes load. The first eight start together, and would each take a second of
 * processor time for that: a process stores what it compiled when it ends. With other V8 flags than theirs, it would be
 * compiled again.
 */
async function compileModules(): Promise<void> {
  const flags = process.execArgv.filter((flag) => /^--(?!test|import)/.test(flag));
  const program = fileURLToPath(new URL('common-modules.ts', import.meta.url));
  const compiling = spawnOwned(process.execPath, [...flags, program], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const [code] = await once(compiling, 'exit');
  if (code !== 0) throw new Error(`${program} ended with ${code}`);
}

async function bundled(): Promise<Bundle> {
  await import('../../scripts/console.ts');
  // Imported only here, since it loads Vite.
  const { bundleServer } = await import('./server-bundle.ts');
  return bundleServer();
}

async function startPostgres(): Promise<PostgresServer> {
  const template = await PostgresServer.makeTemplate();
  stops.push(() => template.dispose());
  process.env[POSTGRES_TEMPLATE] = template.folder;
  return startSharedPostgres();
}
