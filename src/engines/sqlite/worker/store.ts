import { closeSync, fdatasyncSync, openSync } from 'node:fs';
import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { LeaseTokens } from '../../../model/lease-token.ts';
import type { QueueKey } from '../../../model/names.ts';
import { BodyWriter, nameOf, type PackedBodies, type QueueName } from '../protocol.ts';
import { MEMORY, type Warn, type WorkerData } from '../settings.ts';
import { messageOf, StoreLost } from './errors.ts';
import { Ids, nextEpoch } from './ids.ts';
import { Queues, type WorkerQueue } from './queues.ts';
import { Records } from './records.ts';
import { Rows } from './rows.ts';
import type { Space } from './space.ts';
import { Sweeper } from './sweep.ts';

/** Moments of a transaction, and of what follows it, at which the disk can fail. */
export type TransactionPoint = 'begin' | 'commit' | 'committed' | 'checkpoint';

/** The log grows by so many transactions, or by about so many bytes, before its length is queried. */
const TRANSACTIONS_A_LOG_QUERY = 8;
const BYTES_A_LOG_QUERY = 1024 * 1024;

/**
 * What one transaction copies to other queues, dead-letter queues among them, about: 40 ms. A consumer that is gone may
 * have held a thousand elements of a megabyte, whose copies took 8 s in one transaction, while which every call failed.
 */
const MAX_COPIED_BYTES = 4 * 1024 * 1024;

interface Surroundings {
  /** Null for a store in memory. */
  readonly space: Space | null;
  readonly warn: Warn;
  /** Called at each point: tests let it throw. */
  readonly reach: (point: TransactionPoint) => void;
}

/** The open file with everything that the operations need. One transaction at a time. */
export class Store {
  readonly db: DatabaseSync;
  readonly ids: Ids;
  readonly tokens = new LeaseTokens();
  readonly queues: Queues;
  readonly rows: Rows;
  readonly records: Records;
  readonly sweeper: Sweeper;
  readonly space: Space | null;
  readonly warn: Warn;
  /** Of the batch that runs: its moment, the bodies that it came with, and those of its results. */
  now = 0;
  received: PackedBodies = { small: new Uint8Array(0), large: [] };
  reply = new BodyWriter();
  /** Bytes of bodies that this transaction has copied to other queues, dead-letter queues among them. */
  copiedBytes = 0;
  /** Whether something that has no reply yet may be durable: after a failure nobody knows whether it is. */
  mayBeDurable = false;
  /** Queues that gained eligible elements by themselves since the last `sweep` returned. */
  readonly #affected = new Map<QueueName, QueueKey>();
  /** Those that this transaction's `sweep` returned. */
  #reported: [QueueName, QueueKey][] = [];
  readonly #reach: (point: TransactionPoint) => void;
  readonly #isDurable: boolean;
  /** The write-ahead log, for {@link sync}; null for a store in memory. SQLite keeps the file until it is closed. */
  readonly #log: number | null;
  /** Whether the transaction needs {@link sync}. */
  #needsSync = false;
  readonly #begin: StatementSync;
  readonly #commit: StatementSync;
  readonly #markUnsynced: StatementSync;
  readonly #countChanges: StatementSync;
  /** What it returned when the transaction began. */
  #changes = 0;
  readonly #pages: StatementSync;
  readonly #freePages: StatementSync;
  readonly #pageBytes: number;
  readonly #logPages: StatementSync;
  /** Transactions, and bytes of bodies, until the length of the log is queried next. */
  #transactionsUntilQuery = TRANSACTIONS_A_LOG_QUERY;
  #bytesUntilQuery = BYTES_A_LOG_QUERY;
  readonly #checkpoint: StatementSync;

  constructor(
    db: DatabaseSync,
    options: Pick<WorkerData, 'file' | 'policies' | 'durability' | 'dedupWindowMs'>,
    { space, warn, reach }: Surroundings,
  ) {
    this.db = db;
    this.warn = warn;
    this.space = space;
    this.#reach = reach;
    this.#isDurable = options.durability === 'full';
    // As `openDatabase` leaves it, commits wait for their fsync.
    this.ids = Ids.open(db);
    // From now on, what needs an fsync is synced after its commit, so that calls which need none are replied to in
    // between.
    db.exec('PRAGMA synchronous = NORMAL');
    this.#log = options.file === MEMORY ? null : openSync(`${options.file}-wal`, 'r+');
    this.queues = new Queues(db, options.policies);
    this.rows = new Rows(db, this.queues);
    this.records = new Records(db, this.queues, options.dedupWindowMs);
    this.sweeper = new Sweeper(db, this.queues);
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
    this.#markUnsynced = db.prepare('UPDATE unsynced SET transactions = transactions + 1');
    this.#countChanges = db.prepare('SELECT total_changes() AS n');
    this.#pages = db.prepare('PRAGMA page_count');
    this.#freePages = db.prepare('PRAGMA freelist_count');
    this.#pageBytes = Number(db.prepare('PRAGMA page_size').get()?.page_size);
    this.#logPages = db.prepare('PRAGMA wal_checkpoint(NOOP)');
    this.#checkpoint = db.prepare('PRAGMA wal_checkpoint(PASSIVE)');
  }

