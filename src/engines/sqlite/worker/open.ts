import { accessSync, constants, copyFileSync, existsSync, rmSync, statSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { systemClock } from '../../../util/clock.ts';
import { createPrivateFile, widerMode } from '../../../util/files.ts';
import { MEMORY, type Settings, type Warn } from '../settings.ts';
import { damage, isBusy, OpenError, openError } from './errors.ts';
import { findLogDamage, holdsCommits } from './log-check.ts';
import { createSchema } from './schema.ts';

type OpenSettings = Pick<Settings, 'file' | 'durability' | 'cacheBytes' | 'check' | 'damagedLog'>;

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
export function openDatabase(options: OpenSettings, warn: Warn): DatabaseSync {
  const { file, cacheBytes, check } = options;
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
 * SQLite calls a file that it may only read an I/O error, as of a disk that fails. Files are often another user's after
 * root has started the server once, or has copied them.
 * @throws OpenError
 */
function checkAccess(file: string): void {
  for (const path of [file, `${file}-wal`]) {
    try {
      accessSync(path, constants.R_OK | constants.W_OK);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') continue;
      throw new OpenError(
        `${path} may not be read and written by this user (${code}); give it to the user that runs the server.`,
      );
    }
  }
}

/** Where a copy waits until all files of a restore are complete. */
export function draftOf(file: string): string {
  return `${file}.restoring`;
}

/**
 * A restore that was killed after it had moved the old file away: a start would make an empty one in its place.
 * @throws OpenError
 */
function checkRestored(file: string): void {
  const draft = draftOf(file);
  if (existsSync(file) || !existsSync(draft)) return;
  throw new OpenError(
    `SQLite file ${file} is missing, and ${draft} shows that a restore was cut off. Repeat the restore with --replace, or delete ${draft} to start with an empty file.`,
  );
}

/**
 * Looks for what SQLite would drop from the log without a word (`log-check.ts`). With `durability: normal` a power
 * loss may leave such a log: its commits do not wait for the disk.
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

/**
 * Files up to this size are checked whole at each start: 2 ms a MiB, 4 ms with small elements, so at most 0.3 s. It
 * holds about half a million small elements.
 */
const CHECKED_BYTES = 64 * 1024 * 1024;

/** Of a larger file, deliveries are checked for so long, those inserted first. Each takes 2 µs. */
const CHECK_MS = 500;
/** Rows between two looks at the clock. */
const ROWS_A_LOOK = 1000;

/** What else decides which elements are found, and is small whatever the queues hold. */
const SMALL_TABLES = ['meta', 'definition', 'queue', 'subscription', 'stats', 'damaged'];

/**
 * Looks for damage that would else show up later, under load: pages that make no sense, and rows that disagree with
 * their index, which hides their element. Not `quick_check`, which leaves the indexes out: of 400 flipped bits it
 * found 64, and `integrity_check` 229.
 *
 * What is left out of a larger file is checked where it is used: SQLite notices a damaged page when it reads it, and
 * elements and deliveries have checksums.
 * @throws Error as SQLite does for a damaged file
 */
function checkFile(db: DatabaseSync, file: string, check: Settings['check']): void {
  // Brings the log in, so that the file is as long as its header says.
  db.exec('PRAGMA wal_checkpoint(PASSIVE)');
  const bytes = existsSync(file) ? statSync(file).size : 0;
  const pages = Number(db.prepare('PRAGMA page_count').get()?.page_count);
  const pageBytes = Number(db.prepare('PRAGMA page_size').get()?.page_size);
  if (bytes < pages * pageBytes) throw damage(`${pages * pageBytes - bytes} bytes are missing at its end`);
  if (check === 'never') return;
  if (check === 'always' || bytes <= CHECKED_BYTES) checkAgree(db, '1');
  else checkPart(db);
}

function checkPart(db: DatabaseSync): void {
  for (const table of SMALL_TABLES) checkAgree(db, table);
  checkDeliveries(db, systemClock.monotonic() + CHECK_MS);
}

/** @param what a table, or how many findings are enough @throws Error as SQLite does for a damaged file */
export function checkAgree(db: DatabaseSync, what: string): void {
  const found = db.prepare(`PRAGMA integrity_check(${what})`).get()?.integrity_check;
  if (found !== 'ok') throw damage(String(found));
}

/** Whether each waiting delivery is in the index that hands it out. */
function checkDeliveries(db: DatabaseSync, until: number): void {
  const rows = db.prepare(
    `SELECT d.seq, d.lease_until IS NOT NULL OR EXISTS (
              SELECT 1 FROM delivery i INDEXED BY delivery_waiting
              WHERE i.subscription = d.subscription AND i.due_at = d.due_at AND i.seq = d.seq AND i.lease_until IS NULL)
     FROM delivery d NOT INDEXED ORDER BY d.seq`,
  );
  rows.setReturnArrays(true);
  let seen = 0;
  for (const row of rows.iterate()) {
    const [seq, isFound] = row as unknown as number[];
    if (isFound !== 1) throw damage(`the delivery of element ${seq} is missing from its index`);
    seen++;
    if (seen % ROWS_A_LOOK === 0 && systemClock.monotonic() > until) return;
  }
}
