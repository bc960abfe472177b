/**
 * The next full read waits this many times as long as the last one took, which bounds the share of time that they cost.
 */
const PAUSE = 20;

/**
 * When to read an index from its front again. That steps over all that is dead there, so most reads begin further on,
 * and miss what others have put before that place.
 */
export class FullReads {
  #endedAt = Number.NEGATIVE_INFINITY;
  #costMs = 0;

  /** For how long the next one is not worth it at `nowMs` (monotonic); 0 or less: it is. */
  dueInMs(nowMs: number): number {
    return this.#endedAt + this.#costMs * PAUSE - nowMs;
  }

  isDue(nowMs: number): boolean {
    return this.dueInMs(nowMs) <= 0;
  }

  agoMs(nowMs: number): number {
    return nowMs - this.#endedAt;
  }

  ended(nowMs: number, costMs: number): void {
    this.#endedAt = nowMs;
    this.#costMs = costMs;
  }

  /** It may have been too much for the time that a statement has: the pause is doubled. */
  failed(nowMs: number, leastCostMs: number): void {
    this.ended(nowMs, Math.max(this.#costMs * 2, leastCostMs));
  }

  /** Nothing is known of what is there: the next one is due. */
  forget(): void {
    this.#endedAt = Number.NEGATIVE_INFINITY;
  }
}
