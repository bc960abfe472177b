import type { Delivery, DeliveryState, ElementId, GroupName, NewElement } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { Holder, Tids } from '../model/owner.ts';
import type { ReadySignal, Signaller } from './signaller.ts';

/**
 * The Storage port: where elements live.
 *
 * What every operation promises:
 * - **Batches.** A call takes and returns arrays, results in the order of what was given. Calls may overlap
 *   freely; an engine gathers concurrent calls, for all queues, into one transaction or round trip.
 * - **Order of effect.** Calls about one queue, made through one engine object, take effect in the order in
 *   which they were made, awaited or not. So a `take` that is called right after an `insert` sees its
 *   elements, and a waiting consumer is served by the same batch that stored its element.
 * - **Durable before acknowledged.** A promise resolves after the change is as durable as the engine's mode
 *   promises (`docs/engines/README.md`).
 * - **All or nothing per call.** A rejected call had no effect, except with the error `outcome-unknown`, after which it
 *   was applied or not. A `settle` with several items may be applied in part, or in steps between which other calls
 *   take effect, if an engine's page says so. One caller's failure never affects another caller's call in the same
 *   batch.
 * - **Deadline.** Every call settles within 5 s, or in the {@link TimeLeft} that it is given, whatever the state of any
 *   batch.
 * - **Time is the engine's**, one clock for all nodes that share it. Moments are ms since 1970. `matureAt` and
 *   `expiresAt` of new elements are as clients give them, see `aheadMs`.
 * - **Errors** are `QuaysideError`: `storage-unavailable` (not applied), `outcome-unknown`, `storage-full`
 *   (insert, and settle with inserts or a move). Driver errors stop at the engine's edge.
 * - **Unknown names.** A queue that was never written is empty, and reading leaves no trace of it. `insert`, `declare`
 *   and whatever stores an element create it.
 * - **Groups are bounded.** `insert` and `settle` with inserts are rejected with `too-many-groups` if they would create
 *   more groups of one queue than its namespace's `maxGroups`. The default groups of the namespace always fit and are
 *   not counted; those of `undoTake` fit, too. Empty groups are evicted when a queue reaches its limit, at once or
 *   after a while, as the engine's page says. Nodes that create groups at one moment may exceed it by a few.
 * - **Expiry.** An element is not delivered at or after its `expiresAt`. It goes to the dead-letter queue with the
 *   reason {@link EXPIRED} if its queue has one, otherwise it is removed; until a take or a sweep does so it may be
 *   counted. A dead letter does not expire.
 *   A reservation that was made before may still be settled.
 *
 * One data model serves plain and stream queues: an element has one *delivery* per group; see `docs/concepts.md`. The
 * policy of a namespace (dead letter, retention, retry delay), and of queues by their names, is given when the engine
 * is opened, that of a queue by `declare`; the operations apply it.
 */
export interface Storage {
  /** What this engine can do; a front end rejects the rest with `not-supported` before it calls. */
  readonly capabilities: StorageCapabilities;
  /** Whether the engine itself undoes a take whose outcome is unknown, so that its elements return to their place. */
  readonly undoesLostTakes: boolean;
  /**
   * Whether the inserts and moves of a settle take effect in the order of calls for their target queues, too. If not,
   * a call that must see them is made after the settle resolved.
   */
  readonly ordersTransfers: boolean;
  /** The signaller whose signals an insert publishes in its own round trip; null: none. */
  readonly insertSignaller: Signaller | null;

  /**
   * Creates queues, empty if new. Idempotent.
   * @param options stored with each queue in place of what was stored; not given: what is stored stays; null: nothing
   *   is stored any more. A queue that has options, be they empty, is not forgotten.
   */
  declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void>;

  /** The names of the namespace's queues, sorted. */
  queues(ns: string): Promise<string[]>;

  /**
   * Stores elements, all or none. Returns their ids. Delivery order among equal maturities is the order of insertion:
   * the array's within a call, the calls' between them. See `NewElement.dedupKey` for repeats. If the key of an element
   * was seen with other content, in this call or before, none of the call is stored, and there are no ids.
   */
  insert(queue: QueueKey, elements: readonly NewElement[], options?: InsertOptions): Promise<ElementId[]>;

