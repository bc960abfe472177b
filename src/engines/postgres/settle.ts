import { SETTLED, type SettleItem, type SettleResult } from '../../engine/storage.ts';
import { ownerNumber } from '../../model/owner.ts';
import { encodeHead, encodeReason, parseToken, type Token } from './content.ts';
import { type ElementKinds, kindsOf, NewElements, storeElements } from './insert.ts';
import { type Context, type Item, type Operation, type Prepared, RETRY } from './operations.ts';
import type { RegisteredQueue, Subscription } from './registry.ts';
import {
  addCounts,
  CONTENT_BYTES,
  copyMoved,
  DELETED_ANY,
  deadLetterLine,
  finishStreamElements,
  limitBytes,
  NOW,
  policyOf,
  retryDelay,
  withList,
} from './sql.ts';
import {
  Columns,
  flag,
  idArray,
  int4Array,
  number,
  numberOrNull,
  type Row,
  rowIndex,
  type Statement,
  textArrayLiteral,
} from './statement.ts';

/** A settlement of one delivery, as a row for statements. */
interface Ref {
  readonly item: SettleItem;
  readonly queue: RegisteredQueue;
  readonly subscription: Subscription;
  readonly seq: number;
  readonly isWaiting: boolean;
  readonly token: Token | null;
  /** The user who settles without a token; 0: the service itself. */
  readonly owner: number;
}

type Settled = SettleResult | typeof RETRY;
type SettleOperation = Operation<Ref, SettleResult>;

function refColumns(): Columns<Ref> {
  return new Columns<Ref>()
    .id('subscription', ({ subscription }) => subscription.id)
    .bigint('seq', ({ seq }) => seq)
    .bool('waiting', ({ isWaiting }) => isWaiting)
    .bigint('token', ({ token }) => token?.number ?? null)
    .bytea('secret', ({ token }) => token?.secret ?? null)
    .bigint('owner', ({ owner }) => owner);
}

/**
 * The entry `r`: the references, each with the ctid of its delivery and its bytes, or nulls. A lookup per reference, so
 * that all further entries find the row by its ctid: a join by key whose plan was made while the table was empty may
 * read the whole table for each reference.
 */
function refs(columns: Columns<Ref>): string {
  return `r AS MATERIALIZED (SELECT r.*, p.tid, p.bytes FROM ${columns.from('r')} LEFT JOIN LATERAL (SELECT d.ctid AS tid, d.bytes FROM delivery d
    WHERE d.seq = r.seq AND d.subscription = r.subscription LIMIT 1) p ON true)`;
}

/** Whether `r` may settle the reservation in `d`: by its token, or as its owner, if it has none, or as the service. */
const IS_HOLDER = `(CASE WHEN r.token IS NULL THEN r.owner = 0 OR coalesce(d.owner, 0) IN (0, r.owner)
  ELSE d.token = r.token AND d.secret = r.secret END)`;

/**
 * Whether the delivery `d` of a reference `r` is in the state that the item requires. For a commit, a lease that ran
 * out counts as reserved.
 */
const isHeld = (reserved: string): string => `d.ctid = r.tid
  AND CASE WHEN r.waiting THEN d.lease_until IS NULL ELSE ${reserved} AND ${IS_HOLDER} END`;
const MAY_FINISH = isHeld('d.token IS NOT NULL');
const MAY_CHANGE = isHeld('d.lease_until > t.now');

/** The entry `g`: deletes the deliveries of the references in `from`. */
function finished(from: string): string {
  return `g AS (DELETE FROM delivery d USING ${from} r WHERE ${MAY_FINISH}
    RETURNING r.ord, d.seq, d.subscription, d.due_at, d.lease_until, d.head, ${CONTENT_BYTES})`;
}

/**
 * The result of a settling statement: for each reference whose delivery it changed (entry `g`) a detail, for each other
 * one the present state of the delivery.
 */
function selectOutcomes(detail: string): string {
  return `SELECT g.ord, true, ${detail}, NULL::bigint, NULL::bigint, NULL::bool FROM g
    UNION ALL
    SELECT r.ord, false, d.seq, d.token, d.lease_until - t.now, ${IS_HOLDER} FROM t CROSS JOIN r
    LEFT JOIN delivery d ON d.ctid = r.tid WHERE (r.ord IN (SELECT g.ord FROM g)) IS NOT TRUE`;
}

/**
 * The outcome for a delivery that was not changed. If the item fits its state, another node changed it at the same
 * moment, or the statement had to bound what it finishes or moves: then the item is retried.
 */
