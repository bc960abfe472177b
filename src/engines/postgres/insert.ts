import { hash } from 'node:crypto';
import type { OnRepeat } from '../../engine/storage.ts';
import type { ElementId, NewElement } from '../../model/element.ts';
import { isSameContent } from '../../model/fingerprint.ts';
import { encodeHead } from './content.ts';
import type { Expirer } from './expire.ts';
import type { Context, Operation, Prepared } from './operations.ts';
import { REGISTERED, type RegisteredQueue, type Registry, type Subscription } from './registry.ts';
import {
  addCounts,
  addElementCounts,
  CONTENT_BYTES,
  elementColumns,
  NOW,
  register,
  STORED_WAITING,
  withList,
} from './sql.ts';
import {
  Columns,
  number,
  type Parameter,
  type Row,
  type Statement,
  text,
  variantsByFlags,
} from './statement.ts';

/** Rarer features that elements of a statement use. Each costs something, so each has its own statement. */
export interface ElementKinds {
  /** Some queue is a stream, whose groups share elements. */
  readonly shared: boolean;
  /** Some element has a dedup key. */
  readonly keyed: boolean;
}

export function kindsOf(queue: RegisteredQueue, elements: readonly NewElement[]): ElementKinds {
  return { shared: queue.isStream, keyed: elements.some(({ dedupKey }) => dedupKey !== null) };
}

/** A new element, as a row for statements. */
interface NewRow {
  readonly queue: RegisteredQueue;
  readonly element: NewElement;
  readonly subscriptions: readonly Subscription[];
  readonly dueAt: number | null;
  readonly key: Buffer | null;
  /** The number of the settlement with which it is stored, from 1; 0: none. */
  readonly settlement: number;
}

const columnsFor = variantsByFlags((shared: boolean, keyed: boolean): Columns<NewRow> => {
  const columns = new Columns<NewRow>();
  if (shared) {
    columns.text(
      'subscriptions',
      ({ subscriptions }) => `{${subscriptions.map(({ idText }) => idText).join(',')}}`,
    );
    columns.bool('in_stream', ({ queue }) => queue.isStream);
  } else
    columns.id('subscription', ({ subscriptions: [only], queue }) => (only ?? queue.plainSubscription).id);
  columns
    .bigint('due', ({ dueAt }) => dueAt)
    .bigint('delay', ({ element }) => Math.ceil(element.delayMs))
    .bigint('expires', ({ element: { expiresAt } }) => (expiresAt == null ? null : Math.ceil(expiresAt)))
    .int('tries', ({ element }) => element.tries)
    .text('head', ({ element }) => encodeHead(element))
    .bytea('body', ({ element }) => element.body);
  if (shared || keyed) columns.id('queue', ({ queue }) => queue.id);
  if (!keyed) return columns;
  return columns
    .bytea('key', ({ key }) => key)
    .text('fingerprint', ({ element: { fingerprint } }) => fingerprint);
});

/** Collects the new elements of one statement, and computes its parameters. */
export class NewElements {
  readonly #registry: Registry;
  readonly #expirer: Expirer;
  readonly #columns: Columns<NewRow>;
  readonly #rows: NewRow[] = [];
  /** The subscriptions of the elements, with the earliest maturity that a producer chose, which may be in the past. */
  readonly #subscriptions = new Map<Subscription, number>();
  /** The index of the first element with a key, by queue and key. */
  readonly #byKey = new Map<string, number>();

  constructor(kinds: ElementKinds, { registry, expirer }: Context) {
    this.#registry = registry;
    this.#expirer = expirer;
    this.#columns = columnsFor(kinds.shared, kinds.keyed);
  }

  /** Adds an element, unless an earlier one has its key. Returns the index of the element that is stored for it. */
  add(
    queue: RegisteredQueue,
    element: NewElement,
    settlement = 0,
  ): { readonly at: number; readonly isFirst: boolean } {
    const { dedupKey, groups, matureAt } = element;
    const key = dedupKey === null ? null : hash('sha256', dedupKey, 'buffer');
    const at = this.#rows.length;
    if (key !== null) {
      const name = queueAndKey(queue, `\\x${key.toString('hex')}`);
      const earlier = this.#byKey.get(name);
      if (earlier !== undefined) return { at: earlier, isFirst: false };
      this.#byKey.set(name, at);
    }
    const dueAt = matureAt === null ? null : Math.ceil(matureAt);
    const subscriptions = this.#subscriptionsOf(queue, groups, dueAt ?? Number.POSITIVE_INFINITY);
    if (element.expiresAt != null) this.#expirer.add(element.expiresAt);
    this.#rows.push({ queue, element, subscriptions, dueAt, key, settlement });
    return { at, isFirst: true };
  }

