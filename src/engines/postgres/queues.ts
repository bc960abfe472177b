import type { PurgeStep, QueueOptions, Usage } from '../../engine/storage.ts';
import { DELIVERY_STATES, type Delivery, type DeliveryState } from '../../model/element.ts';
import type { Operation } from './batcher.ts';
import { encodeHead } from './content.ts';
import type { Context } from './operations.ts';
import { clampTries, type Queue, REGISTERED, retryArray, type Subscription } from './registry.ts';
import {
  CAME_WAITING,
  CONTENT_BYTES,
  count,
  countElements,
  elementColumns,
  finishShared,
  NOW,
  register,
  WENT_EITHER,
  withList,
} from './sql.ts';
import { Columns, number, type Statement, text } from './statement.ts';
import type { Popped } from './take.ts';

// Operations about whole queues, and `undoTake`.

export interface DeclareItem {
  readonly queue: Queue;
  /** Undefined: what is stored stays; null: nothing is stored any more. */
  readonly options: QueueOptions | null | undefined;
}

/** 0 stands for none, null for what the namespace has. */
const DECLARED = new Columns<DeclareItem>()
  .bool('has_options', ({ options }) => options != null)
  .int('max_tries', ({ options }) => {
    const deadLetter = options?.deadLetter;
    return deadLetter === undefined ? null : clampTries(deadLetter?.maxTries ?? 0);
  })
  .text('dead_queue', ({ options }) =>
    options?.deadLetter == null ? null : Buffer.from(options.deadLetter.queue),
  )
  .bigint('retention', ({ options }) =>
    options?.retentionMs === undefined ? null : (options.retentionMs ?? 0),
  )
  .text('retry', ({ options }) =>
    options?.retryDelay === undefined ? null : retryArray(options.retryDelay),
  );

const DECLARE: Statement = {
  name: 'declare',
  text: `INSERT INTO subscription AS s (id, queue, ns, name, grp, max_tries, dead_queue, retention, retry, has_options)
    SELECT u.id, u.queue, u.ns, u.name, u.grp, o.max_tries, o.dead_queue, o.retention, o.retry::float8[], o.has_options
    FROM ${REGISTERED.from('u')} JOIN ${DECLARED.from('o', REGISTERED.count + 1)} ON o.ord = u.ord ORDER BY u.ns, u.name
    ON CONFLICT (ns, name, grp) DO UPDATE SET idle_from = NULL`,
};

const DECLARE_OPTIONS: Statement = {
  name: 'declare with options',
  text: `${DECLARE.text}, max_tries = excluded.max_tries, dead_queue = excluded.dead_queue,
    retention = excluded.retention, retry = excluded.retry, has_options = excluded.has_options`,
};

export function declareOperation(sets: boolean): Operation<DeclareItem, void> {
  const statement = sets ? DECLARE_OPTIONS : DECLARE;
  return {
    name: statement.name,
    changes: true,
    keysOf: ({ queue }) => [queue.whole.idText],
    prepare: (items) => ({
      query: {
        statement,
        values: [...REGISTERED.values(items.map(({ queue }) => queue.whole)), ...DECLARED.values(items)],
      },
      read: () => {
        for (const { queue, options } of items) {
          queue.mayDie ||= options?.deadLetter != null;
          queue.retries ||= options?.retryDelay != null;
        }
        return items.map(() => undefined);
      },
    }),
  };
}

const QUEUES: Statement = {
  name: 'queues',
  text: "SELECT name FROM subscription WHERE ns = $1 AND grp = ''",
};

/** The queues of a namespace, sorted. */
export const QUEUES_OPERATION: Operation<string, string[]> = {
  name: QUEUES.name,
  changes: false,
  isSingle: true,
  prepare: ([ns = '']) => ({
    query: { statement: QUEUES, values: [ns] },
    read: (rows) => [rows.map((row) => text(row, 0)).sort()],
  }),
};

/** The size of a delivery without its content, with its places in the indexes, about. */
const ROW_BYTES = 100;

