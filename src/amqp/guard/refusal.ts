/** An AMQP error, as `close` carries it. */
export interface Refusal {
  /** Such as `amqp:decode-error`. */
  readonly condition: string;
  /** One sentence for people. */
  readonly description: string;
  /** What was thrown, where it is this server that failed: for the log. */
  readonly err?: unknown;
}

/** What a peer did that it may not; its connection ends. */
export class Breach extends Error implements Refusal {
  readonly condition: string;

  constructor(condition: string, description: string) {
    super(description);
    this.name = 'Breach';
    this.condition = condition;
  }

  get description(): string {
    return this.message;
  }
}

/** No valid frame can be made of the bytes, or it is on a channel or handle above what was announced. */
export function framingError(description: string): Breach {
  return new Breach('amqp:connection:framing-error', description);
}

/** A descriptor or code as the standard writes it. */
export function hex(number: number): string {
  return number < 0 ? 'of no known name' : `0x${number.toString(16).padStart(2, '0')}`;
}

/** A frame whose contents are not what its type says. */
export function decodeError(description: string): Breach {
  return new Breach('amqp:decode-error', description);
}

/** A field with a value that it may not have. */
export function invalidField(description: string): Breach {
  return new Breach('amqp:invalid-field', description);
}

/** A frame that may not come now. */
export function illegalState(description: string): Breach {
  return new Breach('amqp:illegal-state', description);
}

export function limitExceeded(description: string): Breach {
  return new Breach('amqp:resource-limit-exceeded', description);
}

export function notImplemented(description: string): Breach {
  return new Breach('amqp:not-implemented', description);
}
