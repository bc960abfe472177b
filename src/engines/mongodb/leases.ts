/**
 * Before which moment surely no lease ends: of this node's own leases it knows, of others' it has looked. So a
 * round in which none ends pays one comparison.
 */
export class Leases {
  #surelyUntil = Number.NEGATIVE_INFINITY;

  /** A reservation was made, or extended; or a look has shown that one ends then. */
  endsAt(until: number): void {
    this.#surelyUntil = Math.min(this.#surelyUntil, until);
  }

  /** @param now the server's time, ms */
  mayHaveEnded(now: number): boolean {
    return this.#surelyUntil <= now;
  }

  /** A look at all leases begins; what is told from here on is kept beside what it shows. */
  look(): void {
    this.#surelyUntil = Number.POSITIVE_INFINITY;
  }

  /** A look failed, or what was known may be of another server. */
  forget(): void {
    this.#surelyUntil = Number.NEGATIVE_INFINITY;
  }
}
