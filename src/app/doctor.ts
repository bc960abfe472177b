import { existsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { ConfigError } from '../config/errors.ts';
import type { LoadedConfig } from '../config/load.ts';
import { type Engine, errorFinding, type Finding, finding, problemOf } from '../engine/engine.ts';
import { fileOf } from '../engines/sqlite/settings.ts';
import { checkAccess } from '../engines/sqlite/worker/open.ts';
import { WorkerSandbox } from '../sandbox/sandbox.ts';
import { systemClock } from '../util/clock.ts';
import { isRecord } from '../util/is-record.ts';
import { maskUrl } from '../util/mask.ts';
import { parsedJson } from '../util/parsed-json.ts';
import {
  checkDataDir,
  materialFindings,
  modeFindings,
  openFilesFinding,
  unusedStoreFindings,
} from './checks.ts';
import { tryExchanges } from './configured-exchanges.ts';
import { ConfiguredServer } from './configured-server.ts';
import { loadEngines } from './engines.ts';
import { FRONT_ENDS, readCertificate, readProxies } from './listeners.ts';
import { serverProcess } from './pid-file.ts';
import { loadUsers, sharedUsersWarnings } from './users.ts';

/** If there is no response by then, the server is overloaded or another program listens there. */
const RESPONSE_MS = 5_000;

/** The report replaces what startup would log. */
const SILENT = { info: () => {}, warn: () => {} };

/** System error codes if nothing listens at an address. */
const NOBODY_LISTENS = new Set(['ECONNREFUSED', 'ENOENT']);

/**
 * `doctor`: checks the configuration, the host, the engines' servers, the certificates, and the running server. Changes
 * nothing. Returns the text to print.
 * @param url address of the running server; null: as configured
 */
export async function doctorCommand(
  url: string | null,
  loaded: LoadedConfig,
  isHuman: boolean,
): Promise<{ readonly text: string; readonly hasErrors: boolean }> {
  const groups = await Promise.all([
    configurationFindings(loaded),
    findingsOf('exchanges', () => exchangeFindings(loaded)),
    hostFindings(loaded),
    tlsFindings(loaded),
    findingsOf('engines', () => engineFindings(loaded)),
    serverFindings(url, loaded),
  ]);
  const findings = groups.flat();
  const text = isHuman ? textOf(findings) : findings.map((each) => `${JSON.stringify(each)}\n`).join('');
  return { text, hasErrors: findings.some(({ level }) => level === 'error') };
}

/** Checks what startup reads before it opens anything. */
async function configurationFindings({ config, warnings, errorAt }: LoadedConfig): Promise<Finding[]> {
  const check = 'configuration';
  const warned = (messages: readonly string[]): Finding[] =>
    messages.map((message) => finding(check, 'warning', message));
  const users = await findingsOf(check, async () => warned((await loadUsers(config, errorAt)).warnings));
  const proxies = FRONT_ENDS.filter((name) => config[name].port !== undefined).map((name) =>
    findingsOf(check, async () => {
      readProxies(config, name, errorAt);
      return [];
    }),
  );
  const errors = (await Promise.all(proxies)).flat();
  const found = [...users, ...errors, ...warned([...warnings, ...sharedUsersWarnings(config)])];
  if (found.some(({ level }) => level === 'error')) return found;
  const message = `it can be used; namespaces: ${Object.keys(config.namespaces).length}`;
  return [finding(check, 'ok', message), ...found];
}

/** Checks the exchanges that the configuration declares. */
async function exchangeFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  const parts = { clock: systemClock, log: SILENT, errorAt };
  // `engineFindings` reports engines that cannot be loaded.
  const engines = await loadEngines(config, parts).catch(() => null);
  if (engines === null) return [];
  const sandbox = new WorkerSandbox(parts);
  try {
    const count = await tryExchanges(config, engines, sandbox, parts);
    return count === 0 ? [] : [finding('exchanges', 'ok', `those of the configuration can run: ${count}`)];
  } finally {
    await sandbox.stop();
  }
}

async function hostFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  const check = 'dataDir';
  const { dataDir } = config;
  const ofFolder = await findingsOf(check, async () => {
    checkDataDir(config, errorAt);
    if (existsSync(dataDir))
      return [...modeFindings(config), ...unusedStoreFindings(config), await diskFinding(dataDir)];
    return [finding(check, 'ok', `${dataDir} does not exist; the server creates it when it starts`)];
  });
  return [...ofFolder, openFilesFinding(config, serverProcess(config))];
}

/** Checks the disk for users, logins and backups. Engines check the disks of their own files. */
async function diskFinding(folder: string): Promise<Finding> {
  const { bavail, bsize } = await statfs(folder);
  const message = `${bytesText(bavail * bsize)} are free for ${folder}`;
  if (bavail > 0) return finding('disk', 'ok', message);
  return finding('disk', 'error', message, 'free some, or name another dataDir');
}

