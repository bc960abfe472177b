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
