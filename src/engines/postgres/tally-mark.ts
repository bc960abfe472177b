/** Longer than any of our transactions lives: statements, locks and idle transactions all have limits of seconds. */
const SETTLED_AFTER_MS = 60_000;

/**
 * Below which number no row of a tally is left, as far as this node knows.
 *
 * Rows of the tally are added up into new ones all the time. While some transaction elsewhere stays open, those that
 * are gone cannot be removed, and a read from the first number on steps over all of them.
 *
 * Numbers only grow. So what a read found to be the first number is the first for ever, but for rows whose
 * transactions were under way at that time. When those must have ended, one more read from the old place
 * tells whether there were any.
 */
export class TallyMark {
  #from = 0;
  /** The first number that a read has found, and when (monotonic, ms). */
  #candidate: { readonly first: number; readonly foundAt: number } | null = null;

  /** Reads begin here. */
  get from(): number {
    return this.#from;
  }

  /** A read from {@link from} on ended at `nowMs` (monotonic). @param first null where it found no row */
  read(first: number | null, nowMs: number): void {
    const candidate = this.#candidate;
    if (candidate !== null && nowMs - candidate.foundAt < SETTLED_AFTER_MS) return;
    if (candidate !== null && (first === null || first >= candidate.first)) this.#from = candidate.first;
    this.#candidate = first === null ? null : { first, foundAt: nowMs };
  }
}
