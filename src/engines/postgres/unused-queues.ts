import type { NamespacePolicy } from '../../engine/engine.ts';
import type { AuxiliaryConnection } from './link.ts';
import type { DatabaseClock } from './operations.ts';
import type { Subscription } from './registry.ts';
import { HOLDS_DELIVERIES, NOW, withList } from './sql.ts';
import { idArray, number, type Parameter, type Statement, text, textArray } from './statement.ts';

/** How many rows one statement examines. */
const MAX_ROWS = 1000;

/**
 * A subscription that holds nothing gets a mark, `idle_from`. A transaction that stores something for it removes the
 * mark (`register` in `sql.ts`), and so does, within five minutes, a node that takes from it. If the mark stays for
 * this long, the subscription is unused, and its row is deleted; a queue's row with everything stored about the queue.
 * But a transaction that began before the mark may store something without removing it; without the row, its deliveries
 * would belong to no queue. Such transactions last seconds, and marks minutes, unless the clock is set forward. So the
 * row is kept while a transaction with a smaller number than that of the mark runs. One with a larger number may have
 * begun before the mark, too, since it gets its number with its first change; it could do harm only if the clock is set
 * forward in those seconds. A drop, which does not wait that long, locks the registry instead (`queues.ts`).
 */
const GROUP_UNUSED_MS = 15 * 60_000;
const QUEUE_UNUSED_MS = 24 * 3_600_000;
/** How often takes from a subscription are noted. */
const NOTE_EVERY_MS = GROUP_UNUSED_MS / 3;
/** Intervals between passes over all groups, and over all queues. */
const GROUPS_EVERY_MS = 60_000;
const QUEUES_EVERY_MS = 600_000;

/** Must match the definition that the broker writes (`broker/namespace.ts`). */
const IS_PAUSED = `value LIKE '%"paused":true%'`;
const definitionKey = (of: string): string => `array_to_json(ARRAY[${of}.ns, ${of}.name])::text`;

/**
 * Counters that a node stored after another one had dropped their queue. The first page of a pass deletes them: with
 * 100,000 queues, this takes 0.15 s. Those of a namespace without any queue here are kept, as its elements may be in
 * another engine (`stats: {url: …}`).
 */
const DELETE_ORPHANED_STATS = `o AS MATERIALIZED (SELECT s.ctid AS tid FROM stats s
    WHERE $1::bigint = 0 AND s.ns = ANY ($2::text[]) AND s.ns IN (SELECT ns FROM subscription)
      AND NOT EXISTS (SELECT FROM subscription q WHERE q.ns = s.ns AND q.name = s.queue)
    LIMIT ${MAX_ROWS} FOR UPDATE OF s SKIP LOCKED),
  go AS (DELETE FROM stats s USING o WHERE s.ctid = o.tid)`;

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
          ELSE q.idle_from IS NULL OR (q.idle_from <= t.now - ${kind === 'groups' ? GROUP_UNUSED_MS : QUEUE_UNUSED_MS}
            AND age(q.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)) END
        ORDER BY q.id FOR UPDATE OF q SKIP LOCKED)`,
      `m AS (UPDATE subscription q SET idle_from = CASE WHEN NOT c.is_used THEN t.now END FROM c, t
        WHERE q.id = c.id AND (c.is_used OR c.idle_from IS NULL))`,
      `g AS (DELETE FROM subscription q USING c
        WHERE q.${kind === 'groups' ? 'id' : 'queue'} = c.id AND NOT c.is_used AND c.idle_from IS NOT NULL RETURNING q.id, q.ns, q.name)`,
      'gc AS (DELETE FROM counter y USING g WHERE y.subscription = ANY (ARRAY[g.id, -g.id]))',
      kind === 'queues' &&
        `gs AS (DELETE FROM stats s USING g WHERE s.ns = g.ns AND s.queue = g.name),
        gd AS (DELETE FROM definition f USING g WHERE f.kind = 'queue' AND f.key = ${definitionKey('g')} AND NOT f.${IS_PAUSED}),
        ${DELETE_ORPHANED_STATS}`,
    )} SELECT count(*), (SELECT id FROM x ORDER BY id DESC LIMIT 1) FROM x`,
  };
}

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
 * Deletes unused groups and queues in small statements on the auxiliary connection, each row locked by at most one node
 * (`SKIP LOCKED`).
 */
export class UnusedQueues {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: DatabaseClock;
  readonly #pagedPasses: readonly PagedPasses[];
  readonly #used = new Set<Subscription>();

  constructor(auxiliary: AuxiliaryConnection, policies: readonly NamespacePolicy[], clock: DatabaseClock) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
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
    return this.#pagedPasses.map((passes) => passes.run(this.#auxiliary, this.#clock));
  }

  /**
   * Notes that a node takes from a subscription, so that it is not deleted, unless that was noted not long ago. A
   * failure does no harm: the next note comes long before the deletion.
   */
  noteTake(subscription: Subscription): void {
    if (this.#clock.isWithin(subscription.notedAt, NOTE_EVERY_MS)) return;
    subscription.notedAt = this.#clock.now;
    if (this.#used.size === 0) {
      setImmediate(() => {
        const ids = idArray([...this.#used].flatMap(({ id, queue }) => [id, queue.id]));
        this.#used.clear();
        this.#auxiliary.change({ statement: NOTE_USE, values: [ids] }).catch(() => {});
      });
    }
    this.#used.add(subscription);
  }
}

function namesOf(named: readonly { readonly name: string }[]): Parameter {
  return textArray(named.map(({ name }) => Buffer.from(name)));
}
