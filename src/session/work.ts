/** Frames (transfers) and bytes that a client may have under way in the engine before it has to wait. */
const MOST_FRAMES = 4096;
const MOST_BYTES = 4 * 1024 * 1024;

/** What a session has asked the engine for and not heard of yet. */
export class Work {
  readonly #onChange: () => void;
  #frames = 0;
  #bytes = 0;
  #whenIdle: (() => void)[] = [];

  /** @param onChange called after each end: the client may go on if it had to wait */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  get isFull(): boolean {
    return this.#frames >= MOST_FRAMES || this.#bytes >= MOST_BYTES;
  }

  begin(frames: number, bytes: number): void {
    this.#frames += frames;
    this.#bytes += bytes;
  }

  end(frames: number, bytes: number): void {
    this.#frames -= frames;
    this.#bytes -= bytes;
    if (this.#frames === 0) {
      const waiting = this.#whenIdle;
      this.#whenIdle = [];
      for (const then of waiting) then();
    }
    this.#onChange();
  }

  /** Calls `then` once nothing is under way. */
  whenIdle(then: () => void): void {
    if (this.#frames === 0) then();
    else this.#whenIdle.push(then);
  }
}