function rejectedOutcome(row: Row, { item, isWaiting, token }: Ref): Settled {
  const [seq, storedToken, leftMs] = [numberOrNull(row, 2), numberOrNull(row, 3), numberOrNull(row, 4)];
  if (seq === null) return SETTLED['not-found'];
  const { kind } = item.action;
  // A waiting delivery has no lease to extend.
  if (isWaiting && kind === 'extend') return SETTLED['not-reserved'];
  if (isWaiting) return leftMs === null ? RETRY : SETTLED.reserved;
  // A finish is accepted after the end of the lease, as long as the token is still stored.
  const isStillHeld = kind === 'finish' ? storedToken !== null : leftMs !== null && leftMs > 0;
  const isHolder = flag(row, 5);
  if (token !== null && !(isHolder && isStillHeld)) return SETTLED['lease-lost'];
  if (!isStillHeld) return SETTLED['not-reserved'];
  return isHolder ? RETRY : SETTLED['token-required'];
}

/** Reads {@link selectOutcomes}. */
function readOutcomes(
  items: readonly Ref[],
  rows: readonly Row[],
  done: (row: Row, ref: Ref) => SettleResult,
): Settled[] {
  const results: Settled[] = [];
  for (const row of rows) {
    const place = rowIndex(row);
    const ref = items[place];
    if (ref !== undefined) results[place] = flag(row, 1) ? done(row, ref) : rejectedOutcome(row, ref);
  }
  return results;
}

function settleOperation(
  statement: Statement,
  locksElements: boolean,
  prepare: (items: readonly Ref[]) => Prepared<SettleResult>,
  keysOf: (ref: Ref) => readonly string[] = deliveryKey,
): SettleOperation {
  return { statement, changes: true, locksElements, keysOf, prepare };
}

function deliveryKey({ subscription, seq }: Ref): readonly string[] {
  return [`${subscription.idText} ${seq}`];
}

const isDone = (): SettleResult => SETTLED.done;

/**
 * Finishes deliveries: commits and removals. With `kinds` it also stores elements in the same statement, each only if
 * its delivery was finished. The bound on finished bytes does not defer these: takes of later calls, which may be in
 * the same batch, have to see the stored elements.
 */
function finishOperation(context: Context, shared: boolean, kinds: ElementKinds | null): SettleOperation {
  const columns = refColumns();
  const settled = { array: `$${columns.count + 1}::int[]`, done: 'g' };
  const stored =
    kinds && storeElements(kinds, { first: columns.count + 2, window: context.dedupWindow, settled });
  const deleted = kinds === null ? [limitBytes('f', 'r'), finished('f')] : [finished('r')];
  const parts = [
    NOW,
    refs(columns),
    ...deleted,
    shared && finishStreamElements('g'),
    addCounts('gc', 'g', DELETED_ANY),
  ];
  const statement = {
    name: `${kinds === null ? 'finish' : 'transfer'}${shared ? ' shared' : ''}`,
    text: `${withList(...parts, ...(stored ?? []))} ${selectOutcomes(kinds === null ? 'NULL::bigint' : '(SELECT now FROM t)')}`,
  };
  const prepare = (items: readonly Ref[]): Prepared<SettleResult> => {
    const elements = kinds && new NewElements(kinds, context);
    for (const [place, { item }] of items.entries()) {
      // If a settlement contains a key twice, one element is stored.
      for (const { queue, element } of insertsOf(item))
        elements?.add(context.registry.queue(queue), element, place + 1);
    }
    const added = elements === null ? [] : [int4Array(elements.settled), ...elements.values()];
    return {
      values: [...columns.values(items), ...added],
      read: (rows) => {
        const done = elements && rows.find((row) => flag(row, 1));
        if (done != null) elements?.onStored(number(done, 2));
        return readOutcomes(items, rows, isDone);
      },
    };
  };
  // Which of two elements with the same key is stored depends on their settlements, so these do not share a statement.
  const keysOf = (ref: Ref): string[] => [
    ...deliveryKey(ref),
    ...new Set(
      insertsOf(ref.item).flatMap(({ queue, element: { dedupKey } }) =>
        dedupKey === null ? [] : [`${queue.ns}/${queue.name}/${dedupKey}`],
      ),
    ),
  ];
  return settleOperation(statement, shared, prepare, kinds === null ? deliveryKey : keysOf);
}

function insertsOf({ action }: SettleItem) {
  return (action.kind === 'finish' ? action.inserts : null) ?? [];
}

