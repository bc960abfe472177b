import type { NamespacePolicy } from '../../engine/engine.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Clock } from '../../util/clock.ts';
import { quote } from '../../util/quote.ts';
import type { AuxiliaryConnection } from './link.ts';
import type { DatabaseClock } from './operations.ts';
import type { Subscription } from './registry.ts';
import { NOW, withList } from './sql.ts';
import { flag, idArray, number, type Parameter, type Statement, text, textArray } from './statement.ts';

/** How many rows one statement examines. */
const MAX_ROWS = 1000;

/**
 * A subscription that holds nothing gets a mark, `idle_from`. A transaction that stores something for it removes the
 * mark (`register` in `sql.ts`), and so does, within five minutes, a node that takes from it. If the mark stays for
 * this long, the subscription is unused, and its row is deleted; a queue's row with everything stored about the queue.
 * But a transaction that began before the mark may store something without removing it; without the row, its deliveries
 * would belong to no queue. Such transactions last seconds, and marks minutes, unless the clock is set forward. So the
 * row is kept while a transaction with a smaller number than that of the mark runs. One with a larger number may have
 * begun before the mark, too ({@link WRITING_TRANSACTIONS}), but could do harm only if the clock is set forward in
 * those seconds. A drop, which does not wait that long, checks locks instead.
 */
const GROUP_UNUSED_MS = 15 * 60_000;
const QUEUE_UNUSED_MS = 24 * 3_600_000;
/**
 * Marks of drops are negative, and their leading digits are the time: see {@link MARK_FOR_DROP}. An older one was left
 * by a node that failed, and becomes an ordinary mark.
 */
const MARKS_PER_MS = 1000;
const DROP_MARK_MS = 60_000;
/** Intervals between passes over all groups, and over all queues. */
const GROUPS_EVERY_MS = 60_000;
const QUEUES_EVERY_MS = 600_000;

/** Must match the definition that the broker writes (`broker/namespace.ts`). */
const IS_PAUSED = `value LIKE '%"paused":true%'`;
const definitionKey = (of: string): string => `array_to_json(ARRAY[${of}.ns, ${of}.name])::text`;

/** Whether a queue `q` holds deliveries, by its counter deltas. */
const HOLDS_DELIVERIES = `coalesce((SELECT sum(y.waiting + y.reserved) FROM subscription s JOIN counter y ON y.subscription = s.id
  WHERE s.queue = q.id), 0) <> 0`;

/**
 * Marks idle rows, and deletes those whose mark is old. `c` locks the rows to change and reads their latest version, so
 * that it sees uses that were committed after the snapshot. A row that another node has locked is left for the next
 * pass.
 */