const USAGE: Statement = {
  name: 'usage',
  text: `WITH d AS (SELECT coalesce(sum(y.waiting + y.reserved), 0) AS elements, coalesce(sum(y.bytes), 0) AS bytes
      FROM subscription s JOIN counter y ON y.subscription = s.id WHERE s.ns = $1),
    e AS (SELECT coalesce(sum(y.bytes), 0) AS bytes
      FROM subscription s JOIN counter y ON y.subscription = -s.id WHERE s.ns = $1 AND s.grp = '')
    SELECT d.elements, d.bytes + e.bytes + d.elements * ${ROW_BYTES} FROM d, e`,
};

/** How many deliveries a namespace has, and their bytes, by their counts. */
export const USAGE_OPERATION: Operation<string, Usage> = {
  name: USAGE.name,
  changes: false,
  isSingle: true,
  prepare: ([ns = '']) => ({
    query: { statement: USAGE, values: [ns] },
    read: ([row = []]) => [{ elements: number(row, 0), bytes: number(row, 1) }],
  }),
};

export const PING: Statement = { name: 'ping', text: 'SELECT now_ms()' };

/** Reads the database's clock. */
export const PING_OPERATION: Operation<null, number> = {
  name: PING.name,
  changes: false,
  prepare: (items) => ({
    query: { statement: PING, values: [] },
    read: ([row = []]) => items.map(() => number(row, 0)),
  }),
};

/** Deliveries that go in one statement, so that none takes long enough to keep others waiting. */
const PURGED_AT_ONCE = 10_000;

function purgeStatement(state: DeliveryState | 'waiting'): Statement {
  const where = {
    waiting: 'd.lease_until IS NULL',
    ready: 'd.lease_until IS NULL AND d.due_at <= t.now',
    scheduled: 'd.lease_until IS NULL AND d.due_at > t.now',
    reserved: 'd.lease_until IS NOT NULL',
  }[state];
  return {
    name: `purge ${state}`,
    text: `${withList(
      NOW,
      `f AS MATERIALIZED (SELECT x.tid FROM t CROSS JOIN subscription s CROSS JOIN LATERAL (
        SELECT d.ctid AS tid FROM delivery d WHERE d.subscription = s.id AND ${where}
        LIMIT ${PURGED_AT_ONCE} FOR UPDATE SKIP LOCKED) x WHERE s.queue = $1::bigint LIMIT ${PURGED_AT_ONCE})`,
      `g AS (DELETE FROM delivery d USING f WHERE d.ctid = f.tid
        RETURNING d.seq, d.subscription, d.due_at, d.lease_until, d.head, ${CONTENT_BYTES})`,
      finishShared('g'),
      count('gc', 'g', WENT_EITHER),
    )} SELECT (SELECT count(*) FROM f), (SELECT count(*) FROM g)`,
  };
}

export function purgeOperations(): (state: DeliveryState | 'waiting') => Operation<Queue, PurgeStep> {
  const operations = new Map(
    (['waiting', ...DELIVERY_STATES] as const).map((state) => {
      const statement = purgeStatement(state);
      const operation: Operation<Queue, PurgeStep> = {
        name: statement.name,
        changes: true,
        locksElements: true,
        isSingle: true,
        prepare: ([queue]) => ({
          query: { statement, values: [queue?.whole.idText ?? null] },
          read: ([row = []]) => [{ removed: number(row, 1), isDone: number(row, 0) < PURGED_AT_ONCE }],
        }),
      };
      return [state, operation];
    }),
  );
  return (state) => operations.get(state) as Operation<Queue, PurgeStep>;
}

interface Restored {
  readonly subscription: Subscription;
  readonly seq: number;
  readonly delivery: Popped;
  readonly head: Buffer;
}

export interface UndoItem {
  readonly queue: Queue;
  readonly deliveries: readonly Delivery[];
}

