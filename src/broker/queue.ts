import { CALL_TIMEOUT_MS, isUnknownOutcome } from '../engine/calls.ts';
import { retryConflicts } from '../engine/definitions.ts';
import { areAllSeen } from '../engine/request-keys.ts';
import { SCAN_BYTES } from '../engine/scan-cursor.ts';
import type { ReadySignal } from '../engine/signaller.ts';
import { countPuts } from '../engine/stats.ts';
import {
  type OnRepeat,
  type QueueCounts,
  type ReleaseAction,
  type RequestKey,
  type ScanOptions,
  type ScanPage,
  SETTLED,
  type SettleAction,
  type SettleItem,
  type SettleOutcome,
  type SettleResult,
  type Storage,
  type TimeLeft,
} from '../engine/storage.ts';
import {
  type Delivery,
  type ElementId,
  type GroupName,
  type NewElement,
  PLAIN_GROUP,
} from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { keyOfUser } from '../model/fingerprint.ts';
import { LIMITS } from '../model/limits.ts';
import type { QueueKey } from '../model/names.ts';
import type { PendingConsumer, QueueHistory, QueueRecord } from '../model/records.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { compareStrings } from '../util/compare-strings.ts';
import { quote } from '../util/quote.ts';
import { historyLengthMs, INTERVAL_MS } from './activity.ts';
import { requireCapability } from './capabilities.ts';
import { isFullError } from './capacity.ts';
import type { Claim, Consumer, GetRequest, Sink } from './consumer.ts';
import { FREE_BYTES } from './engine-permits.ts';
import { momentIn, untilGiven } from './engine-time.ts';
import { isSettled, rejectionOf, takeOperation } from './meter.ts';
import type { Namespace } from './namespace.ts';
import { checkOptions, type OwnOptions, type QueueSettings } from './queue-options.ts';
import { queueRecord } from './queue-record.ts';
import { MANY, WaitQueue } from './wait-queue.ts';

/** For front ends, which settle with these types but must not import storage. */
export type { ReleaseAction, SettleAction, SettleItem, SettleOutcome, SettleResult };

const ONE_GET_UNDONE = { get: -1 } as const;
const ONE_RESERVE_UNDONE = { reserve: -1 } as const;

/** The action of a commit. A shared object, so that a commit allocates only its item. */
export const FINISH = Object.freeze({ kind: 'finish' }) satisfies SettleAction;
/** The action for an element that nobody tried to process: no try is counted, and it regains its maturity. */
export const RELEASE = Object.freeze({ kind: 'release', delayMs: 0, countTry: false }) satisfies SettleAction;

/** What a client sends to settle: the id, and the group and token of the reservation. */
export interface Receipt {
  readonly id: ElementId;
  /** Null: the namespace's default. */
  readonly group: GroupName | null;
  readonly token: string | null;
  /** The user who settles; omitted for the service itself. */
  readonly owner?: string | null;
}

export interface QueueInsertOptions {
  /** The user who needs a permit for it (see `EnginePermits`); null: it needs none. */
  readonly user?: string | null;
  /** Called for each element whose dedup key was seen before with the same content; see `NewElement.dedupKey`. */
  readonly onRepeat?: ((index: number) => void) | null;
  /** One key for the whole insert, instead of keys per element; see `InsertOptions.request`. */
  readonly request?: RequestKey | null;
  /** Called when the elements are sent to the engine: before `insert` returns, unless the insert has to wait. */
  readonly onSent?: (() => void) | null;
  /** Whether elements that do not expire never will: they come from another queue, as by a move. */
  readonly keepsExpiry?: boolean;
}

export interface QueueScanOptions extends Omit<ScanOptions, 'group' | 'leftMs'> {
  /** On a stream, the group to read as; null: the namespace's default. */
  readonly group: GroupName | null;
  /** The user who needs a permit to read large bodies (see `EnginePermits`); omitted: it needs none. */
  readonly user?: string | null;
}

/** One element to finish, and the elements to store instead. */
export interface QueueMove {
  /** The queue of the finished element, in the same engine. Defaults to the queue whose `transfer` is called. */
  readonly from?: Queue;
  readonly finish: Receipt;
  readonly inserts: readonly { readonly queue: Queue; readonly element: NewElement }[];
}

/**
 * One queue, with the operations that front ends offer. A stateless handle, of which any number may exist: elements are
 * in the engine, and waiting consumers in the namespace's wait queues.
 *
 * Every operation returns after the engine confirmed it, or throws a `QuaysideError`.
 */
export class Queue {
  readonly key: QueueKey;
  readonly namespace: Namespace;
  #settings: QueueSettings | null = null;
  #settingsVersion = -1;
  /** The signal of its inserts; null: none was needed yet. */
  #signal: ReadySignal | null = null;

