import type { CancelTimer, Clock } from './clock.ts';

/** Networks, or other causes, that are counted by themselves; all further ones share one count. */
const MAX_NETWORKS = 1_000;
const WINDOW_MS = 60_000;

/**
 * Limits log lines of what anybody can cause to one for each network, or other cause, and minute. What is left out is
 * counted, and each count is written: when its minute ends, or when the server stops.
 */
export class LineLimit {
  readonly #clock: Clock;
  readonly #writeCount: (network: string | null, leftOut: number) => void;
  /** Lines left out, of each network that had its line in this window; null stands for all that found no place. */
  readonly #leftOut = new Map<string | null, number>();
  #cancelTimer: CancelTimer | null = null;

  constructor(clock: Clock, writeCount: (network: string | null, leftOut: number) => void) {
    this.#clock = clock;
    this.#writeCount = writeCount;
  }

  /** Whether a line may be written now; if not, it is counted. */
  admit(network: string): boolean {
    const key = this.#leftOut.has(network) || this.#leftOut.size < MAX_NETWORKS ? network : null;
    const leftOut = this.#leftOut.get(key);
    this.#leftOut.set(key, leftOut === undefined ? 0 : leftOut + 1);
    this.#cancelTimer ??= this.#clock.after(WINDOW_MS, () => this.#endWindow());
    return leftOut === undefined;
  }

  /** Writes the counts of the window that has not ended yet. */
  flush(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    this.#writeCounts();
    this.#leftOut.clear();
  }

  #endWindow(): void {
    this.#cancelTimer = null;
    this.#writeCounts();
    // The line with the count is the line of the next window.
    for (const [network, leftOut] of this.#leftOut) {
      if (leftOut === 0) this.#leftOut.delete(network);
      else this.#leftOut.set(network, 0);
    }
    if (this.#leftOut.size > 0) this.#cancelTimer = this.#clock.after(WINDOW_MS, () => this.#endWindow());
  }

  #writeCounts(): void {
    for (const [network, leftOut] of this.#leftOut) if (leftOut > 0) this.#writeCount(network, leftOut);
  }
}
