import { existsSync, statSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import { systemClock } from '../../../util/clock.ts';
import type { FileCheck } from '../settings.ts';
import { SQLITE_CORRUPT } from './faults.ts';

/**
 * Files up to this size are checked whole at each start: 2 ms a MiB, 4 ms with small elements, so at most 0.3 s. It holds
 * about half a million small elements.
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
export function checkFile(db: DatabaseSync, file: string, check: FileCheck): void {
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

function damage(what: string): Error {
  return Object.assign(new Error(what), { errcode: SQLITE_CORRUPT });
}
