import {
  isUnknownOutcome,
  NOT_REACHABLE,
  PendingCall,
  PendingCalls,
  tooManyGroups,
  unavailable,
  unknownOutcome,
} from '../../engine/calls.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { Clock } from '../../util/clock.ts';
import { type Connection, ConnectionLost, LOCK_TIMEOUT_MS, Refused } from './connection.ts';
import type { Expirer } from './expire.ts';
import type { Link } from './link.ts';
import {
  type CallSize,
  type Item,
  MAX_RETURNED_BYTES,
  type Operation,
  type Prepared,
  RETRY,
} from './operations.ts';
import type { GroupUse, RegisteredQueue, Registry } from './registry.ts';
import { int4Array, type Query, type Row, type Statement } from './statement.ts';

const ONE_ROW: CallSize = { bytes: 0, rows: 1 };
const NO_USES: readonly GroupUse[] = [];

/** The longest time of a batch that fails on one lock: the server's limit, and the work before and after it. */
const MAX_LOCKED_BATCH_MS = LOCK_TIMEOUT_MS * 1.25;
/** Limits of one batch. A larger call runs in its own batch. */
const BATCH_BYTES = 8 * 1024 * 1024;
const BATCH_ROWS = 5000;
const BATCH_CALLS = 2000;
/** How often a call is tried if PostgreSQL rejects it with an error that is worth a retry, such as a deadlock. */
const MAX_ATTEMPTS = 4;

const STOPPED = new ConnectionLost('The engine was stopped.');
const NO_REPLY = new ConnectionLost('No reply in time.');

/** The batcher does not need the types of items and results. */
// biome-ignore lint/suspicious/noExplicitAny: each item goes to the operation that it came with
type AnyItem = Item<any, any>;
type AnyOperation = AnyItem['operation'];

/** An item of a pending call. */
interface Entry extends Omit<AnyItem, 'operation'> {
  readonly call: Call;
  operation: AnyOperation;
  result: unknown;
}

/** One call: pending -> sent -> settled, or back to pending with the items that have to be repeated. */
class Call extends PendingCall {
  readonly size: CallSize;
  readonly changes: boolean;
  readonly stores: boolean;
  /** The entries that have no final result yet. */
  entries: readonly Entry[];
  /** How many batches with this call were rejected. After the first one, it runs in its own batch. */
  attempts = 0;
  /** Some items are done, and others, which another node changed at the same moment, have to be repeated. */
  isPartlyApplied = false;
  readonly #allEntries: readonly Entry[];
  readonly #batcher: Batcher;

  constructor(batcher: Batcher, items: readonly AnyItem[], size: CallSize, deadlineAt: number) {
    super(batcher.calls, deadlineAt, size.bytes);
    this.#batcher = batcher;
    this.size = size;
    this.changes = items.some(({ operation }) => operation.changes);
    this.stores = items.some(({ operation }) => operation.stores === true);
    this.#allEntries = items.map((item) => ({ ...item, call: this, result: undefined }));
    this.entries = this.#allEntries;
  }

  /** Called when all entries have results. Entries with the result {@link RETRY} become pending again. */
  succeed(): void {
    if (this.isSettled) return;
    const repeated = this.entries.filter(({ result }) => result === RETRY);
    if (repeated.length === 0) {
      this.resolve(this.#allEntries.map(({ result }) => result));
      return;
    }
    this.isPartlyApplied ||= this.changes && repeated.length < this.entries.length;
    for (const entry of repeated) entry.operation = entry.operation.retryWith ?? entry.operation;
    this.entries = repeated;
  }

  override reject(error: Error): void {
    super.reject(this.isPartlyApplied && !isUnknownOutcome(error) ? unknownOutcome(error) : error);
  }

  expire(): void {
    this.#batcher.onExpired(this);
  }
}

/** Entries that share a statement. */
class StatementGroup {
  readonly operation: AnyOperation;
  readonly entries: Entry[] = [];
  readonly streams = new Set<RegisteredQueue>();
  readonly #byKey = new Map<string, unknown>();

