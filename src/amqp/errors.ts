import type { ErrorCode, QuaysideError } from '../model/errors.ts';
import type { AmqpError } from './core/protocol-error.ts';

/** How an error code is sent over AMQP. */
interface AmqpErrorRule {
  /** The condition symbol of the standard (transport, 2.8; messaging, 3.5). */
  readonly condition: string;
  /**
   * The outcome of a client's message that fails with this error: `rejected`, or `released` if the same message may
   * succeed later. `detach`: the message may or may not be stored, so no outcome would be correct and the link ends.
   */
  readonly message: 'rejected' | 'released' | 'detach';
}

const rejected = (condition: string): AmqpErrorRule => ({ condition, message: 'rejected' });
const released = (condition: string): AmqpErrorRule => ({ condition, message: 'released' });

/** Every error code; `docs/protocols/amqp.md` lists those that can occur. */
export const AMQP_ERRORS = {
  'malformed-request': rejected('amqp:decode-error'),
  'headers-too-large': rejected('amqp:link:message-size-exceeded'),
  'request-timeout': released('amqp:resource-limit-exceeded'),
  'expectation-failed': rejected('amqp:precondition-failed'),
  'invalid-parameter': rejected('amqp:invalid-field'),
  'invalid-name': rejected('amqp:invalid-field'),
  'invalid-header': rejected('amqp:invalid-field'),
  'invalid-body': rejected('amqp:invalid-field'),
  'body-too-large': rejected('amqp:link:message-size-exceeded'),
  'not-supported': rejected('amqp:not-implemented'),
  'method-not-allowed': rejected('amqp:not-allowed'),
  'route-not-found': rejected('amqp:not-found'),
  unauthorized: rejected('amqp:unauthorized-access'),
  'token-expired': rejected('amqp:unauthorized-access'),
  'too-many-attempts': released('amqp:resource-limit-exceeded'),
  forbidden: rejected('amqp:unauthorized-access'),
  'forbidden-origin': rejected('amqp:unauthorized-access'),
  'namespace-not-found': rejected('amqp:not-found'),
  'element-not-found': rejected('amqp:not-found'),
  'not-reserved': rejected('amqp:illegal-state'),
  'lease-lost': rejected('amqp:resource-locked'),
  'token-required': rejected('amqp:resource-locked'),
  'element-reserved': rejected('amqp:resource-locked'),
  'idempotency-mismatch': rejected('amqp:precondition-failed'),
  'exchange-not-found': rejected('amqp:not-found'),
  'exchange-exists': rejected('amqp:precondition-failed'),
  'operation-not-found': rejected('amqp:not-found'),
  'token-not-found': rejected('amqp:not-found'),
  'queue-in-use': rejected('amqp:resource-locked'),
  'definition-conflict': released('amqp:precondition-failed'),
  'precondition-failed': rejected('amqp:precondition-failed'),
  'backup-conflict': rejected('amqp:precondition-failed'),
  'pop-cancelled': released('amqp:link:detach-forced'),
  'pop-timeout': released('amqp:link:detach-forced'),
  'too-many-consumers': released('amqp:resource-limit-exceeded'),
  'too-many-queues': rejected('amqp:resource-limit-exceeded'),
  'namespace-full': released('amqp:resource-limit-exceeded'),
  'queue-full': released('amqp:resource-limit-exceeded'),
  'too-many-groups': rejected('amqp:resource-limit-exceeded'),
  'too-many-exchanges': rejected('amqp:resource-limit-exceeded'),
  'too-many-tokens': rejected('amqp:resource-limit-exceeded'),
  'too-many-subscribers': rejected('amqp:resource-limit-exceeded'),
  overloaded: released('amqp:resource-limit-exceeded'),
  'shutting-down': released('amqp:connection:forced'),
  'storage-full': released('amqp:resource-limit-exceeded'),
  'storage-unavailable': released('amqp:internal-error'),
  'outcome-unknown': { condition: 'amqp:internal-error', message: 'detach' },
  internal: { condition: 'amqp:internal-error', message: 'detach' },
} as const satisfies Record<ErrorCode, AmqpErrorRule>;

/** Converts an error for the wire; `info.code` is its `ErrorCode`. */
export function wireError({ code, message, details }: QuaysideError): AmqpError {
  const info: Record<string, string> = { code };
  if (details.parameter !== undefined) info.parameter = details.parameter;
  return { condition: AMQP_ERRORS[code].condition, description: message, info };
}
