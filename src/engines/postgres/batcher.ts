import {
  DeadlineQueue,
  Expiring,
  isUnknownOutcome,
  NOT_REACHABLE,
  PendingLimit,
  tooManyGroups,
  UNREACHABLE_MS,
  unavailable,
  unknownOutcome,
} from '../../engine/calls.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { CancelTimer, Clock } from '../../util/clock.ts';
import { int4Array } from './arrays.ts';
import type { Connection } from './connection.ts';
import { ConnectionLost, isReadOnly, isTimeout, isWorthRetry, Refused, refusedError } from './errors.ts';
import type { Expirer } from './expire.ts';
import type { Link } from './link.ts';
import type { GroupUse, Queue, Registry } from './registry.ts';
import type { Query, Row, Statement } from './statement.ts';

/** Returned for an item that another node changed at the same moment: it is placed into the next batch again. */
export const RETRY = Symbol('retry');

/** A kind of items that share a statement, whatever their queues. */
export interface Operation<I, R> {
  readonly name: string;
  /** Whether it changes anything: then a missing reply leaves it open whether it did. */
  readonly changes: boolean;
  /** Whether it stores elements: a full disk is then an error of its own. */
  readonly stores?: boolean;
  /** Whether its statement locks elements of streams: it may finish one, or restore a delivery of one. */
  readonly locksElements?: boolean;
  /** Two items with a key in common share no statement, which changes a row once, unless they are alike. */
  keysOf?(item: I): readonly string[];
  isAlike?(item: I, other: I): boolean;
  /** Whether each item has a statement of its own. */
  readonly isSingle?: boolean;
  /** By what an item is done again if another node changed its delivery at the same moment; not given: by this one. */
  readonly onRace?: Operation<I, R>;
  /** The statement for some items, and what reads its rows: one result per item. */
  prepare(items: readonly I[]): Prepared<R>;
}

export interface Prepared<R> {
  readonly query: Query;
  readonly read: (rows: readonly Row[]) => readonly (R | typeof RETRY)[];
  /** Of a call with a batch to itself: whether it is committed, by its rows. Not given: it is. */
  readonly mayCommit?: (rows: readonly Row[]) => boolean;
}

/** Erased, as the batcher holds them. */
// biome-ignore lint/suspicious/noExplicitAny: each item goes to the operation that it came with
type AnyOperation = Operation<any, any>;

/** What a call asks for: most have one item, a settlement one per delivery. */
export interface Item<I, R> {
  readonly operation: Operation<I, R>;
  readonly item: I;
  readonly queues: readonly Queue[];
}

/** What bounds a batch, and what a call stores. */
export interface CallSize {
  /** Sent. */
  readonly bytes: number;
  readonly rows: number;
  /** What may be returned by a statement that no other call shares, bytes. */
  readonly returned?: number;
  /** Groups for which it stores something. */
  readonly uses?: readonly GroupUse[];
  /** It has a batch to itself. */
  readonly isAlone?: boolean;
}

const ONE_ROW: CallSize = { bytes: 0, rows: 1 };
/**
 * A statement returns no more bytes than this, however many deliveries were asked for: a thousand bodies of a megabyte would be
 * two gigabytes of text on the wire. What calls of a batch may return by statements of their own is bounded by as much.
 */
export const MAX_RETURNED_BYTES = 16 * 1024 * 1024;
const NO_USES: readonly GroupUse[] = [];

/** A caller has its result, or a clear error, within this time. */
export const TIMEOUT_MS = 4500;
/** A batch that takes longer has lost its server: each of its statements would have ended before. */
const BATCH_TIMEOUT_MS = 4000;
/** What one batch has at most. A call that is larger by itself has a batch to itself. */
const BATCH_BYTES = 8 * 1024 * 1024;
export const BATCH_ROWS = 5000;
const BATCH_CALLS = 2000;
/** Of a call that PostgreSQL rejected to end a deadlock. */
const MAX_ATTEMPTS = 4;

const STOPPED = new ConnectionLost('The engine was stopped.');
const NO_REPLY = new ConnectionLost('No reply in time.');

/** One call: pending -> sent -> settled, or back to pending with the items that are still to be done. */
class Call extends Expiring {
  readonly deadlineAt: number;
  readonly size: CallSize;
  readonly changes: boolean;
  readonly stores: boolean;
  items: readonly Item<unknown, unknown>[];
  isSettled = false;
  /** How often a batch with it was rejected. After that it has one of its own. */
  attempts = 0;
  /** Some items are done and others, which another node changed at the same moment, are not yet. */
  isPartlyApplied = false;
  readonly #results: unknown[] = [];
  /** The place in the results of each item that is left. */
  #places: readonly number[];
  readonly #batcher: Batcher;
  readonly #resolve: (results: unknown[]) => void;
  readonly #reject: (error: Error) => void;

