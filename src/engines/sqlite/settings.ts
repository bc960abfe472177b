import { isAbsolute, join } from 'node:path';
import type { EngineOptions } from '../../engine/engine.ts';
import { Faults } from './fault-point.ts';

export type Durability = 'full' | 'normal';

/** The engine's own settings, checked and with their defaults (`docs/engines.md`, "SQLite"). */
export interface Settings {
  /** An absolute path, or ':memory:'. */
  readonly file: string;
  /** `full`: an answer means fsynced. `normal`: a power loss may take the last answers back, kill -9 not. */
  readonly durability: Durability;
  /** SQLite's page cache. */
  readonly cacheBytes: number;
  /** For tests: where to fail. Null in a server. */
  readonly faultMemory: SharedArrayBuffer | null;
}

export const MEMORY = ':memory:';

/** @throws Error naming the setting, for the composition root to report */
export function readSettings(options: EngineOptions): Settings {
  const { durability = 'full', cacheBytes = 16 * 1024 * 1024, faults = null, ...unknown } = options.settings;
  for (const name of Object.keys(unknown)) throw new Error(`${options.url}: unknown setting "${name}"`);
  if (durability !== 'full' && durability !== 'normal') {
    throw new Error(`${options.url}: durability must be "full" or "normal"`);
  }
  if (typeof cacheBytes !== 'number' || !(cacheBytes >= 1024 * 1024)) {
    throw new Error(`${options.url}: cacheBytes must be a number from 1048576`);
  }
  const faultMemory = faults instanceof Faults ? faults.memory : null;
  return { file: fileOf(options), durability, cacheBytes, faultMemory };
}

function fileOf({ url, dataDir }: EngineOptions): string {
  const path = url.replace(/^sqlite:/, '');
  if (path === '') throw new Error(`${url}: name a file, as in sqlite:N.db, or use sqlite::memory:`);
  if (path === MEMORY) return MEMORY;
  return isAbsolute(path) ? path : join(dataDir, path);
}