function extendOperation({ expirer }: Context): SettleOperation {
  const columns = refColumns().bigint('lease', ({ item: { action } }) =>
    action.kind === 'extend' ? Math.ceil(action.leaseMs) : 0,
  );
  const changed = `g AS (UPDATE delivery d SET lease_until = t.now + r.lease FROM r, t
    WHERE NOT r.waiting AND ${MAY_CHANGE} RETURNING r.ord, d.lease_until)`;
  const statement = {
    name: 'extend',
    text: `${withList(NOW, refs(columns), changed)} ${selectOutcomes('g.lease_until')}`,
  };
  return settleOperation(statement, false, (items) => ({
    values: columns.values(items),
    read: (rows) =>
      readOutcomes(items, rows, (row) => {
        const until = number(row, 2);
        expirer.add(until);
        return { outcome: 'done', until };
      }),
  }));
}

/**
 * The maturity of a released delivery. A reserved one that is neither delayed nor counted keeps its place.
 * @param losesPlace a further condition under which it loses its place
 */
function dueAt(losesPlace = 'false'): string {
  return `CASE WHEN r.due IS NOT NULL THEN r.due
    WHEN r.counts OR r.delay > 0 OR r.waiting OR ${losesPlace} THEN t.now + r.delay ELSE d.due_at END`;
}

function releaseColumns(): Columns<Ref> {
  return refColumns()
    .bigint('delay', ({ item: { action } }) => (action.kind === 'release' ? Math.ceil(action.delayMs) : 0))
    .bigint('due', ({ item: { action } }) =>
      action.kind === 'release' && action.dueAt != null ? Math.ceil(action.dueAt) : null,
    )
    .bool('counts', countsTry)
    .bool(
      'by_default',
      ({ item: { action } }) =>
        action.kind === 'release' && action.countTry && action.isDefaultDelay === true,
    )
    .text('reason', ({ item: { action } }) => encodeReason('reason' in action ? action.reason : null));
}

function countsTry({ item: { action } }: Ref): boolean {
  return 'countTry' in action && action.countTry;
}

/**
 * Releases reservations that can neither become dead letters nor wait for a retry delay, as no try is counted or the
 * queue has no such policy: the short form of {@link changeOperation}, which costs PostgreSQL 0.57 ms for a single
 * release, instead of 0.23 ms. If another node has declared options for one of the queues, its items change nothing,
 * and are repeated with the long form.
 */
function releaseOperation(context: Context, retryWith: SettleOperation): SettleOperation {
  const columns = releaseColumns().id('queue', ({ queue }) => queue.id);
  const mayDie = `b AS MATERIALIZED (SELECT s.id FROM subscription s WHERE s.id = ANY ($${columns.count + 1}::bigint[]) AND (s.max_tries > 0 OR cardinality(s.retry) > 0))`;
  const changed = `g AS (UPDATE delivery d SET lease_until = NULL, token = NULL, due_at = ${dueAt()}, tries = d.tries + r.counts::int,
      reason = CASE WHEN r.counts THEN r.reason ELSE d.reason END FROM r, t
    WHERE ${MAY_CHANGE} AND (r.counts AND r.queue IN (SELECT b.id FROM b)) IS NOT TRUE RETURNING r.ord, d.subscription, d.due_at)`;
  const counted = addCounts('gc', 'g', { waiting: 'count(*)', reserved: '-count(*)', bytes: '0' });
  const statement = {
    name: 'release',
    text: `${withList(NOW, refs(columns), mayDie, changed, counted)} ${selectOutcomes('g.due_at')}`,
  };
  const prepare = (items: readonly Ref[]): Prepared<SettleResult> => {
    expectReturns(items, context);
    const counting = new Set(items.filter(countsTry).map(({ queue }) => queue.id));
    return {
      values: [...columns.values(items), idArray([...counting])],
      read: (rows) => {
        const results = readReturns(items, rows, context, isDone);
        for (const [place, ref] of items.entries()) {
          if (results[place] === RETRY && countsTry(ref)) ref.queue.hasPolicy = true;
        }
        return results;
      },
    };
  };
  return { ...settleOperation(statement, false, prepare), retryWith };
}

/**
 * Called before a statement is sent: a take of the same batch must see deliveries that regain their place, and a
 * concurrent probe may miss them. The reply contains their place, see {@link readReturns}.
 */
function expectReturns(items: readonly Ref[], context: Context): void {
  for (const ref of items) {
    const { action } = ref.item;
    if (action.kind === 'release' && action.dueAt != null) ref.subscription.watermark.lower(action.dueAt);
    else for (const { watermark } of returnTargets(ref, context)) watermark.startReturn();
  }
}

