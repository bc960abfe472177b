import type { DestinationFault, ExchangeCounters } from './counters.ts';
import type { Declaration } from './declaration.ts';
import type { Exchange } from './exchange.ts';
import type { LoopIds } from './graph.ts';

/** The exchange record of the spec's 2.4; `stats`, `errors`, `lastError` and `loops` are ours. */
export interface ExchangeRecord {
  readonly src: { readonly q: string; readonly ns: string };
  readonly dst: readonly { readonly q: string; readonly ns: string; readonly selector?: string }[];
  readonly opts: Declaration['consumer'];
  readonly cid: string;
  readonly pending_acks: Readonly<Record<string, { readonly t: string; readonly id: string }>>;
  readonly pending_tids: Readonly<Record<string, string>>;
  readonly wsize: number;
  readonly stopped: boolean | null;
  readonly stats: {
    readonly no_route: number;
    readonly too_many_hops: number;
    readonly put_back: number;
    readonly selector_ms: number;
    readonly dst: readonly { readonly matched: number; readonly skipped: number; readonly failed: number }[];
  };
  readonly errors: readonly DestinationFault[];
  readonly lastError: string | null;
  /** Loops of the declared graph that pass through this exchange, as far as the asker may know them. */
  readonly loops: LoopIds;
}

/** An exchange of this node at a glance. */
export interface ExchangeOverview {
  readonly id: string;
  readonly declaration: Declaration;
  /** Also where this node may not run it. */
  readonly stopped: boolean;
  readonly counters: Readonly<ExchangeCounters>;
}

/** What the definition says beside the declaration. */
export interface ExchangeState {
  readonly stopped: boolean | null;
  readonly lastError: string | null;
}

/** Elements under way that one record lists, at most: a window may hold tens of thousands. */
const MOST_PENDING = 1000;

export function exchangeRecord(exchange: Exchange, state: ExchangeState, loops: LoopIds): ExchangeRecord {
  const { declaration, counters } = exchange;
  const { src, dst, consumer } = declaration;
  return {
    src: { q: src.queue, ns: src.ns },
    dst: dst.map(({ queue, ns, selector }) => ({
      q: queue,
      ns,
      ...(selector !== undefined && { selector }),
    })),
    opts: consumer,
    cid: exchange.cid,
    pending_acks: pendingAcks(exchange.underWay()),
    pending_tids: Object.fromEntries(exchange.idleLoops().map(({ tid, since }) => [tid, iso(since)])),
    wsize: exchange.wsize,
    stopped: state.stopped,
    stats: {
      no_route: counters.noRoute,
      too_many_hops: counters.tooManyHops,
      put_back: counters.putBack,
      selector_ms: Math.round(counters.selectorMs),
      dst: counters.destinations,
    },
    errors: exchange.faults.list(),
    lastError: exchange.hindrance ?? state.lastError,
    loops,
  };
}

function pendingAcks(underWay: ReadonlyMap<string, number>): ExchangeRecord['pending_acks'] {
  const acks: Record<string, { readonly t: string; readonly id: string }> = {};
  let left = MOST_PENDING;
  for (const [id, since] of underWay) {
    if (left-- === 0) break;
    acks[id] = { t: iso(since), id };
  }
  return acks;
}

function iso(at: number): string {
  return new Date(at).toISOString();
}