  constructor(namespace: Namespace, key: QueueKey) {
    this.namespace = namespace;
    this.key = key;
  }

  get paused(): boolean {
    return this.namespace.pausedNames.has(this.key.name);
  }

  /** The effective options: the queue's own, those of the rule for its name, those of the namespace. */
  get settings(): QueueSettings {
    const { options } = this.namespace;
    if (this.#settings === null || this.#settingsVersion !== options.version) {
      this.#settings = options.settingsOf(this.key.name);
      this.#settingsVersion = options.version;
    }
    return this.#settings;
  }

  /** Whether the queue has a dead-letter queue other than itself. */
  get hasDeadLetterQueue(): boolean {
    const { deadLetter } = this.settings;
    return deadLetter !== null && deadLetter.queue !== this.key.name;
  }

  /**
   * The groups of an insert (spec 4.3): those given, or the namespace's default.
   * @param parameter the client's name for them, for the error
   * @throws QuaysideError `invalid-parameter` if groups are given and the namespace has none
   */
  groups(given: readonly GroupName[] | null, parameter = 'groups'): readonly GroupName[] {
    if (given !== null && !this.namespace.isStream)
      throw this.#groupsNotSupported(parameter, given.join(','));
    return given ?? this.namespace.defaultGroups;
  }

  /**
   * Stores all elements or none, and returns their ids (spec 4.1, Insert).
   * @throws QuaysideError `namespace-full`; `queue-full`; `idempotency-mismatch` if a key was seen before with other
   * content, with the index of the element in `extra` if there are several and the key is not that of the request
   */
  insert(
    given: readonly NewElement[],
    {
      user = null,
      onRepeat = null,
      request = null,
      onSent = null,
      keepsExpiry = false,
    }: QueueInsertOptions = {},
  ): Promise<ElementId[]> {
    const { namespace } = this;
    const { capacity, clock, meter } = namespace;
    const { ttlMs, maxElements } = this.settings;
    const elements =
      ttlMs === null || keepsExpiry ? given : given.map((element) => this.expiring(element, ttlMs));
    const bound = maxElements === null ? null : namespace.capacityOf(this);
    const hasKeys = request !== null || elements.some(({ dedupKey }) => dedupKey !== null);
    const repeats = hasKeys ? new Repeats() : null;
    const signal = this.#readySignal();
    // One deadline for the wait for a permit, the reads of usage and the engine.
    const startedAt = clock.monotonic();
    const deadlineAt = startedAt + CALL_TIMEOUT_MS;
    const insert = (): Promise<ElementId[]> => {
      onSent?.();
      // Read `storage` now: a migration may have started while the insert waited for capacity.
      const inserting = namespace.storage.insert(this.key, elements, {
        signal,
        onRepeat: repeats?.note ?? null,
        request,
        leftMs: deadlineAt - clock.monotonic(),
      });
      this.#wakeFor(elements);
      return inserting;
    };
    // Check the queue's bound before the namespace's. The namespace counts what it admits until its next read, and must
    // not count an insert that the queue rejects.
    const store =
      capacity === null ? insert : (): Promise<ElementId[]> => capacity.admit(elements, insert, { request });
    const admit =
      bound === null ? store : (): Promise<ElementId[]> => bound.admit(elements, store, { request });
    // An unknown queue has seen no key, and looking one up could create the queue.
    const mayRepeat =
      hasKeys && (bound !== null || capacity !== null) && namespace.knownNames.has(this.key.name);
    const begin = mayRepeat
      ? () => unlessRepeated(admit, () => this.#areRepeats(elements, request, deadlineAt), insert)
      : admit;
    namespace.noteSizes(this.key, elements);
    const stored = namespace.permits.insert(user, elements, begin);
    namespace.noteStoring(this.key, stored);
    const noteOutcome = (ids: ElementId[]): ElementId[] => {
      if (repeats !== null && repeats.mismatched !== null) {
        meter.count('insert', 'idempotency-mismatch');
        throw mismatch(elements, repeats.mismatched, request, this.key);
      }
      this.#noteStored(repeats === null ? elements : repeats.without(elements));
      if (onRepeat !== null && repeats !== null) for (const index of repeats.indices) onRepeat(index);
      // Another node may have been seen during the insert.
      if (signal === null && !namespace.cluster.isAlone)
        namespace.announce(this.key, elements.length, groupsOf(elements));
      meter.count('insert', 'ok', elements.length);
      return ids;
    };
    return meter.observe('insert', stored, noteOutcome, startedAt);
  }

  /** The signal that the engine publishes with an insert; null if it publishes none, or there is no other node. */
  #readySignal(): ReadySignal | null {
    const { cluster, isStream, setup, storage } = this.namespace;
    if (cluster.isAlone || storage.insertSignaller !== setup.signaller) return null;
    this.#signal ??= cluster.readySignal(this.key.name, isStream);
    return this.#signal;
  }

