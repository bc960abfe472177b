import { closeSync, fdatasyncSync, openSync } from 'node:fs';
import type { DatabaseSync } from 'node:sqlite';
import { LeaseTokens } from '../../../model/lease-token.ts';
import { messageOf } from '../../../util/message-of.ts';
import {
  BodyWriter,
  type Operation,
  type Operations,
  type PackedBodies,
  type QueueName,
} from '../protocol.ts';
import { MEMORY, type Warn, type WorkerData } from '../settings.ts';
import { QueueCounter } from './counts.ts';
import { StoreLost } from './errors.ts';
import { Ids, nextEpoch } from './ids.ts';
import { Queues } from './queues.ts';
import { Records } from './records.ts';
import { Rows } from './rows.ts';
import { markSchema, prepareAll, type Statements } from './schema.ts';
import type { Space } from './space.ts';

/** Points of a transaction, and of the steps after it, at which the disk can fail. */
export type TransactionPoint = 'begin' | 'commit' | 'committed' | 'checkpoint';

/** Pages in the log from which a checkpoint is made: 4 MiB. */
const CHECKPOINT_PAGES = 1000;
/** The length of the log is queried after this many transactions, or this many bytes of bodies. */
const TRANSACTIONS_PER_LOG_QUERY = 8;
const BYTES_PER_LOG_QUERY = 1024 * 1024;

/**
 * Bytes of bodies that one transaction copies to other queues, including dead-letter queues, about: 40 ms. A consumer
 * that vanished may have reserved a thousand elements of 1 MB, whose copies took 8 s in one transaction; all calls
 * failed in that time.
 */
const MAX_COPIED_BYTES = 4 * 1024 * 1024;

/** A few milliseconds, since each may require moving a page from the end of the file. */
const PAGES_PER_VACUUM = 500;

const SQL = {
  begin: 'BEGIN IMMEDIATE',
  commit: 'COMMIT',
  markUnsynced: 'UPDATE unsynced SET transactions = transactions + 1',
  changes: 'SELECT total_changes()',
  pages: 'PRAGMA page_count',
  freePages: 'PRAGMA freelist_count',
  pageBytes: 'PRAGMA page_size',
  logPages: 'PRAGMA wal_checkpoint(NOOP)',
  checkpoint: 'PRAGMA wal_checkpoint(PASSIVE)',
  vacuum: `PRAGMA incremental_vacuum(${PAGES_PER_VACUUM})`,
} as const;

/** The implementation of an operation, within the transaction of its batch. */
export type Run<O extends Operation> = (
  store: Store,
  ...args: Parameters<Operations[O]>
) => ReturnType<Operations[O]>;

interface StoreDependencies {
  /** Null for `:memory:`. */
  readonly space: Space | null;
  readonly warn: Warn;
  /** Called at each point; tests throw errors from it. */
  readonly reach: (point: TransactionPoint) => void;
}

/** The open file, with everything that operations need. There is at most one transaction at a time. */
export class Store {
  readonly db: DatabaseSync;
  readonly ids: Ids;
  readonly tokens = new LeaseTokens();
  readonly queues: Queues;
  readonly counter: QueueCounter;
  readonly rows: Rows;
  readonly records: Records;
  readonly space: Space | null;
  readonly warn: Warn;
  /** Of the running batch: its time, the bodies it came with, and the bodies of its results. */
  now = 0;
  received: PackedBodies = { small: new Uint8Array(0), large: [] };
  reply = new BodyWriter();
  /** Bytes of bodies that this transaction has copied to other queues, including dead-letter queues. */
  copiedBytes = 0;
  /** When the next sweep looks for unused queues. */
  nextUnusedPassAt = Number.NEGATIVE_INFINITY;
  /** Whether changes without a reply may be durable, so that their outcome is unknown after a failure. */
  mayBeDurable = false;
  /** Queues that gained eligible elements without a call whose caller knows of them, since the last reply was sent. */
  readonly affected = new Set<QueueName>();
  readonly #reach: (point: TransactionPoint) => void;
  readonly #isDurable: boolean;
  /** The write-ahead log, for {@link sync}; null for `:memory:`. SQLite does not replace the file while it is open. */
  readonly #log: number | null;
  /** Whether the current transaction needs an fsync. */
  #needsSync = false;
  readonly #sql: Statements<typeof SQL>;
  /** SQLite's count of changes when the transaction began. */
  #changesBefore: number | null = null;
  /** Transactions, and bytes of bodies, until the length of the log is queried again. */
  #transactionsUntilQuery = TRANSACTIONS_PER_LOG_QUERY;
  #bytesUntilQuery = BYTES_PER_LOG_QUERY;
  #isCheckpointRequested = false;

