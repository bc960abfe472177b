import { type ErrorCode, QuaysideError } from '../model/errors.ts';

// What an engine on a server says where a call failed, in the words of the ports.

export const NOT_REACHABLE = 'The store is not reachable now; nothing was changed.';

/** When asking again makes sense, ms: about as long as a reconnect, or an election, takes to be noticed. */
const RETRY_AFTER_MS = 1000;

/** A call that the store refused: nothing of it happened. `isFull`: it had no space for what the call stores. */
export function refusedByStore(cause: Error, isFull: boolean): QuaysideError {
  if (isFull) return new QuaysideError('storage-full', 'The store is full; nothing was stored.', { cause });
  return unavailable('The store refused the change; nothing was changed.', cause);
}

/** An insert would make more groups than the queue may have: nothing of it was stored. */
export function tooManyGroups(queue: string, maxGroups: number): QuaysideError {
  return new QuaysideError(
    'too-many-groups',
    `Queue ${queue} has ${maxGroups} consumer groups, its limit; raise maxGroups to add more.`,
  );
}

/** A change that was sent and not answered. */
export function unknownOutcome(cause: Error): QuaysideError {
  return failure(
    'outcome-unknown',
    'The store did not answer in time; the change was made or it was not.',
    cause,
  );
}

/** Whether what failed may have been done all the same. */
export function isUnknownOutcome(error: unknown): boolean {
  return error instanceof QuaysideError && error.code === 'outcome-unknown';
}

/** Nothing was sent, or only a question. */
export function unavailable(message: string, cause: Error): QuaysideError {
  return failure('storage-unavailable', message, cause);
}

function failure(code: ErrorCode, message: string, cause: Error): QuaysideError {
  return new QuaysideError(code, message, { cause, retryAfterMs: RETRY_AFTER_MS });
}
