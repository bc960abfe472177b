import type { Delivery, DeliveryState, ElementId, GroupName, NewElement } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { ReadySignal, Signaller } from './signaller.ts';

/**
 * The Storage port: where elements live.
 *
 * What every verb promises:
 * - **Batches.** A call takes and answers arrays, answers in the order of what was given. Calls may overlap
 *   freely; an engine gathers those made at the same time, for all queues, into one round trip.
 * - **Order of effect.** Calls about one queue, made through one engine object, take effect in the order in
 *   which they were made, awaited or not. So a `take` that is called right after an `insert` sees its
 *   elements, and a waiting consumer is served by the same round trip that stored its element.
 * - **Durable before answered.** A promise resolves after the change is as durable as the engine's mode says.
 * - **All or nothing per call.** Where a call is rejected, nothing of it happened, but for the error
 *   `outcome-unknown`, after which it happened or not; a call about several elements may be done in part where
 *   an engine's page says so. One caller's failure never touches another caller's call that travelled in the
 *   same round trip.
 * - **Time is the engine's**, one clock for all nodes that share it. Moments are ms since 1970.
 * - **Errors** are `QuaysideError`: `storage-unavailable` (not applied), `outcome-unknown`, `storage-full`
 *   (insert and transfer only). Driver errors stop at the engine's edge.
 * - **Unknown names.** A queue that was never written is empty. `insert` and `declare` make it known.
 * - **Groups are bounded.** `insert` and `transfer` are refused with `too-many-groups` where they would make more
 *   groups of one queue than its namespace's `maxGroups`. The default groups of the namespace always fit and are not
 *   counted; those of `putBack` fit, too. A group with no deliveries is forgotten when its place is wanted, at once or
 *   after a while, as the engine's page says. Nodes that make groups at one moment may make a few more.
 *
 * One data model serves plain and stream queues: an element has one *delivery* per group; see
 * `docs/lifecycle.md`. The policy of a namespace (dead letter, retention) was given when the engine was
 * opened; the verbs apply it.
 */
export interface Storage {
  /** What this engine can do; a front end refuses the rest with `not-supported` before it calls. */
  readonly capabilities: StorageCapabilities;
  /** Whether the engine itself undoes a take whose outcome nobody learned, so that its elements go back in place. */
  readonly undoesLostTakes: boolean;
  /**
   * Whether a transfer takes effect in the order of calls for the queues in which it inserts, too. If not, a call that
   * shall see what it inserts is made after it was answered.
   */
  readonly ordersTransfers: boolean;
  /** The signaller whose signals an insert takes along, so that other nodes hear sooner; null: none. */
  readonly carries: Signaller | null;

  /** Makes queues known, empty if new. Idempotent. */
  declare(queues: readonly QueueKey[]): Promise<void>;

  /** The names of the namespace's known queues, sorted. */
  queues(ns: string): Promise<string[]>;

  /**
   * Stores elements, all or none. Returns their ids. Order of hand-out among equal maturities is the order
   * of insertion: the array's within a call, the calls' between them. See `NewElement.dedupKey` for repeats.
   * @param signal only where `carries` is not null: published when they are stored, once for calls that share a
   *   round trip. After a call that failed it may have been published, too.
   * @param onRepeat called before the promise resolves, for each element that is not stored since its key was seen
   */
  insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    signal?: ReadySignal | null,
    onRepeat?: OnRepeat | null,
  ): Promise<ElementId[]>;

  /**
   * Hands out up to `count` eligible deliveries of a group, by maturity, then by insertion.
   * A pop (`lease` null) finishes them at once. A reserve leaves them reserved until the lease ends.
   * No delivery is ever handed to two takers.
   */
  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult>;

  /** Finishes reserved deliveries. An element goes when its last delivery is finished. */
  commit(queue: QueueKey, refs: readonly DeliveryRef[]): Promise<SettleOutcome[]>;

  /**
   * Gives reserved deliveries back, eligible after `delayMs`. Where `countTry` is true the delivery's tries
   * grow by one, and at the namespace's `maxTries` the element moves to its dead-letter queue in the same
   * atomic step. With `countTry` false (the consumer never saw it, or is not to blame) no try is counted, and
   * where `delayMs` is 0 as well it regains the maturity it had.
   */
  rollback(queue: QueueKey, items: readonly RollbackItem[]): Promise<SettleOutcome[]>;

  /** Moves the end of running leases to `leaseMs` from now. A lease that already ended answers `lease-lost`. */
  extend(queue: QueueKey, items: readonly ExtendItem[]): Promise<ExtendOutcome[]>;

  /**
   * Undoes pops whose consumer went away before it was answered: the same id, tries, maturity and place.
   * Only for deliveries that this process popped and nobody has seen. Counts in no statistic.
   */
  putBack(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void>;

  /** Removes waiting elements by id (all groups). A reserved one stays and answers `reserved`. */
  remove(queue: QueueKey, ids: readonly ElementId[]): Promise<RemoveOutcome[]>;

  /**
   * Finishes a reserved delivery and inserts elements elsewhere in the same engine, atomically per move:
   * where the settle outcome is not `done`, nothing of that move was inserted. Exchanges stand on it.
   */
  transfer(moves: readonly Move[]): Promise<SettleOutcome[]>;

  /**
   * Pages through a queue without touching it, in the order of hand-out within each state. The page is a
   * moment's picture; elements that move between two pages may be missed or seen twice.
   */
  browse(queue: QueueKey, options: BrowseOptions): Promise<BrowsePage>;

  /** Removes all elements of a queue, or those of the given states. Answers how many deliveries went. */
  purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<number>;

  /**
   * Counts a queue. Without `group`: elements, each once, as `ready` where any of its deliveries is, else
   * as `scheduled` where any is, else as `reserved`; with the groups' own counts beside them. With `group`:
   * that group's deliveries.
   */
  sizes(queue: QueueKey, group?: GroupName): Promise<QueueSizes>;

  /** What a namespace holds, without reading its elements; see {@link Usage}. Bytes may be left out if they are not needed. */
  usage(ns: string, needsBytes?: boolean): Promise<Usage>;

  /** The earliest maturity of a group's waiting deliveries, due or not; null where none waits. */
  nextDueAt(queue: QueueKey, group: GroupName): Promise<number | null>;

  /**
   * About what the engine's clock shows now, as far as this node knows, without asking; -Infinity while nothing is
   * known. With `queue`, that of the server which has it.
   */
  now(queue?: QueueKey): number;

  /**
   * Housekeeping for all queues of the engine: ends leases that ran out (each a failed try, dead letter
   * included), drops what retention caps, forgets old dedup keys. Bounded work per call. Answers which
   * queues gained eligible elements, and when calling again is worth while (null: no lease is running).
   * Safe to call from several nodes at once.
   */
  sweep(): Promise<SweepResult>;
}

