import type {
  Delivery,
  DeliveryState,
  ElementHead,
  ElementId,
  GroupName,
  NewElement,
} from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { Holder, Tids } from '../model/owner.ts';
import type { ReadySignal, Signaller } from './signaller.ts';

/**
 * The Storage port: stores elements.
 *
 * What every operation promises:
 * - **Batches.** A call takes and returns arrays; results have the order of the arguments. Calls may overlap freely; an
 *   engine gathers concurrent calls, for all queues, into one transaction or round trip.
 * - **Order of effect.** Calls about one queue, made through one engine object, take effect in the order in which they
 *   were made, awaited or not. So a `take` that is called right after an `insert` sees its elements, and a waiting
 *   consumer is served by the same batch that stored its element.
 * - **Durable before acknowledged.** A promise resolves after the change is as durable as the engine's mode promises
 *   (`docs/engines/README.md`).
 * - **All or nothing per call.** A rejected call had no effect, unless its error is `outcome-unknown`: then it may or
 *   may not have been applied. If the engine's page says so, a `settle` of several items may be applied in part, or in
 *   steps between which other calls take effect. One caller's failure never affects another caller's call in the same
 *   batch.
 * - **Deadline.** Every call settles within 5 s, or within the {@link TimeLeft} that it is given, whatever the state of
 *   any batch.
 * - **Time is the engine's**, one clock for all nodes that share it. Moments are ms since 1970. `matureAt` and
 *   `expiresAt` of new elements are as clients give them, see `aheadMs`.
 * - **Errors** are `QuaysideError`: `storage-unavailable` (not applied), `outcome-unknown`, `storage-full` (insert, and
 *   settle with inserts or a move). Engines never let errors of their drivers through.
 * - **Unknown names.** A queue that was never written is empty, and reading does not create it. `insert`, `declare` and
 *   every other call that stores an element do.
 * - **Groups are bounded.** `insert` and `settle` with inserts are rejected with `too-many-groups` if they would create
 *   more groups of one queue than its namespace's `maxGroups`. The namespace's default groups always fit and are not
 *   counted; the groups of `undoTake` always fit. Empty groups are evicted when a queue reaches its limit, immediately
 *   or later, as the engine's page says. Nodes that create groups at the same moment may exceed the limit by a few.
 * - **Expiry.** An element is not delivered at or after its `expiresAt`. A take or a sweep moves it to the queue's
 *   dead-letter queue with the reason {@link EXPIRED}, or removes it if there is none; until then it may be counted. A
 *   reservation made before the expiry may still be settled. Dead letters do not expire.
 *
 * One data model serves plain and stream queues: an element has one *delivery* per group; see `docs/concepts.md`. The
 * engine gets the policies of namespaces (dead letter, retention, retry delay), and those of queues by name patterns,
 * when it is opened, and the policy of a single queue by `declare`. The operations apply them.
 */
export interface Storage {
  /** What this engine supports. Front ends reject everything else with `not-supported` before they call. */
  readonly capabilities: StorageCapabilities;
  /** Whether the engine itself undoes a take that failed with `outcome-unknown`, so that its elements are not lost. */
  readonly undoesLostTakes: boolean;
  /**
   * Whether the inserts and moves of a settle also take effect in the order of calls for their target queues. If not, a
   * call that must see them has to wait until the settle has resolved.
   */
  readonly ordersTransfers: boolean;
  /** The signaller whose signals `insert` can publish in its own round trip; null: there is none. */
  readonly insertSignaller: Signaller | null;

  /**
   * Creates the queues that do not exist. Idempotent.
   * @param options replace the stored options of each queue; undefined: leaves the stored options; null: deletes them.
   *   A queue with options, even empty ones, is never forgotten as unused.
   */
  declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void>;

  /** The names of the namespace's queues, sorted. */
  queues(ns: string): Promise<string[]>;

  /**
   * Stores all elements or none, and returns their ids. Elements of equal maturity are delivered in the order of
   * insertion: array order within a call, call order between calls. See `NewElement.dedupKey` for repeats. If a key was
   * seen with other content, in this call or an earlier one, nothing of the call is stored, and no ids are returned.
   */
  insert(queue: QueueKey, elements: readonly NewElement[], options?: InsertOptions): Promise<ElementId[]>;

  /**
   * Takes up to `count` eligible deliveries of a group, ordered by maturity, then by insertion. A pop (`leaseMs` null)
   * finishes them immediately. A reserve leaves them reserved until the lease ends. No delivery is ever given to two
   * takers.
   */
  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult>;

