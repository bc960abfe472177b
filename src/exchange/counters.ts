import type { Place } from '../sandbox/protocol.ts';

/** What an exchange did since this node started it, for the record and for metrics. */
export interface ExchangeCounters {
  readonly totals: ExchangeTotals;
  readonly destinations: readonly DestinationCounters[];
}

export interface ExchangeTotals {
  noRoute: number;
  tooManyHops: number;
  /** Elements that went back because a destination, or the sandbox, failed. */
  requeued: number;
  /** Wall time in which it waited for its selectors, ms. */
  selectorMs: number;
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
    totals: { noRoute: 0, tooManyHops: 0, requeued: 0, selectorMs: 0 },
    destinations: Array.from({ length: destinations }, zeroDestination),
  };
}

/**
 * The counters of an exchange whose declaration changed: those of before count on, also for elements that are still
 * on their way as they were declared then. `before` names the destination of old for each present one, or null.
 */
export function continuedCounters(
  { totals, destinations }: ExchangeCounters,
  before: readonly (number | null)[],
): ExchangeCounters {
  return {
    totals,
    destinations: before.map((i) => (i === null ? undefined : destinations[i]) ?? zeroDestination()),
  };
}

function zeroDestination(): DestinationCounters {
  return { matched: 0, skipped: 0, failed: 0 };
}

/** A selector, or storing its copy, failed. The last ones are kept, newest first, each text once. */
export interface DestinationFault {
  readonly destination: number;
  readonly message: string;
  /** The place in the selector, from 1; null if there is none. */
  readonly line: number | null;
  readonly column: number | null;
  readonly at: string;
  count: number;
}

const MAX_FAULTS = 10;

/** A bounded memory of what went wrong, for the record's `errors`. */
export class Faults {
  #faults: DestinationFault[] = [];

  add(destination: number, message: string, at: number, place: Place | null = null): void {
    const known = this.#faults.find(
      (fault) => fault.destination === destination && fault.message === message,
    );
    const count = (known?.count ?? 0) + 1;
    const others = this.#faults.filter((fault) => fault !== known);
    const [line, column] = place ?? [null, null];
    const fault = { destination, message, line, column, at: new Date(at).toISOString(), count };
    this.#faults = [fault, ...others].slice(0, MAX_FAULTS);
  }

  list(): readonly DestinationFault[] {
    return this.#faults;
  }
}
