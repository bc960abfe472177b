import { statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Config } from '../config/options.ts';
import type { ErrorAt } from '../config/problem.ts';
import { widerMode } from '../util/files.ts';

// What the machine gives the server: its folder, and the files that it may open.

/** Names of the files in `dataDir` that are no engine's. */
export const DATA_FILES = { users: 'users.json', logins: 'logins.json' } as const;

/**
 * Checks that `dataDir` can be a folder, so that a file in its place is reported as such, and not by the first thing
 * that is put into it.
 * @throws ConfigError
 */
export function checkDataDir({ dataDir }: Config, errorAt: ErrorAt): void {
  for (let path = dataDir; ; path = dirname(path)) {
    const found = statSync(path, { throwIfNoEntry: false });
    if (found?.isDirectory() === true || (found === undefined && path === dirname(path))) return;
    if (found !== undefined) throw errorAt(['dataDir'], `${path} is no folder`, 'Name a folder');
  }
}

/** What an operator should know of the machine before clients connect. */
export function hostWarnings(config: Config): string[] {
  return [...dataDirWarnings(config), ...openFilesWarnings(config)];
}

/** What others than the server's own user may read or write of `dataDir`. Engines warn of their own files. */
function dataDirWarnings({ dataDir }: Config): string[] {
  const warning = (path: string, right: string): string[] => {
    const mode = widerMode(path);
    return mode === null ? [] : [`${path} has mode ${mode}, so others may use it; run chmod ${right} on it`];
  };
  const files = Object.values(DATA_FILES).flatMap((name) => warning(join(dataDir, name), '600'));
  return [...warning(dataDir, '700'), ...files];
}

/** A warning if clients could use up the files that this process may open. */
function openFilesWarnings({ http, stomp, amqp }: Config): string[] {
  const listeners = Object.entries({ http, stomp, amqp }).filter(([, { port }]) => port !== undefined);
  const needed = listeners.reduce((sum, [, { maxSockets }]) => sum + maxSockets, 0);
  const limit = openFilesLimit();
  if (limit === null || needed <= limit) return [];
  const options = listeners.map(([name, { maxSockets }]) => `${name}.maxSockets: ${maxSockets}`).join(', ');
  return [
    `this process may open ${limit} files, fewer than the connections that it may keep (${options}): raise the limit (ulimit -n, LimitNOFILE of systemd, ulimits of a container) or lower maxSockets`,
  ];
}

/** The soft limit, which Node raises to the hard one when it starts; null if it is not known, or there is none. */
function openFilesLimit(): number | null {
  // The types do not know this one. Reporting the network would resolve the names of addresses.
  const report: NodeJS.ProcessReport & { excludeNetwork?: boolean } = process.report;
  report.excludeNetwork = true;
  const { userLimits } = report.getReport() as { userLimits?: { open_files?: { soft?: unknown } } };
  const soft = userLimits?.open_files?.soft;
  return typeof soft === 'number' ? soft : null;
}