  /**
   * Takes up to `count` eligible deliveries of a group, by maturity, then by insertion; with `ids`, those of them that
   * are eligible. A pop (`leaseMs` null) finishes them at once. A reserve leaves them reserved until the lease ends.
   * No delivery is ever given to two takers.
   */
  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult>;

  /**
   * Applies one action to each delivery, if it is in the state that the item names; see {@link SettleAction}. Each item
   * is atomic with its inserts or its move: unless its outcome is `done` or `dead-lettered`, nothing of it happened.
   * Items may name several queues of the engine.
   */
  settle(items: readonly SettleItem[], time?: TimeLeft): Promise<SettleResult[]>;

  /**
   * Undoes pops whose consumer disconnected before it was answered: the same id, tries, maturity and place.
   * Only for deliveries that this process popped and nobody has seen. Counts in no statistic.
   */
  undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void>;

  /**
   * Pages through a queue without changing it, in delivery order within each state; states in the order of
   * `DELIVERY_STATES`. A page is a moment's picture: elements that change state between two pages may be missed or seen
   * twice.
   */
  scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage>;

  /**
   * Removes deliveries of all groups, those of the given states or all: one bounded step. The caller repeats it until
   * `isDone`. What is stored between two steps may be removed by a later one.
   */
  purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep>;

  /**
   * Forgets a queue that holds nothing, with its options, dedup keys and statistics, as if it had never been. Returns
   * false, and changes nothing, if it holds a delivery. What is stored at the same moment is found, or creates the
   * queue again; only a pop whose reply was lost just then cannot be undone any more.
   */
  drop(queue: QueueKey): Promise<boolean>;

  /**
   * Counts a queue. Without `group`: elements, each once, as `ready` if any of its deliveries is, else
   * as `scheduled` if any is, else as `reserved`; with each group's own counts in `groups`. With `group`:
   * that group's deliveries.
   */
  counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts>;

  /**
   * What a namespace holds, without reading its elements; see {@link Usage}. Bytes may be left out if they are not
   * needed.
   */
  usage(ns: string, needsBytes?: boolean): Promise<Usage>;

  /**
   * Housekeeping for all queues of the engine: expires leases that ran out (each a failed try with the reason
   * {@link LEASE_EXPIRED}, dead letter and retry delay included, the delay from the lease's end) and elements, applies
   * retention, forgets old dedup keys and unused queues. Bounded work per call. Returns which queues gained eligible
   * elements by a step of the engine's own since the last sweep of this engine object, such as the dead-letter queues
   * of settles, and when to call again (null: nothing is due). What it sends to a queue on another server of a cluster
   * may arrive later, so that one which cannot be reached delays no other; a later sweep then names that queue. Safe to
   * call from several nodes at once.
   */
  sweep(): Promise<SweepResult>;

  /**
   * About what the engine's clock shows now, as far as this node knows, without asking; -Infinity while nothing is
   * known. With `queue`, that of the server which has it.
   */
  now(queue?: QueueKey): number;

  /**
   * By how much the engine's clock is ahead of the one by which moments of new elements are given, ms: 0 unless the
   * engine's time continued when its clock was set back.
   */
  readonly aheadMs: number;
}

/** The reason of a failed try whose lease ran out. */
export const LEASE_EXPIRED = 'lease-expired';
/** The reason of a dead letter that reached its `expiresAt`. */
export const EXPIRED = 'expired';
/** A reason is cut to this many bytes of UTF-8, at a character. */
export const MAX_REASON_BYTES = 1024;

/** What is left of the time of a call that has waited for something else before, ms; not given: all of it. */
export interface TimeLeft {
  readonly leftMs?: number | undefined;
}

