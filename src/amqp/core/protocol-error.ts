/** An AMQP error, as sent in `rejected`, `detach`, `end` and `close` (transport, 2.8.14). */
export interface AmqpError {
  /** Such as `amqp:decode-error`. */
  readonly condition: string;
  /** A human-readable message. */
  readonly description: string;
  /** Additional values, in ASCII. */
  readonly info?: Readonly<Record<string, string>>;
}

/** The client violated the protocol; its connection is closed. */
export class ProtocolError extends Error implements AmqpError {
  readonly condition: string;

  constructor(condition: string, description: string) {
    super(description);
    this.name = 'ProtocolError';
    this.condition = condition;
  }

  get description(): string {
    return this.message;
  }
}

const errorOf =
  (condition: string) =>
  (description: string): ProtocolError =>
    new ProtocolError(condition, description);

/** The bytes are not a valid frame, or its channel or handle is above the announced maximum. */
export const framingError = errorOf('amqp:connection:framing-error');
/** A frame whose contents cannot be decoded as its type. */
export const decodeError = errorOf('amqp:decode-error');
/** A field has a value that is not allowed. */
export const invalidField = errorOf('amqp:invalid-field');
/** A frame that is not allowed in this state. */
export const illegalState = errorOf('amqp:illegal-state');
export const limitExceeded = errorOf('amqp:resource-limit-exceeded');
export const notImplemented = errorOf('amqp:not-implemented');
/** The client exceeded limits that it announced itself. */
export const notAllowed = errorOf('amqp:not-allowed');
export const unauthorized = errorOf('amqp:unauthorized-access');

/** Formats a descriptor or format code as the standard does. */
export function hex(number: number): string {
  return number < 0 ? 'with an unknown symbol' : `0x${number.toString(16).padStart(2, '0')}`;
}