/** The subscriptions in which a settlement may make elements wait with an old maturity. */
function returnTargets(
  { item: { action }, subscription, isWaiting }: Ref,
  { registry }: Context,
): Subscription[] {
  if (action.kind === 'move') {
    const queue = registry.queue(action.to);
    return action.groups.map((group) => registry.subscription(queue, group));
  }
  return !isWaiting && 'countTry' in action && !action.countTry ? [subscription] : [];
}

/** Reads {@link selectOutcomes} whose detail is the maturity of a delivery that waits again. */
function readReturns(
  items: readonly Ref[],
  rows: readonly Row[],
  context: Context,
  done: (row: Row, ref: Ref) => SettleResult,
): Settled[] {
  for (const ref of items) for (const { watermark } of returnTargets(ref, context)) watermark.endReturn();
  return readOutcomes(items, rows, (row, ref) => {
    const dueAt = number(row, 2);
    const to = ref.item.action.kind === 'move' ? returnTargets(ref, context) : [ref.subscription];
    for (const { watermark } of to) watermark.lower(dueAt);
    return done(row, ref);
  });
}

/**
 * Every settlement that may move an element or changes a waiting one: counted releases, dead letters, moves, releases
 * of waiting deliveries. The rows are locked first, then each is updated, or deleted and copied elsewhere. Without the
 * lock, a row that another node changes in between would be changed once more, or not at all: older minor releases of
 * PostgreSQL do not compare its ctid again, newer ones (such as 15.18) do.
 */
function changeOperation(context: Context): SettleOperation {
  const target = ({ item: { action } }: Ref) => (action.kind === 'move' ? action : null);
  const columns = releaseColumns()
    .bool('dies', ({ item: { action } }) => action.kind === 'dead-letter')
    .text('to_ns', (ref) => target(ref)?.to.ns)
    .text('to_name', (ref) => target(ref)?.to.name)
    .text('to_groups', (ref) => {
      const to = target(ref);
      return to && textArrayLiteral([...new Set(to.groups)]);
    })
    .int('to_tries', (ref) => target(ref)?.tries ?? null)
    .text('head', (ref) => {
      const head = target(ref)?.head ?? null;
      return head && encodeHead(head);
    });
  const tries = 'x.tries + x.counts::int';
  const moved = `moved AS (DELETE FROM delivery d USING going x, t WHERE d.ctid = x.new_tid
    RETURNING x.ord, d.seq, d.subscription, d.due_at, d.lease_until, d.head, d.body, ${CONTENT_BYTES},
      CASE WHEN x.to_name IS NULL THEN x.target END AS died_in, coalesce(x.to_ns, x.ns) AS to_ns, coalesce(x.to_name, x.target) AS to_name,
      CASE WHEN x.to_name IS NULL THEN x.dead_groups ELSE x.to_groups END AS to_groups,
      CASE WHEN x.to_name IS NULL THEN t.now ELSE d.due_at END AS to_due,
      CASE WHEN x.to_name IS NULL THEN 0 ELSE coalesce(x.to_tries, x.tries) END AS to_tries,
      CASE WHEN x.to_name IS NOT NULL THEN d.expires_at END AS to_expires,
      CASE WHEN x.to_name IS NULL THEN x.reason END AS to_reason,
      x.head AS new_head, CASE WHEN x.to_name IS NULL THEN ${deadLetterLine('x', tries, 'd.seq', 'x.reason')} END AS line)`;
  const locked = `x AS MATERIALIZED (SELECT d.new_tid, r.*, d.due_at AS old_due, d.lease_until IS NULL AS was_waiting, d.tries,
      y.ns, y.name, y.grp, y.target, y.dead_groups,
      coalesce(CASE WHEN r.by_default THEN t.now + ${retryDelay('y.retry', 'd.tries + 1', 'd.seq')} END, ${dueAt('r.dies')}) AS new_due,
      r.to_name IS NOT NULL OR y.target IS NOT NULL AND (r.dies OR r.counts AND d.tries + 1 >= y.max_tries) AS goes
    FROM t CROSS JOIN (SELECT * FROM r ORDER BY seq, subscription) r CROSS JOIN LATERAL (
      SELECT d.ctid AS new_tid, d.seq, d.due_at, d.lease_until, d.tries FROM delivery d WHERE ${MAY_CHANGE} LIMIT 1 FOR UPDATE) d
    LEFT JOIN ${policyOf('r.subscription', columns.count + 1)} y ON true)`;
  const stays = `s AS (UPDATE delivery d SET lease_until = NULL, token = NULL, due_at = x.new_due, tries = ${tries},
      reason = CASE WHEN x.counts THEN x.reason ELSE d.reason END
    FROM x WHERE d.ctid = x.new_tid AND x.goes IS NOT TRUE RETURNING x.ord, d.subscription, d.due_at, x.old_due, x.was_waiting)`;
  const counted = addCounts(
    'sc',
    `(SELECT subscription, due_at, 1 AS waiting, (NOT was_waiting)::int AS released FROM s
      UNION ALL SELECT subscription, old_due, -1, 0 FROM s WHERE was_waiting) v`,
    { waiting: 'sum(waiting)', reserved: '-sum(released)', bytes: '0' },
  );
  const statement = {
    name: 'change',
    text: `${withList(
      NOW,
      refs(columns),
      locked,
      stays,
      counted,
      limitBytes('going', '(SELECT * FROM x WHERE goes)'),
      moved,
      ...copyMoved(),
      'g AS (SELECT ord, due_at, NULL AS died_in FROM s UNION ALL SELECT ord, to_due, died_in FROM moved)',
    )}
    SELECT g.ord, true, g.due_at, NULL::bigint, NULL::bigint, NULL::bool, g.died_in FROM g
    UNION ALL SELECT r.*, NULL FROM (${selectOutcomes('NULL::bigint')}) r(ord, is_done) WHERE NOT r.is_done`,
  };
  return settleOperation(statement, true, (items) => {
    expectReturns(items, context);
    return {
      values: [...columns.values(items), ...context.registry.policies],
      read: (rows) =>
        readReturns(items, rows, context, (row, { subscription }) => {
          const diedIn = row[6] ?? null;
          if (diedIn === null) return SETTLED.done;
          context.onDeadLetters(subscription.queue.key, subscription.group, diedIn, 1);
          return SETTLED['dead-lettered'];
        }),
    };
  });
}

