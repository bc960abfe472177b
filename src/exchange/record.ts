import type { Delivery } from '../model/element.ts';
import type { DestinationError, ExchangeRecord, Sighting } from '../model/records.ts';
import type { SourcePosition } from '../sandbox/protocol.ts';
import { payloadName } from '../sandbox/sandbox.ts';
import { textOfByteString } from '../util/byte-string.ts';
import type { Clock } from '../util/clock.ts';
import type { LoopIds } from './cycles.ts';
import type { Caller, Declaration } from './declaration.ts';
import type { Exchange } from './exchange.ts';

/** The members of an exchange of this node that are shown in summaries. */
export type ExchangeOverview = Pick<
  Exchange,
  'key' | 'declaration' | 'stopped' | 'isStopStored' | 'lastError' | 'counters'
>;

/** Bound on the pending elements in a record: a window may hold tens of thousands. */
const MAX_PENDING = 1000;

const NOTHING = { matched: 0, skipped: 0, failed: 0 };

/** The record as the caller may see it. */
export function exchangeRecord(exchange: Exchange, loops: LoopIds, caller: Caller): ExchangeRecord {
  const { declaration, counters } = exchange;
  const { src, dst, consumer } = declaration;
  const { totals } = counters;
  const isSeen = dst.map(({ ns }) => caller.maySee(ns));
  return {
    src: { q: src.queue, ns: src.ns },
    dst: dst.map(({ queue, ns, selector }, i) =>
      isSeen[i]
        ? { q: queue, ns, ...(selector !== undefined && { selector }) }
        : { q: '', ns: '', hidden: true },
    ),
    opts: consumer,
    cid: exchange.cid,
    pending_acks: pendingAcks(exchange.inFlight()),
    pending_tids: Object.fromEntries(exchange.idleLoops().map(({ tid, since }) => [tid, iso(since)])),
    wsize: exchange.wsize,
    stopped: exchange.state.stopped,
    ...(isSeen.every(Boolean) && { version: exchange.version }),
    stats: {
      no_route: totals.noRoute,
      too_many_hops: totals.tooManyHops,
      put_back: totals.requeued,
      selector_ms: Math.round(totals.selectorMs),
      dst: counters.destinations.map((counts, i) => (isSeen[i] ? counts : NOTHING)),
    },
    errors: exchange.errors
      .list(caller.maySeeBodies(src.ns))
      .filter(({ destination }) => isSeen[destination]),
    lastError: exchange.lastError,
    saw: exchange.sightings.last(),
    loops,
  };
}

function pendingAcks(inFlight: Iterable<readonly [string, number]>): ExchangeRecord['pending_acks'] {
  const acks: Record<string, { readonly t: string; readonly id: string }> = {};
  let left = MAX_PENDING;
  for (const [id, since] of inFlight) {
    if (left-- === 0) break;
    acks[id] = { t: iso(since), id };
  }
  return acks;
}

function iso(at: number): string {
  return new Date(at).toISOString();
}

/** Counters of an exchange since this node started it, for the record and for metrics. */
export interface ExchangeCounters {
  readonly totals: ExchangeTotals;
  readonly destinations: readonly DestinationCounters[];
}

interface ExchangeTotals {
  noRoute: number;
  tooManyHops: number;
  /** Elements requeued because a destination or the sandbox failed. */
  requeued: number;
  /** Time spent waiting for selectors, ms. */
  selectorMs: number;
}

