import type { ReadySignal } from '../engine/signaller.ts';
import { countPuts } from '../engine/stats.ts';
import {
  type DeliveryRef,
  type OnRepeat,
  type ReleaseAction,
  SETTLED,
  type SettleAction,
  type SettleItem,
  type SettleOutcome,
  type SettleResult,
} from '../engine/storage.ts';
import { keyOfUser } from '../model/dedup-key.ts';
import type { Delivery, ElementId, GroupName, NewElement } from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { quote } from '../util/quote.ts';
import { amountOf } from './capacity.ts';
import type { Consumer, GetRequest, Sink } from './consumer.ts';
import { settleOperation, takeOperation } from './meter.ts';
import type { Namespace } from './namespace.ts';
import { countedAs, isSettled, refusalOf } from './refusal.ts';
import { type PendingConsumer, Waiting } from './waiting.ts';

/** Front ends settle with these types and know nothing of storage. */
export type { DeliveryRef, ReleaseAction, SettleAction, SettleItem, SettleOutcome, SettleResult };

const ONE_GET = { get: 1 } as const;
const ONE_RESERVE = { reserve: 1 } as const;
const ONE_GET_UNDONE = { get: -1 } as const;
const ONE_RESERVE_UNDONE = { reserve: -1 } as const;
const ONE_COMMIT = { commit: 1 } as const;
const ONE_ROLLBACK = { rollback: 1 } as const;

/** The action of a commit. One object for all, so that a commit allocates only its item. */
export const FINISH = Object.freeze({ kind: 'finish' }) satisfies SettleAction;
/** The action for a reservation that its consumer never saw. */
const RETURN = Object.freeze({ kind: 'release', delayMs: 0, countTry: false }) satisfies SettleAction;

/** What a client names when it settles: the id, and what the reserve was made with. */
export interface Receipt {
  readonly id: ElementId;
  /** Null: the namespace's default. */
  readonly group: GroupName | null;
  readonly token: string | null;
  /** The user who settles; not given: the service itself. */
  readonly owner?: string | null;
}

/** One element to finish, and what is stored elsewhere in its place. */
export interface QueueMove {
  /** Whose element it is, a queue of the same engine; not given: the queue that is asked to transfer. */
  readonly from?: Queue;
  readonly finish: DeliveryRef;
  readonly inserts: readonly { readonly queue: Queue; readonly element: NewElement }[];
}

/**
 * One queue as its users see it. A handle without state: what it holds is in the engine, and the consumers that wait on
 * this node are in `Namespace.waiting`, so any number of handles may exist.
 * Every verb answers after the engine said yes, or throws a `QuaysideError`.
 */
export class Queue {
  readonly key: QueueKey;
  readonly #ns: Namespace;
  /** Goes with each insert, where the engine takes it along. */
  readonly #signal: ReadySignal | null;

  constructor(ns: Namespace, key: QueueKey) {
    this.#ns = ns;
    this.key = key;
    this.#signal = ns.readySignal(key);
  }

  get paused(): boolean {
    return this.#ns.isPaused(this.key.name);
  }