/**
 * Converts the settlements of a call to items for batches. Ids that this store never issued get the sequence number 0,
 * which no element has.
 */
export function settlements(context: Context): (items: readonly SettleItem[]) => Item<Ref, SettleResult>[] {
  const { registry, ids } = context;
  const finish = finishOperation(context, false, null);
  const finishInStream = finishOperation(context, true, null);
  const transfer = finishOperation(context, false, { shared: false, keyed: false });
  const transferAny = finishOperation(context, true, { shared: true, keyed: true });
  const finishing = new Set([finish, finishInStream, transfer]);
  const [extend, change] = [extendOperation(context), changeOperation(context)];
  const release = releaseOperation(context, change);

  const operationFor = (ref: Ref): SettleOperation => {
    const { item, queue, isWaiting } = ref;
    const { action } = item;
    if (action.kind === 'extend') return extend;
    if (action.kind === 'release' && !isWaiting && !(countsTry(ref) && queue.hasPolicy)) return release;
    if (action.kind !== 'finish') return change;
    const inserts = action.inserts ?? [];
    if (inserts.length === 0) return queue.isStream ? finishInStream : finish;
    const isAny = inserts.some(({ queue: to, element }) => {
      const { shared, keyed } = kindsOf(registry.queue(to), [element]);
      return shared || keyed;
    });
    return isAny || queue.isStream ? transferAny : transfer;
  };
  const toItem = (item: SettleItem): Item<Ref, SettleResult> => {
    const queue = registry.queue(item.queue);
    const token = item.token === null ? null : parseToken(item.token);
    const ref: Ref = {
      item,
      queue,
      subscription: registry.subscription(queue, item.group),
      seq: ids.parse(item.id) ?? 0,
      isWaiting: item.from === 'waiting',
      token,
      owner: token === null ? ownerNumber(item.owner) : 0,
    };
    const { action } = item;
    const to =
      action.kind === 'move'
        ? [registry.queue(action.to)]
        : insertsOf(item).map((of) => registry.queue(of.queue));
    return { operation: operationFor(ref), item: ref, queues: [queue, ...to] };
  };
  return (items) => {
    const allItems = items.map(toItem);
    const has = (wanted: SettleOperation): boolean => allItems.some(({ operation }) => operation === wanted);
    if (!has(transfer) && !has(transferAny)) return allItems;
    // All items of a call that store or finish use one statement. With two, the elements of one would be stored before
    // those of the other, not in the order of the call; and a statement that only finishes may defer a part to a later
    // batch.
    const common = has(transferAny) || has(finishInStream) ? transferAny : transfer;
    return allItems.map((item) => (finishing.has(item.operation) ? { ...item, operation: common } : item));
  };
}