export interface DestinationCounters {
  /** Copies stored. */
  matched: number;
  /** Elements that the selector rejected. */
  skipped: number;
  /**
   * Elements for which the selector threw, or set a property that the destination cannot store, which counts as a
   * rejection; and copies that the destination did not store, counted at each try.
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
 * The counters of an exchange after its declaration changed: they continue, also for elements in flight from before.
 * Each destination continues those of an old one with the same queue, if possible with the same selector; each old one
 * is continued once.
 */
export function continuedCounters(
  { declaration, counters }: Pick<ExchangeOverview, 'declaration' | 'counters'>,
  { dst }: Declaration,
): ExchangeCounters {
  const unclaimed = new Map(declaration.dst.entries());
  const destinations = dst.map(({ ns, queue, selector }) => {
    const candidates = [...unclaimed].filter(([, one]) => one.ns === ns && one.queue === queue);
    const [before] = candidates.find(([, one]) => one.selector === selector) ?? candidates[0] ?? [-1];
    unclaimed.delete(before);
    return counters.destinations[before] ?? zeroDestination();
  });
  return { totals: counters.totals, destinations };
}

function zeroDestination(): DestinationCounters {
  return { matched: 0, skipped: 0, failed: 0 };
}

const MAX_ERRORS = 10;
const HIDDEN_MESSAGE = 'The selector threw an error. Its message may quote the body, which you may not see.';

/** The latest errors of an exchange, for `errors` of the record. */
export class DestinationErrors {
  #errors: { readonly error: DestinationError; readonly isThrown: boolean }[] = [];

  /** @param place of an error that the selector threw; null: unknown; omitted: the destination did not store a copy */
  add(destination: number, message: string, at: number, place?: SourcePosition | null): void {
    const known = this.#errors.find(
      ({ error }) => error.destination === destination && error.message === message,
    );
    const count = (known?.error.count ?? 0) + 1;
    const others = this.#errors.filter((one) => one !== known);
    const [line, column] = place ?? [null, null];
    const error = { destination, message, line, column, at: iso(at), count };
    this.#errors = [{ error, isThrown: place !== undefined }, ...others].slice(0, MAX_ERRORS);
  }

  /** @param showsBodies whether errors thrown by selectors may be shown */
  list(showsBodies: boolean): DestinationError[] {
    return this.#errors.map(({ error, isThrown }) =>
      isThrown && !showsBodies ? { ...error, message: HIDDEN_MESSAGE } : error,
    );
  }
}

type SightedElement = Pick<Delivery, 'id' | 'contentType' | 'contentEncoding'> & { readonly at: number };

/** Records how selectors saw recent elements: an unexpected content type explains why none accepts them. */
export class Sightings {
  readonly #clock: Clock;
  #last: SightedElement | null = null;
  #lastNoRoute: SightedElement | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @param from index of the first plan that selectors decided */
  add(
    plans: readonly { readonly delivery: Delivery; readonly unroutable: string | null }[],
    from: number,
  ): void {
    let isLast = true;
    for (let i = plans.length - 1; i >= from; i -= 1) {
      const { delivery, unroutable } = plans[i] as (typeof plans)[number];
      if (isLast) this.#last = this.#seen(delivery);
      isLast = false;
      if (unroutable !== 'no-route') continue;
      this.#lastNoRoute = this.#seen(delivery);
      return;
    }
  }

  last(): ExchangeRecord['saw'] {
    return {
      last: this.#last === null ? null : sightingOf(this.#last),
      last_no_route: this.#lastNoRoute === null ? null : sightingOf(this.#lastNoRoute),
    };
  }

  /** Without the body, which must not be retained. */
  #seen({ id, contentType, contentEncoding }: Delivery): SightedElement {
    return { id, contentType, contentEncoding, at: this.#clock.now() };
  }
}

function sightingOf(element: SightedElement): Sighting {
  return { id: element.id, at: iso(element.at), ...seenPayload(element) };
}

/** How selectors see the payload of an element, and the headers that decide that. */
export function seenPayload({
  contentType,
  contentEncoding,
}: Pick<Delivery, 'contentType' | 'contentEncoding'>): Omit<Sighting, 'id' | 'at'> {
  return {
    payload: payloadName(contentType, contentEncoding),
    content_type: textOfByteString(contentType ?? 'application/octet-stream'),
    content_encoding: contentEncoding && textOfByteString(contentEncoding),
  };
}