function deleteUnused(kind: 'groups' | 'queues'): Statement {
  const isUsed =
    kind === 'groups'
      ? `EXISTS (SELECT FROM delivery d WHERE d.subscription = q.id AND d.lease_until IS NULL)
        OR EXISTS (SELECT FROM delivery d WHERE d.subscription = q.id AND d.head IS NULL AND d.lease_until IS NOT NULL)`
      : `q.has_options
        OR ${HOLDS_DELIVERIES}
        OR EXISTS (SELECT FROM dedup d WHERE d.queue = q.id)
        OR EXISTS (SELECT FROM definition f WHERE f.kind = 'queue' AND f.key = ${definitionKey('q')} AND f.${IS_PAUSED})`;
  const scope =
    kind === 'groups'
      ? `q.grp <> '' AND NOT EXISTS (SELECT FROM unnest($3::text[], $4::text[]) AS g(ns, grp) WHERE g.ns = q.ns AND g.grp = q.grp)`
      : "q.grp = ''";
  return {
    name: `forget unused ${kind}`,
    text: `${withList(
      NOW,
      `x AS MATERIALIZED (SELECT q.id, ${isUsed} AS is_used FROM subscription q
        WHERE q.id > $1::bigint AND q.ns = ANY ($2::text[]) AND ${scope} ORDER BY q.id LIMIT ${MAX_ROWS})`,
      `c AS MATERIALIZED (SELECT q.id, q.ns, q.name, x.is_used, q.idle_from FROM t CROSS JOIN x JOIN subscription q ON q.id = x.id
        WHERE CASE WHEN x.is_used THEN q.idle_from IS NOT NULL
          WHEN q.idle_from < 0 THEN abs(t.now + q.idle_from / ${MARKS_PER_MS}) > ${DROP_MARK_MS}
          ELSE q.idle_from IS NULL OR (q.idle_from <= t.now - ${kind === 'groups' ? GROUP_UNUSED_MS : QUEUE_UNUSED_MS}
            AND age(q.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)) END
        ORDER BY q.id FOR UPDATE OF q SKIP LOCKED)`,
      `m AS (UPDATE subscription q SET idle_from = CASE WHEN NOT c.is_used THEN t.now END FROM c, t
        WHERE q.id = c.id AND (c.is_used OR c.idle_from IS NULL OR c.idle_from < 0))`,
      `g AS (DELETE FROM subscription q USING c
        WHERE q.${kind === 'groups' ? 'id' : 'queue'} = c.id AND NOT c.is_used AND c.idle_from >= 0 RETURNING q.id, q.ns, q.name)`,
      'gc AS (DELETE FROM counter y USING g WHERE y.subscription IN (g.id, -g.id))',
      kind === 'queues' &&
        `gs AS (DELETE FROM stats s USING g WHERE s.ns = g.ns AND s.queue = g.name),
        gd AS (DELETE FROM definition f USING g WHERE f.kind = 'queue' AND f.key = ${definitionKey('g')} AND NOT f.${IS_PAUSED})`,
    )} SELECT count(*), (SELECT id FROM x ORDER BY id DESC LIMIT 1) FROM x`,
  };
}

/**
 * Marks a queue and its groups for a drop, with a unique negative number: so the drop notices if its mark was removed,
 * even if another drop has set its own since. A drop that finds the mark of another one shares it. Returns the mark of
 * the queue.
 */
const MARK_FOR_DROP: Statement = {
  name: 'mark for drop',
  text: `WITH m AS MATERIALIZED (SELECT -(now_ms() * ${MARKS_PER_MS} + floor(random() * ${MARKS_PER_MS})::bigint) AS mark),
    x AS MATERIALIZED (SELECT id FROM subscription WHERE queue = $1::bigint ORDER BY ns, name, grp FOR UPDATE),
    u AS (UPDATE subscription q SET idle_from = CASE WHEN q.idle_from < 0 THEN q.idle_from ELSE m.mark END FROM x, m
      WHERE q.id = x.id RETURNING q.id, q.idle_from)
  SELECT idle_from FROM u WHERE id = $1::bigint`,
};

/** Removes the marks of a drop that failed. */
const UNMARK: Statement = {
  name: 'unmark',
  text: `WITH x AS MATERIALIZED (SELECT id FROM subscription WHERE queue = $1::bigint AND idle_from = $2::bigint
      ORDER BY ns, name, grp FOR UPDATE)
    UPDATE subscription q SET idle_from = NULL FROM x WHERE q.id = x.id`,
};

/**
 * Returns the transactions that may be storing something: of those in $1, or of all if $1 is null; null: none. Those
 * that began before the end of {@link MARK_FOR_DROP} may do so without removing the mark. Neither their numbers nor
 * their snapshots identify them: a statement may get its number after the mark's, and has no snapshot any more while it
 * is committed. But it locks the registry before it takes its snapshot, and keeps the lock until others see what it
 * stored.
 */
const WRITING_TRANSACTIONS: Statement = {
  name: 'storing',
  text: `SELECT array_agg(DISTINCT l.virtualtransaction)::text FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = 'subscription'::regclass AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.pid <> pg_backend_pid() AND ($1::text[] IS NULL OR l.virtualtransaction = ANY ($1::text[]))`,
};

