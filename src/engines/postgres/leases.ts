/**
 * The earliest moment at which a lease may end, as far as this node knows; never too late for leases of its
 * own. So a round in which none ends pays one comparison, and one in which some do begins by ending them.
 */
export class Leases {
  /** Until the table was looked at, some lease may have ended long ago. */
  #endsFrom = Number.NEGATIVE_INFINITY;

  /** A reservation was made or extended. */
  started(until: number): void {
    if (until < this.#endsFrom) this.#endsFrom = until;
  }

  get endsFrom(): number {
    return this.#endsFrom;
  }

  mayHaveEnded(now: number): boolean {
    return this.#endsFrom <= now;
  }

  /** The table was looked at: no lease ends before `nextAt`; null where none runs. */
  looked(nextAt: number | null): void {
    this.#endsFrom = nextAt ?? Number.POSITIVE_INFINITY;
  }

  /** As at the start: nothing is known. */
  reset(): void {
    this.#endsFrom = Number.NEGATIVE_INFINITY;
  }
}