  constructor(
    batcher: Batcher,
    items: readonly Item<unknown, unknown>[],
    { size, deadlineAt }: { size: CallSize; deadlineAt: number },
    { resolve, reject }: { resolve: (results: unknown[]) => void; reject: (error: Error) => void },
  ) {
    super();
    this.#batcher = batcher;
    this.items = items;
    this.size = size;
    this.deadlineAt = deadlineAt;
    this.changes = items.some(({ operation }) => operation.changes);
    this.stores = items.some(({ operation }) => operation.stores === true);
    this.#places = items.map((_, place) => place);
    this.#resolve = resolve;
    this.#reject = reject;
  }

  /** Takes the results of all items that are left. Those that are to be done again are left once more. */
  succeed(results: readonly unknown[]): void {
    if (this.isSettled) return;
    const again: Item<unknown, unknown>[] = [];
    const places: number[] = [];
    for (const [index, item] of this.items.entries()) {
      const place = this.#places[index] ?? 0;
      if (results[index] === RETRY) {
        again.push({ ...item, operation: item.operation.onRace ?? item.operation });
        places.push(place);
      } else this.#results[place] = results[index];
    }
    if (again.length > 0) {
      this.isPartlyApplied ||= this.changes && again.length < this.items.length;
      this.items = again;
      this.#places = places;
      return;
    }
    this.#settle();
    this.#resolve(this.#results);
  }

  fail(error: Error): void {
    if (this.isSettled) return;
    this.#settle();
    this.#reject(this.isPartlyApplied && !isUnknownOutcome(error) ? unknownOutcome(error) : error);
  }

  expire(): void {
    this.#batcher.onExpired(this);
  }

  #settle(): void {
    this.isSettled = true;
    this.#batcher.onSettled(this);
  }
}

/** Items that share a statement, and where their results go. */
class Group {
  readonly operation: AnyOperation;
  readonly items: unknown[] = [];
  readonly owners: { readonly results: unknown[]; readonly index: number }[] = [];
  readonly streams = new Set<Queue>();
  readonly #byKey = new Map<string, unknown>();

  constructor(operation: AnyOperation) {
    this.operation = operation;
  }

  takes(item: unknown): boolean {
    const { operation } = this;
    if (operation.isSingle === true) return this.items.length === 0;
    for (const key of operation.keysOf?.(item) ?? []) {
      const other = this.#byKey.get(key);
      if (other !== undefined && operation.isAlike?.(item, other) !== true) return false;
    }
    return true;
  }

  add({ item, queues }: Item<unknown, unknown>, results: unknown[], index: number): void {
    this.items.push(item);
    this.owners.push({ results, index });
    for (const key of this.operation.keysOf?.(item) ?? []) this.#byKey.set(key, item);
    if (this.operation.locksElements === true)
      for (const queue of queues) if (queue.isStream) this.streams.add(queue);
  }
}

/**
 * Calls arranged as few statements. Items of one operation share one, whatever their queues; an item never comes before
 * one of an earlier call about the same queue, nor before one of its own call about the same row.
 */
class Batch {
  readonly calls: readonly Call[];
  readonly #groups: Group[] = [];
  readonly #latestOf = new Map<AnyOperation, number>();
  readonly #latestAbout = new Map<Queue, number>();
  readonly #results: unknown[][];
  readonly #prepared: readonly { readonly group: Group; readonly prepared: Prepared<unknown> }[];
  readonly #lock: Query | null;

  constructor(calls: readonly Call[]) {
    this.calls = calls;
    this.#results = calls.map(() => []);
    for (const [place, call] of calls.entries()) this.#placeCall(call, this.#results[place] ?? []);
    this.#prepared = this.#groups.map((group) => ({ group, prepared: group.operation.prepare(group.items) }));
    this.#lock = lockStreams(this.#groups.map(({ streams }) => streams).filter(({ size }) => size > 0));
  }

  /** The statements to send, in order. */
  get queries(): Query[] {
    const queries = this.#prepared.map(({ prepared }) => prepared.query);
    return this.#lock === null ? queries : [this.#lock, ...queries];
  }

