import { QuaysideError } from '../../model/errors.ts';

/** Bytes that are no STOMP frame, or a frame that cannot be understood. */
export function malformed(message: string, parameter?: string): QuaysideError {
  return new QuaysideError('malformed-request', message, parameter === undefined ? {} : { parameter });
}