  constructor(operation: AnyOperation) {
    this.operation = operation;
  }

  accepts(item: unknown, keys: readonly string[]): boolean {
    const { operation } = this;
    if (operation.isSingle === true) return this.entries.length === 0;
    for (const key of keys) {
      const other = this.#byKey.get(key);
      if (other !== undefined && operation.isAlike?.(item, other) !== true) return false;
    }
    return true;
  }

  add(entry: Entry, keys: readonly string[]): void {
    this.entries.push(entry);
    for (const key of keys) this.#byKey.set(key, entry.item);
    if (this.operation.locksElements === true)
      for (const queue of entry.queues) if (queue.isStream) this.streams.add(queue);
  }
}

/**
 * The calls of one transaction, arranged as few statements. Items of one operation share a statement, whatever their
 * queues; but an item is never placed before an item of an earlier call about the same queue, nor before one of its own
 * call about the same row.
 */
class Batch {
  readonly calls: readonly Call[];
  readonly #groups: StatementGroup[] = [];
  readonly #lastByOperation = new Map<AnyOperation, number>();
  readonly #lastByQueue = new Map<RegisteredQueue, number>();
  readonly #prepared: readonly Prepared<unknown>[];
  readonly #lock: Query | null;

  /** @param now by the monotonic clock, ms */
  constructor(calls: readonly Call[], now: number) {
    this.calls = calls;
    for (const { entries } of calls) this.#placeAll(entries);
    this.#prepared = this.#groups.map(({ operation, entries }) => {
      let deadlineAt = Number.POSITIVE_INFINITY;
      for (const { call } of entries) deadlineAt = Math.min(deadlineAt, call.deadlineAt);
      return operation.prepare(
        entries.map(({ item }) => item),
        deadlineAt - now,
      );
    });
    const lock = this.#groups[0]?.operation.lock;
    this.#lock =
      lock === undefined
        ? lockStreams(this.#groups.map(({ streams }) => streams).filter(({ size }) => size > 0))
        : { statement: lock, values: [] };
  }

