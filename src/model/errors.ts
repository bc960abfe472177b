import { quote } from '../util/quote.ts';
import type { Right, UserRights } from './rights.ts';

/**
 * All error codes, each with whether the same request may succeed later. Not after `outcome-unknown`: the request may
 * have taken effect, and then would take effect twice. STOMP and AMQP send this with the code.
 *
 * A code is stable: clients may compare it. HTTP and AMQP map each code (`satisfies Record<ErrorCode, …>`), so a new
 * code does not compile until both do. STOMP sends the code itself.
 * Callers may assume that nothing was changed, except for `outcome-unknown` and `internal`.
 */
const IS_RETRYABLE = {
  // invalid requests
  'malformed-request': false,
  'headers-too-large': false,
  'request-timeout': true,
  'expectation-failed': false,
  'invalid-parameter': false,
  'invalid-name': false,
  'invalid-header': false,
  'invalid-body': false,
  'body-too-large': false,
  'not-supported': false,
  'method-not-allowed': false,
  'route-not-found': false,
  'upgrade-required': false,
  // authentication and authorization
  unauthorized: false,
  'token-expired': false,
  'too-many-attempts': true,
  forbidden: false,
  'forbidden-origin': false,
  // the object does not exist, or is not in the required state
  'namespace-not-found': false,
  'element-not-found': false,
  'not-reserved': false,
  'lease-lost': false,
  'token-required': false,
  'element-reserved': false,
  'idempotency-mismatch': false,
  'exchange-not-found': false,
  'exchange-exists': false,
  'operation-not-found': false,
  'token-not-found': false,
  'queue-in-use': false,
  'definition-conflict': true,
  'precondition-failed': false,
  'backup-conflict': false,
  // a waiting get ended without an element
  'pop-cancelled': false,
  'pop-timeout': true,
  // the server cannot serve the request now
  'too-many-consumers': true,
  'too-many-queues': false,
  'namespace-full': true,
  'queue-full': true,
  'too-many-groups': false,
  'too-many-exchanges': false,
  'too-many-tokens': false,
  'too-many-subscribers': true,
  overloaded: true,
  'shutting-down': true,
  'storage-full': true,
  'storage-unavailable': true,
  'outcome-unknown': false,
  internal: true,
} as const;

export type ErrorCode = keyof typeof IS_RETRYABLE;

export const ERROR_CODES = Object.keys(IS_RETRYABLE) as readonly ErrorCode[];

/** Whether the same request may succeed later. */
export function isRetryable(code: ErrorCode): boolean {
  return IS_RETRYABLE[code];
}

/** Structured details that a front end may include. Never a secret, never a body. */
interface ErrorDetails {
  /** The invalid parameter, header or field. */
  readonly parameter?: string;
  /** When a retry makes sense, in milliseconds from now. */
  readonly retryAfterMs?: number;
  /** Further members of a structured response, such as `tid` and `since` of a timed-out get. */
  readonly extra?: Readonly<Record<string, unknown>>;
}

/** An error to report to the client. Any other error that is thrown is a bug or a failure of the server. */
export class QuaysideError extends Error {
  readonly code: ErrorCode;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, message: string, details: ErrorDetails & { cause?: unknown } = {}) {
    const { cause, ...rest } = details;
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'QuaysideError';
    this.code = code;
    this.details = rest;
  }

  /** Returns a copy of the error with some members replaced. */
  with(changes: ErrorDetails & { readonly code?: ErrorCode; readonly message?: string }): QuaysideError {
    const { code = this.code, message = this.message, ...details } = changes;
    return new QuaysideError(code, message, { ...this.details, ...details, cause: this.cause });
  }
}

/** The error for one invalid parameter. The message says what is wrong and what is allowed. */
export function invalidParameter(parameter: string, message: string): QuaysideError {
  return new QuaysideError('invalid-parameter', message, { parameter });
}

/** The error for a request that this server cannot take now, although it is valid. */
export function overloaded(message: string): QuaysideError {
  return new QuaysideError('overloaded', message, { retryAfterMs: 1000 });
}

/** The error for a request that breaks the rules of HTTP. */
export function malformedRequest(message: string): QuaysideError {
  return new QuaysideError('malformed-request', message);
}

/** The error for a request with more bytes, or other items, than the limit allows. */
export function bodyTooLarge(message: string, limit: number): QuaysideError {
  return new QuaysideError('body-too-large', message, { extra: { limit } });
}

export function shuttingDown(): QuaysideError {
  return new QuaysideError('shutting-down', 'This node is shutting down. Use another node, or retry soon.', {
    retryAfterMs: 1000,
  });
}

/** Also used for a namespace that the user may not see. */
export function namespaceNotFound(name: string): QuaysideError {
  return new QuaysideError('namespace-not-found', `There is no namespace ${quote(name)}.`, {
    parameter: 'namespace',
  });
}

/** The error for a missing right. The message differs if only the token lacks it, but not its user. */
export function missingRight(
  { name, token }: Pick<UserRights, 'name' | 'token'>,
  right: Right,
  namespace: string,
): QuaysideError {
  const lacks = `does not have the right ${right} in namespace ${namespace}`;
  if (token?.owner?.may(right, namespace) !== true) {
    return new QuaysideError('forbidden', `User ${quote(name)} ${lacks}.`);
  }
  return new QuaysideError(
    'forbidden',
    `Token ${quote(token.name)} ${lacks}, although its user ${quote(name)} has it. Use a token with that right.`,
  );
}

/** Whether the engine was unreachable, or became so during the call. */
export function isOutage(error: unknown): boolean {
  return (
    error instanceof QuaysideError &&
    (error.code === 'storage-unavailable' || error.code === 'outcome-unknown')
  );
}
