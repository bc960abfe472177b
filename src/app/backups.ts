import { existsSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import type { Config } from '../config/options.ts';
import { QuaysideError } from '../model/errors.ts';
import { wrongMember } from '../model/members.ts';
import type { BackupReport } from '../model/records.ts';
import type { Clock } from '../util/clock.ts';
import { makeFolder, PRIVATE_MODE, syncFolder } from '../util/files.ts';
import { maskUrl } from '../util/mask.ts';
import { quote } from '../util/quote.ts';
import type { EngineSet } from './engines.ts';

/** File in a backup folder that lists its files and their namespaces. */
export const MANIFEST = 'backup.json';

/** No separator and no leading dot, so that a name cannot escape the backup folder. */
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

interface BackupsOptions {
  readonly config: Config;
  readonly engines: EngineSet;
  readonly clock: Clock;
  readonly version: string;
}

/** The folder to which backups are written. */
function backupFolderOf({ backupDir, dataDir }: Config): string {
  return backupDir ?? join(dataDir, 'backups');
}

/**
 * Backs up all engines that support it, one at a time, into a new folder with one file per engine and a manifest. The
 * folder gets its final name only when it is complete.
 */
export class Backups {
  readonly #options: BackupsOptions;
  #isRunning = false;

  constructor(options: BackupsOptions) {
    this.#options = options;
  }

  /** @throws QuaysideError `invalid-parameter`, `backup-conflict`, and as `Engine.backUp` */
  async make(name: string | null): Promise<BackupReport> {
    const takenAt = this.#now();
    const folderName = name ?? takenAt.replaceAll(':', '-');
    if (!NAME.test(folderName)) {
      const allowed = '1 to 64 letters, digits, ".", "_" and "-", the first of them a letter or digit';
      throw wrongMember('name', folderName, allowed);
    }
    return this.makeAt(join(backupFolderOf(this.#options.config), folderName), takenAt);
  }

  /** As `make`, into any folder that does not exist yet. */
  async makeAt(folder: string, takenAt = this.#now()): Promise<BackupReport> {
    if (this.#isRunning) throw new QuaysideError('backup-conflict', 'Another backup is running.');
    this.#isRunning = true;
    try {
      return await this.#make(folder, takenAt);
    } finally {
      this.#isRunning = false;
    }
  }

  async #make(folder: string, takenAt: string): Promise<BackupReport> {
    const { version } = this.#options;
    const name = basename(folder);
    if (existsSync(folder)) {
      throw new QuaysideError('backup-conflict', `There is a backup ${quote(name)} already.`);
    }
    return createWhole(folder, async (partial) => {
      const report = { name, folder, takenAt, version, ...(await this.#copyAll(partial)) };
      writeFileSync(join(partial, MANIFEST), `${JSON.stringify(report, null, 2)}\n`, {
        mode: PRIVATE_MODE,
        flush: true,
      });
      return report;
    });
  }

  #now(): string {
    return new Date(this.#options.clock.now()).toISOString();
  }

  async #copyAll(folder: string): Promise<Pick<BackupReport, 'files' | 'skipped'>> {
    const files: BackupReport['files'][number][] = [];
    const skipped: BackupReport['skipped'][number][] = [];
    for (const { engine, namespaces } of this.#options.engines.all()) {
      const url = maskUrl(engine.url);
      if (engine.backUp === undefined) {
        skipped.push({ url, namespaces });
        continue;
      }
      const file = unusedName(basename(engine.url.replace(/^[a-z]+:/, '')), files);
      files.push({ file, url, namespaces, bytes: await engine.backUp(join(folder, file)) });
    }
    return { files, skipped };
  }
}

/**
 * Creates a folder atomically: it gets its name once everything in it is on disk, and is removed if `fill` fails.
 * @param fill writes the contents into a temporary folder next to it
 */
export async function createWhole<T>(folder: string, fill: (partial: string) => Promise<T> | T): Promise<T> {
  const partial = join(dirname(folder), `.${basename(folder)}.partial`);
  // Remove the remains of a process that was killed.
  rmSync(partial, { recursive: true, force: true });
  makeFolder(partial);
  try {
    const filled = await fill(partial);
    syncFolder(partial);
    renameSync(partial, folder);
    syncFolder(dirname(folder));
    return filled;
  } catch (error) {
    rmSync(partial, { recursive: true, force: true });
    throw error;
  }
}

/** Engines may have files of the same name in different folders. */
function unusedName(name: string, files: readonly { readonly file: string }[]): string {
  const isUsed = (candidate: string): boolean =>
    candidate === MANIFEST || files.some(({ file }) => file === candidate);
  let unused = name;
  for (let number = 2; isUsed(unused); number++) unused = `${number}-${name}`;
  return unused;
}
