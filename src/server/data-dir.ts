import { statSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Config } from '../config/options.ts';
import { ConfigError } from '../config/problem.ts';
import type { SourceOf } from './users.ts';

/**
 * Looks whether `dataDir` can be a folder, so that a file in its place is not told of the first thing that is to be
 * put into it.
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
