/** What was asked of an engine and may be outdated when the answer comes. */
export interface Reading {
  /** Ids of which newer news came meanwhile: what the answer says of them does not count. */
  readonly outdated: ReadonlySet<string>;
  /** To be called when the answer was used. */
  end(): void;
}

interface Open extends Reading {
  readonly outdated: Set<string>;
}

/**
 * Readings under way, so that none has to wait for a change or for another reading, of which the engine may be
 * away: an answer is older than a change that ended meanwhile, and than a reading that began later.
 */
export class Readings {
  /** In the order in which they began. */
  readonly #open = new Set<Open>();

  begin(): Reading {
    const reading: Open = { outdated: new Set(), end: () => this.#open.delete(reading) };
    this.#open.add(reading);
    return reading;
  }

  /** News of an id, which a reading found or, null, a change by this node made. */
  news(id: string, by: Reading | null): void {
    for (const reading of this.#open) {
      if (reading === by) return;
      reading.outdated.add(id);
    }
  }
}
