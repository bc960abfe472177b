import { QuaysideError } from '../../../model/errors.ts';
import { messageOf } from '../../../util/message-of.ts';
import type { PassingState, Rejection } from '../protocol.ts';

/** SQLite's primary result codes that are handled specially. */
const SQLITE_ERROR = 1;
const SQLITE_BUSY = 5;
const SQLITE_READONLY = 8;
const SQLITE_IOERR = 10;
const SQLITE_CORRUPT = 11;
const SQLITE_FULL = 13;
const SQLITE_CANTOPEN = 14;
const SQLITE_NOTADB = 26;

/**
 * Errors after which the file can no longer be relied on. The most important is a failed fsync: the kernel may have
 * dropped the dirty pages and report success the next time, so continuing would acknowledge lost elements.
 */
const FATAL: ReadonlySet<number> = new Set([
  SQLITE_READONLY,
  SQLITE_IOERR,
  SQLITE_CORRUPT,
  SQLITE_CANTOPEN,
  SQLITE_NOTADB,
]);

/** The file, or the state in memory, can no longer be relied on. */
export class StoreLost extends Error {
  override readonly name = 'StoreLost';
}

/** SQLite's primary result code, or null if the error is not SQLite's. */
export function sqliteCode(error: unknown): number | null {
  if (!(error instanceof Error) || !('errcode' in error)) return null;
  return typeof error.errcode === 'number' ? error.errcode & 0xff : null;
}

export function isFatal(error: unknown): boolean {
  if (error instanceof StoreLost) return true;
  const code = sqliteCode(error);
  return code !== null && FATAL.has(code);
}

/** Whether SQLite, or Node.js while it creates a file, ran out of space or inodes. */
export function isFull(error: unknown): boolean {
  return sqliteCode(error) === SQLITE_FULL || (error as NodeJS.ErrnoException | undefined)?.code === 'ENOSPC';
}

export function isBusy(error: unknown): boolean {
  return sqliteCode(error) === SQLITE_BUSY;
}

/** Whether the file system is mounted read-only. */
export function isReadOnly(error: unknown): boolean {
  return (error as NodeJS.ErrnoException | undefined)?.code === 'EROFS';
}

export function isDamage(error: unknown): boolean {
  const code = sqliteCode(error);
  return code === SQLITE_CORRUPT || code === SQLITE_NOTADB;
}

/**
 * Converts an error that concerns a single call to its rejection. Nothing of the call was applied.
 * @param takesSpace whether the port allows `storage-full` for this call
 */
export function rejectionOf(error: unknown, takesSpace: boolean): Rejection {
  if (error instanceof QuaysideError) return { code: error.code, message: error.message };
  const message = messageOf(error);
  if (isFull(error) && takesSpace) return { code: 'storage-full', message: 'The disk is full.' };
  if (sqliteCode(error) !== null) return { code: 'storage-unavailable', message: `SQLite: ${message}` };
  return { code: 'internal', message };
}

/** The file cannot be opened. The message names it and what to do. */
export class OpenError extends Error {
  /** The state that prevents it, if that may pass; null if somebody must correct the file or the configuration. */
  get state(): PassingState | null {
    if (isBusy(this.cause)) return 'in-use';
    if (isFull(this.cause)) return 'full';
    return isReadOnly(this.cause) ? 'read-only' : null;
  }
}

/** Converts an error while the file is opened to one for the operator. */
export function openError(file: string, error: unknown): OpenError {
  if (error instanceof OpenError) return error;
  return new OpenError(openErrorMessage(file, error), { cause: error });
}

function openErrorMessage(file: string, error: unknown): string {
  const why = messageOf(error);
  if (isBusy(error)) {
    return `SQLite file ${file} is in use by another process; stop that process, or configure another file.`;
  }
  if (isDamage(error)) {
    return `SQLite file ${file} is damaged or not a database (${why}); restore it from a backup or move it away.`;
  }
  // A statement of the engine does not match the tables.
  if (sqliteCode(error) === SQLITE_ERROR) {
    return `SQLite file ${file} has unexpected tables (${why}): it is damaged; restore it from a backup or move it away.`;
  }
  if (sqliteCode(error) !== null || isFull(error)) {
    return `SQLite file ${file} cannot be opened (${why}); check that its folder exists, may be written and has space.`;
  }
  return `SQLite file ${file} cannot be used: ${why}.`;
}

/** An error like the one that SQLite throws for a damaged file. */
export function damageError(what: string): Error {
  return Object.assign(new Error(what), { errcode: SQLITE_CORRUPT });
}