  /** The index of the element with this key, as in the database's reply. */
  placeOfKey(queue: string, key: string): number | undefined {
    return this.#byKey.get(`${queue} ${key}`);
  }

  /** Called with the moment of storage. A probe may have read before it, so watermarks are lowered once more. */
  onStored(now: number): void {
    for (const [{ watermark }, dueAt] of this.#subscriptions) watermark.lower(Math.min(dueAt, now));
  }

  /** The parameters of {@link storeElements}, without those of its `settled`. */
  values(): Parameter[] {
    return [...REGISTERED.values([...this.#subscriptions.keys()]), ...this.#columns.values(this.#rows)];
  }

  /** For each element the number of its settlement. */
  get settled(): number[] {
    return this.#rows.map(({ settlement }) => settlement);
  }

  #subscriptionsOf(queue: RegisteredQueue, groups: NewElement['groups'], dueAt: number): Subscription[] {
    const [first] = groups;
    const distinctGroups = groups.length === 1 && first !== undefined ? groups : new Set(groups);
    const subscriptions: Subscription[] = [];
    if (!this.#subscriptions.has(queue.plainSubscription))
      this.#subscriptions.set(queue.plainSubscription, Number.POSITIVE_INFINITY);
    for (const group of distinctGroups) {
      const subscription = this.#registry.subscription(queue, group);
      subscriptions.push(subscription);
      const earliest = this.#subscriptions.get(subscription);
      if (earliest === undefined || dueAt < earliest) this.#subscriptions.set(subscription, dueAt);
      subscription.watermark.lower(dueAt);
    }
    return subscriptions;
  }
}

/** Combines the id of a queue with the hash of a key, in PostgreSQL's text format. */
function queueAndKey(queue: RegisteredQueue, key: string): string {
  return `${queue.idText} ${key}`;
}

/**
 * The `WITH` entries that store elements: `i` has all given elements, `n` the new ones. They use the entry `t`.
 * @param first the number of the first parameter of {@link NewElements.values}
 * @param window the dedup window, as an expression
 * @param settled for elements that are stored with settlements: the array of the settlements' numbers, and the entry
 *   with those that are done
 */
export function storeElements(
  kinds: ElementKinds,
  { first, window, settled }: { first: number; window: string; settled?: { array: string; done: string } },
): string[] {
  const columns = columnsFor(kinds.shared, kinds.keyed);
  const elements = `i AS MATERIALIZED (SELECT nextval('element_seq') AS seq, u.* FROM ${columns.from('u', first + REGISTERED.count)}`;
  const whereSettled = settled
    ? ` WHERE ((${settled.array})[u.ord::int] IN (SELECT s.ord FROM ${settled.done} s)) IS TRUE`
    : '';
  // Elements that are not stored, as their delivery was not finished, must not create a subscription.
  const storedIds = kinds.shared
    ? 'SELECT i.queue FROM i UNION ALL SELECT l.id FROM i CROSS JOIN LATERAL unnest(i.subscriptions::bigint[]) AS l(id)'
    : 'SELECT i.subscription FROM i';
  return [
    `${elements}${whereSettled})`,
    register('reg', REGISTERED.from('u', first), settled && `(u.id IN (${storedIds})) IS TRUE`),
    ...(kinds.keyed ? storeKeys(window) : []),
    ...storeDeliveries(kinds.shared, kinds.keyed ? 'n' : 'i'),
  ];
}

/**
 * A stored key within the window keeps its element and its age. The row is written anyway: only then does PostgreSQL
 * wait for another node's insert of the same key and return its element.
 */
function storeKeys(window: string): string[] {
  const isOld = `x.seen_at <= excluded.seen_at - ${window}::bigint`;
  return [
    `q AS (INSERT INTO dedup AS x (queue, key, seq, seen_at, fingerprint)
      SELECT i.queue, i.key, i.seq, t.now, i.fingerprint FROM i, t WHERE i.key IS NOT NULL ORDER BY i.queue, i.key
      ON CONFLICT (queue, key) DO UPDATE SET
        seq = CASE WHEN ${isOld} THEN excluded.seq ELSE x.seq END,
        seen_at = CASE WHEN ${isOld} THEN excluded.seen_at ELSE x.seen_at END,
        fingerprint = CASE WHEN ${isOld} THEN excluded.fingerprint ELSE x.fingerprint END
      RETURNING queue, key, seq, fingerprint)`,
    // "IS TRUE" makes the planner use a hash lookup instead of comparing all pairs.
    'n AS MATERIALIZED (SELECT i.* FROM i WHERE i.key IS NULL OR (i.seq IN (SELECT q.seq FROM q)) IS TRUE)',
  ];
}

function storeDeliveries(shared: boolean, from: string): string[] {
  const content = (column: string): string =>
    shared ? `CASE WHEN NOT n.in_stream THEN n.${column} END` : `n.${column}`;
  return [
    `d AS (INSERT INTO delivery AS d (seq, due_at, inserted_at, expires_at, subscription, tries, bytes, head, body)
      SELECT n.seq, coalesce(n.due, t.now + n.delay), t.now, n.expires, ${shared ? 'l.id' : 'n.subscription'}, n.tries,
        octet_length(n.head) + octet_length(n.body), ${content('head')}, ${content('body')}
      FROM ${from} n CROSS JOIN t${shared ? ' CROSS JOIN LATERAL unnest(n.subscriptions::bigint[]) AS l(id)' : ''}
      RETURNING d.subscription, d.due_at, ${CONTENT_BYTES})`,
    ...(shared
      ? [
          `e AS (INSERT INTO element AS e (seq, queue, remaining, head, body)
            SELECT n.seq, n.queue, cardinality(n.subscriptions::bigint[]), n.head, n.body
            FROM ${from} n WHERE n.in_stream RETURNING ${elementColumns('e')})`,
          addElementCounts('ec', 'e', ''),
        ]
      : []),
    addCounts('dc', 'd', STORED_WAITING),
  ];
}

interface InsertItem {
  readonly queue: RegisteredQueue;
  readonly elements: readonly NewElement[];
  readonly onRepeat: OnRepeat | null;
  /** The item runs in its own batch, which is rolled back if a key was seen with other content. */
  readonly isAllOrNone: boolean;
}

type InsertOperation = Operation<InsertItem, ElementId[]>;

/** Returns the simplest operation that can store some elements. */
export function insertOperations(context: Context): (kinds: ElementKinds) => InsertOperation {
  const operation = (kinds: ElementKinds): InsertOperation => {
    const ids = `SELECT 0 AS queue, NULL::bytea AS key, (SELECT array_agg(i.seq ORDER BY i.ord) FROM i)::text AS seq, t.now, NULL::text FROM t`;
    const keys = 'UNION ALL SELECT q.queue, q.key, q.seq::text, NULL, q.fingerprint FROM q';
    const name = `insert${kinds.shared ? ' shared' : ''}${kinds.keyed ? ' keyed' : ''}`;
    const statement: Statement = {
      name,
      text: `${withList(NOW, ...storeElements(kinds, { first: 1, window: context.dedupWindow }))} ${ids} ${kinds.keyed ? keys : ''}`,
    };
    const prepare = (items: readonly InsertItem[]) => prepareInsert(context, kinds, items);
    return { statement, changes: true, stores: true, prepare };
  };
  const operations = variantsByFlags((shared: boolean, keyed: boolean) => operation({ shared, keyed }));
  return ({ shared, keyed }) => operations(shared, keyed);
}

function prepareInsert(
  context: Context,
  kinds: ElementKinds,
  items: readonly InsertItem[],
): Prepared<ElementId[]> {
  const stored = new NewElements(kinds, context);
  const places = items.map(({ queue, elements }) => elements.map((element) => stored.add(queue, element)));
  /** The outcome of each element of each item. */
  const outcomesOf = ([head = [], ...keyRows]: readonly Row[]): InsertOutcome[][] => {
    const seqs = (head[2] ?? '').slice(1, -1).split(',').map(Number);
    const seen = new Map<number | undefined, Row>();
    for (const row of keyRows) seen.set(stored.placeOfKey(text(row, 0), text(row, 1)), row);
    return items.map(({ elements }, item) =>
      (places[item] ?? []).map(({ at, isFirst }, index) => {
        const row = seen.get(at);
        const seq = row === undefined ? seqs[at] : number(row, 2);
        if (seq === undefined) throw new Error('an insert returned too few numbers');
        if (row === undefined || (isFirst && seq === seqs[at])) return { seq, repeats: null };
        return { seq, repeats: isSameContent(elements[index]?.fingerprint, row[4]) ? 'same' : 'other' };
      }),
    );
  };
  const isStored = (results: readonly InsertOutcome[]): boolean =>
    results.every(({ repeats }) => repeats !== 'other');
  return {
    values: stored.values(),
    ...(items[0]?.isAllOrNone === true && {
      mayCommit: (rows: readonly Row[]) => outcomesOf(rows).every(isStored),
    }),
    read: (rows) => {
      const now = number(rows[0] ?? [], 3);
      stored.onStored(now);
      context.clock.update(now);
      return outcomesOf(rows).map((results, item) => {
        for (const [index, { repeats }] of results.entries()) {
          if (repeats !== null) items[item]?.onRepeat?.(index, repeats === 'same');
        }
        return isStored(results) ? results.map(({ seq }) => context.ids.format(seq)) : [];
      });
    },
  };
}

/** The sequence number of an element, and whether an earlier element has its key, with the same or other content. */
interface InsertOutcome {
  readonly seq: number;
  readonly repeats: 'same' | 'other' | null;
}
