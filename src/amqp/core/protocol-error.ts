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

/** No valid frame can be made of the bytes, or it is on a channel or handle above what was announced. */
export function framingError(description: string): ProtocolError {
  return new ProtocolError('amqp:connection:framing-error', description);
}

/** A descriptor or code as the standard writes it. */
export function hex(number: number): string {
  return number < 0 ? 'of no known name' : `0x${number.toString(16).padStart(2, '0')}`;
}

/** A frame whose contents do not match its type. */
export function decodeError(description: string): ProtocolError {
  return new ProtocolError('amqp:decode-error', description);
}

/** A field with a value that is not allowed. */
export function invalidField(description: string): ProtocolError {
  return new ProtocolError('amqp:invalid-field', description);
}

/** A frame that is not allowed in this state. */
export function illegalState(description: string): ProtocolError {
  return new ProtocolError('amqp:illegal-state', description);
}

export function limitExceeded(description: string): ProtocolError {
  return new ProtocolError('amqp:resource-limit-exceeded', description);
}

export function notImplemented(description: string): ProtocolError {
  return new ProtocolError('amqp:not-implemented', description);
}
