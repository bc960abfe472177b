import { randomBytes } from 'node:crypto';
import type { JsonValue } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/redis/index.ts';
import { GivenTime } from '../../src/engines/redis/settings.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';
import type { EventLog } from '../../src/util/log.ts';
import type { DurableTestEngine, EngineUnderTest, OpenTestEngine, TestEngine } from '../engines.ts';
import { FakeClock, patient } from '../support/clock.ts';
import { type RedisSentinel, type RedisServer, startRedis } from '../support/redis-servers.ts';
import {
  RUN_SERVERS,
  startSharedCluster,
  startSharedSentinel,
  urlOfShared,
  withParameter,
} from '../support/run-servers.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';

const DAY_MS = 24 * 3600 * 1000;
const SILENT: EventLog = { info: () => {}, warn: () => {} };

export interface RedisSetUp extends OpenTestEngine {
  readonly url: string;
  /** The clock of the Redis functions; null: the server's own. */
  readonly clock: FakeClock | null;
  readonly prefix?: string;
  /** The clock of the engine's timeouts; default: one that is patient with a busy machine. */
  readonly ownClock?: Clock;
  readonly settings?: Readonly<Record<string, unknown>>;
  readonly log?: EventLog;
}

/** Matches a function call on a queue in the protocol, but not calls that register something beforehand. */
export const QUEUE_CALL = /FCALL\r\n\$\d+\r\nquayside_[0-9a-f]{16}(_full)?\r\n/;

/** Creates an engine, not started; under a new prefix unless one is given. */
export function redisEngine(setUp: RedisSetUp): Engine {
  const { url, clock, namespaces, dedupWindowMs, settings } = setUp;
  return open({
    url,
    dataDir: '',
    namespaces,
    clock: setUp.ownClock ?? patient(systemClock),
    dedupWindowMs: dedupWindowMs ?? DAY_MS,
    settings: {
      prefix: setUp.prefix ?? freshPrefix(),
      ...(clock === null ? {} : { givenTime: new GivenTime(() => clock.now()) }),
      ...settings,
    },
    log: setUp.log ?? SILENT,
  });
}

/**
 * Subscribes on one engine to signals of another. Resolves when the subscription works, which is a moment after it was
 * requested.
 */
export async function listening(
  subscriber: Engine,
  publisher: Engine,
  topic: string,
  listener: (message: JsonValue) => void,
): Promise<void> {
  const begun = Promise.withResolvers<void>();
  subscriber.signaller.subscribe(topic, (message) => {
    if (message === 'hello') begun.resolve();
    else listener(message);
  });
  const timer = setInterval(() => publisher.signaller.publish(topic, 'hello'), 5);
  await begun.promise;
  clearInterval(timer);
}

export function freshPrefix(): string {
  return `test-${randomBytes(6).toString('hex')}`;
}

async function openOn(
  url: string,
  options: OpenTestEngine,
  settings: Readonly<Record<string, unknown>> = {},
): Promise<TestEngine> {
  const clock = new FakeClock();
  const engine = redisEngine({ ...options, url, clock, settings });
  await engine.start();
  return {
    engine,
    clock,
    now: () => clock.now(),
    passTime: async (ms) => clock.advance(ms),
    close: () => engine.stop(),
  };
}

let own: Promise<RedisServer> | null = null;

/** One server shared by all tests of a process, also for tests that change or count something on the server. */
export function standalone(): Promise<RedisServer> {
  own ??= startRedis();
  return own;
}

export const sharedRedis = urlOfShared(RUN_SERVERS.redis, async () => (await standalone()).url);
const clusterUrl = urlOfShared(RUN_SERVERS.cluster, async () => (await startSharedCluster()).url);
export const sharedCluster = async (): Promise<string> => ignoringReplicas(await clusterUrl());
let sentinel: Promise<RedisSentinel> | null = null;

/** Shared by this process alone: only two processes of `npm test` use Sentinels, which poll without end. */
async function sharedSentinel(): Promise<string> {
  sentinel ??= startSharedSentinel();
  return ignoringReplicas((await sentinel).url);
}

/**
 * Adds `wait=0`: on a busy machine a replica may take longer than a write waits for it, which leaves the write's
 * outcome unknown. Suites that kill masters have their own servers and wait for replicas, and so does the contract in
 * `npm run test:long`.
 */
function ignoringReplicas(url: string): string {
  return process.env.CONTRACT === 'whole' ? url : withParameter(url, 'wait', '0');
}

export const REDIS: EngineUnderTest = {
  name: 'redis',
  type: 'redis',
  open: async (options) => openOn(await sharedRedis(), options),
  openDurable: (options) => openBehindProxy({ ...options, clock: new FakeClock(), prefix: freshPrefix() }),
};

/** Not in the list of engines, since its queues support less by design. */
export const REDIS_LIST: EngineUnderTest = {
  name: 'redis, lists',
  type: 'redis',
  open: async (options) => openOn(await sharedRedis(), options, { variant: 'list' }),
  openDurable: null,
};

type Durable = OpenTestEngine & { readonly clock: FakeClock; readonly prefix: string };

/**
 * An engine whose process can "die": from then on, the proxy forwards nothing, and another engine continues with the
 * data.
 */
async function openBehindProxy(options: Durable): Promise<DurableTestEngine> {
  const { clock } = options;
  const proxy = await TcpProxy.start(Number(new URL(await sharedRedis()).port));
  const engine = redisEngine({ ...options, url: `redis://127.0.0.1:${proxy.port}`, ownClock: systemClock });
  await engine.start();
  const end = async (): Promise<void> => {
    await engine.stop();
    await proxy.stop();
  };
  return {
    engine,
    clock,
    now: () => clock.now(),
    passTime: async (ms) => clock.advance(ms),
    close: end,
    // Housekeeping; see docs/internals/redis.md.
    lateSweepMs: 60_000,
    crash: async (moment, calls) => {
      const caught = proxy.catch(QUEUE_CALL, moment === 'before-commit' ? 'deaf' : 'mute');
      calls();
      await caught;
      proxy.state = 'dark';
      // Do not wait for the dead engine: it rejects its calls in its own time.
      const buried = end();
      clock.advance(1);
      const next = await openBehindProxy(options);
      return { ...next, close: async () => void (await Promise.all([next.close(), buried])) };
    },
  };
}

export const REDIS_CLUSTER: EngineUnderTest = {
  name: 'redis, cluster with replicas',
  type: 'redis',
  open: async (options) => openOn(await sharedCluster(), options),
  openDurable: null,
};

export const REDIS_SENTINEL: EngineUnderTest = {
  name: 'redis, found by Sentinels',
  type: 'redis',
  open: async (options) => openOn(await sharedSentinel(), options),
  openDurable: null,
};