/**
 * Deletes a queue if it still has the mark $2 and holds nothing. Returns the number of deleted queues, and whether the
 * queue holds something.
 */
const DROP: Statement = {
  name: 'drop',
  text: `${withList(
    `c AS MATERIALIZED (SELECT q.id, q.ns, q.name FROM subscription q
      WHERE q.id = $1::bigint AND q.idle_from = $2::bigint AND NOT (${HOLDS_DELIVERIES}) FOR UPDATE OF q)`,
    'g AS (DELETE FROM subscription q USING c WHERE q.queue = c.id RETURNING q.id)',
    'gc AS (DELETE FROM counter y USING g WHERE y.subscription IN (g.id, -g.id))',
    'gk AS (DELETE FROM dedup d USING c WHERE d.queue = c.id)',
    'gs AS (DELETE FROM stats s USING c WHERE s.ns = c.ns AND s.queue = c.name)',
  )} SELECT (SELECT count(*) FROM c), EXISTS (SELECT FROM subscription q WHERE q.id = $1::bigint AND ${HOLDS_DELIVERIES})`,
};

/** How long a drop waits for older transactions, and how often it checks whether they still run. */
const DROP_WAIT_MS = 3_000;
const DROP_EVERY_MS = 20;

/** Removes the marks of used subscriptions and of their queues; adds none to the registry. */
const NOTE_USE: Statement = {
  name: 'note use',
  text: `WITH x AS MATERIALIZED (SELECT id FROM subscription WHERE id = ANY ($1::bigint[]) AND idle_from IS NOT NULL
      ORDER BY ns, name, grp FOR UPDATE)
    UPDATE subscription s SET idle_from = NULL FROM x WHERE s.id = x.id`,
};

/** Repeatedly visits all rows with a statement, {@link MAX_ROWS} at a time, with a pause after each full pass. */
class PagedPasses {
  readonly #statement: Statement;
  readonly #values: readonly Parameter[];
  readonly #everyMs: number;
  #after = '0';
  /** When the last full pass ended, by the database's clock. */
  #doneAt = Number.NEGATIVE_INFINITY;

  constructor(statement: Statement, values: readonly Parameter[], everyMs: number) {
    this.#statement = statement;
    this.#values = values;
    this.#everyMs = everyMs;
  }