export interface InsertOptions extends TimeLeft {
  /**
   * Only if `insertSignaller` is not null: published when the elements are stored, once for calls that share a
   * round trip. After a call that failed it may have been published, too.
   */
  readonly signal?: ReadySignal | null;
  /**
   * Called before the promise resolves, for each element that is not stored since its key was seen; if one came with
   * other content, at least for the first of these.
   */
  readonly onRepeat?: OnRepeat | null;
  /** A key of the whole call, in place of keys of its elements. */
  readonly request?: RequestKey | null;
}

/**
 * A call whose key the queue has seen, within the window in which it remembers keys of elements, stores nothing and
 * returns the ids of the first one: all its elements are repeats. If the first one had another fingerprint, there are
 * no ids, and at least the element 0 is reported. A call without elements only looks: it does not store its key, and
 * reports the element 0 if the key was seen.
 */
export interface RequestKey {
  /** Differs from the keys of all elements. */
  readonly key: string;
  /** Of all elements, with their number and order: `RequestFingerprint`. */
  readonly fingerprint: string;
}

/**
 * @param index of the element in the call
 * @param isSame whether the first element of its key had the same fingerprint, as far as both have one
 */
export type OnRepeat = (index: number, isSame: boolean) => void;

export interface StorageCapabilities {
  /** Elements may have a maturity in the future. */
  readonly sched: boolean;
  /** Reserve; settle from `reserved`. */
  readonly reserve: boolean;
  /** `settle` with inserts, and `move`: an element can be moved or copied to other queues of the engine atomically. */
  readonly pipeline: boolean;
  /** Waiting elements can be settled by id. False on every stream queue, whatever the engine says here. */
  readonly remove: boolean;
  /** Elements may have an `expiresAt`, and failed tries a reason. */
  readonly expiry: boolean;
}

export const ALL_CAPABILITIES: StorageCapabilities = Object.freeze({
  sched: true,
  reserve: true,
  pipeline: true,
  remove: true,
  expiry: true,
});

/** The policy of one queue; a field that is not given is that of the rule that matches its name, or the namespace's. */
export interface QueueOptions {
  /** Null: failed elements stay. */
  readonly deadLetter?: DeadLetterPolicy | null;
  /** Null: elements stay until their last group has finished them. */
  readonly retentionMs?: number | null;
  /** Null: they wait no longer than who released them says. */
  readonly retryDelay?: RetryDelay | null;
}

/**
 * How long an element waits after a failed try that names no delay: `firstMs` after the first one, after each further
 * one `factor` times as long, `maxMs` at most. See `retryDelayMs` in `queue-policy.ts`.
 */
export interface RetryDelay {
  /** Above 0. */
  readonly firstMs: number;
  /** From 1. */
  readonly factor: number;
  readonly maxMs: number;
  /** By how much of itself a delay is shortened at most, 0 to 1. */
  readonly jitter: number;
}

/** Where elements go at the failed try that reaches `maxTries`. */
export interface DeadLetterPolicy {
  readonly maxTries: number;
  /** The name of a queue of the same namespace. */
  readonly queue: string;
}

export interface TakeOptions extends TimeLeft {
  readonly group: GroupName;
  /** At most this many, 1 to 1000. */
  readonly count: number;
  /** Only these, at most 1000. Those that are not eligible are left out. */
  readonly ids?: readonly ElementId[];
  /** Reserve for this long; null: pop. */
  readonly leaseMs: number | null;
  /** The user to whom the reservations belong; not given: nobody. */
  readonly owner?: string | null;
  /** The tids of the consumers that the reservations are for; not given: none. See `ScannedDelivery.holder`. */
  readonly tids?: Tids;
  /**
   * No element beyond the first is taken with which the bodies would come to more, 1 to `LIMITS.takeBytes`; an engine
   * may count headers as well. Not given: an engine stops at about `LIMITS.takeBytes`, which takes that share a round
   * trip may share.
   */
  readonly maxBytes?: number;
}

