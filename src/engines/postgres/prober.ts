import type { EngineLog } from '../../engine/engine.ts';
import type { Clock } from '../../model/clock.ts';
import { type Probed, TAKEN_BETWEEN_PROBES } from './mark.ts';
import type { Lane } from './names.ts';
import type { Side } from './side.ts';
import { number, numberOrNull, type Row, type Statement } from './statement.ts';

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
      + pg_stat_get_xact_blocks_fetched('delivery_waiting'::regclass) - b.pages
    FROM b LEFT JOIN LATERAL (SELECT due_at, seq FROM delivery
      WHERE lane = $1::int AND lease_until IS NULL AND (due_at, seq) >= ($2::bigint, $3::bigint)
      ORDER BY due_at, seq LIMIT 1) f ON true`,
};

/** At once; more than these lanes wait for their turn. */
const MOST_PROBES = 2;

/** Keeps the marks of busy lanes (see `mark.ts`) by looking where their waiting deliveries begin. */
export class Prober {
  readonly #side: Side;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #probing = new Set<Lane>();

  constructor(side: Side, clock: Clock, log: EngineLog) {
    this.#side = side;
    this.#clock = clock;
    this.#log = log;
  }

  /** A take handed out so many deliveries of a lane. */
  took(lane: Lane, count: number): void {
    lane.mark.took(count);
    const now = this.#clock.monotonic();
    const from =
      this.#probing.size >= MOST_PROBES || this.#probing.has(lane) ? null : lane.mark.probeFrom(now);
    if (from === null) return;
    const done = lane.mark.probing(from, now);
    this.#probing.add(lane);
    const values = [String(lane.id), String(from.dueAt), String(from.seq)];
    this.#side
      .ask({ statement: PROBE, values })
      .then(
        ([row]) => done(readProbe(row ?? [])),
        (error: unknown) => {
          done(null);
          this.#log.info({ err: error, queue: lane.queue.key }, 'a look at the front of a queue failed');
        },
      )
      .finally(() => this.#probing.delete(lane));
  }

  /** Somebody asked where a lane's waiting deliveries begin: worth a look, also where this node takes none. */
  asked(lane: Lane): void {
    this.took(lane, TAKEN_BETWEEN_PROBES);
  }

  /**
   * When a take that found too few should be made again: at the next maturity that it knows, and at the
   * latest when another node's give-backs before the mark will have been looked for.
   */
  lookAgainAt({ mark }: Lane, now: number, nextDueAt: number | null): number | null {
    if (!mark.isSet) return nextDueAt;
    const again = now + mark.fullProbeInMs(this.#clock.monotonic());
    return nextDueAt === null ? again : Math.min(nextDueAt, again);
  }
}

function readProbe(row: Row): Probed {
  const dueAt = numberOrNull(row, 0);
  const first = dueAt === null ? null : { dueAt, seq: number(row, 1) };
  return { first, now: number(row, 2), costMs: number(row, 3), pages: number(row, 4) };
}
