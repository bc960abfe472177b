import { isRetryable, QuaysideError } from '../model/errors.ts';
import { toByteString } from '../util/byte-string.ts';
import { frameText, type HeadRules } from './codec.ts';

/** A limit of one session. It is not retryable: the same frames would exceed it again. */
export class SessionLimitError extends QuaysideError {
  constructor(message: string) {
    super('overloaded', message);
  }
}

/** What an ERROR refers to, if anything. Strings have one character per byte. */
export interface ErrorSubject {
  /** The receipt id of the frame. */
  readonly receipt?: string | null;
  /** The id of the subscription that failed. */
  readonly subscription?: string | null;
  /** The supported versions, for a client that supports none of them. */
  readonly versions?: readonly string[];
}

/**
 * An ERROR frame, without its final NUL: the header `message` is the code, the body is the error message. Every ERROR
 * closes the connection, so `x-ks-retry` says whether the same frames may succeed later: a client that reconnects
 * automatically could send a wrong frame forever.
 */
export function errorFrame(rules: HeadRules, error: QuaysideError, subject: ErrorSubject): string {
  const { code, details } = error;
  const { receipt = null, subscription = null, versions } = subject;
  const body = toByteString(error.message);
  const canRetry = isRetryable(code) && !(error instanceof SessionLimitError);
  const headers = ['message', code, 'x-ks-retry', String(canRetry)];
  if (details.retryAfterMs !== undefined) {
    headers.push('x-ks-retry-after', String(Math.ceil(details.retryAfterMs)));
  }
  // In STOMP, the destination names the namespace.
  const parameter = details.parameter === 'namespace' ? 'destination' : details.parameter;
  if (parameter !== undefined) {
    headers.push('x-ks-parameter', toByteString(parameter.replace(CONTROL, ' ')));
  }
  if (receipt !== null) headers.push('receipt-id', receipt);
  if (subscription !== null) headers.push('subscription', subscription);
  if (versions !== undefined) headers.push('version', versions.join(','));
  // The charset is required: stompit throws an error that cannot be caught for a bare `text/plain`.
  headers.push('content-type', 'text/plain;charset=utf-8', 'content-length', String(body.length));
  return frameText(rules, 'ERROR', headers, body);
}

// A parameter may be a header name from the client, and STOMP 1.0 cannot escape control characters.
// biome-ignore lint/suspicious/noControlCharactersInRegex: keeping them off a header line is the purpose
const CONTROL = /[\u0000-\u001f]/g;