  /**
   * Applies one action to each delivery that is in the state which its item requires; see {@link SettleAction}. An item
   * and its inserts or its move are one atomic step: unless the outcome is `done` or `dead-lettered`, nothing of it
   * happened. Items may name several queues of the engine: those of one queue take effect in their order, and what they
   * move or insert arrives in it; between items of two queues no order is promised.
   */
  settle(items: readonly SettleItem[], time?: TimeLeft): Promise<SettleResult[]>;

  /**
   * Undoes pops whose consumer disconnected before it got the response: the deliveries return with the same id, tries,
   * maturity and place. Only for deliveries that this process popped and no client has seen. No statistic counts it.
   */
  undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void>;

  /**
   * Pages through a queue without changing it: states in the order of `DELIVERY_STATES`, deliveries of each state in
   * delivery order. Each page is a snapshot: elements that change state between two pages may be missed or returned
   * twice.
   */
  scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage>;

  /**
   * Removes deliveries of all groups, in the given states or in any, in one bounded step. Callers repeat it until
   * `isDone`. Later steps may remove elements that were stored between steps.
   */
  purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep>;

  /**
   * Deletes an empty queue with its options, dedup keys and statistics. Returns false, and changes nothing, if the
   * queue holds a delivery. An element stored at the same moment either makes this return false or creates the queue
   * again; only a pop whose reply was lost at that moment can no longer be undone.
   */
  drop(queue: QueueKey): Promise<boolean>;

  /**
   * Counts the contents of a queue. Without `group`: elements, each once, as `ready` if any of its deliveries is, else
   * as `scheduled` if any is, else as `reserved`; `groups` has the counts of each group. With `group`: the deliveries
   * of that group. Without `group`, the counts may include calls that were made while they were read.
   */
  counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts>;

  /**
   * Returns how much a namespace holds, without reading its elements; see {@link Usage}.
   * @param needsBytes false: `bytes` may be null, which saves measuring it
   */
  usage(ns: string, needsBytes?: boolean): Promise<Usage>;

  /**
   * Housekeeping for all queues of the engine: expires leases that ran out (each a failed try with the reason {@link
   * LEASE_EXPIRED}, including dead letter and retry delay, which starts at the end of the lease) and elements, applies
   * retention, and forgets old dedup keys and unused queues. The work of one call is bounded. Returns when to call
   * again (null: nothing is due). Elements sent to a queue on another server of a cluster may arrive later, so that an
   * unreachable server delays no other. Safe to call from several nodes concurrently.
   */
  sweep(): Promise<number | null>;

  /**
   * Returns the queues that gained eligible elements through the steps of this engine object since they were last
   * returned, without those that were dropped since: queues whose leases a sweep ended, even if a later step of it
   * failed, and the dead-letter queues of sweeps and settles.
   */
  takeAffected(): QueueKey[];

  /**
   * This node's estimate of the engine's clock, ms since 1970, without a round trip; -Infinity until the clock is
   * known.
   * @param queue estimates the clock of the server that has this queue
   */
  now(queue?: QueueKey): number;

  /**
   * How far the engine's clock is ahead of the clock by which clients give the moments of new elements, ms: 0 unless
   * the engine's time continued when the machine's clock was set back.
   */
  readonly aheadMs: number;
}

/** The reason of a failed try whose lease ran out. */
export const LEASE_EXPIRED = 'lease-expired';
/** The reason of a dead letter that reached its `expiresAt`. */
export const EXPIRED = 'expired';
/** Reasons are truncated to this many bytes of UTF-8, at a character boundary. */
export const MAX_REASON_BYTES = 1024;

/** The time that a call has left after an earlier wait, ms; not given: its full time. */
export interface TimeLeft {
  readonly leftMs?: number | undefined;
}

export interface InsertOptions extends TimeLeft {
  /**
   * Published when the elements are stored, once for all calls that share a round trip; only if `insertSignaller` is
   * not null. It may be published even if the call fails.
   */
  readonly signal?: ReadySignal | null;
  /**
   * Called before the promise resolves for each element that is not stored because its key was seen. If content
   * differs, it is called at least for the first element with other content.
   */
  readonly onRepeat?: OnRepeat | null;
  /** A key for the whole call, instead of keys for its elements. */
  readonly request?: RequestKey | null;
}

/**
 * A key that makes a whole call idempotent. If the queue has seen the key within the window for which it remembers
 * keys, the call stores nothing and returns the ids of the first call: all its elements are repeats. If the first call
 * had another fingerprint, no ids are returned, and at least element 0 is reported. A call without elements is a
 * lookup: it does not store its key, and reports element 0 if the key was seen.
 */
export interface RequestKey {
  /** Differs from the keys of all elements. */
  readonly key: string;
  /** Covers all elements, their count and their order: `RequestFingerprint`. */
  readonly fingerprint: string;
}

