/** Log messages about repeated work. */
interface Messages {
  /** The work failed after a success, or for the first time. */
  failed(error: unknown): void;
  /** The work succeeded after a failure. */
  worksAgain(): void;
}

/**
 * Logs only the first failure in a row and the first success after it, so that an engine that is unavailable does not
 * flood the log.
 */
export class LogOnChange {
  readonly #messages: Messages;
  #isFailing = false;

  constructor(messages: Messages) {
    this.#messages = messages;
  }

  failed(error: unknown): void {
    if (this.#isFailing) return;
    this.#isFailing = true;
    this.#messages.failed(error);
  }

  worked(): void {
    if (!this.#isFailing) return;
    this.#isFailing = false;
    this.#messages.worksAgain();
  }
}
