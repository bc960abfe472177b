import { isUnknownOutcome, partialFailure, settleRest } from '../../engine/calls.ts';
import { limitedGroups } from '../../engine/queue-policy.ts';
import { SCAN_BYTES } from '../../engine/scan-cursor.ts';
import { SharedReads } from '../../engine/shared-reads.ts';
import type { Signaller } from '../../engine/signaller.ts';
import {
  ALL_CAPABILITIES,
  type InsertOptions,
  type PurgeStep,
  type QueueCounts,
  type QueueOptions,
  type ScanOptions,
  type ScanPage,
  type SettleItem,
  type SettleResult,
  type Storage,
  type TakeOptions,
  type TakeResult,
  type TimeLeft,
  type Usage,
} from '../../engine/storage.ts';
import {
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementId,
  type GroupName,
  type NewElement,
} from '../../model/element.ts';
import { contradictionIn } from '../../model/fingerprint.ts';
import type { QueueKey } from '../../model/names.ts';
import { holderStrings, ownerNumber } from '../../model/owner.ts';
import { type BatcherContext, type Batchers, single } from './batcher.ts';
import { queueText } from './keys.ts';
import type { Sweeper } from './sweeper.ts';
import {
  CREATE_GROUPS,
  capacityOf,
  type GroupCapacity,
  groupsRejected,
  INSERT,
  insertCall,
} from './verbs/insert.ts';
import { COUNTS, readQueueCounts, SCAN } from './verbs/read.ts';
import { PURGE, PURGE_STEP, SETTLE } from './verbs/settle.ts';
import { TAKE, UNDO, undoArgs } from './verbs/take.ts';

/** Items settled per call: Redis serves nobody else for the 80 ms that a thousand take if they become dead letters. */
const SETTLE_STEP = 1_000;
/** A page by ids counts as a page for each id in the size of a batch, up to this many. */
const SCANS_AT_ONCE = 8;

/** Queues counted per call on a single server, which needs about a millisecond for them. */
const COUNTED_AT_ONCE = 100;

/** Stores the declared options of a queue. */
const OPTIONS = single<string, undefined>(
  'options',
  (text) => [text],
  () => undefined,
);

/** By the full names of queues: their limits, and the groups that they must have. */
type GroupTargets = Map<string, { readonly capacity: GroupCapacity; readonly groups: Set<GroupName> }>;

/** What the storages of all variants have in common. */
export abstract class QueueStorage {
  readonly aheadMs = 0;
  readonly insertSignaller: Signaller;
  protected readonly batchers: Batchers;
  protected readonly context: BatcherContext;
  protected readonly sweeper: Sweeper;

  constructor(batchers: Batchers, sweeper: Sweeper) {
    this.insertSignaller = batchers.context.signaller;
    this.batchers = batchers;
    this.context = batchers.context;
    this.sweeper = sweeper;
  }

  now(queue?: QueueKey): number {
    return this.context.registry.now(queue);
  }

  queues(ns: string): Promise<string[]> {
    return this.context.registry.names(ns);
  }

  usage(ns: string, needsBytes = true): Promise<Usage> {
    return this.context.registry.usage(ns, needsBytes);
  }

  takeAffected(): QueueKey[] {
    return this.sweeper.affected.takeAll();
  }
}

