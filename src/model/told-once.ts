/** What is said of work that is done again and again. */
interface Sayings {
  /** It failed, and had worked before. */
  failed(error: unknown): void;
  /** It works, and had failed before. */
  worksAgain(): void;
}

/** Says that work fails when that begins, and when it ends: while an engine is away a log needs no more. */
export class ToldOnce {
  readonly #sayings: Sayings;
  #failing = false;

  constructor(sayings: Sayings) {
    this.#sayings = sayings;
  }

  failed(error: unknown): void {
    if (this.#failing) return;
    this.#failing = true;
    this.#sayings.failed(error);
  }

  worked(): void {
    if (!this.#failing) return;
    this.#failing = false;
    this.#sayings.worksAgain();
  }
}