export interface TakeResult {
  readonly deliveries: Delivery[];
  /**
   * If fewer than `count` were taken: the maturity of the group's next waiting delivery, null if
   * none waits. If `count` was reached, or `ids` given: null, not looked up.
   */
  readonly nextDueAt: number | null;
  /**
   * Whether `maxBytes` ended it: another element is eligible, and would not have fit. Then `nextDueAt` is any moment
   * that has passed.
   */
  readonly isCut?: boolean;
  /**
   * Whether it ended early for anything else, such as takes that share its round trip and left it no room, or elements
   * that expired: another element may be eligible, and the taker asks again at once.
   */
  readonly isLeft?: boolean;
}

/**
 * A receipt: names a reserved delivery. Without `token` it names the current reservation: of `owner`, or one that
 * belongs to nobody; without `owner` as well, any.
 */
export interface DeliveryRef {
  readonly id: ElementId;
  readonly group: GroupName;
  readonly token: string | null;
  readonly owner?: string | null;
}

/** A delivery, the state in which it must be, and what becomes of it. */
export interface SettleItem {
  readonly queue: QueueKey;
  readonly id: ElementId;
  /** Null: all groups of the element, which must all be waiting; only with `from: 'waiting'` and `finish`. */
  readonly group: GroupName | null;
  /** `waiting`: ready or scheduled. */
  readonly from: 'reserved' | 'waiting';
  /** As in {@link DeliveryRef}; null with `from: 'waiting'`. */
  readonly token: string | null;
  readonly owner?: string | null;
  readonly action: SettleAction;
}

export type SettleAction = FinishAction | ReleaseAction | ExtendAction | DeadLetterAction | MoveAction;

/**
 * The delivery is finished: a commit from `reserved`, a removal from `waiting`, and with inserts an exchange's
 * transfer. An element goes when its last delivery is finished. A commit also succeeds if the lease ran out and nobody
 * has reserved since.
 */
export interface FinishAction {
  readonly kind: 'finish';
  /** Stored in the same atomic step, in queues of the same engine. */
  readonly inserts?: readonly { readonly queue: QueueKey; readonly element: NewElement }[];
}

/**
 * The delivery waits (again), eligible after `delayMs`, or at `dueAt` if that is given. If `countTry` is true its tries
 * grow by one, and at the queue's `maxTries` the element moves to its dead-letter queue in the same atomic step. With
 * `countTry` false (the consumer never saw it, or is not to blame) no try is counted; from `reserved`, with neither a
 * delay nor `dueAt`, it regains the maturity it had.
 */
export interface ReleaseAction {
  readonly kind: 'release';
  readonly delayMs: number;
  /** Nobody asked for this delay: if a try is counted, the queue's retry delay takes its place, if there is one. */
  readonly isDefaultDelay?: boolean;
  readonly dueAt?: number | null;
  readonly countTry: boolean;
  /** Kept with the delivery in place of an earlier one if a try is counted: see `ScannedDelivery.reason`. */
  readonly reason?: string | null;
}

/** The lease of a reservation ends `leaseMs` from now. One that already ended is `lease-lost`. */
interface ExtendAction {
  readonly kind: 'extend';
  readonly leaseMs: number;
}

/**
 * Moves the element to its queue's dead-letter queue now, whatever its tries; the outcome is `dead-lettered`. If the
 * queue has none, or is it itself, the element is released without delay: nothing is lost because a policy changed.
 */
interface DeadLetterAction {
  readonly kind: 'dead-letter';
  /** Whether this was a failed try, for `x-dl-tries`, or for the tries of an element that has nowhere to go. */
  readonly countTry: boolean;
  readonly reason: string | null;
}

/**
 * Finishes the delivery and stores a copy of its element elsewhere in the engine, in one atomic step. The copy has a
 * new id and the content, maturity and expiry of the element.
 */
export interface MoveAction {
  readonly kind: 'move';
  readonly to: QueueKey;
  /** Of the copy. */
  readonly groups: readonly GroupName[];
  /** Of the copy; null: the delivery's. */
  readonly tries: number | null;
  /** Flat: name, value, … that replace the element's own; the value null removes. */
  readonly headers: readonly (string | null)[];
}

