/** Thrown by a handler to roll back the element, and have it delivered again after `delayMs`. */
export class RetryLater extends Error {
  readonly delayMs: number;

  constructor(delayMs: number, options?: ErrorOptions) {
    super(`retry after ${delayMs} ms`, options);
    this.name = 'RetryLater';
    this.delayMs = delayMs;
  }
}

/** Thrown by a handler to move the element to the dead-letter queue, whatever its tries. */
export class Bury extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(reason, options);
    this.name = 'Bury';
  }
}
