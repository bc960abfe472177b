import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import { LeaseTokens } from '../../../model/lease-token.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { Faults } from '../fault-point.ts';
import { nameOf, type QueueName } from '../protocol.ts';
import type { Durability } from '../settings.ts';
import { Ids, nextEpoch, readTags } from './ids.ts';
import { Names, type Queue, UNKNOWN } from './names.ts';
import { Records } from './records.ts';
import { Rows } from './rows.ts';
import type { Space } from './space.ts';
import { Upkeep } from './sweep.ts';

export interface StoreOptions {
  readonly policies: readonly NamespacePolicy[];
  readonly durability: Durability;
  readonly dedupWindowMs: number;
  /** Null for a store in memory. */
  readonly space: Space | null;
  /** For tests; null in a server. */
  readonly faults: Faults | null;
  /** Logs on the main side. */
  readonly warn: (fields: object, message: string) => void;
}

/**
 * The open file with everything that the operations need. One transaction at a time; `now` is the moment of the batch
 * that runs.
 */
export class Store {
  readonly db: DatabaseSync;
  readonly ids: Ids;
  readonly tokens = new LeaseTokens();
  readonly names: Names;
  readonly rows: Rows;
  readonly records: Records;
  readonly upkeep: Upkeep;
  readonly space: Space | null;
  readonly warn: StoreOptions['warn'];
  now = 0;
  /** Whether something without a reply may be durable: after a failure nobody knows whether it is. */
  mayBeDurable = false;
  /** Queues that gained eligible elements by themselves since the last `sweep` returned. */
  readonly #affected = new Map<QueueName, QueueKey>();
  /** Those that this transaction's `sweep` returned. */
  #reported: [QueueName, QueueKey][] = [];
  readonly #faults: Faults | null;
  readonly #isDurable: boolean;
  /** As `openDatabase` leaves it. */
  #isSynced = true;
  readonly #begin: StatementSync;
  readonly #commit: StatementSync;
  readonly #markUnsynced: StatementSync;
  readonly #logPages: StatementSync;
  readonly #checkpoint: StatementSync;

  constructor(db: DatabaseSync, options: StoreOptions) {
    this.db = db;
    this.warn = options.warn;
    this.space = options.space;
    this.#faults = options.faults;
    this.#isDurable = options.durability === 'full';
    const epoch = this.#nextEpoch();
    this.ids = new Ids(readTags(db), epoch);
    this.names = new Names(db, options.policies);
    this.rows = new Rows(db, this.names);
    this.records = new Records(db, options.dedupWindowMs);
    this.upkeep = new Upkeep(db, this.names);
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
    this.#markUnsynced = db.prepare('UPDATE unsynced SET transactions = transactions + 1');
    this.#logPages = db.prepare('PRAGMA wal_checkpoint(NOOP)');
    this.#checkpoint = db.prepare('PRAGMA wal_checkpoint(PASSIVE)');
  }

  /** @param needsSync whether the transaction is acknowledged only after an fsync, if the engine's mode promises one */
  begin(needsSync: boolean): void {
    if (this.ids.nearlySpent) this.ids.beginEpoch(this.#nextEpoch());
    this.#setSync(needsSync && this.#isDurable);
    this.#faults?.reach('begin');
    this.#begin.run();
  }

  #nextEpoch(): number {
    this.#setSync(true);
    return nextEpoch(this.db);
  }

  /** Whether commits wait for their fsync from now on. */
  #setSync(isSynced: boolean): void {
    if (isSynced === this.#isSynced) return;
    // Takes effect outside a transaction only.
    this.db.exec(`PRAGMA synchronous = ${isSynced ? 'FULL' : 'NORMAL'}`);
    this.#isSynced = isSynced;
  }

  commit(): void {
    this.names.save();
    if (this.#isDurable && !this.#isSynced && this.names.hasChanges) this.#markUnsynced.run();
    this.#faults?.reach('commit');
    this.mayBeDurable = true;
    this.#commit.run();
    this.#faults?.reach('committed');
    this.names.committed();
    this.#reported = [];
  }

  /** Leaves the transaction, which SQLite itself may have rolled back already, and what it changed in memory. */
  rollback(): void {
    // A failure that leaves the store usable, such as a full disk, is one before the commit took effect.
    if (this.db.isTransaction) this.db.exec('ROLLBACK');
    this.names.reload();
    this.rows.refreshLeases(UNKNOWN);

    for (const [name, key] of this.#reported) this.#affected.set(name, key);
    this.#reported = [];
  }

  /** The callers of all that was committed have their replies. */
  replied(): void {
    this.mayBeDurable = false;
  }

  /** A queue gained eligible elements without a call that says so to its caller. */
  affected({ key }: Queue): void {
    this.#affected.set(nameOf(key), key);
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
   * failed fsync must end the engine (`faults.ts`), not be tried again.
   * @throws the error of a failed checkpoint
   */
  checkpoint(pages: number): void {
    this.#faults?.reach('checkpoint');
    const row = this.#logPages.get();
    // -1 if the database has no log, as one in memory.
    if (Number(row?.log) - Number(row?.checkpointed) > pages) this.#checkpoint.get();
  }
}
