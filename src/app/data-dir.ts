import { statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Config } from '../config/options.ts';
import { ConfigError } from '../config/problem.ts';
import { widerMode } from '../util/private-file.ts';
import type { SourceOf } from './users.ts';

/** Names of the files in `dataDir` that are no engine's. */
export const DATA_FILES = { users: 'users.json', logins: 'logins.json' } as const;

/** What others than the server's own user may read or write of `dataDir`. Engines warn of their own files. */
export function dataDirWarnings({ dataDir }: Config): string[] {
  const warning = (path: string, right: string): string[] => {
    const mode = widerMode(path);
    return mode === null ? [] : [`${path} has mode ${mode}, so others may use it; run chmod ${right} on it`];
  };
  const files = Object.values(DATA_FILES).flatMap((name) => warning(join(dataDir, name), '600'));
  return [...warning(dataDir, '700'), ...files];
}

/**
 * Checks that `dataDir` can be a folder, so that a file in its place is reported as such, and not by the first thing
 * that is put into it.
 * @throws ConfigError
 */
export function checkDataDir({ dataDir }: Config, sourceOf: SourceOf): void {
  for (let path = dataDir; ; path = dirname(path)) {
    const found = statSync(path, { throwIfNoEntry: false });
    if (found?.isDirectory() === true || (found === undefined && path === dirname(path))) return;
    if (found === undefined) continue;
    const problem = `${path} is no folder`;
    throw new ConfigError([
      { source: sourceOf(['dataDir']), path: 'dataDir', problem, remedy: 'Name a folder' },
    ]);
  }
}
