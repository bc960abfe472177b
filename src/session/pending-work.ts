/** Frames (transfers) and bytes of a client that may be pending in the engine before its session pauses reading. */
const MAX_FRAMES = 4096;
const MAX_BYTES = 4 * 1024 * 1024;

/** What a session has asked of the engine and has no result for yet. */
export class PendingWork {
  readonly #onChange: () => void;
  #frames = 0;
  #bytes = 0;
  #onIdle: (() => void)[] = [];

  /** @param onChange called after each end: a session that paused because of `isFull` may continue */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  get isFull(): boolean {
    return this.#frames >= MAX_FRAMES || this.#bytes >= MAX_BYTES;
  }

  begin(frames: number, bytes: number): void {
    this.#frames += frames;
    this.#bytes += bytes;
  }

  end(frames: number, bytes: number): void {
    this.#frames -= frames;
    this.#bytes -= bytes;
    if (this.#frames === 0) {
      const waiting = this.#onIdle;
      this.#onIdle = [];
      for (const then of waiting) then();
    }
    this.#onChange();
  }

  /** Calls `then` once nothing is pending. */
  whenIdle(then: () => void): void {
    if (this.#frames === 0) then();
    else this.#onIdle.push(then);
  }
}