  constructor(
    db: DatabaseSync,
    options: Pick<WorkerData, 'file' | 'policies' | 'durability' | 'dedupWindowMs'>,
    { space, warn, reach }: StoreDependencies,
  ) {
    this.db = db;
    this.warn = warn;
    this.space = space;
    this.#reach = reach;
    this.#isDurable = options.durability === 'full';
    this.queues = new Queues(db, options.policies);
    this.counter = new QueueCounter(db, this.queues);
    this.rows = new Rows(db, this.queues, this.counter);
    this.records = new Records(db, this.queues, options.dedupWindowMs);
    this.#sql = prepareAll(db, SQL);
    // Last, so that a file with other tables is rejected unchanged.
    markSchema(db);
    // `openDatabase` has set `synchronous = FULL`, as starting an epoch requires.
    this.ids = Ids.open(db);
    // From now on, `sync` makes the fsync after the commit, so that calls that need none are replied to in between.
    db.exec('PRAGMA synchronous = NORMAL');
    this.#log = options.file === MEMORY ? null : openSync(`${options.file}-wal`, 'r+');
  }

  /** @param needsSync whether the transaction is acknowledged only after an fsync; ignored with `durability: normal` */
  begin(needsSync: boolean): void {
    // First, since a failure of the epoch is rolled back as well.
    this.rows.begin();
    if (this.ids.isNearlySpent) {
      this.db.exec('PRAGMA synchronous = FULL');
      this.ids.startEpoch(nextEpoch(this.db));
      this.db.exec('PRAGMA synchronous = NORMAL');
    }
    this.#needsSync = needsSync && this.#isDurable;
    this.copiedBytes = 0;
    this.#reach('begin');
    this.#sql.begin.run();
    if (this.#isMarked) this.#changesBefore = this.#sql.changes.value();
  }

  /** Whether the transaction must be marked as unsynced if it changes anything. */
  get #isMarked(): boolean {
    return this.#isDurable && !this.#needsSync;
  }

  commit(): void {
    this.queues.save();
    if (this.#isMarked && this.#sql.changes.value() !== this.#changesBefore) this.#sql.markUnsynced.run();
    this.#reach('commit');
    this.mayBeDurable = true;
    this.#sql.commit.run();
  }

  /**
   * Must follow each commit. Makes it durable if the transaction needs that.
   * @param before called before an fsync
   * @throws StoreLost if the fsync fails: a second one would prove nothing
   */
  sync(before: () => void = () => {}): void {
    const log = this.#needsSync ? this.#log : null;
    if (log !== null) before();
    this.#reach('committed');
    try {
      if (log !== null) fdatasyncSync(log);
    } catch (error) {
      throw new StoreLost(`its log cannot be synced: ${messageOf(error)}`);
    }
  }

  close(): void {
    this.db.close();
    if (this.#log !== null) closeSync(this.#log);
  }

  /** Rolls the transaction back, unless SQLite has already done so, and restores the state in memory. */
  rollback(): void {
    // A failure that leaves the store usable, such as a full disk, occurs before the commit takes effect.
    if (this.db.isTransaction) this.db.exec('ROLLBACK');
    this.queues.reload();
    this.rows.rollback();
  }

  /**
   * Whether a step that began with `copiedBefore` copied bytes may copy another element. Each step may copy one,
   * however much others of the transaction have copied, so that none starves.
   */
  mayCopyMore(copiedBefore: number): boolean {
    return this.copiedBytes < MAX_COPIED_BYTES || this.copiedBytes === copiedBefore;
  }

  /** Number of pages of the file. */
  pages(): number {
    return Number(this.#sql.pages.value());
  }

  /** Number of free pages of the file. */
  freePages(): number {
    return Number(this.#sql.freePages.value());
  }

  /** Bytes of the pages in use. */
  bytesInUse(): number {
    return (this.pages() - this.freePages()) * Number(this.#sql.pageBytes.value());
  }

  /** Returns some free pages to the file system. The file shrinks only at the next checkpoint. */
  vacuum(): void {
    this.#sql.vacuum.all();
    this.requestCheckpoint();
  }

  /** Makes the next call of {@link checkpoint} write all pages of the log into the file. */
  requestCheckpoint(): void {
    this.#isCheckpointRequested = true;
  }

  /**
   * Checkpoints the write-ahead log if that was requested, or if it has more than {@link CHECKPOINT_PAGES} pages that
   * are not yet in the file; with one connection the next write then restarts the log. Explicit, because SQLite's
   * automatic checkpoints swallow their errors: a failed fsync must end the engine (`errors.ts`), not be retried.
   *
   * The length of the log is not queried after each transaction: SQLite compiles a PRAGMA for each execution, which
   * takes 16 to 19 µs.
   * @param bytes of the bodies that the transaction may have stored
   * @throws the error of a failed checkpoint
   */
  checkpoint(bytes: number): void {
    this.#reach('checkpoint');
    this.#transactionsUntilQuery -= 1;
    this.#bytesUntilQuery -= bytes;
    const isRequested = this.#isCheckpointRequested;
    if (!isRequested && this.#transactionsUntilQuery > 0 && this.#bytesUntilQuery > 0) return;
    this.#isCheckpointRequested = false;
    this.#transactionsUntilQuery = TRANSACTIONS_PER_LOG_QUERY;
    this.#bytesUntilQuery = BYTES_PER_LOG_QUERY;
    // Both are -1 if the database has no log, as `:memory:`.
    const pages = this.#sql.logPages.get<Record<'log' | 'checkpointed', number>>();
    if (Number(pages?.log) - Number(pages?.checkpointed) > (isRequested ? 0 : CHECKPOINT_PAGES))
      this.#sql.checkpoint.get();
  }
}
