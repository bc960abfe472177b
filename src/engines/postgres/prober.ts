import type { EngineLog } from '../../engine/engine.ts';
import type { Clock } from '../../util/clock.ts';
import type { Subscription } from './registry.ts';
import type { Side } from './side.ts';
import { flag, number, numberOrNull, type Row, type Statement } from './statement.ts';
import { type Probed, TAKEN_BETWEEN_PROBES } from './watermark.ts';

/**
 * The first waiting delivery from a place on, and what finding it cost. Pages are those that this statement
 * has read of the table and of the index, live or dead.
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
 * The start of the oldest pending batch of any node, or of this statement. It is sent before the probe: what the probe does
 * not see is of a transaction that began earlier and is listed here, or of one that began later. The second column tells whether
 * transactions of some node are hidden: it has another user, or the server does not track activities.
 */
const OLDEST_BATCH: Statement = {
  name: 'oldest batch',
  text: `SELECT extract(epoch FROM least(statement_timestamp(), min(xact_start))) * 1000,
      coalesce(bool_or(coalesce(state, 'disabled') = 'disabled'), false)
    FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'quayside main %'`,
};
/** A batch takes no longer: what is assumed of batches that are hidden. */
const MAX_BATCH_MS = 5000;

/** At once. Others wait for their turn, the one that has waited longest first. */
const MAX_PROBES = 2;

/** Keeps the watermarks of busy subscriptions by reading, on the auxiliary connection, where their waiting deliveries begin. */
export class Prober {
  readonly #side: Side;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #probing = new Set<Subscription>();
  readonly #waiting = new Set<Subscription>();

  constructor(side: Side, clock: Clock, log: EngineLog) {
    this.#side = side;
    this.#clock = clock;
    this.#log = log;
  }

  /** A take returned so many deliveries. */
  took(subscription: Subscription, count: number): void {
    subscription.watermark.took(count);
    if (this.#probing.has(subscription)) return;
    if (subscription.watermark.probeFrom(this.#clock.monotonic()) !== null) this.#waiting.add(subscription);
    this.#probeNext();
  }

  /** A read that began at the front was slow: worth a probe even if this node takes nothing. */
  asked(subscription: Subscription): void {
    this.took(subscription, TAKEN_BETWEEN_PROBES);
  }

  /**
   * When a take that found too few should be made again: at the next maturity that it knows, and at the
   * latest when the next full probe has found what another node returned before the watermark.
   */
  lookAgainAt({ watermark }: Subscription, now: number, nextDueAt: number | null): number | null {
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
    const done = subscription.watermark.probing(from, now);
    this.#probing.add(subscription);
    const values = [subscription.idText, String(from.dueAt), String(from.seq)];
    Promise.all([
      this.#side.ask({ statement: OLDEST_BATCH, values: [] }),
      this.#side.ask({ statement: PROBE, values }),
    ])
      .then(
        ([[oldest = []], [row = []]]) => done(readProbe(oldest, row)),
        (error: unknown) => {
          done(null);
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

function readProbe(oldest: Row, row: Row): Probed {
  const dueAt = numberOrNull(row, 0);
  const first = dueAt === null ? null : { dueAt, seq: number(row, 1) };
  const pendingMs = Math.max(number(row, 5) - number(oldest, 0), flag(oldest, 1) ? MAX_BATCH_MS : 0);
  return { first, now: number(row, 2), pendingMs, costMs: number(row, 3), pages: number(row, 4) };
}
