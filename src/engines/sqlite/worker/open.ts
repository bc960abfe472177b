import { accessSync, constants, copyFileSync, existsSync, rmSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { systemClock } from '../../../util/clock.ts';
import { createPrivateFile, widerMode } from '../../../util/files.ts';
import { BALLAST, MEMORY, type Settings, type Warn } from '../settings.ts';
import { damageError, isBusy, isReadOnly, OpenError, openError } from './errors.ts';
import { findLogDamage, holdsCommits } from './log-check.ts';
import { createSchema, hasSchema } from './schema.ts';

type OpenSettings = Pick<Settings, 'file' | 'durability' | 'cacheBytes' | 'damagedLog'>;

/** Older versions can corrupt the file while two connections are open (WAL-reset bug of 3.7.0 to 3.51.2). */
const MIN_SQLITE_VERSION = '3.51.3';

/** @throws OpenError for a version that may corrupt the file */
export function checkSqliteVersion(version: string): void {
  const [given, oldest] = [version, MIN_SQLITE_VERSION].map((text) =>
    text.split('.').reduce((number, part) => number * 1000 + Number(part), 0),
  );
  if (given !== undefined && oldest !== undefined && given >= oldest) return;
  throw new OpenError(
    `This version of Node.js has SQLite ${version}, which can corrupt its files; use one with SQLite ${MIN_SQLITE_VERSION} or newer.`,
  );
}

/**
 * Opens the file exclusively for this process, and creates its tables if it is new.
 *
 * `locking_mode=EXCLUSIVE` takes the file's lock at the first access and keeps it: a second process is refused, the
 * kernel releases the lock however this process ends, and no shared-memory file is needed.
 * Commits wait for their fsync.
 * @throws OpenError
 */
export function openDatabase(options: OpenSettings, warn: Warn): DatabaseSync {
  const { file, cacheBytes } = options;
  checkSqliteVersion(process.versions.sqlite ?? '0');
  try {
    if (file !== MEMORY) {
      checkAccess(file);
      checkRestored(file);
      checkLog(options, warn);
      createPrivateFile(file);
    }
    const db = new DatabaseSync(file);
    try {
      db.exec(`
        PRAGMA locking_mode = EXCLUSIVE;
        PRAGMA auto_vacuum = INCREMENTAL;
        PRAGMA synchronous = FULL;
        PRAGMA wal_autocheckpoint = 0;
        PRAGMA journal_size_limit = ${64 * 1024 * 1024};
        PRAGMA cache_size = ${-Math.floor(cacheBytes / 1024)};
        PRAGMA temp_store = MEMORY;
        PRAGMA foreign_keys = OFF;`);
      if (file !== MEMORY) checkFile(db, file);
      const isNew = !hasSchema(db);
      // Not before the file of another program has been rejected: the mode is stored in the file.
      db.exec('PRAGMA journal_mode = WAL');
      if (isNew) createSchema(db);
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
 * Checks that this user may use the file, its log and its folder, or create them. SQLite reports a file that it may not
 * write as an I/O error, like a failing disk. Files often belong to another user after root has once started the
 * server, or has copied them.
 * @throws OpenError
 */
export function checkAccess(file: string): void {
  let folder = dirname(file);
  while (!existsSync(folder) && dirname(folder) !== folder) folder = dirname(folder);
  const { R_OK, W_OK, X_OK } = constants;
  for (const path of [folder, file, `${file}-wal`]) {
    try {
      accessSync(path, path === folder ? W_OK | X_OK : R_OK | W_OK);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') continue;
      if (isReadOnly(error)) {
        const hint = 'mount that for writing, once its disk has been checked';
        throw new OpenError(`${path} is on a file system that is mounted read-only; ${hint}.`, {
          cause: error,
        });
      }
      const use = path === folder ? 'written to' : 'read and written';
      throw new OpenError(
        `${path} may not be ${use} by this user (${code}); give it to the user that runs the server.`,
      );
    }
  }
}

/** The path of a copy until all files of a restore are complete. */
export function draftOf(file: string): string {
  return `${file}.restoring`;
}

/**
 * Detects a restore that was killed after it had moved the old file away: a start would create an empty file.
 * @throws OpenError
 */
function checkRestored(file: string): void {
  const draft = draftOf(file);
  if (existsSync(file) || !existsSync(draft)) return;
  throw new OpenError(
    `SQLite file ${file} is missing, and ${draft} shows that a restore was interrupted. Repeat the restore with --replace, or delete ${draft} to start with an empty file.`,
  );
}

/**
 * Detects commits that SQLite would silently drop from the log (`log-check.ts`). With `durability: normal` a power loss
 * may cause this, because commits do not wait for the disk.
 * @throws OpenError
 */
function checkLog({ file, durability, damagedLog }: OpenSettings, warn: Warn): void {
  const log = `${file}-wal`;
  const isFileThere = (statSync(file, { throwIfNoEntry: false })?.size ?? 0) > 0;
  const damage = findLogDamage(log);
  const problem = isFileThere
    ? damage && `is damaged at byte ${damage.offset} of ${log}, with ${damage.commits} commits from there on`
    : holdsCommits(log) && `is missing although its log ${log} holds commits`;
  if (!problem) return;
  if (isFileThere && durability === 'normal') {
    warn({ file, ...damage }, 'the log ends early, as after a power loss: the last changes are lost');
    return;
  }
  if (damagedLog === 'drop') {
    const copy = copyLog(log);
    warn(
      { file, copy, ...damage },
      `the SQLite file ${problem}: continuing without them, as damagedLog says`,
    );
    return;
  }
  // The log may look damaged because another process is writing it.
  if (isFileThere) throwIfInUse(file);
  throw new OpenError(
    `SQLite file ${file} ${problem}; keep a copy of both, then restore a backup, or set damagedLog to "drop" for one start to continue without them.`,
  );
}

/** Copies the log under a name with its modification time, so that another start with the same log finds the copy. */
function copyLog(log: string): string {
  const changed = statSync(log).mtime.toISOString().replaceAll(':', '-');
  const copy = `${log}.damaged-${changed}`;
  if (!existsSync(copy)) copyFileSync(log, copy);
  return copy;
}

/** @throws the error that SQLite throws for a file that another connection has locked */
export function throwIfInUse(file: string): void {
  const sharedMemory = `${file}-shm`;
  const existedBefore = existsSync(sharedMemory);
  // A read-only connection neither checkpoints nor removes the log.
  const db = new DatabaseSync(file, { readOnly: true });
  try {
    db.prepare('PRAGMA schema_version').get();
  } catch (error) {
    if (isBusy(error)) throw error;
  } finally {
    db.close();
    if (!existedBefore) rmSync(sharedMemory, { force: true });
  }
}

function warnOfWiderModes(file: string, warn: Warn): void {
  for (const path of [file, `${file}-wal`, `${file}${BALLAST}`]) {
    const mode = widerMode(path);
    if (mode !== null) {
      warn(
        { file: path, mode },
        `${path} has mode ${mode}: other users can read it; fix this with chmod 600`,
      );
    }
  }
}

/**
 * Files up to this size, about half a million small elements, are checked completely at each start: 2 ms per MiB, 4 ms
 * with small elements, so at most 0.3 s.
 */
const CHECKED_BYTES = 64 * 1024 * 1024;

/** How long the deliveries of a larger file are checked, in the order of insertion. Each takes 2 µs. */
const CHECK_MS = 500;
/** Rows between two checks of the clock. */
const ROWS_PER_CLOCK_CHECK = 1000;

/** The other tables that decide which elements are found; they are small however many elements the queues have. */
const SMALL_TABLES = ['meta', 'definition', 'queue', 'subscription', 'stats', 'damaged'];

/**
 * Detects damage that would otherwise appear later, under load: invalid pages, and rows that disagree with their index,
 * which hides their element. Not `quick_check`, which leaves the indexes out: of 400 flipped bits it found 64, and
 * `integrity_check` 229.
 *
 * The parts of a larger file that this skips are checked when they are used: SQLite detects a damaged page when it
 * reads it, and elements and deliveries have checksums.
 * @throws the error that SQLite throws for a damaged file
 */
function checkFile(db: DatabaseSync, file: string): void {
  // Checkpoints, so that the file has the length that its header specifies.
  db.exec('PRAGMA wal_checkpoint(PASSIVE)');
  const bytes = existsSync(file) ? statSync(file).size : 0;
  const missing = bytesOf(db) - bytes;
  if (missing > 0) throw damageError(`${missing} bytes are missing at its end`);
  if (bytes <= CHECKED_BYTES) {
    checkIntegrity(db, '1');
    return;
  }
  for (const table of SMALL_TABLES) checkIntegrity(db, table);
  checkDeliveries(db, systemClock.monotonic() + CHECK_MS);
}

/** The size of a database file, by its header. */
export function bytesOf(db: DatabaseSync): number {
  const pages = Number(db.prepare('PRAGMA page_count').get()?.page_count);
  return pages * Number(db.prepare('PRAGMA page_size').get()?.page_size);
}

/**
 * @param what argument of `integrity_check`: a table, or the maximum number of findings
 * @throws the error that SQLite throws for a damaged file
 */
export function checkIntegrity(db: DatabaseSync, what: string): void {
  const found = db.prepare(`PRAGMA integrity_check(${what})`).get()?.integrity_check;
  if (found !== 'ok') throw damageError(String(found));
}

/** Checks that each waiting delivery is in the index that takes use. @param until monotonic time of the check's end */
function checkDeliveries(db: DatabaseSync, until: number): void {
  const rows = db.prepare(
    `SELECT d.seq, d.lease_until IS NOT NULL OR EXISTS (
              SELECT 1 FROM delivery i INDEXED BY delivery_waiting
              WHERE i.subscription = d.subscription AND i.due_at = d.due_at AND i.seq = d.seq AND i.lease_until IS NULL)
     FROM delivery d NOT INDEXED ORDER BY d.seq`,
  );
  rows.setReturnArrays(true);
  let checked = 0;
  for (const row of rows.iterate()) {
    const [seq, isFound] = row as unknown as number[];
    if (isFound !== 1) throw damageError(`the delivery of element ${seq} is missing from its index`);
    checked++;
    if (checked % ROWS_PER_CLOCK_CHECK === 0 && systemClock.monotonic() > until) return;
  }
}
