/** What an exchange did since this node started it, for the record and for metrics. */
export interface ExchangeCounters {
  noRoute: number;
  tooManyHops: number;
  /** Elements that went back because a destination, or the sandbox, failed. */
  putBack: number;
  /** Wall time in which it waited for its selectors, ms. */
  selectorMs: number;
  readonly destinations: DestinationCounters[];
}

export interface DestinationCounters {
  /** Copies stored. */
  matched: number;
  /** The selector said no. */
  skipped: number;
  /**
   * The selector threw, or asked for what the destination cannot keep, which counts as no; or the destination did
   * not take the copy, which is counted at each try.
   */
  failed: number;
}

export function zeroExchangeCounters(destinations: number): ExchangeCounters {
  return {
    noRoute: 0,
    tooManyHops: 0,
    putBack: 0,
    selectorMs: 0,
    destinations: Array.from({ length: destinations }, () => ({ matched: 0, skipped: 0, failed: 0 })),
  };
}

/** A selector, or storing its copy, failed. The last ones are kept, newest first, each text once. */
export interface DestinationFault {
  readonly destination: number;
  readonly message: string;
  readonly at: string;
  count: number;
}

const MOST_FAULTS = 10;

/** A bounded memory of what went wrong, for the record's `errors`. */
export class Faults {
  #faults: DestinationFault[] = [];

  add(destination: number, message: string, at: number): void {
    const known = this.#faults.find(
      (fault) => fault.destination === destination && fault.message === message,
    );
    const count = (known?.count ?? 0) + 1;
    const others = this.#faults.filter((fault) => fault !== known);
    const fault = { destination, message, at: new Date(at).toISOString(), count };
    this.#faults = [fault, ...others].slice(0, MOST_FAULTS);
  }

  list(): readonly DestinationFault[] {
    return this.#faults;
  }
}