  /** What decides whether it is committed, by the rows of its statements; null: nothing does. */
  get mayCommit(): ((results: readonly (readonly Row[])[]) => boolean) | null {
    const [first] = this.#prepared;
    const mayCommit = first?.prepared.mayCommit;
    if (mayCommit === undefined) return null;
    return (results) => mayCommit(results[this.#lock === null ? 0 : 1] ?? []);
  }

  /** Gives each call its results. */
  settle(rows: readonly (readonly Row[])[]): void {
    const from = this.#lock === null ? 0 : 1;
    for (const [index, { group, prepared }] of this.#prepared.entries()) {
      const results = prepared.read(rows[from + index] ?? []);
      for (const [place, owner] of group.owners.entries()) owner.results[owner.index] = results[place];
    }
    for (const [place, call] of this.calls.entries()) call.succeed(this.#results[place] ?? []);
  }

  /** The call whose statement alone is at that place of {@link queries}; null: several calls share it. */
  callOf(query: number): Call | null {
    const owners = this.#groups[query - (this.#lock === null ? 0 : 1)]?.owners ?? [];
    const results = owners[0]?.results;
    if (results === undefined || owners.some((owner) => owner.results !== results)) return null;
    return this.calls[this.#results.indexOf(results)] ?? null;
  }

  #placeCall({ items }: Call, results: unknown[]): void {
    const [first] = items;
    if (first === undefined) return;
    if (items.length === 1) {
      const at = this.#place(first, this.#from(first.queues), results, 0);
      for (const queue of first.queues) this.#latestAbout.set(queue, at);
      return;
    }
    const froms = items.map(({ queues }) => this.#from(queues));
    const byKey = new Map<string, number>();
    for (const [index, item] of items.entries()) {
      const keys = item.operation.keysOf?.(item.item) ?? [];
      const from = keys.reduce((least, key) => Math.max(least, byKey.get(key) ?? 0), froms[index] ?? 0);
      const at = this.#place(item, from, results, index);
      for (const key of keys) byKey.set(key, at);
      for (const queue of item.queues)
        this.#latestAbout.set(queue, Math.max(at, this.#latestAbout.get(queue) ?? 0));
    }
  }

  #from(queues: readonly Queue[]): number {
    let from = 0;
    for (const queue of queues) from = Math.max(from, this.#latestAbout.get(queue) ?? 0);
    return from;
  }

  #place(item: Item<unknown, unknown>, from: number, results: unknown[], index: number): number {
    const { operation } = item;
    const latest = this.#latestOf.get(operation);
    let group = latest === undefined || latest < from ? undefined : this.#groups[latest];
    if (latest === undefined || group === undefined || !group.takes(item.item)) {
      group = new Group(operation);
      this.#latestOf.set(operation, this.#groups.push(group) - 1);
    }
    group.add(item, results, index);
    return this.#latestOf.get(operation) ?? 0;
  }
}

export interface BatcherOptions {
  readonly clock: Clock;
  readonly link: Link;
  readonly registry: Registry;
  readonly expirer: Expirer;
  /** A batch was committed. */
  readonly onBatch: () => void;
}

/**
 * The one ordered way to the database: gathers the calls that are made while a batch is in progress, arranges
 * their items as few statements, and sends these as the next batch, one transaction.
 *
 * - Calls about a queue take effect in the order in which they were made, since there is one connection and
 *   one batch at a time. Several nodes, not several connections, are how more of PostgreSQL's cores are used.
 * - A batch that PostgreSQL rejects was rolled back: its calls run again, each alone, so that one caller's
 *   failure affects no other. A batch whose connection ended may have been committed: its changing calls are
 *   rejected with `outcome-unknown` and never sent again.
 */
export class Batcher {
  readonly #options: BatcherOptions;
  readonly #deadlines: DeadlineQueue;
  readonly #limit = new PendingLimit();
  #pending: Call[] = [];
  #sent: readonly Call[] = [];
  #sentAt = 0;
  /** Whether the calls' own statements are on their way, and not only what prepares them. */
  #mayBeApplied = false;
  #isRunning = false;
  #isScheduled = false;
  #cancelFailFast: CancelTimer | null = null;
  #onIdle: (() => void) | null = null;
  #stopped = false;

  constructor(options: BatcherOptions) {
    this.#options = options;
    this.#deadlines = new DeadlineQueue(options.clock, TIMEOUT_MS);
  }

  /** Runs one item. @throws QuaysideError as the Storage port says */
  submit<I, R>(
    operation: Operation<I, R>,
    item: I,
    queue: Queue | null,
    size: CallSize = ONE_ROW,
  ): Promise<R> {
    const queues = queue === null ? [] : [queue];
    return new Promise((resolve, reject) => {
      this.#enqueue([{ operation, item, queues }], size, {
        resolve: ([result]) => resolve(result as R),
        reject,
      });
    });
  }

  /** Runs several items. Results are in their order. @throws as `submit` */
  submitAll<I, R>(items: readonly Item<I, R>[], size: CallSize): Promise<R[]> {
    if (items.length === 0) return Promise.resolve([]);
    return new Promise((resolve, reject) => {
      this.#enqueue(items as readonly Item<unknown, unknown>[], size, {
        resolve: (results) => resolve(results as R[]),
        reject,
      });
    });
  }

  /** There is a connection again. */
  resume(): void {
    this.#cancelFailFast?.();
    this.#cancelFailFast = null;
    this.#schedule();
  }

  /** There is no connection any more. What waits for one is not kept for long. */
  onLost(): void {
    this.#cancelFailFast ??= this.#options.clock.after(UNREACHABLE_MS, () => {
      this.#cancelFailFast = null;
      for (const call of [...this.#pending]) call.fail(unavailable(NOT_REACHABLE, NO_REPLY));
      this.#onRest();
    });
  }

  /** Resolves when all calls are settled; later ones are rejected. */
  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#pending.length > 0 || this.#isRunning) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    this.#cancelFailFast?.();
    this.#deadlines.stop();
  }

  onExpired(call: Call): void {
    const { clock, link } = this.#options;
    const isSent = this.#mayBeApplied && call.changes && this.#sent.includes(call);
    call.fail(isSent ? unknownOutcome(NO_REPLY) : unavailable(NOT_REACHABLE, NO_REPLY));
    this.#pending = this.#pending.filter(({ isSettled }) => !isSettled);
    if (this.#sent.length > 0 && clock.monotonic() - this.#sentAt > BATCH_TIMEOUT_MS)
      link.drop('it does not reply');
    this.#onRest();
  }

  onSettled(call: Call): void {
    this.#deadlines.remove(call);
    this.#limit.remove(call.size.bytes);
  }

  #enqueue(
    items: readonly Item<unknown, unknown>[],
    size: CallSize,
    end: { resolve: (results: unknown[]) => void; reject: (error: Error) => void },
  ): void {
    const error = this.#stopped
      ? unavailable(NOT_REACHABLE, STOPPED)
      : this.#limit.rejection(this.#options.link.awayMs);
    if (error !== null) {
      end.reject(error);
      return;
    }
    const call = new Call(this, items, { size, deadlineAt: this.#deadlines.next() }, end);
    this.#limit.add(size.bytes);
    this.#deadlines.add(call);
    this.#pending.push(call);
    this.#schedule();
  }

  /** After the current turn, so that what it still asks for shares the batch. */
  #schedule(): void {
    if (this.#isScheduled || this.#isRunning) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      void this.#run();
    });
  }

  async #run(): Promise<void> {
    if (this.#isRunning) return;
    this.#isRunning = true;
    for (;;) {
      const { connection } = this.#options.link;
      const calls = connection === null ? [] : this.#gather();
      if (connection === null || calls.length === 0) break;
      await this.#runBatch(connection, calls);
      // Results lead to new calls; those made before the next turn share the next batch.
      await turn();
    }
    this.#isRunning = false;
    this.#onRest();
  }

  /** The first pending calls, as many as fit into a batch. */
  #gather(): Call[] {
    const calls: Call[] = [];
    let [bytes, rows, returned, next] = [0, 0, 0, 0];
    for (; next < this.#pending.length && calls.length < BATCH_CALLS; next++) {
      const call = this.#pending[next];
      if (call === undefined || call.isSettled) continue;
      bytes += call.size.bytes;
      rows += call.size.rows;
      returned += call.size.returned ?? 0;
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

  /** One transaction, after which each call is settled or pending again. */
  async #runBatch(connection: Connection, calls: readonly Call[]): Promise<void> {
    const { clock, expirer, onBatch } = this.#options;
    this.#sent = calls;
    this.#sentAt = clock.monotonic();
    try {
      await this.#rejectGroups(connection, calls);
      // A caller that was rejected in the meantime must not have its element taken after all.
      const inTime = calls.filter(({ isSettled }) => !isSettled);
      if (inTime.length === 0) return;
      const expired = expirer.isDue ? expirer.run(connection) : null;
      const batch = new Batch(inTime);
      this.#mayBeApplied = true;
      const ended = await connection.transact(batch.queries, batch.mayCommit);
      await expired;
      if (ended.how === 'refused') {
        const slow = isTimeout(ended.error) ? batch.callOf(ended.query) : null;
        // It would most likely take as long again, and the others would wait for it in vain.
        if (slow === null) this.#onRejected(inTime, ended.error);
        else this.#reject(slow, ended.error);
        this.#repeat(inTime);
      } else if (ended.how === 'lost') this.#onBatchLost(inTime, ended.error);
      else {
        onBatch();
        this.#settle(batch, ended.results);
        this.#repeat(inTime);
      }
    } catch (error) {
      // Nothing was sent: there is no connection, or the values make no sense.
      if (!(error instanceof ConnectionLost)) this.#onRejected(calls, error);
      this.#repeat(calls);
    } finally {
      this.#sent = [];
      this.#mayBeApplied = false;
    }
  }

  /** Nothing of a batch happened: its calls run again, each alone. */
  #onRejected(calls: readonly Call[], error: unknown): void {
    for (const call of calls) call.attempts += 1;
    const [call] = calls;
    if (call === undefined || calls.length > 1) return;
    if (!(error instanceof Refused)) call.fail(internal(error));
    else if (call.attempts >= MAX_ATTEMPTS || !isWorthRetry(error)) this.#reject(call, error);
  }

  /** What is not settled comes before all that was called later. */
  #repeat(calls: readonly Call[]): void {
    const again = calls.filter(({ isSettled }) => !isSettled);
    if (again.length > 0) this.#pending = [...again, ...this.#pending];
  }

  /** A call that would create more groups than a queue may have is not sent. */
  async #rejectGroups(connection: Connection, calls: readonly Call[]): Promise<void> {
    const limited = calls.filter(({ size, isPartlyApplied }) => size.uses !== undefined && !isPartlyApplied);
    if (limited.length === 0) return;
    const uses = limited.map(({ size }) => size.uses ?? NO_USES);
    for (const [place, queue] of (await this.#options.registry.overLimit(connection, uses)).entries()) {
      if (queue !== null) limited[place]?.fail(tooManyGroups(queue.key.name, queue.limit?.most ?? 0));
    }
  }

  #settle(batch: Batch, rows: readonly (readonly Row[])[]): void {
    try {
      batch.settle(rows);
    } catch (error) {
      // Rows that make no sense; it is too late to say that nothing happened.
      for (const call of batch.calls) call.fail(internal(error));
    }
  }

  #onBatchLost(calls: readonly Call[], error: ConnectionLost): void {
    for (const call of calls)
      call.fail(call.changes ? unknownOutcome(error) : unavailable(NOT_REACHABLE, error));
    this.#options.link.drop('it did not reply');
  }

  #reject(call: Call, error: Refused): void {
    call.fail(refusedError(error, call.stores));
    if (isReadOnly(error)) this.#options.link.drop('it became read-only');
  }

  #onRest(): void {
    if (this.#isRunning) return;
    this.#pending = this.#pending.filter(({ isSettled }) => !isSettled);
    if (this.#pending.length === 0) this.#onIdle?.();
  }
}