/** The Storage port on the function library, which implements the operations: see `verbs/` and `library/`. */
export class RedisStorage extends QueueStorage implements Storage {
  readonly capabilities = ALL_CAPABILITIES;
  readonly undoesLostTakes = true;
  readonly ordersTransfers = false;
  readonly #idleCounts = new SharedReads(
    () => this.context.topology.queuesPerCall(COUNTED_AT_ONCE),
    (queues: readonly QueueKey[]) => this.#countIdle(queues),
  );

  declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void> {
    return this.batchers.inTime(this.#declare(queues, options));
  }

  /** Options are stored with their queue, so each queue needs a call of its own. */
  async #declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void> {
    await this.context.registry.declare(queues);
    if (options === undefined) return;
    const deadLetter = options?.deadLetter;
    const deadLetterQueues =
      deadLetter == null ? [] : queues.map(({ ns }) => ({ ns, name: deadLetter.queue }));
    await Promise.all([
      this.context.registry.declare(deadLetterQueues),
      ...queues.map((queue) => {
        const text = options === null ? '' : this.context.policies.encodeOptions(queue, options);
        return this.batchers.call(queue, OPTIONS, text, { creates: true });
      }),
    ]);
  }

  async insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    { signal = null, onRepeat = null, request = null, leftMs }: InsertOptions = {},
  ): Promise<ElementId[]> {
    const deadlineAt = this.context.executor.deadline(leftMs);
    const isEmpty = elements.length === 0;
    if (isEmpty && request === null) return [];
    const capacity = capacityOf(this.context.policies, queue);
    const deliveries = elements.reduce((sum, { groups }) => sum + groups.length, 0);
    // Check before sending: a rejected insert must not create the queue.
    const { limit } = capacity;
    if (limit !== null && deliveries > limit.max && limitedGroups(limit, elements).size > limit.max)
      throw groupsRejected(capacity);
    const call = insertCall(elements, { windowMs: this.context.dedupWindowMs, capacity, onRepeat, request });
    // Neither a lookup of a request key nor elements that contradict each other, as in the lookup of a key, are stored.
    const creates = !isEmpty && contradictionIn(elements) < 0;
    return this.batchers.call(queue, INSERT, call, {
      join: 'insert',
      stores: !isEmpty,
      creates,
      ready: signal && { signal, elements },
      items: elements.length,
      deliveries,
      bytes: call.contents.bytes.length,
      deadlineAt,
    });
  }

  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult> {
    const { group, count, leaseMs, owner, tids, maxBytes = null, leftMs } = options;
    const lease = leaseMs === null ? null : Math.max(1, Math.ceil(leaseMs));
    const call = {
      group,
      count,
      leaseMs: lease,
      owner: lease === null ? 0 : ownerNumber(owner),
      holders: lease === null ? '' : holderStrings(owner, tids),
      maxBytes,
    };
    return this.batchers.call(queue, TAKE, call, {
      join: maxBytes === null ? `take ${lease} ${call.owner} ${group}` : null,
      items: count,
      deadlineAt: this.context.executor.deadline(leftMs),
      ...(lease === null ? {} : { leaseMs: lease }),
    });
  }

  /**
   * Each item is atomic; up to {@link SETTLE_STEP} of one queue are one call. If a call fails after another one has
   * changed something, the outcome of all is unknown. @throws QuaysideError
   */
  async settle(items: readonly SettleItem[], { leftMs }: TimeLeft = {}): Promise<SettleResult[]> {
    if (items.length === 0) return [];
    const deadlineAt = this.context.executor.deadline(leftMs);
    const creating = this.#createGroups(items, deadlineAt);
    // Do not await when there is nothing to wait for: the calls would lose their place in the order.
    if (creating !== null) await creating;
    return this.#settle(items, deadlineAt);
  }

  async undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    const args = undoArgs(deliveries);
    const bytes = deliveries.reduce((sum, { body }) => sum + body.length, 0);
    const options = { join: 'undo', creates: true, items: deliveries.length, bytes };
    await this.batchers.call(queue, UNDO, args, options);
  }

  scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    if (options.ids?.length === 0) return Promise.resolve({ deliveries: [], next: null });
    const deadlineAt = this.context.executor.deadline(options.leftMs);
    // The library limits pages to `SCAN_BYTES`, except those by ids.
    const pageBytes = SCAN_BYTES * Math.min(options.ids?.length ?? 1, SCANS_AT_ONCE);
    return this.batchers.call(queue, SCAN, options, { pageBytes, deadlineAt });
  }

  purge(queue: QueueKey, states: readonly DeliveryState[] = DELIVERY_STATES): Promise<PurgeStep> {
    return this.batchers.call(queue, PURGE, states, { deliveries: PURGE_STEP });
  }

  /** Runs after all calls made earlier. */
  drop(queue: QueueKey): Promise<boolean> {
    const drop = async (): Promise<boolean> => {
      await this.#countInOrder(queue);
      return this.sweeper.affected.drop(queue, () => this.context.registry.drop(queue));
    };
    return this.batchers.inTime(drop());
  }

  /** Of a queue without other calls, the counts are read together with those of other queues. */
  async counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts> {
    const deadlineAt = this.context.executor.deadline();
    if (group === undefined && !this.batchers.isInUse(queue)) {
      const counts = await this.#idleCounts.read(queue);
      if (counts !== null) return counts;
    }
    return this.#countInOrder(queue, group, deadlineAt);
  }

  /** Runs after all calls made earlier. */
  #countInOrder(
    queue: QueueKey,
    group?: GroupName,
    deadlineAt = this.context.executor.deadline(),
  ): Promise<QueueCounts> {
    const join = group === undefined ? 'counts' : `counts ${group}`;
    return this.batchers.call(queue, COUNTS, group ?? null, { join, deadlineAt });
  }

  /** The counts of queues without calls; null for those of which the verb has to be called. */
  async #countIdle(queues: readonly QueueKey[]): Promise<(QueueCounts | null)[]> {
    const { executor, keys, settings, topology } = this.context;
    const named = queues.map((queue) => keys.queue(queue));
    const [key = '', ...others] = named.flatMap(({ hash, order }) => [hash, order]);
    const args = [settings.givenTime?.now() ?? 0];
    const reply = await executor.call('counts', [key, ...others], args, { writes: false });
    const [now, texts] = reply as [number, Buffer[]];
    if (settings.givenTime === null) topology.masterOf(topology.slotOf(key))?.noteServerTime(now);
    return texts.map((text) => (text.length === 0 ? null : readQueueCounts(text)));
  }

  sweep(): Promise<number | null> {
    return this.sweeper.sweep();
  }

  async #settle(items: readonly SettleItem[], deadlineAt: number): Promise<SettleResult[]> {
    const [first] = items;
    if (first === undefined) return [];
    const isOneQueue = items.every(({ queue }) => queue === first.queue || isSame(queue, first.queue));
    if (isOneQueue) return this.#settleQueue(items, deadlineAt);
    const parts = [...Map.groupBy(items, ({ queue }) => queueText(queue)).values()];
    const settled = await Promise.allSettled(parts.map((part) => this.#settleQueue(part, deadlineAt)));
    const results = new Map<SettleItem, SettleResult>();
    const failures: unknown[] = [];
    for (const [i, part] of parts.entries()) {
      const outcome = settled[i];
      if (outcome?.status === 'rejected') failures.push(outcome.reason);
      else for (const [at, item] of part.entries()) results.set(item, outcome?.value[at] as SettleResult);
    }
    if (failures.length > 0) {
      throw partialFailure([...results.values()], failures.find(isUnknownOutcome) ?? failures[0]);
    }
    return items.map((item) => results.get(item) as SettleResult);
  }

  #settleQueue(items: readonly SettleItem[], deadlineAt: number): Promise<SettleResult[]> {
    const step = (left: readonly SettleItem[]): Promise<SettleResult[]> =>
      this.#settleStep(left.slice(0, SETTLE_STEP), deadlineAt);
    return step(items).then((results) =>
      results.length === items.length ? results : settleRest(items, results, step),
    );
  }

  /** Returns the results of the first items, as many as the server settles in one batch. */
  #settleStep(items: readonly SettleItem[], deadlineAt: number): Promise<SettleResult[]> {
    const policies = this.context.policies;
    const queue = (items[0] as SettleItem).queue;
    let leaseMs = Number.POSITIVE_INFINITY;
    let bytes = 0;
    let deliveries = items.length;
    let stores = false;
    let moves = false;
    for (const { action } of items) {
      if (action.kind === 'extend') leaseMs = Math.min(leaseMs, action.leaseMs);
      if (action.kind !== 'finish' && action.kind !== 'extend') moves = true;
      if (action.kind === 'move') stores = true;
      if (action.kind !== 'finish' || action.inserts === undefined) continue;
      moves = true;
      deliveries += action.inserts.length;
      for (const { element } of action.inserts) {
        stores = true;
        bytes += element.body.length;
      }
    }
    const count = items.length;
    const leases = leaseMs === Number.POSITIVE_INFINITY ? {} : { leaseMs };
    const options = { join: 'settle', items: count, deliveries, bytes, stores, moves, deadlineAt, ...leases };
    const retentionMs = (to: QueueKey): number => policies.retentionMs(to);
    const call = { items, windowMs: this.context.dedupWindowMs, retentionMs };
    return this.batchers.call(queue, SETTLE, call, options);
  }

  /**
   * Creates the groups that are not default ones, before anything is finished: an outbox entry cannot be rejected when
   * it arrives. Exchanges name no such groups, so they need no call here. Null: nothing to do.
   * @throws QuaysideError `too-many-groups`
   */
  #createGroups(items: readonly SettleItem[], deadlineAt: number): Promise<unknown> | null {
    let targets: GroupTargets | null = null;
    const add = (queue: QueueKey, element: Pick<NewElement, 'groups'>): void => {
      const capacity = capacityOf(this.context.policies, queue);
      const named = capacity.limit === null ? [] : [...limitedGroups(capacity.limit, [element])];
      if (named.length === 0) return;
      targets ??= new Map();
      const groups = targets.get(queueText(queue))?.groups ?? new Set();
      for (const group of named) groups.add(group);
      targets.set(queueText(queue), { capacity, groups });
    };
    for (const { action } of items) {
      if (action.kind === 'move') add(action.to, action);
      if (action.kind !== 'finish' || action.inserts === undefined) continue;
      for (const { queue, element } of action.inserts) add(queue, element);
    }
    if (targets === null) return null;
    const needed = [...(targets as GroupTargets).values()];
    for (const { capacity, groups } of needed) {
      if (capacity.limit !== null && groups.size > capacity.limit.max) throw groupsRejected(capacity);
    }
    return Promise.all(
      needed.map(({ capacity, groups }) => {
        const call = { capacity, groups: [...groups].join(',') };
        return this.batchers.call(capacity.queue, CREATE_GROUPS, call, {
          stores: true,
          creates: true,
          deadlineAt,
        });
      }),
    );
  }
}

function isSame(a: QueueKey, b: QueueKey): boolean {
  return a.name === b.name && a.ns === b.ns;
}
