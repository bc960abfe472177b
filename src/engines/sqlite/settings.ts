import { isAbsolute, join } from 'node:path';
import { Worker } from 'node:worker_threads';
import type { EngineOptions, NamespacePolicy } from '../../engine/engine.ts';
import { EngineSettings } from '../../engine/settings.ts';
import { type Clock, systemClock } from '../../util/clock.ts';
import type { FromWorker, ToWorker } from './protocol.ts';

/** The engine's own settings, checked and with their defaults (`docs/engines/sqlite.md`). */
export interface Settings {
  /** An absolute path, or ':memory:'. */
  readonly file: string;
  /** `full`: an answer means fsynced. `normal`: a power loss may take the last answers back, kill -9 not. */
  readonly durability: 'full' | 'normal';
  /** SQLite's page cache. */
  readonly cacheBytes: number;
  /** Whether the whole file is checked at start; `auto`: if it is small. */
  readonly check: 'auto' | 'always' | 'never';
  /** What a start does if the write-ahead log is damaged before its end. */
  readonly damagedLog: 'refuse' | 'drop';
  /** Size of the file kept next to the database for the day when the disk is full; 0: none. */
  readonly ballastBytes: number;
  /** Inserts are refused while less than this is free on the disk. */
  readonly minFreeBytes: number;
}

/** What the worker is given at its start. */
export interface WorkerData extends Settings {
  readonly policies: readonly NamespacePolicy[];
  readonly dedupWindowMs: number;
  /** When the thread was started. */
  readonly now: number;
}

/** Logs on the main side. */
export type Warn = (fields: object, message: string) => void;

/** What serves a file. A `Worker` is one. */
interface StoreThread {
  postMessage(message: ToWorker, transfer?: ArrayBuffer[]): void;
  on(event: 'message', listener: (message: FromWorker) => void): unknown;
  on(event: 'error', listener: (error: Error) => void): unknown;
  on(event: 'exit', listener: () => void): unknown;
}

export type StartThread = (data: WorkerData) => StoreThread;

/**
 * What serves the file in place of the engine's own thread: given as the setting `testThread`, which the server never
 * sets. It runs in the thread of the test, or in one that fails where the test asks for it.
 */
export class TestThread {
  readonly start: StartThread;
  /** By which calls expire. */
  readonly clock: Clock;

  constructor(start: StartThread, clock: Clock) {
    this.start = start;
    this.clock = clock;
  }
}

/** How the store is served. */
interface Serving {
  readonly settings: Settings;
  /** By which calls expire: the system's, since it is a real thread, on a real disk, that they wait for. */
  readonly deadlineClock: Clock;
  readonly startThread: StartThread;
}

const startWorker: StartThread = (workerData) =>
  new Worker(workerModule(), { workerData, name: 'quayside-sqlite' });

/** Next to this module, as TypeScript in the repository and as JavaScript where the package is installed. */
function workerModule(): URL {
  return new URL(import.meta.url.endsWith('.ts') ? './worker/main.ts' : './worker/main.js', import.meta.url);
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
  'testThread',
] as const;

/** @throws Error naming the setting, for the composition root to report */
export function readSettings(options: EngineOptions): Serving {
  const given = new EngineSettings(options.url, NAMES, options.settings);
  const testThread = given.value('testThread');
  const { start, clock } =
    testThread instanceof TestThread ? testThread : { start: startWorker, clock: systemClock };
  const settings: Settings = {
    file: fileOf(options),
    durability: given.oneOf('durability', ['full', 'normal']) ?? 'full',
    check: given.oneOf('check', ['auto', 'always', 'never']) ?? 'auto',
    damagedLog: given.oneOf('damagedLog', ['refuse', 'drop']) ?? 'refuse',
    cacheBytes: given.whole('cacheBytes', MIB) ?? 16 * MIB,
    ballastBytes: given.whole('ballastBytes') ?? 16 * MIB,
    minFreeBytes: given.whole('minFreeBytes') ?? 64 * MIB,
  };
  return { settings, deadlineClock: clock, startThread: start };
}

/** The file that a URL names: an absolute path, or `:memory:`. @throws Error if it names none */
export function fileOf({ url, dataDir }: Pick<EngineOptions, 'url' | 'dataDir'>): string {
  const path = url.replace(/^sqlite:/, '');
  if (path === '') throw new Error(`${url}: name a file, as in sqlite:N.db, or use sqlite::memory:`);
  if (path === MEMORY) return MEMORY;
  return isAbsolute(path) ? path : join(dataDir, path);
}