async function tlsFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  const groups = FRONT_ENDS.map(async (name): Promise<Finding[]> => {
    const { port, tls } = config[name];
    if (port === undefined || tls === undefined) return [];
    const check = `${name}.tls`;
    const warnings: Finding[] = [];
    const warn = (message: string): unknown => warnings.push(finding(check, 'warning', message));
    const dates = await findingsOf(check, async () => {
      const material = await readCertificate(config, name, errorAt, warn);
      return material === null ? [] : materialFindings(check, tls, material, systemClock.now());
    });
    return [...warnings, ...dates];
  });
  return (await Promise.all(groups)).flat();
}

async function engineFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  const engines = await loadEngines(config, { clock: systemClock, log: SILENT, errorAt });
  const examined = engines.all().map(({ engine }) => findingsOfEngine(engine, config.dataDir));
  const findings = (await Promise.all(examined)).flat();
  // Engines on the same server have the same findings about it.
  return [...new Map(findings.map((one) => [JSON.stringify(one), one])).values()];
}

async function findingsOfEngine(engine: Engine, dataDir: string): Promise<readonly Finding[]> {
  const check = maskUrl(engine.url);
  try {
    if (engine.disk !== undefined) {
      checkAccess(fileOf({ url: engine.url, dataDir }));
      return [await engineDiskFinding(check, engine.disk)];
    }
    return (await engine.examine?.()) ?? [];
  } catch (error) {
    return [errorFinding(check, error)];
  }
}

async function engineDiskFinding(check: string, disk: NonNullable<Engine['disk']>): Promise<Finding> {
  const usage = await disk().catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  if (usage === null) {
    return finding(
      check,
      'ok',
      'the folder of its file does not exist; the server creates it when it starts',
    );
  }
  const { fileBytes, freeBytes, minFreeBytes } = usage;
  const message = `its files take ${bytesText(fileBytes)}, and ${bytesText(freeBytes)} are free`;
  const minimum = bytesText(minFreeBytes);
  if (freeBytes < minFreeBytes) {
    const hint = `free some: inserts are rejected while less than ${minimum} are free`;
    return finding(check, 'error', message, hint);
  }
  if (freeBytes < fileBytes + minFreeBytes) {
    const hint = `free some: a backup needs as much as its files, and leaves ${minimum} free`;
    return finding(check, 'warning', message, hint);
  }
  return finding(check, 'ok', message);
}

async function serverFindings(url: string | null, { config }: LoadedConfig): Promise<Finding[]> {
  const found = (level: Finding['level'], message: string, hint: string | null = null): Finding[] => [
    finding('server', level, message, hint),
  ];
  const server = new ConfiguredServer(url, config);
  const signal = AbortSignal.timeout(RESPONSE_MS);
  try {
    const { status, body } = await server.call('GET', '/readyz', { signal });
    const message = `${server.origin} responds ${status} to /readyz`;
    if (status !== 200) {
      return found(
        'error',
        message,
        'request /readyz with the credentials of a user to see what is not ready',
      );
    }
    const response = parsedJson(body);
    if (isRecord(response) && response.status === 'ready') return found('ok', message);
    const hint = 'a proxy may have responded; name the address of the server with --url';
    return found('error', `${message}, but not as a server of Quayside`, hint);
  } catch (error) {
    const defaultHint = 'see its log, or name its address with --url';
    if (signal.aborted) {
      return found('error', `${server.origin} does not respond within ${RESPONSE_MS / 1000} s`, defaultHint);
    }
    const { code = '', message } = error as NodeJS.ErrnoException;
    if (NOBODY_LISTENS.has(code)) {
      const hint = 'start it, or name its address with --url';
      return found('warning', `no server listens at ${server.origin}`, hint);
    }
    const reason = typeof code === 'string' && code !== '' ? code : message;
    const { problem, hint = defaultHint } = problemOf(new Error(reason));
    return found('error', `${server.origin} cannot be checked: ${problem}`, hint);
  }
}

/** Returns what `find` finds, or one finding per problem of a ConfigError that it throws. */
async function findingsOf(
  check: string,
  find: () => Promise<readonly Finding[]>,
): Promise<readonly Finding[]> {
  try {
    return await find();
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.problems.map(({ source, path, problem, hint }) =>
      finding(check, 'error', `${path === '' ? source : path} ${problem}`, hint),
    );
  }
}

function bytesText(bytes: number): string {
  return `${Math.round(bytes / 1024 ** 2).toLocaleString('en')} MiB`;
}

function textOf(findings: readonly Finding[]): string {
  const lines = findings.map(({ level, check, message, hint }) => {
    const advice = hint === null ? '' : `\n${' '.repeat(9)}${hint}`;
    return `${level.padEnd(8)} ${check}: ${message}${advice}\n`;
  });
  const count = (level: Finding['level']): number => findings.filter((each) => each.level === level).length;
  return `${lines.join('')}errors: ${count('error')}, warnings: ${count('warning')}\n`;
}
