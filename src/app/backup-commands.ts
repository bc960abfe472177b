import { existsSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import type { LoadedConfig } from '../config/load.ts';
import type { Config } from '../config/options.ts';
import { StoreInUse } from '../engine/engine.ts';
import { restore } from '../engines/sqlite/restore.ts';
import { fileOf, MEMORY } from '../engines/sqlite/settings.ts';
import { parse } from '../model/members.ts';
import type { BackupReport } from '../model/records.ts';
import { systemClock } from '../util/clock.ts';
import { copyPrivateFile, makeFolder } from '../util/files.ts';
import { messageOf } from '../util/message-of.ts';
import { parsedJson } from '../util/parsed-json.ts';
import { quote } from '../util/quote.ts';
import { Type } from '../util/schema.ts';
import { type PasswordSource, readPassword } from './ask-password.ts';
import { Backups, createWhole, MANIFEST } from './backups.ts';
import { CommandFailed } from './command-line.ts';
import { ConfiguredServer } from './configured-server.ts';
import { type EngineParts, loadEngines } from './engines.ts';

/** The arguments of `backup`. */
interface BackupCommand {
  readonly folder: string;
  /** User who logs in to the server if it is running; the command prompts for the password. */
  readonly user: string;
  /** URL of the running server; null: as configured. */
  readonly url: string | null;
}

/**
 * `backup`: copies all SQLite files into a new folder. If the server is running, it makes the copies; otherwise this
 * process opens the files like the server does at startup, which also checks them. Returns the text to print.
 * @throws CommandFailed
 */
export async function backUpCommand(
  command: BackupCommand,
  { config, errorAt }: LoadedConfig,
  passwords: PasswordSource,
  version: string,
): Promise<string> {
  const folder = resolve(command.folder);
  if (existsSync(folder)) throw new CommandFailed(`${folder} exists already; name a new folder.`);
  try {
    makeFolder(dirname(folder));
    const log = {
      info: () => {},
      warn: (_fields: object, message: string) => void passwords.ask.write(`${message}\n`),
    };
    const parts = { clock: systemClock, log, errorAt };
    const report =
      (await backUpStopped(folder, config, parts, version)) ??
      (await backUpRunning(folder, command, config, passwords));
    return describe(folder, report);
  } catch (error) {
    throw error instanceof CommandFailed ? error : new CommandFailed(messageOf(error));
  }
}

/**
 * `restore`: replaces the files of a stopped server by those of a backup. Returns the text to print.
 * @throws CommandFailed
 */
export function restoreCommand(
  { folder, replace }: { readonly folder: string; readonly replace: boolean },
  config: Config,
): string {
  const replacedAt = new Date(systemClock.now()).toISOString().replaceAll(':', '-');
  try {
    const { planned, unused } = plan(resolve(folder), config);
    const kept = restore(planned, replace ? replacedAt : null);
    const lines = planned.flatMap(({ file, namespaces }, i) => [
      `${namespaces.join(', ') || 'statistics'}: ${file}`,
      ...(kept[i] ?? []).map((path) => `  the previous file is now ${path}`),
    ]);
    const unusedLines = unused.map(
      ({ file, url }) => `not restored: ${file}, since no namespace has statistics in ${url}`,
    );
    return `Restored:\n${[...lines, ...unusedLines].map((line) => `  ${line}\n`).join('')}`;
  } catch (error) {
    throw new CommandFailed(messageOf(error));
  }
}

/** Makes the backup in this process. Returns null if a server has one of the files open. */
async function backUpStopped(
  folder: string,
  config: Config,
  parts: EngineParts,
  version: string,
): Promise<BackupReport | null> {
  if (!hasSqliteFiles(config))
    throw new CommandFailed(`There is no SQLite file to back up in ${config.dataDir}.`);
  const engines = await loadEngines(config, parts);
  const copied = engines.all().flatMap(({ engine }) => (engine.backUp === undefined ? [] : [engine]));
  try {
    for (const engine of copied) await engine.start();
    return await new Backups({ config, engines, clock: parts.clock, version }).makeAt(folder);
  } catch (error) {
    if (error instanceof StoreInUse) return null;
    throw error;
  } finally {
    await Promise.all(copied.map((engine) => engine.stop()));
  }
}

/** Asks the server, which writes into its own backup folder, and moves the result to `folder`. */
async function backUpRunning(
  folder: string,
  command: BackupCommand,
  config: Config,
  passwords: PasswordSource,
): Promise<BackupReport> {
  const password = await readPassword(passwords, `The server is running. Password of ${command.user}: `);
  if (password === null) throw new CommandFailed('Nothing was backed up.');
  const authorization = `Basic ${Buffer.from(`${command.user}:${password}`).toString('base64')}`;
  const server = new ConfiguredServer(command.url, config);
  const request = server.call('POST', '/backup', { headers: { authorization } });
  const { status, body } = await request.catch((error: unknown) => {
    const problem = 'A server has the files open, but does not respond; give its address with --url';
    throw new CommandFailed(`${problem} (${server.origin}: ${messageOf(error)}).`);
  });
  const response = (parsedJson(body) ?? {}) as Readonly<Record<string, unknown>>;
  if (status !== 201) {
    throw new CommandFailed(`The server answered ${status}: ${response.detail ?? 'no reason'}`);
  }
  const report = response as unknown as BackupReport;
  try {
    await move(report.folder, folder);
  } catch (error) {
    throw new CommandFailed(`The backup is in ${report.folder}; it cannot be moved (${messageOf(error)}).`);
  }
  return report;
}

/** Moves a folder; copies it if the target is on another file system. */
async function move(from: string, to: string): Promise<void> {
  try {
    renameSync(from, to);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EXDEV') throw error;
    await createWhole(to, (partial) => {
      for (const name of readdirSync(from)) copyPrivateFile(join(from, name), join(partial, name));
    });
    rmSync(from, { recursive: true });
  }
}

function describe(folder: string, { files, skipped }: BackupReport): string {
  const lines = files.map(
    ({ file, namespaces, bytes }) => `${file}: ${namespaces.join(', ') || 'statistics'} (${bytes} bytes)`,
  );
  const skippedLines = skipped.map(
    ({ url, namespaces }) => `not included: ${namespaces.join(', ') || 'signals or statistics'} (${url})`,
  );
  return `Backed up to ${folder}:\n${[...lines, ...skippedLines].map((line) => `  ${line}\n`).join('')}`;
}

/** Whether any SQLite file exists. Checked first because opening a missing file would create it. */
function hasSqliteFiles({ namespaces, dataDir }: Config): boolean {
  return Object.values(namespaces)
    .filter(({ url }) => url.startsWith('sqlite:'))
    .some(({ url }) => existsSync(fileOf({ url, dataDir })));
}

/** A file of a backup and the path to restore it to. */
interface PlannedFile {
  readonly backup: string;
  readonly file: string;
  readonly namespaces: readonly string[];
}

interface RestorePlan {
  readonly planned: readonly PlannedFile[];
  /** Files of statistics that no namespace uses any more. */
  readonly unused: readonly ManifestFile[];
}

/** The files of a backup, and the paths that the configuration gives their contents. @throws Error if it has none */
function plan(folder: string, config: Config): RestorePlan {
  const files = readManifest(folder);
  const unused = files.filter(({ url, namespaces }) => namespaces.length === 0 && !isStatsUrl(url, config));
  const used = files.filter((file) => !unused.includes(file));
  if (used.length === 0) throw new Error(`The backup in ${folder} contains no file to restore.`);
  const sources = new Map<string, string>();
  const planned = used.map(({ file, url, namespaces }) => {
    const paths =
      namespaces.length === 0
        ? [fileOf({ url, dataDir: config.dataDir })]
        : namespaces.map((name) => targetOf(name, config));
    const [target, ...others] = new Set(paths);
    if (target === undefined || others.length > 0) {
      throw new Error(
        `The backup's ${quote(file)} contains the namespaces ${namespaces.join(', ')}, which no longer share a file.`,
      );
    }
    const other = sources.get(target);
    if (other !== undefined) {
      throw new Error(
        `The backup's ${quote(other)} and ${quote(file)} cannot be merged into one file, ${target}.`,
      );
    }
    sources.set(target, file);
    return { backup: join(folder, file), file: target, namespaces };
  });
  return { planned, unused };
}

/** Whether a namespace has its statistics in an engine of their own at this URL. */
function isStatsUrl(url: string, { namespaces }: Config): boolean {
  return Object.values(namespaces).some(({ stats }) => stats?.url === url);
}

function targetOf(name: string, { namespaces, dataDir }: Config): string {
  const url = Object.hasOwn(namespaces, name) ? namespaces[name]?.url : undefined;
  if (url === undefined) {
    throw new Error(`The backup contains a namespace ${quote(name)}, which is not in the configuration.`);
  }
  const file = url.startsWith('sqlite:') ? fileOf({ url, dataDir }) : MEMORY;
  if (file === MEMORY) throw new Error(`The namespace ${quote(name)} is no longer in a SQLite file.`);
  return file;
}

/** What a restore reads of the manifest, which may be written by hand. */
const Manifest = Type.Object({
  files: Type.Array(
    Type.Object({
      file: Type.String(),
      url: Type.Optional(Type.String()),
      namespaces: Type.Array(Type.String()),
    }),
  ),
});

interface ManifestFile {
  readonly file: string;
  readonly url: string;
  readonly namespaces: readonly string[];
}

function readManifest(folder: string): ManifestFile[] {
  const path = join(folder, MANIFEST);
  try {
    const { files } = parse(Manifest, JSON.parse(readFileSync(path, 'utf8')));
    return files.map(({ file, url = '', namespaces }) => ({ file, url, namespaces }));
  } catch (error) {
    throw new Error(`${path} is not the manifest of a backup (${messageOf(error)}).`);
  }
}
