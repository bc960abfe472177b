import type { ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Endpoint, Terminus } from './core/link.ts';

/** A link of a connection, in either direction. */
export interface AmqpLink {
  readonly endpoint: Endpoint;
  /** Checks the right that it was attached by. @throws QuaysideError if it is gone */
  checkRight(): void;
  /**
   * Releases what it holds. Harmless when repeated.
   * @param countTries whether what the client holds returns as failed tries
   */
  stop(countTries: boolean): unknown;
}

/**
 * A message that the client does not take ends the link (transport, 2.7.3), as with RabbitMQ: passed over, it would stay in the
 * queue and nobody would know why.
 * @returns null if the client takes it
 */
export function messageTooLarge({ request }: Endpoint, bytes: number, id: ElementId): QuaysideError | null {
  const { maxMessageBytes } = request;
  if (bytes <= maxMessageBytes) return null;
  return new QuaysideError(
    'body-too-large',
    `The next message, element ${id}, has ${bytes} bytes, but the client takes ${maxMessageBytes} (max-message-size).`,
  );
}

/** @throws QuaysideError `not-supported` if a source or target asks for a queue of its own */
export function checkNotDynamic(terminus: Terminus | null): void {
  if (terminus?.isDynamic === true) {
    throw new QuaysideError(
      'not-supported',
      'dynamic is true, but queues are not created for a link. Name one.',
      { parameter: 'dynamic' },
    );
  }
}