const RESTORED = new Columns<Restored>()
  .bigint('seq', ({ seq }) => seq)
  .bigint('due', ({ delivery }) => delivery.matureAt)
  .bigint('expires', ({ delivery }) => delivery.expiresAt ?? null)
  .id('subscription', ({ subscription }) => subscription.id)
  .id('queue', ({ subscription }) => subscription.queue.whole.id)
  .int('tries', ({ delivery }) => delivery.tries)
  .text('head', ({ head }) => head)
  .bytea('body', ({ delivery }) => delivery.body);

/**
 * The element keeps its number, so it regains its place. In a stream it may still be there for other groups,
 * or two of them may come back at once; so there the content goes where they share it. Its age for
 * `retention` starts again if its row does: the pop deleted it.
 */
function undoStatement(shared: boolean): Statement {
  return {
    name: `undo take${shared ? ' shared' : ''}`,
    text: `${withList(
      NOW,
      register('reg', REGISTERED.from('u')),
      `u AS MATERIALIZED (SELECT * FROM ${RESTORED.from('u', REGISTERED.count + 1)})`,
      `d AS (INSERT INTO delivery AS d (seq, due_at, inserted_at, expires_at, subscription, tries, bytes, head, body)
        SELECT u.seq, u.due, t.now, u.expires, u.subscription, u.tries,
          octet_length(u.head) + octet_length(u.body), ${shared ? 'NULL, NULL' : 'u.head, u.body'} FROM t CROSS JOIN u
        ON CONFLICT (seq, subscription) DO NOTHING RETURNING d.seq, d.subscription, d.due_at, ${CONTENT_BYTES})`,
      shared &&
        `e AS (INSERT INTO element AS x (seq, queue, remaining, head, body)
        SELECT DISTINCT ON (u.seq) u.seq, u.queue, (SELECT count(*) FROM d WHERE d.seq = u.seq), u.head, u.body
        FROM u WHERE (u.seq IN (SELECT d.seq FROM d)) IS TRUE ORDER BY u.seq
        ON CONFLICT (seq) DO UPDATE SET remaining = x.remaining + excluded.remaining
        RETURNING ${elementColumns('x')}, x.xmax = 0 AS is_new),
      n AS (SELECT queue, content_bytes FROM e WHERE is_new),
      ${countElements('ec', 'n', '')}`,
      count('dc', 'd', CAME_WAITING),
    )} SELECT count(*) FROM d`,
  };
}

export function undoOperations(context: Context): (queue: Queue) => Operation<UndoItem, void> {
  const operation = (shared: boolean): Operation<UndoItem, void> => {
    const statement = undoStatement(shared);
    const prepare = (items: readonly UndoItem[]) => {
      const restored = items.flatMap(({ queue, deliveries }) =>
        deliveries.map((delivery) => restoredFrom(context, queue, delivery)),
      );
      const lower = (): void => {
        for (const { subscription, delivery } of restored) subscription.watermark.lower(delivery.matureAt);
      };
      lower();
      const registered = new Set(
        restored.flatMap(({ subscription }) => [subscription.queue.whole, subscription]),
      );
      return {
        query: { statement, values: [...REGISTERED.values([...registered]), ...RESTORED.values(restored)] },
        read: () => {
          lower();
          return items.map(() => undefined);
        },
      };
    };
    return { name: statement.name, changes: true, locksElements: shared, prepare };
  };
  const [plain, stream] = [operation(false), operation(true)];
  return ({ isStream }) => (isStream ? stream : plain);
}

function restoredFrom({ ids, registry, expirer }: Context, queue: Queue, delivery: Popped): Restored {
  const seq = ids.parse(delivery.id);
  if (seq === null)
    throw new Error(`undo of a take of an element that this engine never popped: ${delivery.id}`);
  if (delivery.expiresAt !== undefined) expirer.add(delivery.expiresAt);
  return {
    subscription: registry.subscription(queue, delivery.group),
    seq,
    delivery,
    head: encodeHead(delivery),
  };
}
