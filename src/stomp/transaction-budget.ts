import { QuaysideError } from '../model/errors.ts';
import { STOMP_LIMITS } from './limits.ts';

/** Counts what all open transactions of one session hold. */
export class TransactionBudget {
  readonly #mostBytes: number;
  #frames = 0;
  #bytes = 0;

  constructor(bodyLimit: number) {
    this.#mostBytes = STOMP_LIMITS.transactionBodies * bodyLimit;
  }

  /** @throws QuaysideError `overloaded` */
  take(frames: number, bytes: number): void {
    const { transactionFrames } = STOMP_LIMITS;
    if (this.#frames + frames > transactionFrames || this.#bytes + bytes > this.#mostBytes) {
      throw new QuaysideError(
        'overloaded',
        `Open transactions would hold ${this.#frames + frames} frames and ${this.#bytes + bytes} bytes of bodies. Allowed together: ${transactionFrames} and ${this.#mostBytes}.`,
      );
    }
    this.#frames += frames;
    this.#bytes += bytes;
  }

  release(frames: number, bytes: number): void {
    this.#frames -= frames;
    this.#bytes -= bytes;
  }
}
