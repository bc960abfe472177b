import { cpSync, existsSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { dirname, resolve } from 'node:path';
import { text } from 'node:stream/consumers';
import type { LoadedConfig } from '../config/load.ts';
import type { Config } from '../config/options.ts';
import type { BackupReport } from '../http/options.ts';
import { systemClock } from '../util/clock.ts';
import { makeFolder } from '../util/make-folder.ts';
import { Backups, hasSqliteFiles } from './backups.ts';
import { CommandFailed } from './command-line.ts';
import { loadEngines } from './engines.ts';
import { type PasswordSource, readPassword } from './prompt.ts';
import { restoreBackup } from './restore.ts';

export interface BackupCommand {
  /** Where the backup goes, or comes from. */
  readonly folder: string;
  /** Whose password is asked for if the server runs. */
  readonly user: string;
  /** Of the server that runs; null: as configured. */
  readonly url: string | null;
  /** Whether a restore moves files away that are in its place. */
  readonly replace: boolean;
}

export interface BackupIo extends PasswordSource {
  readonly loaded: LoadedConfig;
  readonly version: string;
}

/**
 * `backup`: copies all SQLite files into a new folder. A server that runs is asked to do it; else the files are opened
 * here, as a start would, and so are checked. Returns the text to show.
 * @throws CommandFailed
 */
export async function backUpCommand(command: BackupCommand, io: BackupIo): Promise<string> {
  const folder = resolve(command.folder);
  if (existsSync(folder)) throw new CommandFailed(`${folder} is there already; name a new folder.`);
  try {
    makeFolder(dirname(folder));
    const report = (await backUpStopped(folder, io)) ?? (await backUpRunning(folder, command, io));
    return describe(folder, report);
  } catch (error) {
    throw error instanceof CommandFailed ? error : new CommandFailed(messageOf(error));
  }
}

/**
 * `restore`: puts a backup in the place of the files of a server that is stopped. Returns the text to show.
 * @throws CommandFailed
 */
export function restoreCommand({ folder, replace }: BackupCommand, { loaded }: BackupIo): string {
  const replacedAt = new Date(systemClock.now()).toISOString().replaceAll(':', '-');
  try {
    const restored = restoreBackup(resolve(folder), loaded.config, replace ? replacedAt : null);
    const lines = restored.flatMap(({ file, namespaces, kept }) => [
      `${namespaces.join(', ')}: ${file}`,
      ...kept.map((path) => `  what was there is ${path} now`),
    ]);
    return `Restored:\n${lines.map((line) => `  ${line}\n`).join('')}`;
  } catch (error) {
    throw new CommandFailed(messageOf(error));
  }
}

/** Null if a server has one of the files open. */
async function backUpStopped(
  folder: string,
  { loaded: { config, sourceOf }, version, ask }: BackupIo,
): Promise<BackupReport | null> {
  const { namespaces, dataDir, dedup } = config;
  if (!hasSqliteFiles(config)) throw new CommandFailed(`There is no SQLite file to back up in ${dataDir}.`);
  const engines = await loadEngines({
    namespaces,
    dataDir,
    dedupWindowMs: dedup.window * 1000,
    clock: systemClock,
    log: { info: () => {}, warn: (_fields, message) => void ask.write(`${message}\n`) },
    sourceOf,
  });
  const copied = engines.all().filter(({ backUp }) => backUp !== undefined);
  try {
    for (const engine of copied) await engine.start();
    return await new Backups({ config, engines, clock: systemClock, version }).makeAt(folder);
  } catch (error) {
    if (messageOf(error).includes('is in use by another process')) return null;
    throw error;
  } finally {
    await Promise.all(copied.map((engine) => engine.stop()));
  }
}

/** The server writes into its own folder of backups, from where this process takes it. */
async function backUpRunning(folder: string, command: BackupCommand, io: BackupIo): Promise<BackupReport> {
  const password = await readPassword(io, `The server runs. Password of ${command.user}: `);
  if (password === null) throw new CommandFailed('Nothing was backed up.');
  const authorization = `Basic ${Buffer.from(`${command.user}:${password}`).toString('base64')}`;
  const { status, body } = await post(addressOf(command, io.loaded.config), io.loaded.config, authorization);
  const answer = parse(body);
  if (status !== 201) {
    throw new CommandFailed(`The server answered ${status}: ${answer.detail ?? 'no reason'}`);
  }
  const report = answer as unknown as BackupReport;
  try {
    move(report.folder, folder);
  } catch (error) {
    throw new CommandFailed(`The backup is in ${report.folder}; it cannot be moved (${messageOf(error)}).`);
  }
  return report;
}

function addressOf({ url }: BackupCommand, { http }: Config): URL {
  if (url !== null) return new URL('/backup', url);
  const local: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' };
  const host = local[http.host] ?? http.host;
  const named = host.startsWith('/') ? 'localhost' : host.includes(':') ? `[${host}]` : host;
  return new URL(`http${http.tls === undefined ? '' : 's'}://${named}:${http.port}/backup`);
}

interface Answer {
  readonly status: number;
  readonly body: string;
}

async function post(address: URL, { http }: Config, authorization: string): Promise<Answer> {
  const { promise, resolve: answered, reject } = Promise.withResolvers<Answer>();
  const isTls = address.protocol === 'https:';
  const options = {
    method: 'POST',
    headers: { authorization, 'content-length': 0 },
    ...(http.host.startsWith('/') && { socketPath: http.host }),
    // The certificate is the server's own, so it is known without an authority, under whatever name.
    ...(isTls &&
      http.tls !== undefined && { ca: readFileSync(http.tls.cert), checkServerIdentity: () => undefined }),
  };
  const call = (isTls ? httpsRequest : httpRequest)(address, options, (response) => {
    text(response).then((body) => answered({ status: response.statusCode ?? 0, body }), reject);
  });
  call.on('error', (error) => {
    const advice = 'A server has the files open, but does not answer; say where it listens with --url';
    reject(new CommandFailed(`${advice} (${address.origin}: ${error.message}).`));
  });
  call.end();
  return promise;
}

function parse(body: string): Readonly<Record<string, unknown>> {
  try {
    return JSON.parse(body) as Record<string, unknown>;
  } catch {
    return {};
  }
}

/** Also to another file system. */
function move(from: string, to: string): void {
  try {
    renameSync(from, to);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EXDEV') throw error;
    cpSync(from, to, { recursive: true, errorOnExist: true, preserveTimestamps: true });
    rmSync(from, { recursive: true });
  }
}

function describe(folder: string, { files, skipped }: BackupReport): string {
  const lines = files.map(
    ({ file, namespaces, bytes }) => `${file}: ${namespaces.join(', ')} (${bytes} bytes)`,
  );
  const left = skipped.map(({ url, namespaces }) => `not in it: ${namespaces.join(', ')} (${url})`);
  return `Backed up to ${folder}:\n${[...lines, ...left].map((line) => `  ${line}\n`).join('')}`;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