  /** The consumers that wait on this node; undefined if there have been none of late. */
  get #waiting(): Waiting | undefined {
    return this.#ns.waitingAt(this.key.name);
  }

  /**
   * The groups that an insert is for (spec 4.3): those given, or the namespace's default.
   * @throws QuaysideError `invalid-parameter` where groups are given and the namespace has none
   */
  groups(given: readonly GroupName[] | null): readonly GroupName[] {
    if (given !== null && !this.#ns.isStream) throw this.#noGroups('groups', given.join(','));
    return given ?? this.#ns.defaultGroups;
  }

  /**
   * Stores elements, all or none, and returns their ids (spec 4.1, Insert).
   * @param onRepeat called for each element whose dedup key was seen with the same content; see `NewElement.dedupKey`
   * @throws QuaysideError `idempotency-mismatch` if one was seen with other content; the others are stored
   */
  insert(
    elements: readonly NewElement[],
    onRepeat: ((index: number) => void) | null = null,
  ): Promise<ElementId[]> {
    const repeats = elements.some(({ dedupKey }) => dedupKey !== null) ? new Repeats() : null;
    let stored: Promise<ElementId[]>;
    try {
      stored = this.#store(elements, repeats);
    } catch (error) {
      return this.#ns.meter.observe('insert', Promise.reject(error));
    }
    this.expect(elements, stored);
    return this.#ns.meter.observe('insert', stored, (ids) => {
      this.#ns.noteStored(this.key);
      this.#countPuts(repeats === null ? elements : repeats.without(elements));
      if (repeats !== null && repeats.mismatched !== null) {
        this.#ns.meter.count('insert', 'idempotency-mismatch');
        throw mismatch(elements[repeats.mismatched], this.key);
      }
      if (onRepeat !== null && repeats !== null) for (const index of repeats.indices) onRepeat(index);
      if (this.#signal === null) this.#ns.announce(this.key, elements.length);
      this.#ns.meter.count('insert', 'ok', elements.length);
      return ids;
    });
  }

  /** @throws QuaysideError `namespace-full` */
  #store(elements: readonly NewElement[], repeats: Repeats | null): Promise<ElementId[]> {
    const { storage, capacity } = this.#ns;
    const store = (): Promise<ElementId[]> => storage.insert(this.key, elements, this.#signal, repeats?.note);
    return capacity === null ? store() : capacity.admit(amountOf(elements), store);
  }

  /**
   * Elements were just asked to be stored here, and the engine has not answered yet: the takes for those who
   * wait share that round trip. If the storing fails, the takes find nothing and no harm is done.
   */
  expect(elements: readonly NewElement[], storing: Promise<unknown>): void {
    this.#ns.noteStoring(this.key, storing);
    this.#waiting?.expect(elements);
  }

  /** The engine has stored elements here: count them, and tell other nodes. */
  arrived(elements: readonly NewElement[]): void {
    this.#ns.noteStored(this.key);
    this.#countPuts(elements);
    this.#ns.announce(this.key, elements.length);
  }

  /** Whether both queues live in one engine, so that `transfer` can join them. */
  sharesEngineWith(other: Queue): boolean {
    return this.#ns.storage === other.#ns.storage;
  }

  /**
   * Finishes reserved elements and stores others in queues of the same engine, each move atomically. Returns, per move, how
   * settling ended; only `done` stored anything.
   */
  async transfer(moves: readonly QueueMove[]): Promise<SettleResult[]> {
    const items = moves.map(({ from = this, finish, inserts }) => {
      const action = { kind: 'finish', inserts: inserts.map(storedIn) } as const;
      return from.item(finish, action);
    });
    const transferring = this.#admitMoves(moves, () => this.#ns.storage.settle(items));
    const inOrder = this.#ns.storage.ordersTransfers;
    for (const [queue, elements] of byTarget(moves)) {
      if (inOrder) {
        queue.expect(elements, transferring);
        continue;
      }
      queue.#ns.noteStoring(queue.key, transferring);
      const wake = (): void => queue.#waiting?.expect(elements);
      transferring.then(wake, wake);
    }
    const results = await this.#ns.meter.observe('commit', transferring);
    for (const { outcome } of results) this.#ns.meter.count('commit', countedAs(outcome));
    const done = moves.filter((_, i) => results[i]?.outcome === 'done');
    for (const { from = this, finish } of done) from.#ns.stats.add(from.key, finish.group, ONE_COMMIT);
    for (const [queue, elements] of byTarget(done)) queue.arrived(elements);
    return results;
  }

  /** Where a namespace would grow, there must be room; one that gives up as many as it gets may be full. */
  #admitMoves<T>(moves: readonly QueueMove[], transfer: () => Promise<T>): Promise<T> {
    let call = transfer;
    for (const ns of new Set(moves.flatMap(({ inserts }) => inserts.map(({ queue }) => queue.#ns)))) {
      const { capacity } = ns;
      if (capacity === null) continue;
      const coming = moves.flatMap(({ inserts }) =>
        inserts.filter(({ queue }) => queue.#ns === ns).map(({ element }) => element),
      );
      const going = moves.filter(({ from = this }) => from.#ns === ns).length;
      const { elements, bytes } = amountOf(coming);
      if (elements <= going) continue;
      const inner = call;
      call = () => capacity.admit({ elements: elements - going, bytes }, inner);
    }
    return call();
  }

  /**
   * Waits for an element (spec 4.1, Get or reserve). The sink hears once, unless `leave` is called first.
   * @throws QuaysideError `invalid-parameter`, `too-many-consumers`, `shutting-down`
   */
  get(request: GetRequest, sink: Sink): Consumer {
    const group = this.#admit(request);
    // A call that does not wait reads, and reading makes no queue.
    if (request.timeoutMs !== 0) this.#ns.noteUse(this.key);
    return this.#ns.waiting(this.key.name, () => this.#newWaiting()).join(request, group, sink);
  }

  /** The client of this call is gone: it takes no element any more. Harmless when it was answered. */
  leave(consumer: Consumer): void {
    this.#waiting?.leave(consumer);
  }

  /**
   * Undoes a delivery whose response did not reach the client: a pop returns to its place, a reserve is released
   * with no try counted. Never throws; a failure is logged, since no client is left that could be answered.
   */
  returnUndelivered(delivery: Delivery): void {
    this.returnAllUndelivered([delivery]);
  }

  /** Undoes several in one call, each as `returnUndelivered` does; they keep their order. */
  returnAllUndelivered(deliveries: readonly Delivery[]): void {
    for (const { group, lease } of deliveries) {
      this.#ns.stats.add(this.key, group, lease === null ? ONE_GET_UNDONE : ONE_RESERVE_UNDONE);
    }
    this.#returnUncounted(deliveries);
  }

  /** The same for deliveries that reached no consumer, and so were never counted. */
  #returnUncounted(deliveries: readonly Delivery[]): void {
    const { popped, reserved } = this.#split(deliveries, RETURN);
    if (popped.length > 0) {
      this.#ns.undoneTakes.begin(this.key, popped, (isLate) => {
        if (isLate) this.match(popped.length);
        this.#ns.announce(this.key, popped.length);
      });
      for (const { group } of popped) this.#waiting?.wake(group, 0);
    }
    if (reserved.length > 0) this.#returned(reserved, this.#ns.storage.settle(reserved));
  }

  /**
   * Requeues elements that cannot be processed now: a reserved one is released after `delayMs`, with a failed try if
   * `countTry` is true; a popped one returns to its place. Never throws; a failure is logged, and the lease expires.
   */
  async requeue(deliveries: readonly Delivery[], delayMs: number, countTry: boolean): Promise<void> {
    const { popped, reserved } = this.#split(deliveries, { kind: 'release', delayMs, countTry });
    this.returnAllUndelivered(popped);
    if (reserved.length === 0) return;
    try {
      await this.settleAll(reserved);
    } catch (error) {
      const fields = { err: error, queue: this.key, count: reserved.length };
      this.#ns.log.warn(fields, 'elements could not be requeued; their leases will end');
    }
  }

  /** An item of `settleAll`. On a plain queue any group but the default finds nothing and changes nothing. */
  item({ id, group, token, owner = null }: Receipt, action: SettleAction): SettleItem {
    return {
      queue: this.key,
      id,
      group: group ?? this.#ns.defaultGroup,
      from: 'reserved',
      token,
      owner,
      action,
    };
  }

  /** Applies an action to one reserved element. @throws `element-not-found`, `not-reserved`, `lease-lost`, `token-required` */
  settle(receipt: Receipt, action: SettleAction): Promise<SettleResult> {
    return this.#settleOne(this.item(receipt, action), receipt.group);
  }

  /**
   * Applies actions to reserved elements of this queue in one call: all of them commits, all extensions, or all releases
   * and dead letters. Returns how each ended.
   */
  settleAll(items: readonly SettleItem[]): Promise<readonly SettleResult[]> {
    return this.#settle(items, (results) => results);
  }

  /** Renews a lease to `leaseMs` from now (null: the namespace's) and returns its end. @throws as `settle` */
  async extend(receipt: Receipt, leaseMs: number | null): Promise<number> {
    const { until } = await this.settle(receipt, { kind: 'extend', leaseMs: leaseMs ?? this.#ns.leaseMs });
    return until ?? 0;
  }

  /** Removes a waiting element (spec 4.1). @throws `not-supported`, `element-not-found`, `element-reserved` */
  async remove(id: ElementId): Promise<void> {
    if (!this.#ns.capabilities.remove) {
      throw new QuaysideError('not-supported', `Queues of ${this.#ns.name} do not support remove by id.`);
    }
    const item = { queue: this.key, id, group: null, from: 'waiting', token: null, action: FINISH } as const;
    await this.#settleOne(item, null);
  }

  #settleOne(item: SettleItem, group: GroupName | null): Promise<SettleResult> {
    return this.#settle([item], ([result = SETTLED['not-found']]) => {
      const { outcome } = result;
      if (isSettled(outcome)) return result;
      const shown = group ?? (this.#ns.isStream ? this.#ns.defaultGroup : null);
      throw refusalOf(outcome, { id: item.id, group: shown }, this.key);
    });
  }

  /** Consumers that wait for what is released share its batch. One promise: this is on the path of every settlement. */
  #settle<R>(items: readonly SettleItem[], done: (results: readonly SettleResult[]) => R): Promise<R> {
    const settling = this.#ns.storage.settle(items);
    for (const { action, group } of items) {
      if (action.kind === 'release') this.#waiting?.wake(group ?? this.#ns.defaultGroup, action.delayMs);
    }
    return this.#ns.meter.observe(settleOperation(items[0]), settling, (results) => {
      this.#noteSettled(items, results);
      return done(results);
    });
  }

  /** Counts how settling ended, and notifies those who wait for what it made eligible. */
  #noteSettled(items: readonly SettleItem[], results: readonly SettleResult[]): void {
    const { meter, stats, defaultGroup } = this.#ns;
    let released = 0;
    for (let i = 0; i < items.length; i += 1) {
      const item = items[i] as SettleItem;
      const { outcome, until } = results[i] ?? SETTLED['not-found'];
      meter.count(settleOperation(item), countedAs(outcome));
      if (!isSettled(outcome)) continue;
      const { action, from } = item;
      const group = item.group ?? defaultGroup;
      if (action.kind === 'extend') this.#ns.leaseEndsAt(until ?? 0);
      else if (action.kind === 'release') {
        stats.add(this.key, group, action.countTry ? ONE_ROLLBACK : ONE_RESERVE_UNDONE);
        if (outcome === 'done') released += 1;
      } else if (action.kind === 'dead-letter') stats.add(this.key, group, ONE_ROLLBACK);
      else if (from === 'reserved') stats.add(this.key, group, ONE_COMMIT);
      if (outcome === 'dead-lettered') this.#ns.elementDied();
    }
    if (released > 0) this.#ns.announce(this.key, released);
  }

  /** Holds back all consumers of the queue, on every node (spec 3.2). Durable; idempotent. */
  async pause(): Promise<void> {
    await this.#ns.meter.observe('pause', this.#ns.writePaused(this.key, true));
    this.#ns.meter.count('pause', 'ok');
  }

  /** Lets them go on. */
  async resume(): Promise<void> {
    await this.#ns.meter.observe('resume', this.#ns.writePaused(this.key, false));
    this.#ns.meter.count('resume', 'ok');
  }

  /** The blocked calls of this node (spec 2.3), whatever their group and protocol. */
  consumers(): PendingConsumer[] {
    return this.#waiting?.pending() ?? [];
  }

  /** Those of all nodes, in the order in which they came. */
  async allConsumers(): Promise<PendingConsumer[]> {
    const here = this.consumers();
    const elsewhere = await this.#ns.consumersElsewhere(this.key);
    if (elsewhere.length === 0) return here;
    return [...here, ...elsewhere].sort((a, b) => (a.since < b.since ? -1 : a.since > b.since ? 1 : 0));
  }

  /**
   * Ends every blocked call with this tid, on all nodes (spec 3.3). Where `owner` is given, only that user's.
   * Answers how many ended here; none is no error.
   */
  cancel(tid: string, owner: string | null): number {
    this.#ns.announceCancel(this.key, tid, owner);
    this.#ns.meter.count('cancel', 'ok');
    return this.cancelHere(tid, owner);
  }

  /** The part of `cancel` that each node does. */
  cancelHere(tid: string, owner: string | null): number {
    return this.#waiting?.cancel(tid, owner, new QuaysideError('pop-cancelled', 'cancel')) ?? 0;
  }

  /** Up to `count` elements may have become eligible in each group. */
  match(count: number): void {
    this.#waiting?.match(count);
  }

  #newWaiting(): Waiting {
    const { key } = this;
    const ns = this.#ns;
    return new Waiting({
      key,
      storage: ns.storage,
      clock: ns.clock,
      random: ns.random,
      isShared: ns.isShared,
      meter: ns.meter,
      defaultGroup: ns.defaultGroup,
      makeTid: ns.makeTid,
      get paused() {
        return ns.isPaused(key.name);
      },
      served: (consumer, deliveries) => this.#served(consumer, deliveries),
      released: (consumer) => ns.admission.exit(consumer.request.owner),
      returnUndelivered: (delivery) => this.#returnUncounted([delivery]),
      sinkFailed: (error) => ns.log.warn({ err: error, queue: key }, 'a consumer failed'),
      emptied: () => ns.dropIdle(key.name),
    });
  }

  /** Lets a get in, and answers the group that it waits for; one that is refused ends here, and is counted. */
  #admit({ group, leaseMs, owner }: GetRequest): GroupName {
    try {
      const admitted = this.#groupFor(group);
      this.#ns.admission.enter(owner);
      return admitted;
    } catch (error) {
      this.#ns.meter.countError(takeOperation(leaseMs), error);
      throw error;
    }
  }

  /** On a stream an element is put once, and once for each of its groups. */
  #countPuts(elements: readonly NewElement[]): void {
    for (const { groups } of elements) countPuts(this.#ns.stats, this.key, groups, 1);
  }

  #served(consumer: Consumer, deliveries: readonly Delivery[]): void {
    const { leaseMs } = consumer.request;
    for (const { group, lease } of deliveries) {
      this.#ns.stats.add(this.key, group, leaseMs === null ? ONE_GET : ONE_RESERVE);
      if (lease !== null) this.#ns.leaseEndsAt(lease.until);
    }
    this.#ns.meter.count(takeOperation(leaseMs), 'ok', deliveries.length);
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

  /** Reservations are being returned undelivered. If that fails, their leases expire. */
  #returned(items: readonly SettleItem[], returning: Promise<unknown>): void {
    for (const { group } of items) this.#waiting?.wake(group ?? this.#ns.defaultGroup, 0);
    const ids = items.map(({ id }) => id);
    returning.then(
      () => this.#ns.announce(this.key, items.length),
      (error: unknown) =>
        this.#ns.log.warn(
          { err: error, queue: this.key, ids },
          'elements could not be returned to their queue',
        ),
    );
  }

  #groupFor(given: GroupName | null): GroupName {
    if (given !== null && !this.#ns.isStream) throw this.#noGroups('group', given);
    return given ?? this.#ns.defaultGroup;
  }

  #noGroups(parameter: string, given: string): QuaysideError {
    return invalidParameter(
      parameter,
      `${parameter} ${quote(given)} cannot be used: namespace ${this.#ns.name} has plain queues. Leave ${parameter} out, or use a stream namespace.`,
    );
  }
}

/** Elements of an insert whose keys were seen before. */
class Repeats {
  readonly indices = new Set<number>();
  /** The first that came with other content. */
  mismatched: number | null = null;

  readonly note: OnRepeat = (index, isSame) => {
    this.indices.add(index);
    if (!isSame) this.mismatched ??= index;
  };

  without(elements: readonly NewElement[]): readonly NewElement[] {
    return this.indices.size === 0 ? elements : elements.filter((_, index) => !this.indices.has(index));
  }
}

function mismatch(element: NewElement | undefined, { name }: QueueKey): QuaysideError {
  const key = quote(keyOfUser(element?.dedupKey ?? ''));
  return new QuaysideError(
    'idempotency-mismatch',
    `Key ${key} came before to queue ${quote(name)} with other content or parameters. Use a new key for a new element.`,
  );
}

function storedIn({ queue, element }: QueueMove['inserts'][number]): {
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
