import { type ErrorCode, isRetryable, type QuaysideError } from '../model/errors.ts';
import type { AmqpError } from './core/protocol-error.ts';

/**
 * The condition symbol of each error code (transport, 2.8; messaging, 3.5); `docs/protocols/amqp.md` lists those that
 * can occur.
 */
export const AMQP_CONDITIONS = {
  'malformed-request': 'amqp:decode-error',
  'headers-too-large': 'amqp:link:message-size-exceeded',
  'request-timeout': 'amqp:resource-limit-exceeded',
  'expectation-failed': 'amqp:precondition-failed',
  'invalid-parameter': 'amqp:invalid-field',
  'invalid-name': 'amqp:invalid-field',
  'invalid-header': 'amqp:invalid-field',
  'invalid-body': 'amqp:invalid-field',
  'body-too-large': 'amqp:link:message-size-exceeded',
  'not-supported': 'amqp:not-implemented',
  'method-not-allowed': 'amqp:not-allowed',
  'upgrade-required': 'amqp:not-allowed',
  'route-not-found': 'amqp:not-found',
  unauthorized: 'amqp:unauthorized-access',
  'token-expired': 'amqp:unauthorized-access',
  'too-many-attempts': 'amqp:resource-limit-exceeded',
  forbidden: 'amqp:unauthorized-access',
  'forbidden-origin': 'amqp:unauthorized-access',
  'namespace-not-found': 'amqp:not-found',
  'element-not-found': 'amqp:not-found',
  'not-reserved': 'amqp:illegal-state',
  'lease-lost': 'amqp:resource-locked',
  'token-required': 'amqp:resource-locked',
  'element-reserved': 'amqp:resource-locked',
  'idempotency-mismatch': 'amqp:precondition-failed',
  'exchange-not-found': 'amqp:not-found',
  'exchange-exists': 'amqp:precondition-failed',
  'operation-not-found': 'amqp:not-found',
  'token-not-found': 'amqp:not-found',
  'queue-in-use': 'amqp:resource-locked',
  'definition-conflict': 'amqp:precondition-failed',
  'precondition-failed': 'amqp:precondition-failed',
  'backup-conflict': 'amqp:precondition-failed',
  'pop-cancelled': 'amqp:link:detach-forced',
  'pop-timeout': 'amqp:link:detach-forced',
  'too-many-consumers': 'amqp:resource-limit-exceeded',
  'too-many-queues': 'amqp:resource-limit-exceeded',
  'namespace-full': 'amqp:resource-limit-exceeded',
  'queue-full': 'amqp:resource-limit-exceeded',
  'too-many-groups': 'amqp:resource-limit-exceeded',
  'too-many-exchanges': 'amqp:resource-limit-exceeded',
  'too-many-tokens': 'amqp:resource-limit-exceeded',
  'too-many-subscribers': 'amqp:resource-limit-exceeded',
  overloaded: 'amqp:resource-limit-exceeded',
  'shutting-down': 'amqp:connection:forced',
  'storage-full': 'amqp:resource-limit-exceeded',
  'storage-unavailable': 'amqp:internal-error',
  'outcome-unknown': 'amqp:internal-error',
  internal: 'amqp:internal-error',
} as const satisfies Record<ErrorCode, string>;

/**
 * The outcome of a client's message that fails with this error: `rejected`, or `released` if the same message may
 * succeed later. `detach`: the message may or may not be stored, so no outcome would be correct and the link ends.
 */
export function outcomeOf(code: ErrorCode): 'rejected' | 'released' | 'detach' {
  if (code === 'outcome-unknown' || code === 'internal') return 'detach';
  return isRetryable(code) ? 'released' : 'rejected';
}

/** Converts an error for the wire; `info.code` is its `ErrorCode`. */
export function wireError({ code, message, details }: QuaysideError): AmqpError {
  const info: Record<string, string> = { code };
  // In AMQP, the address names the namespace.
  if (details.parameter !== undefined)
    info.parameter = details.parameter === 'namespace' ? 'address' : details.parameter;
  return { condition: AMQP_CONDITIONS[code], description: message, info };
}
