import { readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Config } from '../config/options.ts';
import type { ErrorAt } from '../config/problem.ts';
import type { Finding } from '../engine/engine.ts';
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
  const findings = [...modeFindings(config), openFilesFinding(config, null)];
  return findings.flatMap(({ level, message, hint }) => (level === 'ok' ? [] : [`${message}; ${hint}`]));
}

/** What others than the server's own user may read or write of `dataDir`. Engines warn of their own files. */
export function modeFindings({ dataDir }: Config): Finding[] {
  const check = 'dataDir';
  const warning = (path: string, right: string): Finding[] => {
    const mode = widerMode(path);
    if (mode === null) return [];
    const message = `${path} has mode ${mode}, so others may use it`;
    return [{ level: 'warning', check, message, hint: `run chmod ${right} on it` }];
  };
  const files = Object.values(DATA_FILES).flatMap((name) => warning(join(dataDir, name), '600'));
  const found = [...warning(dataDir, '700'), ...files];
  if (found.length > 0) return found;
  return [{ level: 'ok', check, message: `only its user may use ${dataDir}`, hint: null }];
}

/**
 * Whether clients could use up the files that a server may open.
 * @param pid its process; null: this one
 */
export function openFilesFinding({ http, stomp, amqp }: Config, pid: number | null): Finding {
  const listeners = Object.entries({ http, stomp, amqp }).filter(([, { port }]) => port !== undefined);
  const needed = listeners.reduce((sum, [, { maxSockets }]) => sum + maxSockets, 0);
  const limit = pid === null ? openFilesLimit() : openFilesLimitOf(pid);
  const who = pid === null ? 'this process' : `process ${pid}`;
  const check = 'open files';
  if (limit === null) return { level: 'ok', check, message: `no limit is known of ${who}`, hint: null };
  const options = listeners.map(([name, { maxSockets }]) => `${name}.maxSockets: ${maxSockets}`).join(', ');
  if (needed <= limit) {
    return { level: 'ok', check, message: `${who} may open ${limit} files (${options})`, hint: null };
  }
  return {
    level: 'warning',
    check,
    message: `${who} may open ${limit} files, fewer than the connections that it may keep (${options})`,
    hint: 'raise the limit (ulimit -n, LimitNOFILE of systemd, ulimits of a container) or lower maxSockets',
  };
}

/** The soft limit of another process, which only Linux shows; null if it is not known, or there is none. */
function openFilesLimitOf(pid: number): number | null {
  try {
    const [, limit] = /^Max open files +(\d+)/m.exec(readFileSync(`/proc/${pid}/limits`, 'utf8')) ?? [];
    return limit === undefined ? null : Number(limit);
  } catch {
    return null;
  }
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
