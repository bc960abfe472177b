import { type ErrorCode, invalidParameter, QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import type { Declaration } from './declaration.ts';

export function exists(id: string): QuaysideError {
  return new QuaysideError(
    'exchange-exists',
    `There is an exchange ${quote(id)} with another declaration. Choose another id, change it with If-Match, or delete it first.`,
  );
}

export function otherVersion(id: string): QuaysideError {
  return new QuaysideError(
    'precondition-failed',
    `There is no exchange ${quote(id)} with the version that If-Match names. Read its record again.`,
  );
}

export function cannotMove({ src }: Declaration): QuaysideError {
  return invalidParameter(
    'src.ns',
    `src.ns: namespace ${quote(src.ns)} has another engine than the present source. Delete the exchange, and create it again.`,
  );
}

export function isConflict(error: unknown): boolean {
  return isCode(error, 'definition-conflict');
}

export function isCode(error: unknown, code: ErrorCode): boolean {
  return error instanceof QuaysideError && error.code === code;
}
