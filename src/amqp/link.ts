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

/** @throws QuaysideError `not-supported`, `invalid-name` if a source or target names no queue by itself */
export function addressOf(terminus: Terminus | null): string {
  if (terminus?.isDynamic === true) {
    throw new QuaysideError(
      'not-supported',
      'dynamic is true, but queues are not created for a link. Name one.',
      { parameter: 'dynamic' },
    );
  }
  const address = terminus?.address ?? '';
  if (address !== '') return address;
  throw new QuaysideError(
    'invalid-name',
    'The link has no address. Give that of a queue: <namespace>/<queue>.',
    { parameter: 'address' },
  );
}