  /** Whether the engine has seen the keys of all elements, so that it would store none of them. */
  #areRepeats(
    elements: readonly NewElement[],
    request: RequestKey | null,
    deadlineAt: number,
  ): Promise<boolean> {
    const { clock, storage } = this.namespace;
    const insert: Storage['insert'] = (queue, probes, options) =>
      storage.insert(queue, probes, { ...options, leftMs: deadlineAt - clock.monotonic() });
    return areAllSeen({ insert }, this.key, elements, request);
  }

  /** Returns the element, with the queue's time to live if it has none of its own. */
  expiring(element: NewElement, ttlMs: number): NewElement {
    if (element.expiresAt != null) return element;
    return { ...element, expiresAt: momentIn(ttlMs, this.namespace, this.key) };
  }

  /** Whether both queues are in one engine, so that `transfer` can use them together. */
  sharesEngineWith(other: Queue): boolean {
    return this.namespace.storage === other.namespace.storage;
  }

  /**
   * Finishes reserved elements and stores others in queues of the same engine, each move atomically. Returns the
   * outcome of settling per move; only a move with the outcome `done` stored its inserts. A move without inserts is a
   * commit.
   * @param user who needs a permit to store the elements; null: it needs none
   */
  async transfer(given: readonly QueueMove[], user: string | null = null): Promise<SettleResult[]> {
    const { namespace } = this;
    const { clock, meter, storage } = namespace;
    const isExpiring = given.some(({ inserts }) =>
      inserts.some(({ queue }) => queue.settings.ttlMs !== null),
    );
    const moves = isExpiring ? given.map(expiringMove) : given;
    const targets = byTarget(moves);
    const items = moves.map(({ from = this, finish, inserts }) =>
      from.item(finish, inserts.length === 0 ? FINISH : { kind: 'finish', inserts: inserts.map(toInsert) }),
    );
    // All these queues share the present engine. Read `storage` before any wait: a migration may start during it.
    const deadlineAt = clock.monotonic() + CALL_TIMEOUT_MS;
    const wake = (): void => {
      for (const [queue, elements] of targets) queue.#wakeFor(elements);
    };
    const settle = (): Promise<SettleResult[]> => {
      const settling = storage.settle(items, { leftMs: deadlineAt - clock.monotonic() });
      if (storage.ordersTransfers) wake();
      else settling.then(wake, wake);
      return settling;
    };
    for (const [queue, elements] of targets) queue.namespace.noteSizes(queue.key, elements);
    const transferring = namespace.permits.insert(user, [...targets.values()].flat(), () =>
      this.#admitMoves(moves, [...targets.keys()], settle),
    );
    for (const queue of targets.keys()) queue.namespace.noteStoring(queue.key, transferring);
    const results = await meter.observe('commit', transferring, asIs);
    for (const [queue, indices] of Map.groupBy(moves.keys(), (i) => moves[i]?.from ?? this)) {
      queue.#noteSettled(
        indices.map((i) => items[i] as SettleItem),
        indices.map((i) => results[i] ?? SETTLED['not-found']),
      );
    }
    const done = moves.filter((_, i) => results[i]?.outcome === 'done');
    for (const [queue, elements] of done.length === moves.length ? targets : byTarget(done)) {
      queue.#noteStored(elements);
      if (!queue.namespace.cluster.isAlone)
        queue.namespace.announce(queue.key, elements.length, groupsOf(elements));
    }
    return results;
  }

  /** Checks the capacity of each namespace and queue that would grow; one that loses as many elements may be full. */
  #admitMoves<T>(
    moves: readonly QueueMove[],
    targets: readonly Queue[],
    transfer: () => Promise<T>,
  ): Promise<T> {
    const bounds = new Set([
      ...targets.map(({ namespace }) => namespace.capacity),
      ...targets.map((queue) => queue.namespace.capacityOf(queue)),
    ]);
    let call = transfer;
    for (const bound of bounds) {
      if (bound === null) continue;
      const isBounded = (queue: Queue): boolean =>
        queue.namespace.capacity === bound || queue.namespace.capacityOf(queue) === bound;
      const inserts = moves.flatMap((move) => move.inserts.filter(({ queue }) => isBounded(queue)));
      const arriving = inserts.map(({ element }) => element);
      const leaving = moves.filter(({ from = this }) => isBounded(from)).length;
      const inner = call;
      call = () => bound.admit(arriving, inner, { leaving });
    }
    return call();
  }

  /**
   * Elements were sent to the engine: wakes waiting consumers, whose takes share the round trip, or sets timers for
   * maturities. If storing fails, the takes find nothing, which is harmless.
   */
  #wakeFor(elements: readonly NewElement[]): void {
    const waitQueues = this.namespace.waitQueues.get(this.key.name);
    if (waitQueues === undefined) return;
    for (const { element, count } of runsOf(elements)) {
      const { matureAt, delayMs, groups } = element;
      const inMs = matureAt === null ? delayMs : untilGiven(matureAt, this.namespace, this.key);
      for (const group of groups) waitQueues.get(group)?.expect(inMs, count);
    }
  }

  /** Counts elements that the engine has stored. On a stream, an insert counts once per element, and once per group. */
  #noteStored(elements: readonly NewElement[]): void {
    const { stats, activity } = this.namespace;
    this.namespace.noteStored(this.key);
    activity.note(this.key.name);
    for (const { element, count } of runsOf(elements)) countPuts(stats, this.key, element.groups, count);
  }

  /**
   * Waits for an element (spec 4.1, Get or reserve). The sink is called once, unless `leave` is called first.
   * @param claim decides when the consumer takes part in matches; null: always
   * @throws QuaysideError `invalid-parameter`, `too-many-consumers`, `shutting-down`
   */
  get(request: GetRequest, sink: Sink, claim: Claim | null = null): Consumer {
    const { namespace, key } = this;
    let group: GroupName;
    try {
      group = this.groupOf(request.group);
      if (request.isLook !== true) namespace.waitingLimit.enter(request.owner);
    } catch (error) {
      namespace.meter.countError(takeOperation(request.leaseMs), error);
      throw error;
    }
    // A call that does not wait creates no queue.
    if (request.timeoutMs !== 0) namespace.noteUse(key);
    return this.waitQueue(group).join(request, sink, claim);
  }

  /**
   * The group that a call reads as (spec 4.3): the one given, or the namespace's default.
   * @param parameter the client's name for it, for the error
   * @throws QuaysideError `invalid-parameter` if one is given and the namespace has none
   */
  groupOf(given: GroupName | null, parameter = 'group'): GroupName {
    const { isStream, defaultGroup } = this.namespace;
    if (given !== null && given !== PLAIN_GROUP && !isStream)
      throw this.#groupsNotSupported(parameter, given);
    return given ?? defaultGroup;
  }

  /** Returns the wait queue of a group, creating it if needed. Do not keep it: an empty one may be replaced. */
  waitQueue(group: GroupName): WaitQueue {
    const { namespace, key } = this;
    return (
      namespace.waitQueues.get(key.name)?.get(group) ??
      namespace.addWaitQueue(key, new WaitQueue(this, group))
    );
  }

  /** The client disconnected: the consumer receives no element from now on. Harmless after the call has ended. */
  leave(consumer: Consumer): void {
    this.namespace.waitQueues.get(this.key.name)?.get(consumer.group)?.leave(consumer);
  }

  /**
   * Undoes deliveries whose response did not reach the client: popped elements return to their places, reservations are
   * released without counting a try. They keep their order. Never throws. A failure is logged, as there is no client to
   * report it to.
   */
  returnAllUndelivered(deliveries: readonly Delivery[]): void {
    const { stats, activity } = this.namespace;
    activity.note(this.key.name);
    for (const { group, lease } of deliveries) {
      stats.add(this.key, group, lease === null ? ONE_GET_UNDONE : ONE_RESERVE_UNDONE);
    }
    this.returnUncounted(deliveries);
  }

  /** The same for deliveries that no consumer received, so that they were not counted. */
  returnUncounted(deliveries: readonly Delivery[]): void {
    const { namespace, key } = this;
    const { undoneTakes, storage, log } = namespace;
    const { popped, reserved } = this.#split(deliveries, RELEASE);
    const groups = new Set(deliveries.map(({ group }) => group));
    const onReturned = (count: number): void => {
      this.match(count, groups);
      namespace.announce(key, count, groups);
    };
    if (popped.length > 0) undoneTakes.begin(key, popped, () => onReturned(popped.length));
    if (reserved.length > 0) {
      storage.settle(reserved).then(
        () => onReturned(reserved.length),
        (error: unknown) => {
          const ids = reserved.map(({ id }) => id);
          log.warn({ err: error, queue: key, ids }, 'elements could not be returned to their queue');
          // They may have been returned nevertheless.
          if (isUnknownOutcome(error)) onReturned(reserved.length);
        },
      );
    }
  }

  /**
   * Requeues elements that cannot be processed now. A reserved one is released after `delayMs`, with a failed try for
   * `reason` unless that is null. A popped one returns to its place. Never throws; a failure is logged, and the leases
   * expire.
   */
  async requeue(deliveries: readonly Delivery[], delayMs: number, reason: string | null): Promise<void> {
    const countTry = reason !== null;
    const { popped, reserved } = this.#split(deliveries, { kind: 'release', delayMs, countTry, reason });
    this.returnAllUndelivered(popped);
    if (reserved.length === 0) return;
    try {
      await this.settleAll(reserved);
    } catch (error) {
      const fields = { err: error, queue: this.key, count: reserved.length };
      this.namespace.log.warn(fields, 'elements could not be requeued; they return when their leases expire');
    }
  }

  #split(
    deliveries: readonly Delivery[],
    action: SettleAction,
  ): { readonly popped: Delivery[]; readonly reserved: SettleItem[] } {
    const popped: Delivery[] = [];
    const reserved: SettleItem[] = [];
    for (const delivery of deliveries) {
      const { id, group, lease } = delivery;
      if (lease === null) popped.push(delivery);
      else reserved.push(this.item({ id, group, token: lease.token }, action));
    }
    return { popped, reserved };
  }

  /** Creates an item for `settleAll`. On a plain queue, any group but the default finds nothing and changes nothing. */
  item(
    { id, group, token, owner = null }: Receipt,
    action: SettleAction,
    from: SettleItem['from'] = 'reserved',
  ): SettleItem {
    return {
      queue: this.key,
      id,
      group: group ?? this.namespace.defaultGroup,
      from,
      token,
      owner,
      action,
    };
  }

  /**
   * Applies an action to one element, which must be reserved, or waiting.
   * @throws `element-not-found`, `not-reserved`, `lease-lost`, `token-required`; `element-reserved`
   */
  settle(receipt: Receipt, action: SettleAction, from?: SettleItem['from']): Promise<SettleResult> {
    const item = this.item(receipt, action, from);
    return this.#settle([item], ([result = SETTLED['not-found']]) => {
      const { outcome } = result;
      if (isSettled(outcome)) return result;
      // A plain queue has none, but a client may name one there, which is why the element is not found.
      const group = item.group === PLAIN_GROUP ? null : item.group;
      throw rejectionOf(outcome, { id: item.id, group }, this.key);
    });
  }

  /**
   * Applies actions of any kinds to reserved elements of this queue, in order, in one call. Returns their outcomes.
   * @param after a promise to await first, within the same deadline
   */
  settleAll(
    items: readonly SettleItem[],
    after: Promise<unknown> | null = null,
  ): Promise<readonly SettleResult[]> {
    if (after === null) return this.#settle(items, asIs);
    const { clock } = this.namespace;
    const deadlineAt = clock.monotonic() + CALL_TIMEOUT_MS;
    return after.then(() => this.#settle(items, asIs, { leftMs: deadlineAt - clock.monotonic() }));
  }

  /** Extends a lease to `leaseMs` from now (null: the queue's lease) and returns its end. @throws as `settle` */
  async extend(receipt: Receipt, leaseMs: number | null): Promise<number> {
    const { until } = await this.settle(receipt, {
      kind: 'extend',
      leaseMs: leaseMs ?? this.settings.leaseMs,
    });
    return until ?? 0;
  }

  /** Removes a waiting element (spec 4.1). @throws `not-supported`, `element-not-found`, `element-reserved` */
  async remove(id: ElementId): Promise<void> {
    requireCapability(this.namespace, 'remove');
    await this.settle({ id, group: null, token: null }, FINISH, 'waiting');
  }

  /** Consumers that wait for released elements share the batch. One promise: every settlement passes here. */
  #settle<R>(
    items: readonly SettleItem[],
    done: (results: readonly SettleResult[]) => R,
    time?: TimeLeft,
  ): Promise<R> {
    const { storage, meter } = this.namespace;
    const settling = storage.settle(items, time);
    for (const { action, group } of items) {
      if (action.kind === 'release') this.#wake(group, action.delayMs);
    }
    return meter.observeSettling(items, settling, (results) => {
      this.#noteSettled(items, results);
      return done(results);
    });
  }

  /** Counts the outcomes of settlements, and announces the elements that became eligible. */
  #noteSettled(items: readonly SettleItem[], results: readonly SettleResult[]): void {
    const { meter, stats, activity, sweeper } = this.namespace;
    let released = 0;
    let releasedIn: Set<GroupName> | null = null;
    let [hasDied, hasRemoved] = [false, false];
    for (let i = 0, count = 1; i < items.length; i += count) {
      const item = items[i] as SettleItem;
      const { outcome, until } = results[i] ?? SETTLED['not-found'];
      count = 1;
      while (results[i + count] === results[i] && isAlike(item, items[i + count])) count += 1;
      meter.countSettled(item, outcome, count);
      if (!isSettled(outcome)) continue;
      const { action, from, group } = item;
      if (action.kind === 'extend') {
        sweeper.wakeAt(until ?? 0);
        continue;
      }
      activity.note(this.key.name);
      if (action.kind === 'release') {
        stats.add(this.key, group, action.countTry ? { rollback: count } : { reserve: -count });
      } else if (action.kind === 'dead-letter') {
        stats.add(this.key, group, { rollback: count });
        // Without a dead-letter queue, the elements wait in this queue again.
        if (outcome === 'done') this.#wake(group, 0, count);
      } else if (from === 'reserved') stats.add(this.key, group, { commit: count });
      if (outcome === 'done' && (action.kind === 'release' || action.kind === 'dead-letter')) {
        released += count;
        releasedIn = (releasedIn ?? new Set()).add(group);
      }
      hasDied ||= outcome === 'dead-lettered';
      hasRemoved ||= outcome === 'dead-lettered' || action.kind === 'finish' || action.kind === 'move';
    }
    if (hasRemoved) this.namespace.noteRemoved(this.key);
    if (hasDied) sweeper.reportAffected();
    // An engine that moves many dead letters in steps releases the other elements between these steps, which may be
    // after the wake-ups above.
    if (hasDied && releasedIn !== null) this.match(released, releasedIn);
    if (releasedIn !== null) this.namespace.announce(this.key, released, releasedIn);
  }

  /** `count` elements become eligible for a group in `inMs`. */
  #wake(group: GroupName, inMs: number, count = 1): void {
    this.namespace.waitQueues.get(this.key.name)?.get(group)?.expect(inMs, count);
  }

  /**
   * Up to `count` elements, or {@link MANY}, may have become eligible in each of these groups: wakes consumers.
   * @param groups default: all
   */
  match(count: number, groups?: Iterable<GroupName>): void {
    const waitQueues = this.namespace.waitQueues.get(this.key.name);
    for (const group of groups ?? waitQueues?.keys() ?? []) waitQueues?.get(group)?.match(count);
  }

  /** Makes all consumers of the queue wait, on every node (spec 3.2). Durable; idempotent. */
  async pause(): Promise<void> {
    const { meter } = this.namespace;
    await meter.observe('pause', this.namespace.writePaused(this.key, true), () =>
      meter.count('pause', 'ok'),
    );
  }

  /** Ends the pause. Durable; idempotent. */
  async resume(): Promise<void> {
    const { meter } = this.namespace;
    await meter.observe('resume', this.namespace.writePaused(this.key, false), () =>
      meter.count('resume', 'ok'),
    );
  }

  /**
   * Replaces the stored options of the queue, on all nodes; null deletes them. They apply to present elements, too,
   * except for the time to live, which an element gets when it is inserted.
   * @param versions of the options that may be replaced, as in their record; null: any
   * @throws QuaysideError `invalid-parameter`, `not-supported`, `precondition-failed`
   */
  async storeOptions(options: OwnOptions | null, versions: ReadonlySet<string> | null = null): Promise<void> {
    if (options !== null) checkOptions(this.namespace, this.key.name, options);
    await retryConflicts(() => this.namespace.writeOptions(this.key, options, versions));
  }

  /** The queue's pause flag changed. */
  onPaused(paused: boolean): void {
    if (!paused) this.match(MANY);
    else
      for (const waitQueue of this.namespace.waitQueues.get(this.key.name)?.values() ?? []) waitQueue.pause();
  }

  /** The groups of a stream that have deliveries, sorted; none on a plain queue. */
  async occupiedGroups(): Promise<GroupName[]> {
    const { groups } = await this.namespace.storage.counts(this.key);
    return [...groups.keys()].sort();
  }

  /**
   * A page of deliveries; see `Storage.scan`. Creates no queue.
   * @throws QuaysideError `overloaded` if the user gets no permit in time
   */
  async scan({ user = null, ...given }: QueueScanOptions): Promise<ScanPage> {
    const { namespace, key } = this;
    const options = { ...given, group: this.groupOf(given.group) };
    const { ids, limit, bodies } = options;
    const elementBytes = bodies ? namespace.expectedBytes(key) : 0;
    const bytes = Math.min(
      elementBytes * (ids?.length ?? limit),
      ids === undefined ? Math.max(elementBytes, SCAN_BYTES) : LIMITS.takeBytes,
    );
    if (user === null || bytes <= FREE_BYTES) return namespace.storage.scan(key, options);
    const deadlineAt = namespace.clock.monotonic() + CALL_TIMEOUT_MS;
    const end = await namespace.permits.reads.enter(user, { size: bytes });
    try {
      const leftMs = deadlineAt - namespace.clock.monotonic();
      return await namespace.storage.scan(key, { ...options, leftMs });
    } finally {
      end();
    }
  }

  /** The number of elements by state, each counted once; on a stream, also by group. */
  counts(): Promise<QueueCounts> {
    return this.namespace.storage.counts(this.key);
  }

  /** The queue information record (spec 2.2). @param group counts only the elements of this group; null: all */
  async status(group: GroupName | null): Promise<QueueRecord> {
    const { storage, stats } = this.namespace;
    const [counts, counters] = await Promise.all([
      storage.counts(this.key, group ?? undefined),
      stats.read(this.key),
    ]);
    return queueRecord(this, group, counts, counters);
  }

  /** The last hour, minute by minute, as far as this node has read it. The last minute is incomplete. */
  history(): QueueHistory {
    const { activity, clock } = this.namespace;
    return {
      from: new Date(clock.now() - historyLengthMs(clock.monotonic())).toISOString(),
      intervalMs: INTERVAL_MS,
      ...activity.history(this.key.name),
    };
  }

  /**
   * The blocked calls of this node (spec 2.3), of all groups and protocols, in order of arrival.
   * @param tid only those with this tid
   */
  consumers(tid?: string): PendingConsumer[] {
    const pending: { consumer: Consumer; awaitsMaturity: boolean }[] = [];
    for (const waitQueue of this.namespace.waitQueues.get(this.key.name)?.values() ?? []) {
      const { awaitsMaturity } = waitQueue;
      for (const consumer of waitQueue.consumers()) {
        if (tid !== undefined && consumer.tid !== tid) continue;
        if (consumer.request.isLook !== true) pending.push({ consumer, awaitsMaturity });
      }
    }
    pending.sort((a, b) => a.consumer.since - b.consumer.since || a.consumer.order - b.consumer.order);
    return pending.map(({ consumer, awaitsMaturity }) => {
      const { request, group, since } = consumer;
      consumer.tid ??= this.namespace.makeTid();
      return {
        tid: consumer.tid,
        since: new Date(since).toISOString(),
        callback: 'set',
        cleanup_timeout: (request.timeoutMs ?? 0) === 0 ? 'unset' : 'set',
        wakeup_timeout: awaitsMaturity ? 'set' : 'unset',
        user: request.owner,
        protocol: request.from?.protocol ?? 'exchange',
        address: request.from?.address ?? null,
        group: group === PLAIN_GROUP ? null : group,
      };
    });
  }

  /** The blocked calls of all nodes, in order of arrival. */
  async allConsumers(): Promise<PendingConsumer[]> {
    const { nodes } = await this.namespace.consumersOfAllNodes(this.key);
    return nodes.flatMap(({ rows }) => rows).sort((a, b) => compareStrings(a.since, b.since));
  }

  /** Whether another user has a blocked call with this tid on any node. True if that is not known of every node. */
  async mayBlockOthers(tid: string, user: string): Promise<boolean> {
    const { nodes, missing } = await this.namespace.consumersOfAllNodes({ ...this.key, tid });
    return (
      missing.length > 0 ||
      !this.namespace.cluster.hasSeenAll ||
      nodes.some(({ total, rows }) => total > rows.length || rows.some((row) => row.user !== user))
    );
  }

  /**
   * Ends every blocked call with this tid, on all nodes (spec 3.3); if `owner` is given, only that user's. Returns how
   * many ended on this node; 0 is not an error.
   */
  cancel(tid: string, owner: string | null): number {
    this.namespace.cluster.cancel(this.key.name, tid, owner);
    this.namespace.meter.count('cancel', 'ok');
    return this.cancelHere(tid, owner);
  }

  /** The part of `cancel` on each node. Visits all consumers: an index by tid would slow each get. */
  cancelHere(tid: string, owner: string | null): number {
    let cancelled = 0;
    this.endConsumers((consumer) => {
      if (consumer.tid !== tid || (owner !== null && consumer.request.owner !== owner)) return null;
      cancelled += 1;
      return new QuaysideError(
        'pop-cancelled',
        'This consumer was cancelled by its tid, or because its queue was deleted.',
      );
    });
    return cancelled;
  }

  /** Ends the blocked calls of this node for which `reasonFor` returns an error. */
  endConsumers(reasonFor: (consumer: Consumer) => QuaysideError | null): void {
    for (const waitQueue of [...(this.namespace.waitQueues.get(this.key.name)?.values() ?? [])]) {
      for (const consumer of waitQueue.consumers()) {
        const reason = reasonFor(consumer);
        if (reason !== null) waitQueue.end(consumer, reason);
      }
    }
  }

  #groupsNotSupported(parameter: string, given: string): QuaysideError {
    return invalidParameter(
      parameter,
      `${parameter} ${quote(given)} cannot be used: namespace ${this.namespace.name} has plain queues. Leave ${parameter} out, or use a stream namespace.`,
    );
  }
}