/** One lock for each stream of a schema: the first number is the schema's own, the second one of the queue's id. */
function lockStatement(mode: '' | '_shared'): Statement {
  return {
    name: `lock streams${mode}`,
    text: `SELECT count(pg_advisory_xact_lock${mode}('element'::regclass::oid::int, u.id)) FROM unnest($1::int[]) AS u(id)`,
  };
}

const ALONE = lockStatement('');
const SHARED = lockStatement('_shared');

/**
 * What a batch has to lock first, so that nodes that finish elements of the same streams never wait for each other
 * in a circle; each circle would cost them the second after which PostgreSQL finds it.
 *
 * A statement locks the elements that it finishes in the order of their numbers. So batches with one such
 * statement may run at once, and one with several, among which there is no order, needs its streams for itself.
 * @param locked for each statement that locks elements, the streams that it may be about
 */
function lockStreams(locked: readonly ReadonlySet<Queue>[]): Query | null {
  const ids = new Set<number>();
  for (const queues of locked) for (const { whole } of queues) ids.add(whole.id.readInt32BE(4));
  if (ids.size === 0) return null;
  const sorted = [...ids].sort((a, b) => a - b);
  return { statement: locked.length > 1 ? ALONE : SHARED, values: [int4Array(sorted)] };
}

/** A bug of ours, or of the caller's values. */
function internal(error: unknown): QuaysideError {
  return new QuaysideError('internal', 'The engine failed.', { cause: error });
}

function turn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}
