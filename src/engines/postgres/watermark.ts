import type { Clock } from '../../util/clock.ts';
import type { EventLog } from '../../util/log.ts';
import type { AuxiliaryConnection } from './link.ts';
import type { Subscription } from './registry.ts';
import { flag, number, numberOrNull, type Row, type Statement } from './statement.ts';

/** A place in the order of delivery: maturity, then sequence number. */
export interface Place {
  readonly dueAt: number;
  readonly seq: number;
}

/** The place before all deliveries. */
export const START: Place = { dueAt: Number.MIN_SAFE_INTEGER, seq: 0 };

/** How many deliveries must be taken between two probes: a queue that hardly moves leaves no dead entries. */
const MIN_TAKEN_BETWEEN_PROBES = 500;
const PROBE_EVERY_MS = 250;
/** Below this many pages (about half a millisecond), a probe from the start sets no watermark, which is inexact. */
const CHEAP_PAGES = 64;
/**
 * How far a watermark stays behind the start of the oldest pending batch, since clocks are read at different moments.
 * Elements that a slow batch stores are due before those that others stored and committed while it ran.
 */
const MARGIN_MS = 100;

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

/**
 * The low watermark of a subscription: where its waiting deliveries begin, as far as this node knows.
 *
 * Index entries of deleted deliveries stay at the front of the index until a vacuum removes them, which it cannot while
 * any transaction in the database is older than they are. A take that begins at the very front steps over all of them:
 * a million cost a quarter of a second each time. So, if a probe from the front is slow, takes begin at the first
 * delivery that it found.
 *
 * Deliveries can appear before the watermark. Those of this node (inserts, undone takes, expired leases) lower the
 * watermark immediately, and a pending probe raises it no higher; those of other nodes are found by the next full
 * probe.
 */
export class Watermark {
  #place: Place = START;
  #isReturning = false;
  /** The lowest maturity since the current probe began, which the probe may have missed. */
  #lowest = Number.POSITIVE_INFINITY;
  #taken = 0;
  #probedAt = Number.NEGATIVE_INFINITY;
  readonly #fullProbes = new FullReads();

  /** Where takes and other reads of waiting deliveries begin. */
  get place(): Place {
    return this.#isReturning ? START : this.#place;
  }

  /** While true, deliveries that another node returned may be before the watermark until the next full probe. */
  get isSet(): boolean {
    return this.#place !== START;
  }

  /** Discards all knowledge. */
  reset(): void {
    this.#isReturning = false;
    this.lower(Number.NEGATIVE_INFINITY);
  }

  /** A batch is sent that may return deliveries to their old places, which only the database knows. */
  startReturn(): void {
    this.#isReturning = true;
  }

  /** That batch is done. The caller then lowers the watermark to the returned deliveries. */
  endReturn(): void {
    this.#isReturning = false;
  }