/**
 * @param index of the element in the call
 * @param isSame whether the first element of its key had the same fingerprint, as far as both have one
 */
export type OnRepeat = (index: number, isSame: boolean) => void;

export interface StorageCapabilities {
  /** Elements may have a maturity in the future. */
  readonly sched: boolean;
  /** Reserve, commit, rollback, extend. */
  readonly reserve: boolean;
  /** `transfer`: an element can be moved or copied to other queues of the engine atomically. */
  readonly pipeline: boolean;
  /** Waiting elements can be removed by id. False on every stream queue, whatever the engine says here. */
  readonly remove: boolean;
}

export interface TakeOptions {
  readonly group: GroupName;
  /** At most this many, 1 to 1000. */
  readonly count: number;
  /** Reserve for this long; null: pop. */
  readonly leaseMs: number | null;
  /** The user to whom the reservations belong; not given: nobody. */
  readonly owner?: string | null;
}

export interface TakeResult {
  readonly deliveries: Delivery[];
  /**
   * Where fewer than `count` were handed out: the maturity of the group's next waiting delivery, null if
   * none waits. Where `count` was reached: null, not looked up.
   */
  readonly nextDueAt: number | null;
}

/**
 * Names a reserved delivery. Without `token` it names the current reservation: of `owner`, or one that belongs to nobody;
 * without `owner` as well, any.
 */
export interface DeliveryRef {
  readonly id: ElementId;
  readonly group: GroupName;
  readonly token: string | null;
  readonly owner?: string | null;
}

export interface RollbackItem extends DeliveryRef {
  readonly delayMs: number;
  readonly countTry: boolean;
}

export interface ExtendItem extends DeliveryRef {
  readonly leaseMs: number;
}

/**
 * How settling one delivery ended. All but `done` and `dead-lettered` changed nothing.
 * - `done`: as asked. A commit also answers it for a lease that ran out while nobody has reserved since.
 * - `dead-lettered` (rollback only): the try was the last one and the element moved to the dead-letter queue.
 * - `not-found`: no such element in this queue, or not for this group.
 * - `not-reserved`: it is there, but waiting.
 * - `lease-lost`: the token is of an older reservation, or (rollback, extend) of one that ran out.
 * - `token-required`: no token was given, and the reservation belongs to another user.
 */
export type SettleOutcome =
  | 'done'
  | 'dead-lettered'
  | 'not-found'
  | 'not-reserved'
  | 'lease-lost'
  | 'token-required';

export type ExtendOutcome =
  | { readonly outcome: 'done'; readonly until: number }
  | { readonly outcome: Exclude<SettleOutcome, 'done' | 'dead-lettered'> };

export type RemoveOutcome = 'done' | 'not-found' | 'reserved';

export interface Move {
  readonly from: QueueKey;
  readonly finish: DeliveryRef;
  readonly inserts: readonly { readonly queue: QueueKey; readonly element: NewElement }[];
}

export interface BrowseOptions {
  readonly group: GroupName;
  readonly state: DeliveryState;
  /** Where the last page ended; null for the first. Opaque. */
  readonly after: string | null;
  /** 1 to 1000. */
  readonly limit: number;
}

export interface BrowsePage {
  /** `lease` is shown without its token: the token is empty. */
  readonly deliveries: Delivery[];
  /** Null where this was the last page. */
  readonly next: string | null;
}

export interface GroupSizes {
  /** Eligible now. */
  readonly ready: number;
  /** Waiting for their maturity. */
  readonly scheduled: number;
  readonly reserved: number;
  /** The earliest maturity of what waits, due or not; null where none waits. */
  readonly nextMatureAt: number | null;
}

export interface QueueSizes extends GroupSizes {
  /** Per group with anything in it; empty for a plain queue and where `group` was given. */
  readonly groups: ReadonlyMap<GroupName, GroupSizes>;
}

export interface Usage {
  /** Waiting and reserved; in a stream an element counts once for each of its groups. */
  readonly elements: number;
  /**
   * What the namespace takes in its store, or, if the engine cannot tell them apart, all namespaces of the store together;
   * null if the engine does not know.
   */
  readonly bytes: number | null;
}

export interface SweepResult {
  readonly touched: readonly QueueKey[];
  readonly nextAt: number | null;
}