/**
 * Calls `admit`. If there is no capacity, but all elements are repeats, calls `insert` instead, which stores nothing
 * and returns their ids to a producer that missed the first response.
 */
async function unlessRepeated<T>(
  admit: () => Promise<T>,
  areRepeats: () => Promise<boolean>,
  insert: () => Promise<T>,
): Promise<T> {
  try {
    return await admit();
  } catch (error) {
    if (!isFullError(error) || !(await areRepeats())) throw error;
  }
  return insert();
}

/** The elements of an insert whose keys were seen before. */
class Repeats {
  readonly indices = new Set<number>();
  /** The first element with other content than before. */
  mismatched: number | null = null;

  readonly note: OnRepeat = (index, isSame) => {
    this.indices.add(index);
    if (!isSame) this.mismatched ??= index;
  };

  without(elements: readonly NewElement[]): readonly NewElement[] {
    return this.indices.size === 0 ? elements : elements.filter((_, index) => !this.indices.has(index));
  }
}

function mismatch(
  elements: readonly NewElement[],
  index: number,
  request: RequestKey | null,
  { name }: QueueKey,
): QuaysideError {
  const key = quoteBytes(keyOfUser(request?.key ?? elements[index]?.dedupKey ?? ''));
  const before = `${key} was used before in queue ${quote(name)} with other content or parameters`;
  if (request !== null) {
    const message = `The request's key ${before}. Use a new key for a new request.`;
    return new QuaysideError('idempotency-mismatch', message);
  }
  return new QuaysideError(
    'idempotency-mismatch',
    `Key ${before}. Use a new key for a new element.`,
    elements.length === 1 ? {} : { extra: { index } },
  );
}

