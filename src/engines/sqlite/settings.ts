import { isAbsolute, join } from 'node:path';
import type { EngineOptions } from '../../engine/engine.ts';
import { EngineSettings } from '../../engine/settings.ts';
import { type Clock, systemClock } from '../../util/clock.ts';
import { Faults } from './fault-point.ts';
import { type StartThread, startWorker, TestThread } from './thread.ts';

export type Durability = 'full' | 'normal';
export type FileCheck = 'auto' | 'always' | 'never';
export type DamagedLog = 'refuse' | 'drop';

/** The engine's own settings, checked and with their defaults (`docs/engines/sqlite.md`). */
export interface Settings {
  /** An absolute path, or ':memory:'. */
  readonly file: string;
  /** `full`: an answer means fsynced. `normal`: a power loss may take the last answers back, kill -9 not. */
  readonly durability: Durability;
  /** SQLite's page cache. */
  readonly cacheBytes: number;
  /** Whether the whole file is checked at start; `auto`: if it is small. */
  readonly check: FileCheck;
  /** What a start does if the write-ahead log is damaged before its end. */
  readonly damagedLog: DamagedLog;
  /** Size of the file kept next to the database for the day when the disk is full; 0: none. */
  readonly ballastBytes: number;
  /** Inserts are refused while less than this is free on the disk. */
  readonly minFreeBytes: number;
  /** For tests: where to fail. Null in a server. */
  readonly faultMemory: SharedArrayBuffer | null;
  /** By which calls expire: the system's, since it is a real thread, on a real disk, that they wait for. */
  readonly deadlineClock: Clock;
  /** A thread of its own, but for tests that have it in theirs. */
  readonly startThread: StartThread;
}

export const MEMORY = ':memory:';

const MIB = 1024 * 1024;

const NAMES = [
  'durability',
  'check',
  'damagedLog',
  'cacheBytes',
  'ballastBytes',
  'minFreeBytes',
  'faults',
  'testThread',
] as const;

/** @throws Error naming the setting, for the composition root to report */
export function readSettings(options: EngineOptions): Settings {
  const given = new EngineSettings(options.url, NAMES, options.settings);
  const faults = given.value('faults');
  const testThread = given.value('testThread');
  const ofTest = [faults, testThread].find((each) => each instanceof Faults || each instanceof TestThread);
  return {
    file: fileOf(options),
    durability: given.oneOf('durability', ['full', 'normal']) ?? 'full',
    check: given.oneOf('check', ['auto', 'always', 'never']) ?? 'auto',
    damagedLog: given.oneOf('damagedLog', ['refuse', 'drop']) ?? 'refuse',
    cacheBytes: given.whole('cacheBytes', MIB) ?? 16 * MIB,
    ballastBytes: given.whole('ballastBytes') ?? 16 * MIB,
    minFreeBytes: given.whole('minFreeBytes') ?? 64 * MIB,
    faultMemory: faults instanceof Faults ? faults.memory : null,
    deadlineClock: ofTest?.clock ?? systemClock,
    startThread: testThread instanceof TestThread ? testThread.start : startWorker,
  };
}

/** The file that a URL names: an absolute path, or `:memory:`. @throws Error if it names none */
export function fileOf({ url, dataDir }: Pick<EngineOptions, 'url' | 'dataDir'>): string {
  const path = url.replace(/^sqlite:/, '');
  if (path === '') throw new Error(`${url}: name a file, as in sqlite:N.db, or use sqlite::memory:`);
  if (path === MEMORY) return MEMORY;
  return isAbsolute(path) ? path : join(dataDir, path);
}
