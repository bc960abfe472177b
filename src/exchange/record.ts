import type { DestinationError, ExchangeCounters, LastSeen } from './activity.ts';
import type { Caller } from './caller.ts';
import type { LoopIds } from './cycles.ts';
import type { Declaration } from './declaration.ts';
import type { Exchange } from './exchange.ts';

/** The exchange record of the spec's 2.4; what follows `stopped` is ours. */
export interface ExchangeRecord {
  readonly src: { readonly q: string; readonly ns: string };
  /** `hidden`: in a namespace that the reader may not see. Then the names are empty, and so is all else about it. */
  readonly dst: readonly {
    readonly q: string;
    readonly ns: string;
    readonly selector?: string;
    readonly hidden?: true;
  }[];
  readonly opts: Declaration['consumer'];
  readonly cid: string;
  readonly pending_acks: Readonly<Record<string, { readonly t: string; readonly id: string }>>;
  readonly pending_tids: Readonly<Record<string, string>>;
  readonly wsize: number;
  readonly stopped: boolean | null;
  /**
   * To be sent as `If-Match` with a change of the declaration. Left out if a destination is hidden: it is a hash of the
   * whole declaration, which would confirm a guess.
   */
  readonly version?: string;
  readonly stats: {
    readonly no_route: number;
    readonly too_many_hops: number;
    readonly put_back: number;
    readonly selector_ms: number;
    readonly dst: readonly { readonly matched: number; readonly skipped: number; readonly failed: number }[];
  };
  readonly errors: readonly DestinationError[];
  readonly lastError: string | null;
  /** How selectors saw the last elements. */
  readonly saw: LastSeen;
  /** Loops of the declared graph that pass through this exchange, as far as the caller may see them. */
  readonly loops: LoopIds;
}

/** An exchange of this node at a glance. */
export interface ExchangeOverview {
  readonly id: string;
  readonly declaration: Declaration;
  /** Also if this node may not run it. */
  readonly stopped: boolean;
  /** As in the record. */
  readonly lastError: string | null;
  readonly counters: Readonly<ExchangeCounters>;
}

/** What the definition says in addition to the declaration. */
export interface ExchangeState {
  readonly stopped: boolean | null;
  readonly lastError: string | null;
}

/** Elements in progress that one record lists, at most: a window may hold tens of thousands. */
const MAX_PENDING = 1000;

const NOTHING = { matched: 0, skipped: 0, failed: 0 };

/** The record as the caller may see it. */
export function exchangeRecord(
  exchange: Exchange,
  state: ExchangeState,
  loops: LoopIds,
  caller: Caller,
): ExchangeRecord {
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
    stopped: state.stopped,
    ...(isSeen.every(Boolean) && { version: exchange.version }),
    stats: {
      no_route: totals.noRoute,
      too_many_hops: totals.tooManyHops,
      put_back: totals.requeued,
      selector_ms: Math.round(totals.selectorMs),
      dst: counters.destinations.map((own, i) => (isSeen[i] ? own : NOTHING)),
    },
    errors: exchange.errors.list().filter(({ destination }) => isSeen[destination]),
    lastError: exchange.hindrance ?? state.lastError,
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
