import { EXPIRED, LEASE_EXPIRED } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import type { EventLog } from '../../util/log.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import { type Connection, ConnectionLost } from './connection.ts';
import type { Context } from './operations.ts';
import {
  addCounts,
  CONTENT_BYTES,
  copyMoved,
  deadLetterLine,
  lockStreamsOf,
  NOW,
  NOW_BOUND,
  policyOf,
  retryDelay,
  withList,
} from './sql.ts';
import { number, numberOrNull, type Row, type Statement, text } from './statement.ts';
import { FullReads, type Place, START } from './watermark.ts';

/** How many leases, and how many elements, one statement expires. If there are more, the next batch continues. */
const MAX_ROWS = 1000;
/** Average bytes per row that one statement may move: 8 MiB of leases and 8 MiB of elements. */
const MEAN_BYTES_PER_ROW = 8192;
/** After a failure nothing is expired for this long, doubled with each further failure. */
const FIRST_PAUSE_MS = 1000;
const MAX_PAUSE_MS = 60_000;
/** Whatever ended this long before the last pass is deleted or expired by now; full passes find exceptions. */
const PASS_OVERLAP_MS = 10_000;
/** The minimum time between two full passes. */
const FULL_PASS_EVERY_MS = 1000;
/** If another node has locked a stream, the next pass retries its elements after this long. */
const RETRY_LOCKED_MS = 50;

/**
 * The first rows of one index after a place, locked. The limit precedes the join with the policies, so that rows of
 * namespaces that this node does not have are stepped over once, and not locked by every statement.
 */
function dueRows(
  name: string,
  moment: string,
  where: string,
  [fromMoment, fromSeq]: [string, string],
): string {
  return `${name} AS MATERIALIZED (SELECT d.*, ${name === 'xl'} AS is_lease,
      sum(d.bytes) OVER (ORDER BY d.moment, d.seq) - d.bytes AS before FROM (
    SELECT d.ctid AS tid, ${moment} AS moment, d.seq, d.subscription, d.tries, d.bytes, d.expires_at, d.head IS NULL AS is_shared
    FROM delivery d
    WHERE (${moment}, d.seq) > (${fromMoment}::bigint, ${fromSeq}::bigint) AND ${moment} <= ${NOW_BOUND} AND ${where}
    ORDER BY ${moment}, d.seq LIMIT $5::int FOR UPDATE OF d SKIP LOCKED) d)`;
}

/** Returns the place where the next statement continues; no row if this one has seen everything. */
function continuation(entry: 'xl' | 'xe'): string {
  const fits = `d.before < ${MEAN_BYTES_PER_ROW}::bigint * $5::int`;
  return `SELECT '${entry}', NULL, NULL, NULL, d.moment, d.seq, NULL FROM (SELECT d.moment, d.seq FROM ${entry} d WHERE ${fits}
      ORDER BY d.moment DESC, d.seq DESC LIMIT 1) d
    WHERE (SELECT count(*) FROM ${entry}) >= $5::int OR EXISTS (SELECT FROM ${entry} d WHERE NOT ${fits})`;
}

/**
 * Expires leases of the namespaces of this engine. Each is a failed try: the element becomes a dead letter, or waits
 * from the end of the lease on, plus the retry delay. The token is kept, so that the late worker may still commit. Also
 * expires waiting elements past their `expires_at`, including those whose lease expires here: they become dead letters
 * if the queue has a dead-letter queue, else they are deleted.
 */
