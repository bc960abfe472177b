import pg from 'pg';
import { refusedByStore } from '../../engine/calls.ts';
import type { QuaysideError } from '../../model/errors.ts';

/** A connection that ended, or never came about. What was under way on it may have been applied. */
export class ConnectionLost extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause: describe(cause) });
    this.name = 'ConnectionLost';
  }
}

/** PostgreSQL said no and goes on: the transaction was rolled back and the connection is as before. */
export class Refused extends Error {
  /** The SQLSTATE. */
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.name = 'Refused';
    this.code = code;
  }
}

const DISK_FULL = '53100';
const READ_ONLY = '25006';
/**
 * The same call may well pass when made again: deadlock, serialization failure, and a unique violation, as two nodes see that
 * create the same queue at the same moment.
 */
const WORTH_A_RETRY = new Set(['40P01', '40001', '23505']);
/** A statement, or its wait for a lock, took too long. */
const TIMEOUTS = new Set(['57014', '55P03']);
/** Errors after which the server closes the connection: shutdown, crash, dropped database, idle too long. */
const ENDS_CONNECTION = /^(?:57P0[1-5]|25P03|08...)$/;

/** What the driver threw, as one of the two above. Values that a statement carried are left out. */
export function fromDriver(error: unknown): ConnectionLost | Refused {
  if (error instanceof pg.DatabaseError && error.code !== undefined && !ENDS_CONNECTION.test(error.code)) {
    return new Refused(error.code, describe(error).message);
  }
  return new ConnectionLost('The connection to PostgreSQL ended.', error);
}

/** An error without whatever could hold a stored value or a secret: the message's parts that are known to be neither. */
function describe(error: unknown): Error {
  if (error instanceof pg.DatabaseError) {
    // Class 22 is about data, and its messages quote them.
    const quotesData = error.code?.startsWith('22') ?? false;
    return new Error(
      quotesData ? `PostgreSQL error ${error.code}` : `PostgreSQL error ${error.code}: ${error.message}`,
    );
  }
  return new Error(error instanceof Error ? error.message : String(error));
}

export function isWorthRetry(error: Error): boolean {
  return error instanceof Refused && WORTH_A_RETRY.has(error.code);
}

export function isTimeout(error: Refused): boolean {
  return TIMEOUTS.has(error.code);
}

/** Whether another server has become the writable one, so that this connection is of no use any more. */
export function isReadOnly(error: Refused): boolean {
  return error.code === READ_ONLY;
}

/** The port's error for a rejected call. @param stores whether it stores elements: a full disk is then an error of its own */
export function refusedError(error: Refused, stores: boolean): QuaysideError {
  return refusedByStore(error, error.code === DISK_FULL && stores);
}