  /** A call failed. If it returns deliveries, it may have been applied. */
  onReturnFailed(): void {
    if (this.#isReturning) this.reset();
  }

  /** A delivery that matures at `dueAt` begins to wait now or soon; -Infinity: its maturity is unknown. */
  lower(dueAt: number): void {
    this.#lowest = Math.min(this.#lowest, dueAt);
    if (!this.isSet || dueAt > this.#place.dueAt) return;
    this.#place = dueAt > START.dueAt ? { dueAt, seq: 0 } : START;
  }

  onTaken(count: number): void {
    this.#taken += count;
  }

  /** The place from which to probe now, or null if a probe is not worth it yet. @param nowMs by the monotonic clock */
  probeFrom(nowMs: number): Place | null {
    if (nowMs - this.#probedAt < PROBE_EVERY_MS) return null;
    const isBusy = this.#taken >= MIN_TAKEN_BETWEEN_PROBES;
    if (this.#fullProbes.isDue(nowMs)) return this.isSet || isBusy ? START : null;
    return this.isSet && isBusy ? this.#place : null;
  }

  /** How long until the next full probe will have been made, ms. */
  fullProbeInMs(nowMs: number): number {
    return Math.max(this.#fullProbes.dueInMs(nowMs), PROBE_EVERY_MS);
  }

  /** Begins a probe. Returns the function to call with its result; null: it failed. */
  startProbe(from: Place, nowMs: number): (found: ProbeResult | null) => void {
    this.#lowest = Number.POSITIVE_INFINITY;
    const isFull = from === START;
    this.#taken = 0;
    this.#probedAt = nowMs;
    return (probed) => {
      if (isFull && probed === null) this.#fullProbes.onFailed(nowMs, PROBE_EVERY_MS);
      if (probed === null) return;
      if (isFull) this.#fullProbes.onEnded(nowMs, probed.costMs);
      this.#place = isFull && probed.pages < CHEAP_PAGES ? START : watermarkAfter(probed);
      this.lower(this.#lowest);
    };
  }
}

/** The result of a probe. */
export interface ProbeResult {
  /** The first waiting delivery; null if none waits. */
  readonly first: Place | null;
  /** The database's clock. */
  readonly now: number;
  /** How long the oldest batch of any node that the probe could not see may have been pending, ms. */
  readonly pendingMs: number;
  /** The cost of the probe: its time, and the pages of table and index, which do not depend on the load. */
  readonly costMs: number;
  readonly pages: number;
}

function watermarkAfter({ first, now, pendingMs }: ProbeResult): Place {
  // The server's times have fractions of milliseconds; the column that they are compared with is an integer.
  const latest = Math.floor(now - pendingMs - MARGIN_MS);
  return first !== null && first.dueAt < latest ? first : { dueAt: latest, seq: 0 };
}

/** Longer than any transaction of a node: statements, locks and idle transactions all have timeouts of seconds. */
const SETTLED_AFTER_MS = 60_000;

/**
 * The low watermark of the rows of `counter`: there are no rows with smaller ids, as far as this node knows.
 *
 * Rows are continually summed up into new ones, and a read from the first id on would step over all rows that cannot be
 * removed yet. No probe is needed, since ids only grow: the first id that a read found remains the first, except for
 * rows whose transactions were in progress at that time. When those must have ended, one more read from the old place
 * shows whether there were any.
 */
export class CounterWatermark {
  #from = 0;
  /** The first id that a read has found, and when, by the monotonic clock, ms. */
  #candidate: { readonly first: number; readonly foundAt: number } | null = null;

  /** The id from which reads begin. */
  get from(): number {
    return this.#from;
  }

  /** Discards all knowledge. */
  reset(): void {
    this.#from = 0;
    this.#candidate = null;
  }

  /**
   * A read from {@link from} on ended at `nowMs` (monotonic).
   * @param first the first id; null if it found no row
   * @param startedMs when it began, if it took several statements
   */
  onRead(first: number | null, nowMs: number, startedMs = nowMs): void {
    const candidate = this.#candidate;
    if (candidate !== null && startedMs - candidate.foundAt < SETTLED_AFTER_MS) return;
    if (candidate !== null && (first === null || first >= candidate.first)) this.#from = candidate.first;
    this.#candidate = first === null ? null : { first, foundAt: nowMs };
  }
}

/**
 * The first waiting delivery from a place on, and the cost of finding it: the pages of table and index that this
 * statement has read, live or dead.
 */
const PROBE: Statement = {
  name: 'probe',
  text: `WITH b AS MATERIALIZED (SELECT pg_stat_get_xact_blocks_fetched('delivery'::regclass)
      + pg_stat_get_xact_blocks_fetched('delivery_waiting'::regclass) AS pages)
    SELECT f.due_at, f.seq, now_ms(), extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000,
      pg_stat_get_xact_blocks_fetched('delivery'::regclass)
      + pg_stat_get_xact_blocks_fetched('delivery_waiting'::regclass) - b.pages, extract(epoch FROM clock_timestamp()) * 1000
    FROM b LEFT JOIN LATERAL (SELECT due_at, seq FROM delivery
      WHERE subscription = $1::bigint AND lease_until IS NULL AND (due_at, seq) >= ($2::bigint, $3::bigint)
      ORDER BY due_at, seq LIMIT 1) f ON true`,
};

/**
 * The start of the oldest pending batch of any node, or of this statement. It is sent before the probe: rows that the
 * probe does not see belong to a transaction that is listed here, or that began later. The second column is true if
 * transactions of some node are hidden, since it has another user or the server does not track activities.
 */
const OLDEST_BATCH: Statement = {
  name: 'oldest batch',
  text: `SELECT extract(epoch FROM least(statement_timestamp(), min(xact_start))) * 1000,
      coalesce(bool_or(coalesce(state, 'disabled') = 'disabled'), false)
    FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'quayside main %'`,
};
/** The longest possible duration of a batch, assumed for hidden ones. */
const MAX_BATCH_MS = 5000;

/** The number of concurrent probes. Others wait, first in, first out. */
const MAX_PROBES = 2;

/**
 * Maintains the watermarks of busy subscriptions by reading, on the auxiliary connection, where their waiting
 * deliveries begin.
 */
export class Prober {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: Clock;
  readonly #log: EventLog;
  readonly #probing = new Set<Subscription>();
  readonly #waiting = new Set<Subscription>();

  constructor(auxiliary: AuxiliaryConnection, clock: Clock, log: EventLog) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
    this.#log = log;
  }

  /** A take returned `count` deliveries. */
  onTaken(subscription: Subscription, count: number): void {
    subscription.watermark.onTaken(count);
    if (this.#probing.has(subscription)) return;
    if (subscription.watermark.probeFrom(this.#clock.monotonic()) !== null) this.#waiting.add(subscription);
    this.#probeNext();
  }

  /**
   * A read was slow or timed out, perhaps because it began at the front: a probe is worth it even if this node takes
   * nothing.
   */
  requestProbe(subscription: Subscription): void {
    this.onTaken(subscription, MIN_TAKEN_BETWEEN_PROBES);
  }

  /**
   * When to repeat a take that found too few deliveries: at the next known maturity, or earlier, when the next full
   * probe will have found deliveries that another node returned before the watermark.
   */
  retryAt({ watermark }: Subscription, now: number, nextDueAt: number | null): number | null {
    if (!watermark.isSet) return nextDueAt;
    const again = now + watermark.fullProbeInMs(this.#clock.monotonic());
    return nextDueAt === null ? again : Math.min(nextDueAt, again);
  }

  #probeNext(): void {
    const [subscription] = this.#waiting;
    if (subscription === undefined || this.#probing.size >= MAX_PROBES) return;
    this.#waiting.delete(subscription);
    const now = this.#clock.monotonic();
    const from = subscription.watermark.probeFrom(now);
    if (from === null) {
      this.#probeNext();
      return;
    }
    const endProbe = subscription.watermark.startProbe(from, now);
    this.#probing.add(subscription);
    const values = [subscription.idText, String(from.dueAt), String(from.seq)];
    Promise.all([
      this.#auxiliary.query({ statement: OLDEST_BATCH, values: [] }),
      this.#auxiliary.query({ statement: PROBE, values }),
    ])
      .then(
        ([[oldest = []], [row = []]]) => endProbe(readProbe(oldest, row)),
        (error: unknown) => {
          endProbe(null);
          this.#log.info(
            { err: error, queue: subscription.queue.key },
            'reading the front of a queue failed',
          );
        },
      )
      .finally(() => {
        this.#probing.delete(subscription);
        this.#probeNext();
      });
  }
}

function readProbe(oldest: Row, row: Row): ProbeResult {
  const dueAt = numberOrNull(row, 0);
  const first = dueAt === null ? null : { dueAt, seq: number(row, 1) };
  const pendingMs = Math.max(number(row, 5) - number(oldest, 0), flag(oldest, 1) ? MAX_BATCH_MS : 0);
  return { first, now: number(row, 2), pendingMs, costMs: number(row, 3), pages: number(row, 4) };
}
