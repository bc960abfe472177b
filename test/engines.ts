import type { Engine, NamespacePolicy } from '../src/engine/engine.ts';
import type { Clock } from '../src/util/clock.ts';
import { POSTGRES } from './engines/postgres.ts';
import { REDIS, REDIS_CLUSTER, REDIS_SENTINEL } from './engines/redis.ts';
import { MEMORY_SQLITE, NORMAL_SQLITE, SQLITE } from './engines/sqlite.ts';

/** An engine that a test opened, with the means to move its time. */
export interface TestEngine {
  readonly engine: Engine;
  /** The clock for whatever a test builds on this engine; `passTime` moves it too. */
  readonly clock: Clock;
  /** The engine's idea of the time, ms since 1970. */
  now(): number;
  /** Returns when the engine's clock shows at least `ms` more. */
  passTime(ms: number): Promise<void>;
  /** Stops the engine, removes its data, and fails if the engine failed while it ran. */
  close(): Promise<void>;
}

/** At which moment of the next changing call the process is killed. */
export type CrashMoment = 'before-commit' | 'after-commit';

/** An engine whose data outlive the process that serves it. */
export interface DurableTestEngine extends TestEngine {
  /**
   * Runs `calls`, kills the process at that moment of their first round trip, and opens the data again. The
   * promises that `calls` made never resolve as done. This object is closed then; use the answered one.
   */
  crash(moment: CrashMoment, calls: () => void): Promise<DurableTestEngine>;
}

export interface OpenTestEngine {
  readonly namespaces: readonly NamespacePolicy[];
  /** A day where not given. */
  readonly dedupWindowMs?: number;
}

export interface EngineUnderTest {
  readonly name: string;
  /** The first half of a queue's type. */
  readonly type: string;
  open(options: OpenTestEngine): Promise<TestEngine>;
  /** Null where data do not outlive the process. */
  readonly openDurable: ((options: OpenTestEngine) => Promise<DurableTestEngine>) | null;
}

/** Every engine and mode. The only such list: a suite that should hold for all engines goes through it. */
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
 * For the contract of storage, hundreds of tests. The other modes, which differ in one setting or in how the server is
 * found, go through the model in any case; `npm run test:long` has every one.
 */
export const CONTRACT_ENGINES: readonly EngineUnderTest[] =
  process.env.CONTRACT === 'whole' ? ENGINES : [SQLITE, MEMORY_SQLITE, REDIS, REDIS_CLUSTER, POSTGRES];

/**
 * One mode of each engine, for suites of what stands on top of storage: the modes of an engine differ below its port,
 * and the model runs on every one.
 */
export const MAIN_ENGINES: readonly EngineUnderTest[] = [MEMORY_SQLITE, REDIS, POSTGRES];

/**
 * In addition a Redis cluster, for suites that change two queues in one call: in other slots that goes through the
 * outbox.
 */
export const MAIN_ENGINES_AND_CLUSTER: readonly EngineUnderTest[] = [...MAIN_ENGINES, REDIS_CLUSTER];
