import { QuaysideError } from '../model/errors.ts';

/** Codes of errors after which the failed step of an operation is repeated. Any other error fails the operation. */
const TRANSIENT: ReadonlySet<string> = new Set([
  'storage-unavailable',
  'outcome-unknown',
  'overloaded',
  'shutting-down',
]);

/** Whether an error is transient, so that the call is repeated. */
export function isTransient(error: unknown): boolean {
  return error instanceof QuaysideError && TRANSIENT.has(error.code);
}