/**
 * @param index of the element in the call
 * @param isSame whether the first element with this key had the same fingerprint; true if either has none
 */
export type OnRepeat = (index: number, isSame: boolean) => void;

export interface StorageCapabilities {
  /** Elements may have a maturity in the future. */
  readonly sched: boolean;
  /** Reserve; settle from `reserved`. */
  readonly reserve: boolean;
  /** `settle` with inserts, and `move`: an element can be moved or copied to other queues of the engine atomically. */
  readonly pipeline: boolean;
  /** Waiting elements can be settled by id. Stream queues never support it, even if the engine does. */
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

/** The policy of one queue. Missing fields are those of the rule that matches its name, or else of its namespace. */
export interface QueueOptions {
  /** Null: failed elements stay. */
  readonly deadLetter?: DeadLetterPolicy | null;
  /** Null: elements stay until their last group has finished them. */
  readonly retentionMs?: number | null;
  /** Null: they wait only as long as the release says. */
  readonly retryDelay?: RetryDelay | null;
}

/**
 * How long an element waits after a failed try without a requested delay: `firstMs` after the first try, then `factor`
 * times as long after each further one, `maxMs` at most. See `retryDelayMs` in `queue-policy.ts`.
 */
export interface RetryDelay {
  /** Greater than 0. */
  readonly firstMs: number;
  /** At least 1. */
  readonly factor: number;
  readonly maxMs: number;
  /** The largest fraction by which a delay is shortened, 0 to 1. */
  readonly jitter: number;
}

/** Where an element moves when a failed try brings its tries to `maxTries`. */
export interface DeadLetterPolicy {
  readonly maxTries: number;
  /** The name of a queue of the same namespace. */
  readonly queue: string;
}

export interface TakeOptions extends TimeLeft {
  readonly group: GroupName;
  /** How many deliveries to take at most, 1 to 1000. */
  readonly count: number;
  /** Reserve for this long; null: pop. */
  readonly leaseMs: number | null;
  /** The user who owns the reservations; null or not given: they have no owner. */
  readonly owner?: string | null;
  /** The tids of the consumers that receive the deliveries; not given: none. See `ScannedDelivery.holder`. */
  readonly tids?: Tids;
  /**
   * Whether the reservations mean nothing after this process, so that an engine without other nodes may forget them
   * when it ends: the elements are then ready, without a failed try. Defaults to false.
   */
  readonly isTransient?: boolean;
  /**
   * Bound for the total size of the bodies, 1 to `LIMITS.takeBytes`; the first element is taken whatever its size. An
   * engine may count headers as well. Not given: an engine stops at about `LIMITS.takeBytes`, which takes of the same
   * round trip may have to share.
   */
  readonly maxBytes?: number;
}

export interface TakeResult {
  readonly deliveries: Delivery[];
  /**
   * If fewer than `count` were taken: the maturity of the group's next waiting delivery, or null if none waits. Null
   * without a lookup if `count` was reached.
   */
  readonly nextDueAt: number | null;
  /**
   * Whether `maxBytes` ended the take: another element is eligible but did not fit. `nextDueAt` is then some past
   * moment.
   */
  readonly isCut?: boolean;
  /**
   * Whether the take ended early for another reason, for example because other takes in its round trip used up the
   * bytes, or because it met expired elements. Another element may be eligible, so the taker retries immediately.
   */
  readonly isLeft?: boolean;
}

/** A delivery, the state in which it must be, and the action to apply. */
export interface SettleItem {
  readonly queue: QueueKey;
  readonly id: ElementId;
  readonly group: GroupName;
  /** `waiting`: ready or scheduled. */
  readonly from: 'reserved' | 'waiting';
  /**
   * Of the reservation; null with `from: 'waiting'`. Without it, the item is about the current reservation, if that is
   * owned by `owner` or has no owner; without `owner` as well, about any current reservation.
   */
  readonly token: string | null;
  readonly owner?: string | null;
  readonly action: SettleAction;
}

export type SettleAction = FinishAction | ReleaseAction | ExtendAction | DeadLetterAction | MoveAction;

/**
 * Finishes the delivery: a commit from `reserved`, a removal from `waiting`, and with inserts the transfer of an
 * exchange. The element is deleted with its last delivery. A commit also succeeds after the lease ran out, if there was
 * no other reservation since.
 */
export interface FinishAction {
  readonly kind: 'finish';
  /** Stored in the same atomic step, in queues of the same engine. */
  readonly inserts?: readonly { readonly queue: QueueKey; readonly element: NewElement }[];
}

/**
 * Makes the delivery wait (again); it is eligible after `delayMs`, or at `dueAt` if given. If `countTry` is true, its
 * tries grow by one, and at the queue's `maxTries` the element moves to the dead-letter queue in the same atomic step.
 * If `countTry` is false (the consumer never saw it, or is not to blame), no try is counted; a reserved delivery
 * released with neither a delay nor `dueAt` then regains the maturity it had.
 */
export interface ReleaseAction {
  readonly kind: 'release';
  readonly delayMs: number;
  /** The client did not request this delay: if a try is counted, the queue's retry delay, if any, replaces it. */
  readonly isDefaultDelay?: boolean;
  readonly dueAt?: number | null;
  readonly countTry: boolean;
  /** Replaces the stored reason if a try is counted: see `ScannedDelivery.reason`. */
  readonly reason?: string | null;
}

/** Makes the lease end `leaseMs` from now. The outcome is `lease-lost` if the lease has already ended. */
interface ExtendAction {
  readonly kind: 'extend';
  readonly leaseMs: number;
}

/**
 * Moves the element to its queue's dead-letter queue now, whatever its tries; the outcome is `dead-lettered`. If the
 * queue has no dead-letter queue, or is its own, the element is released without delay, so that a change of policy
 * loses nothing.
 */
export interface DeadLetterAction {
  readonly kind: 'dead-letter';
  /** Whether this counts as a failed try: in `x-dl-tries`, or in the tries of an element that is released instead. */
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
  /** Of the copy, instead of the element's content type, encoding and headers; null: those of the element. */
  readonly head: ElementHead | null;
}

/**
 * The outcome of one item. Outcomes other than `done` and `dead-lettered` changed nothing.
 * - `done`: as requested.
 * - `dead-lettered`: the element moved to the dead-letter queue.
 * - `not-found`: no such element in this queue, or not for this group.
 * - `not-reserved` (from `reserved`, or for `extend`): the delivery exists, but is waiting.
 * - `reserved` (from `waiting`): the delivery exists, but is reserved.
 * - `lease-lost`: the token belongs to an older reservation, or (except for `finish`) to one that ran out.
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
  /** The new end of an extended lease, ms since 1970; null for every other action. */
  readonly until: number | null;
}

