import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import { bytesOfText } from '../util/byte-text.ts';
import { frameText, type HeadRules } from './codec.ts';

/** An error in STOMP. Every ERROR closes the connection. */
interface StompError {
  /**
   * Whether the same frames may succeed later: `x-ks-retry`. Without it, a client that reconnects automatically could
   * send a wrong frame forever.
   */
  readonly retry: boolean;
}

const WRONG: StompError = { retry: false };
const LATER: StompError = { retry: true };

/** Every error code on this wire; `docs/protocols/stomp.md` lists those that can occur. */
export const STOMP_ERRORS = {
  'malformed-request': WRONG,
  'headers-too-large': WRONG,
  'request-timeout': LATER,
  'expectation-failed': WRONG,
  'invalid-parameter': WRONG,
  'invalid-name': WRONG,
  'invalid-header': WRONG,
  'invalid-body': WRONG,
  'body-too-large': WRONG,
  'not-supported': WRONG,
  'method-not-allowed': WRONG,
  'route-not-found': WRONG,
  unauthorized: WRONG,
  'token-expired': WRONG,
  'too-many-attempts': LATER,
  forbidden: WRONG,
  'forbidden-origin': WRONG,
  'namespace-not-found': WRONG,
  'element-not-found': WRONG,
  'not-reserved': WRONG,
  'lease-lost': WRONG,
  'token-required': WRONG,
  'element-reserved': WRONG,
  'idempotency-mismatch': WRONG,
  'exchange-not-found': WRONG,
  'exchange-exists': WRONG,
  'operation-not-found': WRONG,
  'token-not-found': WRONG,
  'queue-in-use': WRONG,
  'definition-conflict': LATER,
  'precondition-failed': WRONG,
  'backup-conflict': WRONG,
  'pop-cancelled': WRONG,
  'pop-timeout': LATER,
  'too-many-consumers': LATER,
  'too-many-queues': WRONG,
  'namespace-full': LATER,
  'queue-full': LATER,
  'too-many-groups': WRONG,
  'too-many-exchanges': WRONG,
  'too-many-tokens': WRONG,
  'too-many-subscribers': LATER,
  overloaded: LATER,
  'shutting-down': LATER,
  'storage-full': LATER,
  'storage-unavailable': LATER,
  // The frame may have taken effect; if it is sent again, it may take effect twice.
  'outcome-unknown': WRONG,
  internal: LATER,
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
  const body = bytesOfText(error.message);
  const isLasting = error instanceof SessionLimitError;
  const headers = ['message', code, 'x-ks-retry', STOMP_ERRORS[code].retry && !isLasting ? 'true' : 'false'];
  if (details.retryAfterMs !== undefined) {
    headers.push('x-ks-retry-after', String(Math.ceil(details.retryAfterMs)));
  }
  if (details.parameter !== undefined)
    headers.push('x-ks-parameter', bytesOfText(details.parameter.replace(CONTROL, ' ')));
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
