import type { Engine, NamespacePolicy } from '../src/engine/engine.ts';
import type { Clock } from '../src/util/clock.ts';
import { POSTGRES } from './engines/postgres.ts';
import { REDIS, REDIS_CLUSTER, REDIS_SENTINEL } from './engines/redis.ts';
import { MEMORY_SQLITE, NORMAL_SQLITE, SQLITE } from './engines/sqlite.ts';

/** An engine opened for a test, whose clock the test can advance. */
export interface TestEngine {
  readonly engine: Engine;
  /** The clock for components that a test builds on this engine; `passTime` advances it, too. */
  readonly clock: Clock;
  /** The engine's current time, ms since 1970. */
  now(): number;
  /** Resolves when the engine's clock has advanced by at least `ms`. */
  passTime(ms: number): Promise<void>;
  /** Stops the engine and removes its data. Rejects if the engine reported a failure while it ran. */
  close(): Promise<void>;
}

/** When the process is killed during the next call that changes data. */
export type CrashMoment = 'before-commit' | 'after-commit';

/** An engine whose data survive its process. */
export interface DurableTestEngine extends TestEngine {
  /**
   * Runs `calls`, kills the process at that moment of their first round trip, and opens the data again. Promises made
   * by `calls` are never fulfilled. This object is closed then; use the returned one.
   */
  crash(moment: CrashMoment, calls: () => void): Promise<DurableTestEngine>;
  /**
   * After a crash, a sweep may find only this much later what is due because of elements that `calls` inserted: an
   * engine may register their sweep after their insert. 0: the next sweep finds it.
   */
  readonly lateSweepMs: number;
}

export interface OpenTestEngine {
  readonly namespaces: readonly NamespacePolicy[];
  /** Defaults to a day. */
  readonly dedupWindowMs?: number;
}

export interface EngineUnderTest {
  readonly name: string;
  /** The first part of a queue's type. */
  readonly type: string;
  open(options: OpenTestEngine): Promise<TestEngine>;
  /** Null if data do not survive the process. */
  readonly openDurable: ((options: OpenTestEngine) => Promise<DurableTestEngine>) | null;
}

/** All engines and modes. This is the only such list: suites that should hold for all engines iterate over it. */
export const ENGINES: readonly EngineUnderTest[] = [
  SQLITE,
  NORMAL_SQLITE,
  MEMORY_SQLITE,
  REDIS,
  REDIS_CLUSTER,
  REDIS_SENTINEL,
  POSTGRES,
];

/**
 * Engines for the storage contract, which has hundreds of tests. The other modes differ only in one setting or in how
 * the server is found, and are covered by the model-based test; `npm run test:long` runs the contract on all of them.
 */
export const CONTRACT_ENGINES: readonly EngineUnderTest[] =
  process.env.CONTRACT === 'whole' ? ENGINES : [SQLITE, MEMORY_SQLITE, REDIS, REDIS_CLUSTER, POSTGRES];

/**
 * One mode of each engine, for suites of layers above storage: the modes of an engine differ only below the storage
 * port, and the model-based test runs on all of them.
 */
export const MAIN_ENGINES: readonly EngineUnderTest[] = [MEMORY_SQLITE, REDIS, POSTGRES];

/** Adds a Redis cluster, for suites that change two queues in one call: queues in different slots use the outbox. */
export const MAIN_ENGINES_AND_CLUSTER: readonly EngineUnderTest[] = [...MAIN_ENGINES, REDIS_CLUSTER];