/** Shared results of all outcomes without `until`, so that settling does not allocate. */
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
  /**
   * Returns only these, at most 1000, instead of using a cursor. With bodies, an engine may leave out those after the
   * first 16 MiB.
   */
  readonly ids?: readonly ElementId[];
  /** The opaque cursor at which the previous page ended; null for the first page. */
  readonly after: string | null;
  /** 1 to 1000. */
  readonly limit: number;
  /** False: bodies are not read, and are returned empty. */
  readonly bodies: boolean;
}

export interface ScanPage {
  readonly deliveries: ScannedDelivery[];
  /** Null if this was the last page. */
  readonly next: string | null;
}

/** A delivery as returned by a scan. The token of its `lease` is empty. */
export interface ScannedDelivery extends Delivery {
  readonly state: DeliveryState;
  readonly insertedAt: number;
  readonly expiresAt: number | null;
  /** The reason of the last failed try; in a dead letter, why it was dead-lettered; null: unknown. */
  readonly reason: string | null;
  /** Length of the body. */
  readonly bytes: number;
  /**
   * Who holds the reservation, and since when, ms since 1970 (an extension does not change it); null if not reserved.
   */
  readonly holder: (Holder & { readonly since: number }) | null;
  /** For `ScanOptions.after`: the page after this delivery. Null if the delivery was requested by id. */
  readonly cursor: string | null;
}

export interface PurgeStep {
  /** The number of deliveries removed. */
  readonly removed: number;
  readonly isDone: boolean;
}

export interface GroupCounts {
  /** Eligible now. */
  readonly ready: number;
  /** Waiting for their maturity. */
  readonly scheduled: number;
  readonly reserved: number;
  /** The earliest maturity of all waiting deliveries, due or not; null if none waits. */
  readonly nextMatureAt: number | null;
}

/** The counts of an empty group. */
export const NO_COUNTS: GroupCounts = Object.freeze({
  ready: 0,
  scheduled: 0,
  reserved: 0,
  nextMatureAt: null,
});

export interface QueueCounts extends GroupCounts {
  /** The counts of each group that is not empty; empty for a plain queue and if `group` was given. */
  readonly groups: ReadonlyMap<GroupName, GroupCounts>;
}

export interface Usage {
  /** Waiting and reserved; in a stream an element counts once for each of its groups. */
  readonly elements: number;
  /**
   * The size of the namespace in its store, or of all namespaces together if the engine cannot tell them apart; null:
   * unknown.
   */
  readonly bytes: number | null;
}
