/** What is logged of work that is repeated. */
interface Messages {
  /** It failed, and had worked before. */
  failed(error: unknown): void;
  /** It works, and had failed before. */
  worksAgain(): void;
}

/** Logs that work fails when that begins, and when it ends: while an engine is unavailable a log needs no more. */
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
