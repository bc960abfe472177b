import { copyFileSync, existsSync, rmSync, statSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { createPrivateFile, widerMode } from '../../../util/files.ts';
import { type DamagedLog, type Durability, type FileCheck, MEMORY } from '../settings.ts';
import { checkFile } from './check.ts';
import { isBusy, isDamage, messageOf, SQLITE_ERROR, sqliteCode } from './faults.ts';
import { findLogDamage, holdsCommits } from './log-check.ts';
import { createSchema } from './schema.ts';

export interface OpenOptions {
  /** A path, or ':memory:'. */
  readonly file: string;
  readonly durability: Durability;
  readonly cacheBytes: number;
  readonly check: FileCheck;
  readonly damagedLog: DamagedLog;
}

export type Warn = (fields: object, message: string) => void;

/** A file that cannot be served; the message names it and the remedy. */
export class OpenError extends Error {}

/** Before it, a checkpoint could corrupt the file when two connections met (WAL-reset bug of 3.7.0 to 3.51.2). */
const OLDEST_SQLITE = '3.51.3';

/** @throws OpenError for a SQLite that is too old to be trusted with a log */
export function checkSqliteVersion(version: string): void {
  const [given, oldest] = [version, OLDEST_SQLITE].map((text) =>
    text.split('.').reduce((number, part) => number * 1000 + Number(part), 0),
  );
  if (given !== undefined && oldest !== undefined && given >= oldest) return;
  throw new OpenError(
    `This Node brings SQLite ${version}, which can corrupt its files; use a Node with SQLite ${OLDEST_SQLITE} or newer.`,
  );
}

/**
 * Opens the file for this process alone and creates its tables if it is new.
 *
 * `locking_mode=EXCLUSIVE` takes the file's lock at the first access and keeps it: a second owner is refused,
 * the lock goes with the process however that ends, and no shared-memory file is needed.
 * Commits wait for their fsync.
 * @throws OpenError
 */
export function openDatabase(options: OpenOptions, warn: Warn): DatabaseSync {
  const { file, cacheBytes, check } = options;
  checkSqliteVersion(process.versions.sqlite ?? '0');
  try {
    if (file !== MEMORY) {
      checkLog(options, warn);
      createPrivateFile(file);
    }
    const db = new DatabaseSync(file);
    try {
      db.exec(`
        PRAGMA locking_mode = EXCLUSIVE;
        PRAGMA auto_vacuum = INCREMENTAL;
        PRAGMA journal_mode = WAL;
        PRAGMA synchronous = FULL;
        PRAGMA wal_autocheckpoint = 0;
        PRAGMA journal_size_limit = ${64 * 1024 * 1024};
        PRAGMA cache_size = ${-Math.floor(cacheBytes / 1024)};
        PRAGMA temp_store = MEMORY;
        PRAGMA foreign_keys = OFF;`);
      if (file !== MEMORY) checkFile(db, file, check);
      createSchema(db);
      if (file !== MEMORY) warnOfWiderModes(file, warn);
      return db;
    } catch (error) {
      db.close();
      throw error;
    }
  } catch (error) {
    throw openError(file, error);
  }
}

/**
 * Looks for what SQLite would drop from the log without a word (`log-check.ts`). With `durability: normal` a power
 * loss may leave such a log: its commits do not wait for the disk.
 * @throws OpenError
 */
function checkLog({ file, durability, damagedLog }: OpenOptions, warn: Warn): void {
  const log = `${file}-wal`;
  const isFileThere = (statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0;
  const damage = findLogDamage(log);
  const problem = isFileThere
    ? damage && `is damaged at byte ${damage.offset} of ${log}, with ${damage.commits} commits from there on`
    : holdsCommits(log) && `is missing although its log ${log} holds commits`;
  if (!problem) return;
  if (isFileThere && durability === 'normal') {
    warn({ file, ...damage }, 'the log ends early, as after a power loss: what was stored last is lost');
    return;
  }
  if (damagedLog === 'drop') {
    const copy = keepCopy(log);
    warn(
      { file, copy, ...damage },
      `the SQLite file ${problem}: continuing without them, as damagedLog says`,
    );
    return;
  }
  // Another process may be writing the log at this moment.
  if (isFileThere) refuseIfInUse(file);
  throw new OpenError(
    `SQLite file ${file} ${problem}; keep a copy of both, then restore a backup, or set damagedLog to "drop" for one start to continue without them.`,
  );
}

/** Named by the log's last change, so that another start with the same log finds its copy there. */
function keepCopy(log: string): string {
  const changed = statSync(log).mtime.toISOString().replaceAll(':', '-');
  const copy = `${log}.damaged-${changed}`;
  if (!existsSync(copy)) copyFileSync(log, copy);
  return copy;
}

/** @throws Error as SQLite does for a file that another connection has locked */
export function refuseIfInUse(file: string): void {
  const shared = `${file}-shm`;
  const wasThere = existsSync(shared);
  // A connection that may not write neither checkpoints nor removes the log.
  const db = new DatabaseSync(file, { readOnly: true });
  try {
    db.prepare('PRAGMA schema_version').get();
  } catch (error) {
    if (isBusy(error)) throw error;
  } finally {
    db.close();
    if (!wasThere) rmSync(shared, { force: true });
  }
}

function warnOfWiderModes(file: string, warn: Warn): void {
  for (const path of [file, `${file}-wal`, `${file}.ballast`]) {
    const mode = widerMode(path);
    if (mode !== null) {
      warn({ file: path, mode }, `${path} has mode ${mode}: others can read it; chmod 600 takes that away`);
    }
  }
}

/** Why a file cannot be served, by what failed. */
export function openError(file: string, error: unknown): OpenError {
  if (error instanceof OpenError) return error;
  return new OpenError(refusal(file, error), { cause: error });
}

function refusal(file: string, error: unknown): string {
  const why = messageOf(error);
  if (isBusy(error)) {
    return `SQLite file ${file} is in use by another process; stop that one or give this one a file of its own.`;
  }
  if (isDamage(error)) {
    return `SQLite file ${file} is damaged or not a database (${why}); restore it from a backup or move it away.`;
  }
  // Our statements do not fit its tables.
  if (sqliteCode(error) === SQLITE_ERROR) {
    return `SQLite file ${file} has other tables than it should (${why}): it is damaged; restore it from a backup or move it away.`;
  }
  if (sqliteCode(error) !== null) {
    return `SQLite file ${file} cannot be opened (${why}); check that its folder exists, may be written and has space.`;
  }
  return `SQLite file ${file} cannot be used: ${why}.`;
}
