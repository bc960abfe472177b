import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import { LeaseTokens } from '../../../model/lease-token.ts';
import type { Faults } from '../fault-point.ts';
import type { Durability } from '../settings.ts';
import { Backup } from './backup.ts';
import { LaneCounts } from './counts.ts';
import { Dedup } from './dedup.ts';
import { Definitions } from './definitions.ts';
import { Deliveries } from './deliveries.ts';
import { Elements } from './elements.ts';
import { FreePages } from './free-pages.ts';
import { Garbage } from './garbage.ts';
import { Ids } from './ids.ts';
import { Leases } from './leases.ts';
import { WriteAheadLog } from './log.ts';
import { Meta } from './meta.ts';
import { Names, type Queue } from './names.ts';
import { Retention } from './retention.ts';
import { SharedElements } from './shared.ts';
import type { Space } from './space.ts';
import { Stats } from './stats.ts';
import { Undo } from './undo.ts';
import { Unused } from './unused.ts';
import { Pages } from './verbs/browse.ts';

export interface StoreOptions {
  readonly policies: readonly NamespacePolicy[];
  readonly durability: Durability;
  readonly dedupWindowMs: number;
  readonly minFreeBytes: number;
  /** Null for a store in memory. */
  readonly space: Space | null;
  /** For tests; null in a server. */
  readonly faults: Faults | null;
  /** Says something to the operator, on the main side's log. */
  readonly warn: (fields: object, message: string) => void;
}

/**
 * The open file with everything that the verbs need: tables behind small classes, and what memory knows
 * about them. One transaction at a time; `now` is the moment of the batch that runs.
 */
export class Store {
  readonly db: DatabaseSync;
  readonly undo = new Undo();
  readonly meta: Meta;
  readonly ids: Ids;
  readonly tokens = new LeaseTokens();
  readonly names: Names;
  readonly counts: LaneCounts;
  readonly leases: Leases;
  readonly elements: Elements;
  readonly deliveries: Deliveries;
  readonly dedup: Dedup;
  readonly definitions: Definitions;
  readonly stats: Stats;
  readonly shared: SharedElements;
  readonly pages: Pages;
  readonly retention: Retention;
  readonly garbage: Garbage;
  readonly unused: Unused;
  readonly freePages: FreePages;
  readonly space: Space | null;
  readonly backup: Backup;
  readonly warn: StoreOptions['warn'];
  /** Queues that gained eligible elements by lease ends since the last `sweep` answered. */
  readonly touched = new Set<Queue>();
  now = 0;
  /** Whether something that was not answered yet may be durable: after a failure nobody knows whether it is. */
  mayBeDurable = false;
  readonly #log: WriteAheadLog;
  readonly #faults: Faults | null;
  readonly #begin: StatementSync;
  readonly #commit: StatementSync;

  constructor(db: DatabaseSync, options: StoreOptions) {
    this.db = db;
    this.warn = options.warn;
    this.#faults = options.faults;
    this.meta = new Meta(db, options.durability);
    const epoch = this.meta.nextEpoch();
    this.ids = new Ids(this.meta.tags(), epoch);
    this.names = new Names(db, options.policies, this.undo);
    this.counts = new LaneCounts(db, this.undo);
    this.leases = new Leases(db, this.names, this.undo);
    this.elements = new Elements(db);
    this.deliveries = new Deliveries(db, this.counts, this.leases);
    this.dedup = new Dedup(db, options.dedupWindowMs);
    this.definitions = new Definitions(db);
    this.stats = new Stats(db);
    this.shared = new SharedElements(db);
    this.pages = new Pages(db);
    this.retention = new Retention(db, this.names, options.policies, this.undo);
    this.garbage = new Garbage(db, this.elements);
    this.unused = new Unused(db);
    this.freePages = new FreePages(db);
    this.space = options.space;
    this.backup = new Backup(db, options.minFreeBytes);
    this.#log = new WriteAheadLog(db);
    this.#begin = db.prepare('BEGIN IMMEDIATE');
    this.#commit = db.prepare('COMMIT');
  }

  begin(): void {
    if (this.ids.nearlySpent) this.ids.beginEpoch(this.meta.nextEpoch());
    this.#faults?.reach('begin');
    this.#begin.run();
  }

  commit(): void {
    this.counts.save();
    this.#faults?.reach('commit');
    this.mayBeDurable = true;
    this.#commit.run();
    this.#faults?.reach('committed');
    this.undo.committed();
  }

  /** The callers of all that was committed have their answers. */
  answered(): void {
    this.mayBeDurable = false;
  }

  /**
   * Moves the log into the file once it holds more than `pages` pages.
   * @throws the error of a failed checkpoint
   */
  checkpoint(pages: number): void {
    this.#faults?.reach('checkpoint');
    this.#log.checkpoint(pages);
  }

  /** Leaves the transaction, which SQLite itself may have rolled back already. */
  rollback(): void {
    // A failure that leaves the store usable, such as a full disk, is one before the commit took effect.
    if (this.db.isTransaction) this.db.exec('ROLLBACK');
    this.counts.discard();
    this.undo.rolledBack();
  }
}
