import { existsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { ConfigError } from '../config/errors.ts';
import type { LoadedConfig } from '../config/load.ts';
import type { Engine, Finding } from '../engine/engine.ts';
import { fileOf } from '../engines/sqlite/settings.ts';
import { checkAccess } from '../engines/sqlite/worker/open.ts';
import { makeSandbox } from '../sandbox/sandbox.ts';
import { systemClock } from '../util/clock.ts';
import { isRecord } from '../util/is-record.ts';
import { maskUrl } from '../util/mask.ts';
import { parsedJson } from '../util/parsed-json.ts';
import { checkDataDir, materialFindings, modeFindings, openFilesFinding } from './checks.ts';
import { tryExchanges } from './configured-exchanges.ts';
import { ConfiguredServer } from './configured-server.ts';
import { loadEngines, problemOf } from './engines.ts';
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
    exchangeFindings(loaded),
    hostFindings(loaded),
    tlsFindings(loaded),
    engineFindings(loaded),
    serverFindings(url, loaded),
  ]);
  const findings = groups.flat();
  const text = isHuman ? textOf(findings) : findings.map((each) => `${JSON.stringify(each)}\n`).join('');
  return { text, hasErrors: findings.some(({ level }) => level === 'error') };
}

/** Checks what startup reads before it opens anything. */
async function configurationFindings({ config, warnings, errorAt }: LoadedConfig): Promise<Finding[]> {
  const check = 'configuration';
  const errors: Finding[] = [];
  const tryTo = async <T>(read: () => T | Promise<T>): Promise<T | null> => {
    try {
      return await read();
    } catch (error) {
      errors.push(...configErrors(check, error));
      return null;
    }
  };
  const users = await tryTo(() => loadUsers(config, errorAt));
  for (const name of FRONT_ENDS) {
    if (config[name].port !== undefined) await tryTo(() => readProxies(config, name, errorAt));
  }
  const messages = [...warnings, ...(users?.warnings ?? []), ...sharedUsersWarnings(config)];
  const warned = messages.map((message): Finding => ({ level: 'warning', check, message, hint: null }));
  if (errors.length > 0) return [...errors, ...warned];
  const message = `it can be used; namespaces: ${Object.keys(config.namespaces).length}`;
  return [{ level: 'ok', check, message, hint: null }, ...warned];
}

/** Checks the exchanges that the configuration declares. */
async function exchangeFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  const parts = { clock: systemClock, log: SILENT, errorAt };
  // `engineFindings` reports engines that cannot be loaded.
  const engines = await loadEngines(config, parts).catch(() => null);
  if (engines === null) return [];
  const sandbox = makeSandbox(parts);
  try {
    const count = await tryExchanges(config, engines, sandbox, parts);
    if (count === 0) return [];
    const message = `those of the configuration can run: ${count}`;
    return [{ level: 'ok', check: 'exchanges', message, hint: null }];
  } catch (error) {
    return configErrors('exchanges', error);
  } finally {
    await sandbox.stop();
  }
}

async function hostFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  const check = 'dataDir';
  const openFiles = openFilesFinding(config, serverProcess(config));
  try {
    checkDataDir(config, errorAt);
  } catch (error) {
    return [...configErrors(check, error), openFiles];
  }
  const { dataDir } = config;
  if (!existsSync(dataDir)) {
    const message = `${dataDir} does not exist; the server creates it when it starts`;
    return [{ level: 'ok', check, message, hint: null }, openFiles];
  }
  return [...modeFindings(config), await diskFinding(dataDir), openFiles];
}

/** Checks the disk for users, logins and backups. Engines check the disks of their own files. */
async function diskFinding(folder: string): Promise<Finding> {
  const { bavail, bsize } = await statfs(folder);
  const message = `${bytesText(bavail * bsize)} are free for ${folder}`;
  if (bavail > 0) return { level: 'ok', check: 'disk', message, hint: null };
  return { level: 'error', check: 'disk', message, hint: 'free some, or name another dataDir' };
}

