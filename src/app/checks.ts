import { X509Certificate } from 'node:crypto';
import { readFileSync, type Stats, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { ErrorAt } from '../config/load.ts';
import type { Config } from '../config/options.ts';
import type { Finding } from '../engine/engine.ts';
import type { Clock } from '../util/clock.ts';
import { widerMode } from '../util/files.ts';
import type { TlsMaterial } from '../util/sockets.ts';

// What the machine gives the server: its folder, and the files that it may open.

/** Names of the files in `dataDir` that are no engine's. */
export const DATA_FILES = { users: 'users.json', logins: 'logins.json' } as const;

/**
 * Checks that `dataDir` can be a folder, and may be entered if it is one, so that another thing in its place, or
 * another user's folder, is reported as such, and not by the first thing that is put into it.
 * @throws ConfigError
 */
export function checkDataDir({ dataDir }: Config, errorAt: ErrorAt): void {
  const entryOf = (path: string): Stats | undefined => {
    try {
      return statSync(path, { throwIfNoEntry: false });
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      const hint = 'Let the user that runs the server enter it, or name another folder';
      throw errorAt(['dataDir'], `${dataDir} cannot be entered (${code})`, hint);
    }
  };
  // Any name will do: to look it up takes the right to enter.
  entryOf(join(dataDir, DATA_FILES.users));
  for (let path = dataDir; ; path = dirname(path)) {
    const found = entryOf(path);
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

/** The files that `tls` of a front end names. */
interface NamedTls {
  readonly cert: string;
  readonly clientCa?: string | undefined;
}

const DAY_MS = 24 * 60 * 60 * 1000;
/** By now a certificate of 90 days should have been renewed, which tools do 30 days before its end. */
const RENEW_DAYS = 14;

const PEM_CERTIFICATE = /-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----/gs;

/** The certificates of a PEM file, each as PEM. */
export function certificatesIn(pem: string): readonly string[] {
  return pem.match(PEM_CERTIFICATE) ?? [];
}

/** What an operator should know of the certificates of a front end; nothing if it has none. */
export function dateWarnings(
  tls: NamedTls | undefined,
  material: TlsMaterial | null | undefined,
  clock: Clock,
): string[] {
  if (tls === undefined || material == null) return [];
  return materialFindings('', tls, material, clock.now()).flatMap(({ level, message, hint }) =>
    level === 'ok' ? [] : [`${message}; ${hint}`],
  );
}

/** What is to be said of the dates of a front end's certificates. */
export function materialFindings(
  check: string,
  tls: NamedTls,
  { cert, clientCa }: TlsMaterial,
  now: number,
): readonly Finding[] {
  const authorities = clientCa === undefined ? [] : dateFindings(check, tls.clientCa ?? '', clientCa, now);
  return [...dateFindings(check, tls.cert, cert, now), ...authorities];
}

/** Whether each certificate of a PEM file is valid now, and for how long. */
function dateFindings(check: string, file: string, pem: string, now: number): readonly Finding[] {
  return certificatesIn(pem).map((certificate) => {
    const { subject, validFromDate, validToDate } = new X509Certificate(certificate);
    const named = `${subject.replaceAll('\n', ', ')} in ${file}`;
    if (now < validFromDate.getTime()) {
      const message = `${named} is not valid before ${validFromDate.toISOString()}`;
      return { level: 'error', check, message, hint: 'set the clock right, or use another certificate' };
    }
    if (now >= validToDate.getTime()) {
      const message = `${named} expired at ${validToDate.toISOString()}`;
      return { level: 'error', check, message, hint: 'renew it, and send SIGHUP to the server' };
    }
    const message = `${named} is valid until ${validToDate.toISOString()}`;
    if (validToDate.getTime() - now < RENEW_DAYS * DAY_MS) {
      return { level: 'warning', check, message, hint: 'renew it, and send SIGHUP to the server' };
    }
    return { level: 'ok', check, message, hint: null };
  });
}