  /** Runs one step if it is due. @throws QuaysideError as the Storage port says */
  async run(auxiliary: AuxiliaryConnection, clock: DatabaseClock): Promise<void> {
    if (clock.isWithin(this.#doneAt, this.#everyMs)) return;
    const { now } = clock;
    const [row = []] = await auxiliary.change({
      statement: this.#statement,
      values: [this.#after, ...this.#values],
    });
    const hasMore = number(row, 0) >= MAX_ROWS;
    this.#after = hasMore ? text(row, 1) : '0';
    if (!hasMore) this.#doneAt = now;
  }
}

/**
 * Deletes unused groups and queues, and drops queues: in small statements on the auxiliary connection, each row locked
 * by at most one node (`SKIP LOCKED`).
 */
export class UnusedQueues {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: Clock;
  readonly #databaseClock: DatabaseClock;
  readonly #pagedPasses: readonly PagedPasses[];
  readonly #used = new Set<Subscription>();
  /** Functions that each end one wait. */
  readonly #waits = new Set<() => void>();
  #isStopped = false;

  constructor(
    auxiliary: AuxiliaryConnection,
    policies: readonly NamespacePolicy[],
    { clock, databaseClock }: { readonly clock: Clock; readonly databaseClock: DatabaseClock },
  ) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
    this.#databaseClock = databaseClock;
    const streams = policies.filter(({ groups }) => groups !== null);
    const defaults = streams.flatMap(({ name, groups }) => (groups ?? []).map((group) => ({ name, group })));
    const groups = [
      namesOf(streams),
      namesOf(defaults),
      textArray(defaults.map(({ group }) => Buffer.from(group))),
    ];
    this.#pagedPasses = [
      ...(streams.length === 0 ? [] : [new PagedPasses(deleteUnused('groups'), groups, GROUPS_EVERY_MS)]),
      new PagedPasses(deleteUnused('queues'), [namesOf(policies)], QUEUES_EVERY_MS),
    ];
  }

  /** Runs one step of each pass that is due. Each may reject, as the Storage port says. */
  run(): readonly Promise<void>[] {
    return this.#pagedPasses.map((passes) => passes.run(this.#auxiliary, this.#databaseClock));
  }

  /**
   * Notes that a subscription is used, so that it is not deleted. A failure does no harm: the next note comes long
   * before the deletion.
   */
  noteUse(subscription: Subscription): void {
    if (this.#used.size === 0) {
      setImmediate(() => {
        const ids = idArray([...this.#used].flatMap(({ id, queue }) => [id, queue.id]));
        this.#used.clear();
        this.#auxiliary.change({ statement: NOTE_USE, values: [ids] }).catch(() => {});
      });
    }
    this.#used.add(subscription);
  }

  /**
   * Deletes an empty queue; see `Storage.drop`. @returns false if it holds something
   * @throws QuaysideError `storage-unavailable` if older transactions keep running
   */
  async drop(key: QueueKey, queue: string): Promise<boolean> {
    const deadlineAt = this.#databaseClock.now + DROP_WAIT_MS;
    for (;;) {
      const [marked] = await this.#auxiliary.change({ statement: MARK_FOR_DROP, values: [queue] });
      if (marked === undefined) return true;
      const values = [queue, text(marked, 0)];
      let isDropped = false;
      try {
        await this.#waitForOlder(key, deadlineAt);
        // A separate statement: its snapshot includes what those transactions stored.
        const [row = []] = await this.#auxiliary.change({ statement: DROP, values });
        isDropped = number(row, 0) === 1;
        if (isDropped) return true;
        if (flag(row, 1)) return false;
        // It was used in the meantime, but is empty: it is marked again.
        this.#checkTime(
          deadlineAt,
          `Queue ${quote(key.name)} cannot be dropped while it is used. Try again.`,
        );
      } finally {
        // If that fails as well, the next pass over unused queues finds the old mark.
        if (!isDropped) await this.#auxiliary.change({ statement: UNMARK, values }).catch(() => {});
      }
    }
  }

  /** Resolves when all transactions have ended that may store something without seeing the mark that was just set. */
  async #waitForOlder({ name }: QueueKey, deadlineAt: number): Promise<void> {
    for (let older: string | null = null; ; ) {
      const [row = []] = await this.#auxiliary.change({ statement: WRITING_TRANSACTIONS, values: [older] });
      older = row[0] ?? null;
      if (older === null) return;
      const message = `Queue ${quote(name)} cannot be dropped while long transactions run in its database. Try again.`;
      this.#checkTime(deadlineAt, message);
      await this.#waitBeforeCheck();
    }
  }

  /** @throws QuaysideError `storage-unavailable` with this message if no time is left */
  #checkTime(deadlineAt: number, message: string): void {
    if (this.#isStopped || this.#databaseClock.now >= deadlineAt)
      throw new QuaysideError('storage-unavailable', message);
  }

  /** Aborts pending drops. */
  stop(): void {
    this.#isStopped = true;
    for (const end of [...this.#waits]) end();
  }

  #waitBeforeCheck(): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        cancel();
        this.#waits.delete(end);
        resolve();
      };
      const cancel = this.#clock.after(DROP_EVERY_MS, end);
      this.#waits.add(end);
    });
  }
}

function namesOf(named: readonly { readonly name: string }[]): Parameter {
  return textArray(named.map(({ name }) => Buffer.from(name)));
}