  /** The statements to send, in order. */
  get queries(): Query[] {
    const queries: Query[] = this.#lock === null ? [] : [this.#lock];
    for (const [index, { operation }] of this.#groups.entries())
      queries.push({ statement: operation.statement, values: this.#prepared[index]?.values ?? [] });
    return queries;
  }

  /** Decides by the rows of the statements whether to commit; null: always commit. */
  get mayCommit(): ((results: readonly (readonly Row[])[]) => boolean) | null {
    const mayCommit = this.#prepared[0]?.mayCommit;
    return mayCommit === undefined ? null : (results) => mayCommit(results[this.#firstIndex] ?? []);
  }

  /** Distributes the rows of the statements to the calls. */
  settle(rows: readonly (readonly Row[])[]): void {
    for (const [index, { entries }] of this.#groups.entries()) {
      const results = this.#prepared[index]?.read(rows[this.#firstIndex + index] ?? []) ?? [];
      for (const [place, entry] of entries.entries()) entry.result = results[place];
    }
    for (const call of this.calls) call.succeed();
  }

  /** The only call in the statement at this index of {@link queries}; null: several calls share it. */
  callOf(query: number | null): Call | null {
    const entries = (query === null ? undefined : this.#groups[query - this.#firstIndex]?.entries) ?? [];
    const call = entries[0]?.call ?? null;
    return entries.every((entry) => entry.call === call) ? call : null;
  }

  /** The index of the first group's statement. */
  get #firstIndex(): number {
    return this.#lock === null ? 0 : 1;
  }

  #placeAll(entries: readonly Entry[]): void {
    const [first] = entries;
    if (first !== undefined && entries.length === 1) {
      this.#place(first, keysOf(first), this.#earliestGroup(first.queues));
      return;
    }
    const earliest = entries.map(({ queues }) => this.#earliestGroup(queues));
    const byKey = new Map<string, number>();
    for (const [index, entry] of entries.entries()) {
      const keys = keysOf(entry);
      const from = keys.reduce((least, key) => Math.max(least, byKey.get(key) ?? 0), earliest[index] ?? 0);
      const at = this.#place(entry, keys, from);
      for (const key of keys) byKey.set(key, at);
    }
  }

  #earliestGroup(queues: readonly RegisteredQueue[]): number {
    let from = 0;
    for (const queue of queues) from = Math.max(from, this.#lastByQueue.get(queue) ?? 0);
    return from;
  }

  /** Puts an entry into a group whose index is at least `from`. Returns the index. */
  #place(entry: Entry, keys: readonly string[], from: number): number {
    const { operation, item } = entry;
    let at = this.#lastByOperation.get(operation) ?? -1;
    let group = at < from ? undefined : this.#groups[at];
    if (group === undefined || !group.accepts(item, keys)) {
      group = new StatementGroup(operation);
      at = this.#groups.push(group) - 1;
      this.#lastByOperation.set(operation, at);
    }
    group.add(entry, keys);
    for (const queue of entry.queues)
      this.#lastByQueue.set(queue, Math.max(at, this.#lastByQueue.get(queue) ?? 0));
    return at;
  }
}

const NO_KEYS: readonly string[] = [];

function keysOf({ operation, item }: Entry): readonly string[] {
  return operation.keysOf?.(item) ?? NO_KEYS;
}

interface BatcherOptions {
  readonly clock: Clock;
  readonly link: Link;
  readonly registry: Registry;
  readonly expirer: Expirer;
  /** Called after each committed batch. */
  readonly onBatch: () => void;
}

/**
 * Sends all calls about elements to the database, in order. Gathers the calls that are made while a batch is in flight,
 * arranges their items as few statements, and sends these as the next batch, one transaction.
 *
 * - Calls about a queue take effect in the order in which they were made, since there is one connection and one batch
 *   at a time. To use more of PostgreSQL's cores, run several nodes, not several connections.
 * - A batch that PostgreSQL rejects was rolled back: its calls run again, each in its own batch, so that one caller's
 *   failure affects no other. A batch whose connection was lost may have been committed: its changing calls are
 *   rejected with `outcome-unknown` and never sent again.
 */
export class Batcher {
  readonly calls: PendingCalls;
  readonly #options: BatcherOptions;
  #pending: Call[] = [];
  #sent: readonly Call[] = [];
  /** Whether the statements of the calls have been sent, not only the preparatory ones. */
  #mayBeApplied = false;
  /** Runs batches until no call is pending; null: it is not running. */
  #running: Promise<void> | null = null;
  #stopped = false;

  constructor(options: BatcherOptions) {
    this.#options = options;
    this.calls = new PendingCalls(options.clock);
  }

  /** Runs one item. @throws QuaysideError as the Storage port says */
  async submit<I, R>(
    operation: Operation<I, R>,
    item: I,
    queue: RegisteredQueue | null,
    size: CallSize = ONE_ROW,
    leftMs?: number,
  ): Promise<R> {
    const queues = queue === null ? [] : [queue];
    const [result] = await this.submitAll([{ operation, item, queues }], size, leftMs);
    return result as R;
  }

  /** Runs several items. Returns their results in order. @throws as `submit` */
  submitAll<I, R>(items: readonly Item<I, R>[], size: CallSize, leftMs?: number): Promise<R[]> {
    if (items.length === 0) return Promise.resolve([]);
    const error = this.#stopped
      ? unavailable(NOT_REACHABLE, STOPPED)
      : this.calls.rejection(this.#options.link.downMs);
    if (error !== null) return Promise.reject(error);
    const deadlineAt = this.calls.deadline(leftMs);
    const call = new Call(this, items, size, deadlineAt);
    this.calls.add(call);
    this.#pending.push(call);
    this.resume();
    return call.outcome as Promise<R[]>;
  }

  /** Runs the pending calls, unless that is in progress. Called when the connection is available again. */
  resume(): void {
    this.#running ??= this.#run();
  }

  /** Resolves when all calls are settled; later calls are rejected. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.allSettled([...this.#sent, ...this.#pending].map(({ outcome }) => outcome));
    await this.#running;
    this.calls.stop();
  }

  onExpired(call: Call): void {
    const isSent = this.#mayBeApplied && call.changes && this.#sent.includes(call);
    call.reject(isSent ? unknownOutcome(NO_REPLY) : unavailable(NOT_REACHABLE, NO_REPLY));
    this.#dropSettled();
    this.#options.link.dropIfSilent();
  }

  async #run(): Promise<void> {
    for (;;) {
      // Further calls of this turn share the batch, such as those with which callers react to their results.
      await new Promise((resolve) => setImmediate(resolve));
      const { connection } = this.#options.link;
      const calls = connection === null ? [] : this.#gather();
      if (connection === null || calls.length === 0) break;
      await this.#runBatch(connection, calls);
    }
    this.#running = null;
  }

  /** Removes and returns as many pending calls as fit into a batch. */
  #gather(): Call[] {
    const calls: Call[] = [];
    let [bytes, rows, returned, next] = [0, 0, 0, 0];
    for (; next < this.#pending.length && calls.length < BATCH_CALLS; next++) {
      const call = this.#pending[next];
      if (call === undefined || call.isSettled) continue;
      bytes += call.size.bytes;
      rows += call.size.rows;
      returned += call.size.returnedBytes ?? 0;
      const isTooMuch = bytes > BATCH_BYTES || rows > BATCH_ROWS || returned > MAX_RETURNED_BYTES;
      const isAlone = call.attempts > 0 || call.size.isAlone === true;
      if (calls.length > 0 && (isTooMuch || isAlone)) break;
      calls.push(call);
      if (isAlone) {
        next += 1;
        break;
      }
    }
    this.#pending = next === this.#pending.length ? [] : this.#pending.slice(next);
    return calls;
  }

  /** Runs one transaction, after which each call is settled or pending again. */
  async #runBatch(connection: Connection, calls: readonly Call[]): Promise<void> {
    const { clock, expirer, onBatch } = this.#options;
    this.#sent = calls;
    let batch: Batch | null = null;
    try {
      await this.#rejectExcessGroups(connection, calls);
      // The call may have timed out in the meantime: it must not take an element then.
      const active = calls.filter(({ isSettled }) => !isSettled);
      if (active.length === 0) return;
      const expired = expirer.isDue ? expirer.run(connection) : null;
      batch = new Batch(active, clock.monotonic());
      this.#mayBeApplied = true;
      const committed = connection.transact(batch.queries, batch.mayCommit);
      const rows = await committed.finally(() => expired);
      onBatch();
      this.#settle(batch, rows);
    } catch (error) {
      this.#onFailed(batch, batch?.calls ?? calls, error);
    } finally {
      this.#sent = [];
      this.#mayBeApplied = false;
      this.#requeue(calls);
    }
  }

  /** A batch failed; null: none was sent, as the connection was lost or the values could not be encoded. */
  #onFailed(batch: Batch | null, calls: readonly Call[], error: unknown): void {
    if (error instanceof ConnectionLost) {
      if (batch === null) return;
      for (const call of calls)
        call.reject(call.changes ? unknownOutcome(error) : unavailable(NOT_REACHABLE, error));
      this.#options.link.drop('it did not reply');
      return;
    }
    const timedOut = error instanceof Refused && error.isTimeout ? batch?.callOf(error.query) : null;
    // A repetition would most likely take as long, and the other calls would wait for it.
    if (timedOut != null) this.#reject(timedOut, error as Refused);
    else this.#onRejected(calls, error);
    if (error instanceof Refused && error.isLockTimeout) this.#rejectLate(calls, error);
  }

  /**
   * Rejects calls that would time out with an unknown outcome while another batch waits for the lock. Now it is certain
   * that nothing was changed.
   */
  #rejectLate(calls: readonly Call[], error: Refused): void {
    const earliestRetryEnd = this.#options.clock.monotonic() + MAX_LOCKED_BATCH_MS;
    for (const call of calls) if (call.deadlineAt <= earliestRetryEnd) this.#reject(call, error);
  }

  /** A batch was rolled back: its calls run again, each in its own batch. */
  #onRejected(calls: readonly Call[], error: unknown): void {
    for (const call of calls) call.attempts += 1;
    const [call] = calls;
    if (call === undefined || calls.length > 1) return;
    if (!(error instanceof Refused)) call.reject(internalError(error));
    else if (call.attempts >= MAX_ATTEMPTS || !error.isRetryable) this.#reject(call, error);
  }

