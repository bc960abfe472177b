import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import { toByteString } from '../util/byte-string.ts';
import { frameText, type HeadRules } from './codec.ts';

/** An error in STOMP. Every ERROR closes the connection. */
interface StompError {
  /**
   * Whether the same frames may succeed later: `x-ks-retry`. Without it, a client that reconnects automatically could
   * send a wrong frame forever.
   */
  readonly retry: boolean;
}

const FINAL: StompError = { retry: false };
const RETRYABLE: StompError = { retry: true };

/** Every error code on this wire; `docs/protocols/stomp.md` lists those that can occur. */
export const STOMP_ERRORS = {
  'malformed-request': FINAL,
  'headers-too-large': FINAL,
  'request-timeout': RETRYABLE,
  'expectation-failed': FINAL,
  'invalid-parameter': FINAL,
  'invalid-name': FINAL,
  'invalid-header': FINAL,
  'invalid-body': FINAL,
  'body-too-large': FINAL,
  'not-supported': FINAL,
  'method-not-allowed': FINAL,
  'route-not-found': FINAL,
  unauthorized: FINAL,
  'token-expired': FINAL,
  'too-many-attempts': RETRYABLE,
  forbidden: FINAL,
  'forbidden-origin': FINAL,
  'namespace-not-found': FINAL,
  'element-not-found': FINAL,
  'not-reserved': FINAL,
  'lease-lost': FINAL,
  'token-required': FINAL,
  'element-reserved': FINAL,
  'idempotency-mismatch': FINAL,
  'exchange-not-found': FINAL,
  'exchange-exists': FINAL,
  'operation-not-found': FINAL,
  'token-not-found': FINAL,
  'queue-in-use': FINAL,
  'definition-conflict': RETRYABLE,
  'precondition-failed': FINAL,
  'backup-conflict': FINAL,
  'pop-cancelled': FINAL,
  'pop-timeout': RETRYABLE,
  'too-many-consumers': RETRYABLE,
  'too-many-queues': FINAL,
  'namespace-full': RETRYABLE,
  'queue-full': RETRYABLE,
  'too-many-groups': FINAL,
  'too-many-exchanges': FINAL,
  'too-many-tokens': FINAL,
  'too-many-subscribers': RETRYABLE,
  overloaded: RETRYABLE,
  'shutting-down': RETRYABLE,
  'storage-full': RETRYABLE,
  'storage-unavailable': RETRYABLE,
  // The frame may have taken effect; if it is sent again, it may take effect twice.
  'outcome-unknown': FINAL,
  internal: RETRYABLE,
} as const satisfies Record<ErrorCode, StompError>;

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

/** An ERROR frame, without its final NUL: the header `message` is the code, the body is the error message. */
export function errorFrame(rules: HeadRules, error: QuaysideError, subject: ErrorSubject): string {
  const { code, details } = error;
  const { receipt = null, subscription = null, versions } = subject;
  const body = toByteString(error.message);
  const canRetry = STOMP_ERRORS[code].retry && !(error instanceof SessionLimitError);
  const headers = ['message', code, 'x-ks-retry', String(canRetry)];
  if (details.retryAfterMs !== undefined) {
    headers.push('x-ks-retry-after', String(Math.ceil(details.retryAfterMs)));
  }
  if (details.parameter !== undefined)
    headers.push('x-ks-parameter', toByteString(details.parameter.replace(CONTROL, ' ')));
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