const EXPIRE: Statement = {
  name: 'expire',
  text: `${withList(
    NOW,
    dueRows('xl', 'd.lease_until', 'd.lease_until IS NOT NULL', ['$1', '$2']),
    dueRows('xe', 'd.expires_at', 'd.expires_at IS NOT NULL AND d.lease_until IS NULL', ['$3', '$4']),
    `v AS MATERIALIZED (SELECT v.*, v.dies OR v.expires_at <= t.now AS goes FROM t CROSS JOIN (
      SELECT w.*, y.*, w.is_lease AND y.target IS NOT NULL AND w.tries + 1 >= y.max_tries AS dies
      FROM (SELECT * FROM xl UNION ALL SELECT * FROM xe) w CROSS JOIN ${policyOf('w.subscription', 6)} y
      WHERE w.before < ${MEAN_BYTES_PER_ROW}::bigint * $5::int) v)`,
    lockStreamsOf('v WHERE v.is_shared AND v.goes'),
    `x AS MATERIALIZED (SELECT v.*, row_number() OVER () AS ord,
        to_json(CASE WHEN v.dies THEN '${LEASE_EXPIRED}' ELSE '${EXPIRED}' END)::text AS reason
      FROM v WHERE (v.queue IN (SELECT queue FROM locked WHERE NOT is_locked) AND v.is_shared AND v.goes) IS NOT TRUE)`,
    `s AS (UPDATE delivery d SET lease_until = NULL, tries = d.tries + 1,
        due_at = d.lease_until + coalesce(${retryDelay('x.retry', 'd.tries + 1', 'd.seq')}, 0),
        reason = to_json('${LEASE_EXPIRED}'::text)::text
      FROM x WHERE d.ctid = x.tid AND x.goes IS NOT TRUE RETURNING d.subscription, d.due_at, x.ns, x.name, x.grp)`,
    addCounts('sc', 's', { waiting: 'count(*)', reserved: '-count(*)', bytes: '0' }),
    `moved AS (DELETE FROM delivery d USING x, t WHERE d.ctid = x.tid AND x.goes
      RETURNING x.ord, d.seq, d.subscription, d.due_at, d.lease_until, d.head, d.body, ${CONTENT_BYTES}, x.name, x.grp,
        x.ns AS to_ns, x.target AS to_name, CASE WHEN x.target IS NOT NULL THEN x.dead_groups END AS to_groups, t.now AS to_due,
        0 AS to_tries, NULL::bigint AS to_expires, x.reason AS to_reason, NULL::text AS new_head,
        ${deadLetterLine('x', 'd.tries + x.is_lease::int', 'd.seq', 'x.reason')} AS line)`,
    ...copyMoved(),
  )}
  SELECT 'stays', ns, name, grp, count(*), min(due_at), NULL FROM s GROUP BY ns, name, grp
  UNION ALL SELECT 'moved', to_ns, name, grp, count(*), NULL, to_name FROM moved WHERE to_name IS NOT NULL GROUP BY to_ns, name, grp, to_name
  UNION ALL ${continuation('xl')} UNION ALL ${continuation('xe')}
  UNION ALL SELECT 'next', NULL, NULL, NULL, t.now, least(
      CASE WHEN EXISTS (SELECT FROM locked WHERE NOT is_locked) THEN t.now + ${RETRY_LOCKED_MS} END,
      (SELECT d.lease_until FROM delivery d WHERE d.lease_until > t.now ORDER BY d.lease_until, d.seq LIMIT 1),
      (SELECT d.expires_at FROM delivery d WHERE d.expires_at > t.now AND d.lease_until IS NULL ORDER BY d.expires_at, d.seq LIMIT 1)),
    EXISTS (SELECT FROM locked WHERE NOT is_locked)::text FROM t`,
};

/** Where a statement begins in each of the two indexes. */
interface PassPlaces {
  readonly leases: Place;
  readonly elements: Place;
}

type ExpirerContext = Omit<Context, 'expirer'>;

const FROM_START: PassPlaces = { leases: START, elements: START };

/**
 * Expires leases and elements before a batch, if this node knows of any that are due; otherwise it costs one comparison
 * per batch. Runs in its own transaction, pipelined with that of the batch, so that a failure never fails calls.
 *
 * Entries of deleted rows stay at the front of both indexes until a vacuum, so most passes begin near the end of the
 * last one.
 */
export class Expirer {
  readonly #context: ExpirerContext;
  readonly #failures: LogOnChange;
  /** The earliest known expiry, never too late for anything that this node stored itself. */
  #nextAt = Number.POSITIVE_INFINITY;
  /** Whether a pass is due in any case, since other nodes may have stored leases or elements that are due. */
  #isPassDue = true;
  /** If a pass needs several statements: where the next one begins. */
  #continueAt: PassPlaces | null = null;
  #isFull = true;
  #isFullRequested = true;
  #lastPassAt = Number.NEGATIVE_INFINITY;
  readonly #fullPasses = new FullReads();
  /** How long the statements of the current pass have taken. */
  #costMs = 0;
  /**
   * The earliest expiry that was added since the beginning of the last pass that did not fail. It may be long past, if
   * the pop of an element was undone.
   */
  #addedAt = Number.POSITIVE_INFINITY;
  #maxRows = MAX_ROWS;
  #pauseMs = 0;
  #pauseUntil = Number.NEGATIVE_INFINITY;

