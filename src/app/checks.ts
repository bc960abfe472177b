import { X509Certificate } from 'node:crypto';
import { lstatSync, readdirSync, readFileSync, type Stats, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import type { ErrorAt } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import { type Finding, finding } from '../engine/engine.ts';
import { BALLAST } from '../engines/sqlite/settings.ts';
import type { Clock } from '../util/clock.ts';
import { widerMode } from '../util/files.ts';
import type { TlsMaterial } from '../util/sockets.ts';
import { sqliteFiles } from './engines.ts';

// Checks of the server's environment: its folder, the limit on open files, and certificate dates.

/** Names of the files in `dataDir` that do not belong to an engine. */
export const DATA_FILES = { users: 'users.json', logins: 'logins.json' } as const;

/**
 * Checks that `dataDir` is an accessible folder or can be created, so that the error names the option instead of the
 * first file that cannot be written.
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
  // Looking up any name in the folder requires the permission to enter it.
  entryOf(join(dataDir, DATA_FILES.users));
  for (let path = dataDir; ; path = dirname(path)) {
    const found = entryOf(path);
    if (found?.isDirectory() === true || (found === undefined && path === dirname(path))) return;
    if (found !== undefined) throw errorAt(['dataDir'], `${path} is no folder`, 'Name a folder');
    if (isLink(path)) {
      throw errorAt(
        ['dataDir'],
        `${path} is a link to nothing`,
        'Create the folder that it names, or name another',
      );
    }
  }
}

function isLink(path: string): boolean {
  try {
    return lstatSync(path).isSymbolicLink();
  } catch {
    // There is nothing, or a file in the place of a folder above it.
    return false;
  }
}

/** Warnings about the environment, for the log at startup. */
export function hostWarnings(config: Config): string[] {
  return warningsOf([
    ...modeFindings(config),
    ...unusedStoreFindings(config),
    openFilesFinding(config, null),
  ]);
}

function warningsOf(findings: readonly Finding[]): string[] {
  return findings.flatMap(({ level, message, hint }) => (level === 'ok' ? [] : [`${message}; ${hint}`]));
}

/** Files in `dataDir` that other system users may read or write. Engines check their own files. */
export function modeFindings({ dataDir }: Config): Finding[] {
  const check = 'dataDir';
  const warning = (path: string, right: string): Finding[] => {
    const mode = widerMode(path);
    if (mode === null) return [];
    const message = `${path} has mode ${mode}, so others may use it`;
    return [finding(check, 'warning', message, `run chmod ${right} on it`)];
  };
  const files = Object.values(DATA_FILES).flatMap((name) => warning(join(dataDir, name), '600'));
  const found = [...warning(dataDir, '700'), ...files];
  return found.length > 0 ? found : [finding(check, 'ok', `only its user may use ${dataDir}`)];
}

/**
 * SQLite files of earlier starts in `dataDir` that no namespace names: after a change of a URL, or before a move to
 * another engine was done, they may have elements that nobody gets. Recognized by their ballast files.
 */
export function unusedStoreFindings(config: Config): Finding[] {
  const { dataDir } = config;
  const used = new Set(sqliteFiles(config).map((file) => resolve(file)));
  let names: string[];
  try {
    names = readdirSync(dataDir);
  } catch {
    return [];
  }
  return names
    .filter((name) => names.includes(`${name}${BALLAST}`))
    .filter((name) => !used.has(resolve(dataDir, name)))
    .map((name) =>
      finding(
        'dataDir',
        'warning',
        `no namespace names the SQLite file ${join(dataDir, name)}: nobody gets elements that it still has`,
        'name it by the url of a namespace again, or, if it has none, move it elsewhere',
      ),
    );
}

/**
 * Whether client connections could exhaust the limit on open files. The server needs some for its own files, too.
 * @param pid process of the server; null: this process
 */
export function openFilesFinding({ http, stomp, amqp }: Config, pid: number | null): Finding {
  const listeners = Object.entries({ http, stomp, amqp }).filter(([, { port }]) => port !== undefined);
  const needed = listeners.reduce((sum, [, { maxSockets }]) => sum + maxSockets, 0);
  const limit = pid === null ? openFilesLimit() : openFilesLimitOf(pid);
  const who = pid === null ? 'this process' : `process ${pid}`;
  const check = 'open files';
  if (limit === null) return finding(check, 'ok', `no limit is known for ${who}`);
  const options = listeners.map(([name, { maxSockets }]) => `${name}.maxSockets: ${maxSockets}`).join(', ');
  if (needed < limit) return finding(check, 'ok', `${who} may open ${limit} files (${options})`);
  return finding(
    check,
    'warning',
    `${who} may open ${limit} files, no more than the connections that it may keep (${options})`,
    'raise the limit (ulimit -n, LimitNOFILE of systemd, ulimits of a container) or lower maxSockets',
  );
}

/** The soft limit of another process, known only on Linux; null if unknown or unlimited. */
function openFilesLimitOf(pid: number): number | null {
  try {
    const [, limit] = /^Max open files +(\d+)/m.exec(readFileSync(`/proc/${pid}/limits`, 'utf8')) ?? [];
    return limit === undefined ? null : Number(limit);
  } catch {
    return null;
  }
}

/** The soft limit of this process, which Node raises to the hard limit at startup; null if unknown or unlimited. */
function openFilesLimit(): number | null {
  // Missing in the types. A report with network details would resolve the host names of addresses.
  const report: NodeJS.ProcessReport & { excludeNetwork?: boolean } = process.report;
  report.excludeNetwork = true;
  const { userLimits } = report.getReport() as { userLimits?: { open_files?: { soft?: unknown } } };
  const soft = userLimits?.open_files?.soft;
  return typeof soft === 'number' ? soft : null;
}

/** Paths from a front end's `tls` options, for messages. */
interface NamedTls {
  readonly cert: string;
  readonly clientCa?: string | undefined;
}

const DAY_MS = 24 * 60 * 60 * 1000;
/** Warn this long before expiry: tools renew certificates of 90 days 30 days before they expire. */
const RENEW_DAYS = 14;
const RENEW = 'renew it, and send SIGHUP to the server';

const PEM_CERTIFICATE = /-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----/gs;

/** The certificates in a PEM file, each as PEM. */
export function certificatesIn(pem: string): readonly string[] {
  return pem.match(PEM_CERTIFICATE) ?? [];
}

/** Warnings about the dates of a front end's certificates, for the log. */
export function dateWarnings(
  tls: NamedTls | undefined,
  material: TlsMaterial | null | undefined,
  clock: Clock,
): string[] {
  if (tls === undefined || material == null) return [];
  return warningsOf(materialFindings('', tls, material, clock.now()));
}

/** Findings about the dates of a front end's certificates. */
export function materialFindings(
  check: string,
  tls: NamedTls,
  { cert, clientCa }: TlsMaterial,
  now: number,
): readonly Finding[] {
  const authorities = clientCa === undefined ? [] : dateFindings(check, tls.clientCa ?? '', clientCa, now);
  return [...dateFindings(check, tls.cert, cert, now), ...authorities];
}

/** One finding per certificate of a PEM file: whether it is valid now, and until when. */
function dateFindings(check: string, file: string, pem: string, now: number): readonly Finding[] {
  return certificatesIn(pem).map((certificate) => {
    const { subject, validFromDate, validToDate } = new X509Certificate(certificate);
    const named = `${subject.replaceAll('\n', ', ')} in ${file}`;
    if (now < validFromDate.getTime()) {
      const message = `${named} is not valid before ${validFromDate.toISOString()}`;
      return finding(check, 'error', message, 'correct the clock, or use another certificate');
    }
    if (now >= validToDate.getTime()) {
      const message = `${named} expired at ${validToDate.toISOString()}`;
      return finding(check, 'error', message, RENEW);
    }
    const message = `${named} is valid until ${validToDate.toISOString()}`;
    const isDue = validToDate.getTime() - now < RENEW_DAYS * DAY_MS;
    return isDue ? finding(check, 'warning', message, RENEW) : finding(check, 'ok', message);
  });
}
