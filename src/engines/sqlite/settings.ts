import { lstatSync, readlinkSync, realpathSync } from 'node:fs';
import { dirname, isAbsolute, join, resolve } from 'node:path';
import { Worker } from 'node:worker_threads';
import type { EngineOptions, NamespacePolicy } from '../../engine/engine.ts';
import { EngineSettings } from '../../engine/settings.ts';
import { type Clock, systemClock } from '../../util/clock.ts';
import { workerEntry } from '../../util/worker-entry.ts';
import type { FromWorker, ToWorker } from './protocol.ts';

/** The engine's settings, validated and with defaults (`docs/engines/sqlite.md`). */
export interface Settings {
  /** An absolute path, or ':memory:'. */
  readonly file: string;
  /** `full`: acknowledged calls are fsynced. `normal`: a power loss, but not kill -9, may undo the last ones. */
  readonly durability: 'full' | 'normal';
  /** Size of SQLite's page cache. */
  readonly cacheBytes: number;
  /** What to do at start if the write-ahead log is damaged before its end. */
  readonly damagedLog: 'refuse' | 'drop';
  /** Size of the file that reserves space next to the database for the case of a full disk; 0: none. */
  readonly ballastBytes: number;
  /** Inserts are rejected while the disk has less free space than this. */
  readonly minFreeBytes: number;
}

/** The worker's start parameters. */
export interface WorkerData extends Settings {
  readonly policies: readonly NamespacePolicy[];
  readonly dedupWindowMs: number;
  /** When the thread was started, by the main thread's `SteadyTime`. */
  readonly now: number;
}

/** Logs a warning on the main thread. */
export type Warn = (fields: object, message: string) => void;

/** The part of `Worker` that the client uses. */
interface StoreThread {
  postMessage(message: ToWorker, transfer?: ArrayBuffer[]): void;
  on(event: 'message', listener: (message: FromWorker) => void): unknown;
  on(event: 'error', listener: (error: Error) => void): unknown;
  on(event: 'exit', listener: () => void): unknown;
}

export type StartThread = (data: WorkerData) => StoreThread;

/**
 * Replaces the worker thread in tests, as the setting `testThread`, which the server never sets. It runs in the thread
 * of the test, or in one that fails on request.
 */
export class TestThread {
  readonly start: StartThread;
  /** The clock of deadlines. */
  readonly clock: Clock;

  constructor(start: StartThread, clock: Clock) {
    this.start = start;
    this.clock = clock;
  }
}

/** How the thread is started, and the clock of deadlines. */
export type ThreadSetup = Pick<TestThread, 'start' | 'clock'>;

/** Deadlines are by the system's clock, because calls wait for a real thread and disk. */
const WORKER_THREAD: ThreadSetup = {
  start: (workerData) =>
    new Worker(workerEntry('./worker/main.ts', import.meta.url), { workerData, name: 'quayside-sqlite' }),
  clock: systemClock,
};

export const MEMORY = ':memory:';

const MIB = 1024 * 1024;

const SETTING_NAMES = [
  'durability',
  'damagedLog',
  'cacheBytes',
  'ballastBytes',
  'minFreeBytes',
  'testThread',
] as const;

/** @throws Error naming the setting, for the composition root to report */
export function readSettings(options: EngineOptions): { settings: Settings; thread: ThreadSetup } {
  const given = new EngineSettings(options.url, SETTING_NAMES, options.settings);
  const testThread = given.value('testThread');
  const settings: Settings = {
    file: fileOf(options),
    durability: given.oneOf('durability', ['full', 'normal']) ?? 'full',
    damagedLog: given.oneOf('damagedLog', ['refuse', 'drop']) ?? 'refuse',
    cacheBytes: given.integer('cacheBytes', MIB) ?? 16 * MIB,
    ballastBytes: given.integer('ballastBytes') ?? 16 * MIB,
    minFreeBytes: given.integer('minFreeBytes') ?? 64 * MIB,
  };
  return { settings, thread: testThread instanceof TestThread ? testThread : WORKER_THREAD };
}

/** Ends the name of the file that reserves space next to a database. */
export const BALLAST = '.ballast';

/** The file of an engine URL: an absolute path, or `:memory:`. @throws Error if the URL names none */
export function fileOf({ url, dataDir }: Pick<EngineOptions, 'url' | 'dataDir'>): string {
  const path = url.replace(/^sqlite:/, '');
  if (path === '') throw new Error(`${url}: name a file, as in sqlite:N.db, or use sqlite::memory:`);
  if (path === MEMORY) return MEMORY;
  return targetOf(isAbsolute(path) ? path : join(dataDir, path));
}

/**
 * The file to which a symbolic link refers, also if it does not exist yet; any other path is returned as it is. SQLite
 * follows links, too: the log is next to the file, whose folder and free space matter.
 */
function targetOf(path: string): string {
  if (!isLink(path)) return path;
  try {
    return realpathSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    return resolve(dirname(path), readlinkSync(path));
  }
}

function isLink(path: string): boolean {
  try {
    return lstatSync(path).isSymbolicLink();
  } catch {
    return false;
  }
}
