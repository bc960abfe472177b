/** An AMQP error, as `rejected`, `detach`, `end` and `close` carry it (transport, 2.8.14). */
export interface AmqpError {
  /** Such as `amqp:decode-error`. */
  readonly condition: string;
  /** One sentence for people. */
  readonly description: string;
  /** Texts of ASCII. */
  readonly info?: Readonly<Record<string, string>>;
}

/** The client broke a rule of the protocol; its connection closes. */
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

/** No valid frame can be made of the bytes, or it is on a channel or handle above what was announced. */
export const framingError = errorOf('amqp:connection:framing-error');
/** A frame whose contents do not match its type. */
export const decodeError = errorOf('amqp:decode-error');
/** A field with a value that is not allowed. */
export const invalidField = errorOf('amqp:invalid-field');
/** A frame that is not allowed in this state. */
export const illegalState = errorOf('amqp:illegal-state');
export const limitExceeded = errorOf('amqp:resource-limit-exceeded');
export const notImplemented = errorOf('amqp:not-implemented');
/** More than the client allowed itself by its own limits. */
export const notAllowed = errorOf('amqp:not-allowed');
export const unauthorized = errorOf('amqp:unauthorized-access');

/** A descriptor or code as the standard writes it. */
export function hex(number: number): string {
  return number < 0 ? 'of no known name' : `0x${number.toString(16).padStart(2, '0')}`;
}
