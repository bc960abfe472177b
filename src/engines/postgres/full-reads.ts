/** The next full read is due after this many times the duration of the last one, which bounds their share of time. */
const PAUSE_FACTOR = 20;

/**
 * Decides when to read an index from its front again. That steps over all dead entries there, so most reads begin
 * further on, and miss entries that others have put before that place.
 */
export class FullReads {
  #endedAt = Number.NEGATIVE_INFINITY;
  #costMs = 0;

  /** How long until the next full read is worth its cost, ms; 0 or less: now. @param nowMs by the monotonic clock */
  dueInMs(nowMs: number): number {
    return this.#endedAt + this.#costMs * PAUSE_FACTOR - nowMs;
  }

  isDue(nowMs: number): boolean {
    return this.dueInMs(nowMs) <= 0;
  }

  sinceMs(nowMs: number): number {
    return nowMs - this.#endedAt;
  }

  onEnded(nowMs: number, costMs: number): void {
    this.#endedAt = nowMs;
    this.#costMs = costMs;
  }

  /** The read may have timed out: doubles the pause. */
  onFailed(nowMs: number, minCostMs: number): void {
    this.onEnded(nowMs, Math.max(this.#costMs * 2, minCostMs));
  }

  /** Makes a full read due, since nothing is known about the index any more. */
  reset(): void {
    this.#endedAt = Number.NEGATIVE_INFINITY;
  }
}