  constructor(context: ExpirerContext, log: EventLog) {
    this.#context = context;
    this.#failures = new LogOnChange({
      failed: (err) => log.warn({ err }, 'Leases and elements could not be expired. This is retried.'),
      worksAgain: () => log.info({}, 'Leases and elements are expired again.'),
    });
  }

  /** Notes that something expires at this moment. */
  add(at: number): void {
    if (at < this.#nextAt) this.#nextAt = at;
    if (at < this.#addedAt) this.#addedAt = at;
  }

  /** When it has to run next, by the database's clock; null: nothing expires. */
  get nextAt(): number | null {
    const { clock } = this.#context;
    const nextAt = this.#isPassDue ? Math.floor(clock.now) : this.#nextAt;
    if (nextAt === Number.POSITIVE_INFINITY) return null;
    const pauseMs = this.#pauseUntil - clock.monotonic();
    return pauseMs > 0 ? Math.ceil(Math.max(nextAt, clock.now + pauseMs)) : nextAt;
  }

  /** Whether it pauses after a failure. */
  get isPaused(): boolean {
    return this.#context.clock.monotonic() < this.#pauseUntil;
  }

  get isDue(): boolean {
    return (this.#isPassDue || this.#nextAt <= this.#context.clock.now) && !this.isPaused;
  }

  /** Requests a pass now, and a full one unless full passes are costly. */
  requestPass(): void {
    this.#isFullRequested = true;
    this.#isPassDue = true;
  }

  /** The store may be another one: discards everything known about it. */
  reset(): void {
    this.#nextAt = Number.POSITIVE_INFINITY;
    this.#isPassDue = true;
    this.#continueAt = null;
    this.#fullPasses.reset();
  }

  /** Sends one statement before it returns. Never rejects. */
  async run(connection: Connection): Promise<void> {
    const { registry, clock } = this.#context;
    const [knownAt, addedAt] = [this.#nextAt, this.#addedAt];
    const [from, sentAt] = [this.#nextPlaces(), clock.monotonic()];
    // The following batch must see everything that is known to become eligible here; the reply lowers the watermarks
    // for everything else. Lowering them to the front would make takes step over all dead entries after each sweep.
    registry.lowerWatermarks(knownAt);
    // The reply will not include expiries that are added from now on.
    this.#nextAt = Number.POSITIVE_INFINITY;
    this.#isPassDue = false;
    const places = [from.leases, from.elements].flatMap(({ dueAt, seq }) => [String(dueAt), String(seq)]);
    try {
      const rows = await connection.query(EXPIRE, [...places, String(this.#maxRows), ...registry.policies]);
      this.#costMs += clock.monotonic() - sentAt;
      this.#read(rows);
      this.#pauseMs = 0;
      this.#maxRows = Math.min(this.#maxRows * 2, MAX_ROWS);
      this.#failures.worked();
    } catch (error) {
      // When the next connection is ready, it calls `reset`.
      if (error instanceof ConnectionLost) return;
      this.#nextAt = Math.min(this.#nextAt, knownAt);
      this.#addedAt = Math.min(this.#addedAt, addedAt);
      this.#isPassDue = true;
      this.#pauseMs = Math.min(Math.max(this.#pauseMs * 2, FIRST_PAUSE_MS), MAX_PAUSE_MS);
      this.#pauseUntil = clock.monotonic() + this.#pauseMs;
      // The statement may have timed out because of too many rows.
      this.#maxRows = Math.max(this.#maxRows >> 1, 1);
      this.#failures.failed(error);
    }
  }

  #nextPlaces(): PassPlaces {
    if (this.#continueAt !== null) return this.#continueAt;
    const now = this.#context.clock.monotonic();
    const isOld = this.#fullPasses.sinceMs(now) >= FULL_PASS_EVERY_MS;
    this.#isFull = this.#fullPasses.isDue(now) && (this.#isFullRequested || isOld);
    this.#isFullRequested &&= !this.#isFull;
    const from = {
      dueAt: Math.floor(Math.min(this.#lastPassAt - PASS_OVERLAP_MS, this.#addedAt - 1)),
      seq: 0,
    };
    this.#addedAt = Number.POSITIVE_INFINITY;
    this.#costMs = 0;
    return this.#isFull ? FROM_START : { leases: from, elements: from };
  }

  #read(rows: readonly Row[]): void {
    const { clock, registry, affected, onDeadLetters } = this.#context;
    const more = new Map<string, Place>();
    for (const row of rows) {
      const kind = text(row, 0);
      if (kind === 'xl' || kind === 'xe') {
        more.set(kind, { dueAt: number(row, 4), seq: number(row, 5) });
      } else if (kind === 'next') {
        const now = number(row, 4);
        clock.update(now);
        const seenAll = { dueAt: now - PASS_OVERLAP_MS, seq: 0 };
        this.#continueAt =
          more.size === 0 ? null : { leases: more.get('xl') ?? seenAll, elements: more.get('xe') ?? seenAll };
        const nextAt = more.size === 0 ? (numberOrNull(row, 5) ?? Number.POSITIVE_INFINITY) : now;
        this.#nextAt = Math.min(this.#nextAt, this.#addedAt, nextAt);
        if (row[6] === 'true') this.#isFullRequested = true;
        if (more.size > 0) continue;
        this.#lastPassAt = now;
        if (this.#isFull) this.#fullPasses.onEnded(clock.monotonic(), this.#costMs);
      } else {
        const key: QueueKey = { ns: text(row, 1), name: text(row, 2) };
        const group = text(row, 3);
        affected.note(key);
        if (kind === 'stays') {
          registry.queue(key).subscriptions.get(group)?.watermark.lower(number(row, 5));
          continue;
        }
        onDeadLetters(key, group, text(row, 6), number(row, 4));
      }
    }
  }
}