  /** Puts unsettled calls back before all later ones. */
  #requeue(calls: readonly Call[]): void {
    const unsettled = calls.filter(({ isSettled }) => !isSettled);
    if (unsettled.length > 0) this.#pending = [...unsettled, ...this.#pending];
  }

  /** Rejects calls that would create more groups than a queue may have, before anything is sent. */
  async #rejectExcessGroups(connection: Connection, calls: readonly Call[]): Promise<void> {
    const limited = calls.filter(({ size, isPartlyApplied }) => size.uses?.length && !isPartlyApplied);
    if (limited.length === 0) return;
    const uses = limited.map(({ size }) => size.uses ?? NO_USES);
    for (const [place, queue] of (await this.#options.registry.overLimit(connection, uses)).entries()) {
      if (queue !== null) limited[place]?.reject(tooManyGroups(queue.key.name, queue.limit?.max ?? 0));
    }
  }

  #settle(batch: Batch, rows: readonly (readonly Row[])[]): void {
    try {
      batch.settle(rows);
    } catch (error) {
      // The rows could not be read. The batch is committed, so the error must not claim that nothing happened.
      for (const call of batch.calls) call.reject(internalError(error));
    }
  }

  #reject(call: Call, error: Refused): void {
    call.reject(this.#options.link.refused(error, call.stores));
  }

  /**
   * Removes settled calls from the front only: calls are pending nearly in the order of their deadlines. Filtering all
   * of them at each timeout took 12 s for 10,000 calls.
   */
  #dropSettled(): void {
    const firstPending = this.#pending.findIndex(({ isSettled }) => !isSettled);
    if (firstPending !== 0) this.#pending.splice(0, firstPending < 0 ? this.#pending.length : firstPending);
  }
}