/**
 * How settling one delivery ended. All but `done` and `dead-lettered` changed nothing.
 * - `done`: as requested.
 * - `dead-lettered`: the element moved to the dead-letter queue.
 * - `not-found`: no such element in this queue, or not for this group.
 * - `not-reserved` (from `reserved`, or for `extend`): it is there, but waiting.
 * - `reserved` (from `waiting`): it is there, but reserved.
 * - `lease-lost`: the token is of an older reservation, or (all but `finish`) of one that ran out.
 * - `token-required`: no token was given, and the reservation belongs to another user.
 */
export type SettleOutcome =
  | 'done'
  | 'dead-lettered'
  | 'not-found'
  | 'not-reserved'
  | 'reserved'
  | 'lease-lost'
  | 'token-required';

export interface SettleResult {
  readonly outcome: SettleOutcome;
  /** When an extended lease ends; null with all else. */
  readonly until: number | null;
}

/** One result for each outcome without a moment, so that settling allocates none. */
export const SETTLED: Readonly<Record<SettleOutcome, SettleResult>> = {
  done: Object.freeze({ outcome: 'done', until: null }),
  'dead-lettered': Object.freeze({ outcome: 'dead-lettered', until: null }),
  'not-found': Object.freeze({ outcome: 'not-found', until: null }),
  'not-reserved': Object.freeze({ outcome: 'not-reserved', until: null }),
  reserved: Object.freeze({ outcome: 'reserved', until: null }),
  'lease-lost': Object.freeze({ outcome: 'lease-lost', until: null }),
  'token-required': Object.freeze({ outcome: 'token-required', until: null }),
};

export interface ScanOptions extends TimeLeft {
  readonly group: GroupName;
  readonly states: readonly DeliveryState[];
  /** Only these, at most 1000, in place of a cursor. */
  readonly ids?: readonly ElementId[];
  /** The cursor at which the last page ended; null for the first. Opaque. */
  readonly after: string | null;
  /** 1 to 1000. */
  readonly limit: number;
  /** If false, bodies are not read and are empty. */
  readonly bodies: boolean;
}

export interface ScanPage {
  readonly deliveries: ScannedDelivery[];
  /** Null if this was the last page. */
  readonly next: string | null;
}

/** A delivery as a scan shows it. `lease` has no token: the token is empty. */
export interface ScannedDelivery extends Delivery {
  readonly state: DeliveryState;
  readonly insertedAt: number;
  readonly expiresAt: number | null;
  /** Of the last failed try; in a dead letter, why it died; null: none is known. */
  readonly reason: string | null;
  /** The length of the body. */
  readonly bytes: number;
  /**
   * Who holds the reservation, and since when, ms since 1970; null if it is not reserved. Extending changes nothing.
   */
  readonly holder: (Holder & { readonly since: number }) | null;
  /** For `ScanOptions.after`: a page that begins behind this delivery. Null if it was asked for by id. */
  readonly cursor: string | null;
}

export interface PurgeStep {
  /** Deliveries that went. */
  readonly removed: number;
  readonly isDone: boolean;
}

export interface GroupCounts {
  /** Eligible now. */
  readonly ready: number;
  /** Waiting for their maturity. */
  readonly scheduled: number;
  readonly reserved: number;
  /** The earliest maturity of what waits, due or not; null if nothing waits. */
  readonly nextMatureAt: number | null;
}

/** Those of a group with nothing in it. */
export const NO_COUNTS: GroupCounts = Object.freeze({
  ready: 0,
  scheduled: 0,
  reserved: 0,
  nextMatureAt: null,
});

export interface QueueCounts extends GroupCounts {
  /** Per group with anything in it; empty for a plain queue and if `group` was given. */
  readonly groups: ReadonlyMap<GroupName, GroupCounts>;
}

export interface Usage {
  /** Waiting and reserved; in a stream an element counts once for each of its groups. */
  readonly elements: number;
  /**
   * What the namespace takes in its store, or, if the engine cannot tell them apart, all namespaces of the store
   * together; null if the engine does not know.
   */
  readonly bytes: number | null;
}

export interface SweepResult {
  /** Queues that gained eligible elements. */
  readonly affected: readonly QueueKey[];
  readonly nextAt: number | null;
}
