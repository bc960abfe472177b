import {
  MongoBulkWriteError,
  MongoError,
  MongoNetworkError,
  MongoServerError,
  MongoWriteConcernError,
} from 'mongodb';
import { refusedByStore } from '../../engine/store-failures.ts';
import type { QuaysideError } from '../../model/errors.ts';

/** The server did not answer, or nobody can say whether what it began has come to an end. */
export class Lost extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause: describe(cause) });
    this.name = 'Lost';
  }
}

/** The server said no: nothing of what it was asked happened. */
export class Refused extends Error {
  /** MongoDB's number for the error; 0 where the driver refused by itself. */
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.name = 'Refused';
    this.code = code;
  }
}

export const DUPLICATE_KEY = 11000;
const OUT_OF_DISK_SPACE = 14031;
/** The time was over: of several documents some may be changed, or the wait for other members ended. */
const MAX_TIME_EXPIRED = 50;
/** A primary that stepped down, or a server that is about to stop: what it had begun may go on elsewhere. */
const CHANGES_PRIMARY = new Set([91, 189, 10058, 10107, 11600, 11602, 13435, 13436]);

/**
 * What the driver threw, as one of the two above. Messages of the server are left out: some of them quote the
 * command, and with it a body.
 */
export function fromDriver(thrown: unknown): Lost | Refused {
  if (thrown instanceof Lost || thrown instanceof Refused) return thrown;
  const error = unwrapped(thrown);
  if (!isRefusal(error)) return new Lost('MongoDB did not answer.', error);
  return new Refused(codeOf(error), describe(error).message);
}

/** Whatever ends a batch early, a lost connection included, the driver shows as if the server had said it. */
function unwrapped(error: unknown): unknown {
  const inner: unknown = error instanceof MongoBulkWriteError ? error.errorResponse : null;
  return inner instanceof Error ? inner : error;
}

function isRefusal(error: unknown): boolean {
  if (error instanceof MongoWriteConcernError || error instanceof MongoNetworkError) return false;
  if (error instanceof MongoBulkWriteError && error.result?.getWriteConcernError() !== undefined)
    return false;
  if (!(error instanceof MongoServerError)) return !(error instanceof MongoError);
  const code = codeOf(error);
  return (
    code !== MAX_TIME_EXPIRED && !CHANGES_PRIMARY.has(code) && !error.hasErrorLabel('RetryableWriteError')
  );
}

/** Whether a transaction met another one, and may well pass when it is made again. */
export function isConflict(error: unknown): boolean {
  if (codeOf(error) === DUPLICATE_KEY) return true;
  return error instanceof MongoError && error.hasErrorLabel('TransientTransactionError');
}

/** Whether nobody knows if a commit took effect. */
export function isUnknownCommit(error: unknown): boolean {
  return error instanceof MongoError && error.hasErrorLabel('UnknownTransactionCommitResult');
}

/**
 * Of a batch, the places of what is there already by its `_id`, where nothing else is wrong; null where something is.
 */
export function duplicatesOf(error: unknown): number[] | null {
  if (!(error instanceof MongoBulkWriteError) || error.result.getWriteConcernError() !== undefined)
    return null;
  const errors = error.result.getWriteErrors();
  if (errors.length === 0 || errors.some(({ code }) => code !== DUPLICATE_KEY)) return null;
  return errors.map(({ index }) => index);
}

export function codeOf(error: unknown): number {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'number' ? code : 0;
}

/** An error without whatever could hold a stored value or a secret. */
export function describe(error: unknown): Error {
  if (error instanceof MongoServerError) {
    const { codeName } = error as { codeName?: unknown };
    return new Error(`MongoDB error ${codeOf(error)}${typeof codeName === 'string' ? ` ${codeName}` : ''}`);
  }
  if (error instanceof MongoError || error instanceof Lost || error instanceof Refused) {
    return new Error(`${error.name}: ${error.message}`);
  }
  return new Error(error instanceof Error ? error.message : String(error));
}

/** A refused call as the port has it: nothing of it happened. */
export function refusedError(error: Refused, inserts: boolean): QuaysideError {
  return refusedByStore(error, error.code === OUT_OF_DISK_SPACE && inserts);
}
