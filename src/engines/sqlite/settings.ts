import { isAbsolute, join } from 'node:path';
import type { EngineOptions } from '../../engine/engine.ts';
import { Faults } from './fault-point.ts';

export type Durability = 'full' | 'normal';
export type FileCheck = 'auto' | 'always' | 'never';
export type DamagedLog = 'refuse' | 'drop';

/** The engine's own settings, checked and with their defaults (`docs/engines.md`, "SQLite"). */
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
  /** Size of the file kept beside the database for the day when the disk is full; 0: none. */
  readonly ballastBytes: number;
  /** Inserts are refused while less than this is free on the disk. */
  readonly minFreeBytes: number;
  /** For tests: where to fail. Null in a server. */
  readonly faultMemory: SharedArrayBuffer | null;
}

export const MEMORY = ':memory:';

const MIB = 1024 * 1024;

/** @throws Error naming the setting, for the composition root to report */
export function readSettings(options: EngineOptions): Settings {
  const {
    durability = 'full',
    check = 'auto',
    damagedLog = 'refuse',
    cacheBytes,
    ballastBytes,
    minFreeBytes,
    faults,
    ...rest
  } = options.settings;
  for (const name of Object.keys(rest)) throw new Error(`${options.url}: unknown setting "${name}"`);
  if (durability !== 'full' && durability !== 'normal') {
    throw new Error(`${options.url}: durability must be "full" or "normal"`);
  }
  if (check !== 'auto' && check !== 'always' && check !== 'never') {
    throw new Error(`${options.url}: check must be "auto", "always" or "never"`);
  }
  if (damagedLog !== 'refuse' && damagedLog !== 'drop') {
    throw new Error(`${options.url}: damagedLog must be "refuse" or "drop"`);
  }
  const bytes = (name: string, given: unknown, fallback: number, least: number): number => {
    if (given === undefined) return fallback;
    if (typeof given === 'number' && Number.isSafeInteger(given) && given >= least) return given;
    throw new Error(`${options.url}: ${name} must be a whole number of bytes from ${least}`);
  };
  return {
    file: fileOf(options),
    durability,
    check,
    damagedLog,
    cacheBytes: bytes('cacheBytes', cacheBytes, 16 * MIB, MIB),
    ballastBytes: bytes('ballastBytes', ballastBytes, 16 * MIB, 0),
    minFreeBytes: bytes('minFreeBytes', minFreeBytes, 64 * MIB, 0),
    faultMemory: faults instanceof Faults ? faults.memory : null,
  };
}

/** The file that a URL names: an absolute path, or `:memory:`. @throws Error if it names none */
export function fileOf({ url, dataDir }: Pick<EngineOptions, 'url' | 'dataDir'>): string {
  const path = url.replace(/^sqlite:/, '');
  if (path === '') throw new Error(`${url}: name a file, as in sqlite:N.db, or use sqlite::memory:`);
  if (path === MEMORY) return MEMORY;
  return isAbsolute(path) ? path : join(dataDir, path);
}
