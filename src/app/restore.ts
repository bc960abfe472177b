import { readFileSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Config } from '../config/options.ts';
import { checkNotInUse, draftCopy, draftOf, dropDraft, existingFiles } from '../engines/sqlite/restore.ts';
import { fileOf, MEMORY } from '../engines/sqlite/settings.ts';
import { makeFolder } from '../util/make-folder.ts';
import { quote } from '../util/quote.ts';
import { syncFolder } from '../util/sync-folder.ts';
import { MANIFEST } from './backups.ts';

export interface Restored {
  /** Where the file is now. */
  readonly file: string;
  readonly namespaces: readonly string[];
  /** Where the files that were in its place are now. */
  readonly kept: readonly string[];
}

interface Planned {
  readonly backup: string;
  readonly file: string;
  readonly namespaces: readonly string[];
}

/**
 * Puts the files of a backup where the configuration's namespaces have theirs. Everything is copied and checked before
 * the first file gets its place.
 * @param replacedAt part of the names that files which are in the way are given; null: they are not replaced
 * @throws Error that says what is in the way, or wrong with the backup
 */
export function restoreBackup(folder: string, config: Config, replacedAt: string | null): Restored[] {
  const planned = plan(folder, config);
  for (const { file } of planned) checkPlace(file, replacedAt !== null);
  try {
    for (const { backup, file } of planned) {
      makeFolder(dirname(file));
      draftCopy(backup, file);
    }
    return planned.map(({ file, namespaces }) => {
      const kept = existingFiles(file).map((path) => {
        const aside = path.replace(file, `${file}.replaced-${replacedAt}`);
        renameSync(path, aside);
        return aside;
      });
      renameSync(draftOf(file), file);
      syncFolder(dirname(file));
      return { file, namespaces, kept };
    });
  } catch (error) {
    for (const { file } of planned) dropDraft(file);
    throw error;
  }
}

/** @throws Error if the file may not be replaced, or cannot be as a server has it open */
function checkPlace(file: string, mayReplace: boolean): void {
  checkNotInUse(file);
  const [first] = existingFiles(file);
  if (first === undefined || mayReplace) return;
  throw new Error(
    `${first} is there already. Move it away, or give --replace, which keeps it under another name.`,
  );
}

function plan(folder: string, config: Config): Planned[] {
  return readManifest(folder).map(({ file, namespaces }) => {
    const targets = new Set(namespaces.map((name) => targetOf(name, config)));
    const [target] = targets;
    if (target === undefined || targets.size > 1) {
      throw new Error(
        `The backup's ${quote(file)} is of the namespaces ${namespaces.join(', ')}, which have no file in common now.`,
      );
    }
    return { backup: join(folder, file), file: target, namespaces };
  });
}

function targetOf(name: string, { namespaces, dataDir }: Config): string {
  const url = Object.hasOwn(namespaces, name) ? namespaces[name]?.url : undefined;
  if (url === undefined) {
    throw new Error(`The backup has a namespace ${quote(name)}, which the configuration does not name.`);
  }
  const file = url.startsWith('sqlite:') ? fileOf({ url, dataDir }) : MEMORY;
  if (file === MEMORY) throw new Error(`The namespace ${quote(name)} has no SQLite file now.`);
  return file;
}

interface ManifestFile {
  readonly file: string;
  readonly namespaces: readonly string[];
}

function readManifest(folder: string): ManifestFile[] {
  const path = join(folder, MANIFEST);
  try {
    const { files } = JSON.parse(readFileSync(path, 'utf8')) as { files: ManifestFile[] };
    // A file that only carries statistics or signals belongs to no namespace; it starts empty.
    return files.filter(({ namespaces }) => namespaces.length > 0);
  } catch (error) {
    throw new Error(
      `${path} is not the list of a backup (${error instanceof Error ? error.message : error}).`,
    );
  }
}