/** Adds the time to live of each target queue to the move's inserts. */
function expiringMove(move: QueueMove): QueueMove {
  const inserts = move.inserts.map(({ queue, element }) => {
    const { ttlMs } = queue.settings;
    return { queue, element: ttlMs === null ? element : queue.expiring(element, ttlMs) };
  });
  return { ...move, inserts };
}

function asIs<T>(value: T): T {
  return value;
}

function groupsOf(elements: readonly NewElement[]): Set<GroupName> {
  const found = new Set<GroupName>();
  let last: readonly GroupName[] | null = null;
  for (const { groups } of elements) {
    // Elements of one request usually share their list.
    if (groups !== last) for (const group of groups) found.add(group);
    last = groups;
  }
  return found;
}

/** Groups adjacent elements with the same timing and groups, and counts them: in large inserts nearly all are alike. */
function runsOf(elements: readonly NewElement[]): { element: NewElement; count: number }[] {
  const runs: { element: NewElement; count: number }[] = [];
  for (let at = 0; at < elements.length; ) {
    const element = elements[at] as NewElement;
    const { matureAt, delayMs, groups } = element;
    const from = at;
    for (at += 1; at < elements.length; at += 1) {
      const next = elements[at] as NewElement;
      if (next.groups !== groups || next.matureAt !== matureAt || next.delayMs !== delayMs) break;
    }
    runs.push({ element, count: at - from });
  }
  return runs;
}

/** Whether both settlements are of the same kind, so that they can be counted together. */
function isAlike({ action, group, from }: SettleItem, other: SettleItem | undefined): boolean {
  if (other === undefined || other.group !== group || other.from !== from) return false;
  return other.action === action || (action.kind === 'finish' && other.action.kind === 'finish');
}

function toInsert({ queue, element }: QueueMove['inserts'][number]): {
  queue: QueueKey;
  element: NewElement;
} {
  return { queue: queue.key, element };
}

function byTarget(moves: readonly QueueMove[]): Map<Queue, NewElement[]> {
  const targets = new Map<Queue, NewElement[]>();
  for (const { inserts } of moves) {
    for (const { queue, element } of inserts) {
      const elements = targets.get(queue);
      if (elements === undefined) targets.set(queue, [element]);
      else elements.push(element);
    }
  }
  return targets;
}