  /** @param needsSync whether the transaction is acknowledged only after an fsync, if the engine's mode promises one */
  begin(needsSync: boolean): void {
    if (this.ids.nearlySpent) {
      this.db.exec('PRAGMA synchronous = FULL');
      this.ids.beginEpoch(nextEpoch(this.db));
      this.db.exec('PRAGMA synchronous = NORMAL');
    }
    this.#needsSync = needsSync && this.#isDurable;
    this.copiedBytes = 0;
    this.#reach('begin');
    this.#begin.run();
    if (this.#isMarked) this.#changes = this.#totalChanges();
  }

  /** Whether the transaction, if it changes anything, has to say that it is committed without an fsync. */
  get #isMarked(): boolean {
    return this.#isDurable && !this.#needsSync;
  }

  #totalChanges(): number {
    return Number(this.#countChanges.get()?.n);
  }

  commit(): void {
    this.queues.save();
    if (this.#isMarked && this.#totalChanges() > this.#changes) this.#markUnsynced.run();
    this.#reach('commit');
    this.mayBeDurable = true;
    this.#commit.run();
    this.#reported = [];
  }

  /** Whether the transaction that was committed last is acknowledged only after {@link sync}. */
  get isSyncDue(): boolean {
    return this.#needsSync && this.#log !== null;
  }

  /**
   * Follows each commit, and makes durable what needs it.
   * @throws StoreLost if that fails: a second fsync would prove nothing
   */
  sync(): void {
    this.#reach('committed');
    try {
      if (this.#needsSync && this.#log !== null) fdatasyncSync(this.#log);
    } catch (error) {
      throw new StoreLost(`its log cannot be synced: ${messageOf(error)}`);
    }
  }

  close(): void {
    this.db.close();
    if (this.#log !== null) closeSync(this.#log);
  }

  /** Leaves the transaction, which SQLite itself may have rolled back already, and what it changed in memory. */
  rollback(): void {
    // A failure that leaves the store usable, such as a full disk, is one before the commit took effect.
    if (this.db.isTransaction) this.db.exec('ROLLBACK');
    this.queues.reload();
    this.rows.findNextLeaseEnd();
    for (const [name, key] of this.#reported) this.#affected.set(name, key);
    this.#reported = [];
  }

  /**
   * Whether a step that began when so many bytes were copied may copy another element. Each may copy one, however much
   * others of the transaction have copied, so that none starves.
   */
  mayCopyMore(copiedBefore: number): boolean {
    return this.copiedBytes < MAX_COPIED_BYTES || this.copiedBytes === copiedBefore;
  }

  /** A queue gained eligible elements without a call that says so to its caller. */
  affected({ key }: WorkerQueue): void {
    this.#affected.set(nameOf(key), key);
  }

  /** Pages of the file. */
  pages(): number {
    return Number(this.#pages.get()?.page_count);
  }

  /** Those of them that hold nothing. */
  freePages(): number {
    return Number(this.#freePages.get()?.freelist_count);
  }

  /** What the pages take that hold something. */
  bytesInUse(): number {
    return (this.pages() - this.freePages()) * this.#pageBytes;
  }

  takeAffected(): QueueKey[] {
    this.#reported.push(...this.#affected);
    const keys = [...this.#affected.values()];
    this.#affected.clear();
    return keys;
  }

  /**
   * Moves the write-ahead log into the file if it holds more than `pages` pages; with one connection the next write
   * then starts the log again. Asked for explicitly because SQLite's automatic checkpoints swallow their errors: a
   * failed fsync must end the engine (`errors.ts`), not be tried again.
   *
   * The length of the log is not queried after each transaction: SQLite compiles a PRAGMA again for each execution,
   * which takes 16 to 19 µs.
   * @param bytes of the bodies that the transaction may have stored
   * @throws the error of a failed checkpoint
   */
  checkpoint(pages: number, bytes: number): void {
    this.#reach('checkpoint');
    this.#transactionsUntilQuery -= 1;
    this.#bytesUntilQuery -= bytes;
    if (pages > 0 && this.#transactionsUntilQuery > 0 && this.#bytesUntilQuery > 0) return;
    this.#transactionsUntilQuery = TRANSACTIONS_A_LOG_QUERY;
    this.#bytesUntilQuery = BYTES_A_LOG_QUERY;
    const row = this.#logPages.get();
    // -1 if the database has no log, as one in memory.
    if (Number(row?.log) - Number(row?.checkpointed) > pages) this.#checkpoint.get();
  }
}