async function tlsFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  const groups = FRONT_ENDS.map(async (name): Promise<Finding[]> => {
    const { port, tls } = config[name];
    if (port === undefined || tls === undefined) return [];
    const check = `${name}.tls`;
    const findings: Finding[] = [];
    const warn = (message: string): unknown =>
      findings.push({ level: 'warning', check, message, hint: null });
    try {
      const material = await readCertificate(config, name, errorAt, warn);
      if (material !== null) findings.push(...materialFindings(check, tls, material, systemClock.now()));
    } catch (error) {
      findings.push(...configErrors(check, error));
    }
    return findings;
  });
  return (await Promise.all(groups)).flat();
}

async function engineFindings({ config, errorAt }: LoadedConfig): Promise<Finding[]> {
  try {
    const engines = await loadEngines(config, { clock: systemClock, log: SILENT, errorAt });
    const examined = engines.all().map(({ engine }) => findingsOfEngine(engine, config.dataDir));
    const findings = (await Promise.all(examined)).flat();
    // Engines on the same server have the same findings about it.
    return [...new Map(findings.map((finding) => [JSON.stringify(finding), finding])).values()];
  } catch (error) {
    return configErrors('engines', error);
  }
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
    const { problem, hint = null } = problemOf(error);
    return [{ level: 'error', check, message: problem, hint }];
  }
}

async function engineDiskFinding(check: string, disk: NonNullable<Engine['disk']>): Promise<Finding> {
  const usage = await disk().catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  if (usage === null) {
    const message = 'the folder of its file does not exist; the server creates it when it starts';
    return { level: 'ok', check, message, hint: null };
  }
  const { fileBytes, freeBytes, minFreeBytes } = usage;
  const message = `its files take ${bytesText(fileBytes)}, and ${bytesText(freeBytes)} are free`;
  const minimum = bytesText(minFreeBytes);
  if (freeBytes < minFreeBytes) {
    const hint = `free some: inserts are rejected while less than ${minimum} are free`;
    return { level: 'error', check, message, hint };
  }
  if (freeBytes < fileBytes + minFreeBytes) {
    const hint = `free some: a backup needs as much as its files, and leaves ${minimum} free`;
    return { level: 'warning', check, message, hint };
  }
  return { level: 'ok', check, message, hint: null };
}

async function serverFindings(url: string | null, { config }: LoadedConfig): Promise<Finding[]> {
  const check = 'server';
  const server = new ConfiguredServer(url, config);
  const signal = AbortSignal.timeout(RESPONSE_MS);
  try {
    const { status, body } = await server.call('GET', '/readyz', { signal });
    const message = `${server.origin} responds ${status} to /readyz`;
    if (status === 200) {
      const response = parsedJson(body);
      if (isRecord(response) && response.status === 'ready') return [{ level: 'ok', check, message, hint: null }];
      const hint = 'a proxy may have responded; name the address of the server with --url';
      return [{ level: 'error', check, message: `${message}, but not as a server of Quayside`, hint }];
    }
    const hint = 'request /readyz with the credentials of a user to see what is not ready';
    return [{ level: 'error', check, message, hint }];
  } catch (error) {
    const defaultHint = 'see its log, or name its address with --url';
    if (signal.aborted) {
      const message = `${server.origin} does not respond within ${RESPONSE_MS / 1000} s`;
      return [{ level: 'error', check, message, hint: defaultHint }];
    }
    const { code = '', message } = error as NodeJS.ErrnoException;
    if (NOBODY_LISTENS.has(code)) {
      const hint = 'start it, or name its address with --url';
      return [{ level: 'warning', check, message: `no server listens at ${server.origin}`, hint }];
    }
    const reason = typeof code === 'string' && code !== '' ? code : message;
    const { problem, hint = defaultHint } = problemOf(new Error(reason));
    return [{ level: 'error', check, message: `${server.origin} cannot be checked: ${problem}`, hint }];
  }
}

/** One finding per problem of a ConfigError. @throws any other error */
function configErrors(check: string, error: unknown): Finding[] {
  if (!(error instanceof ConfigError)) throw error;
  return error.problems.map(({ source, path, problem, hint }) => ({
    level: 'error',
    check,
    message: `${path === '' ? source : path} ${problem}`,
    hint,
  }));
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