/** Advisory locks, one per stream. The first key identifies the schema, the second is part of the queue's id. */
function lockStatement(mode: '' | '_shared'): Statement {
  return {
    name: `lock streams${mode}`,
    text: `SELECT count(pg_advisory_xact_lock${mode}('element'::regclass::oid::int, u.id)) FROM unnest($1::int[]) AS u(id)`,
  };
}

const LOCK_EXCLUSIVE = lockStatement('');
const LOCK_SHARED = lockStatement('_shared');

/**
 * The locks that a batch takes first, so that nodes that finish elements of the same streams cannot deadlock;
 * PostgreSQL needs a second to detect a deadlock.
 *
 * A statement locks the elements that it finishes in the order of their sequence numbers. So batches with one such
 * statement may run concurrently, but a batch with several, which are not ordered among each other, locks its streams
 * exclusively.
 * @param locked for each statement that locks elements, the streams that it may concern
 */
function lockStreams(locked: readonly ReadonlySet<RegisteredQueue>[]): Query | null {
  const ids = new Set<number>();
  for (const queues of locked) for (const { id } of queues) ids.add(id.readInt32BE(4));
  if (ids.size === 0) return null;
  const sorted = [...ids].sort((a, b) => a - b);
  return { statement: locked.length > 1 ? LOCK_EXCLUSIVE : LOCK_SHARED, values: [int4Array(sorted)] };
}

/** The error for a bug of the engine, or for invalid values of the caller. */
function internalError(error: unknown): QuaysideError {
  return new QuaysideError('internal', 'The engine failed.', { cause: error });
}
