import { isBeyond, limitedGroups } from '../../engine/queue-policy.ts';
import type { Signaller } from '../../engine/signaller.ts';
import type {
  InsertOptions,
  PurgeStep,
  QueueCounts,
  QueueOptions,
  ScanOptions,
  ScanPage,
  SettleItem,
  SettleResult,
  Storage,
  StorageCapabilities,
  SweepResult,
  TakeOptions,
  TakeResult,
  Usage,
} from '../../engine/storage.ts';
import {
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementId,
  type GroupName,
  type NewElement,
} from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import { holderTexts, ownerNumber } from '../../model/owner.ts';
import type { Batchers, Due } from './batcher.ts';
import { queueText } from './keys.ts';
import { type GroupRoom, groupsRejected, type Policies } from './policies.ts';
import type { Registry } from './registry.ts';
import type { Sweeper } from './sweeper.ts';
import { INSERT, insertCall, ROOM } from './verbs/insert.ts';
import { COUNTS, OPTIONS, SCAN } from './verbs/read.ts';
import { PURGE, SETTLE } from './verbs/settle.ts';
import { expiryOf, TAKE, UNDO, undoArgs } from './verbs/take.ts';

const FREE = { isFree: true } as const;
/** Deliveries that go in one step: a server that removes a million at once answers nothing else until then. */
const PURGE_STEP = 2_000;

/** The Storage port on the function library: what the operations do is in `library/`. */
export class RedisStorage implements Storage {
  readonly capabilities: StorageCapabilities = {
    sched: true,
    reserve: true,
    pipeline: true,
    remove: true,
    expiry: true,
  };
  readonly undoesLostTakes = true;
  readonly ordersTransfers = false;
  readonly insertSignaller: Signaller;
  readonly #batchers: Batchers;
  readonly #registry: Registry;
  readonly #sweeper: Sweeper;
  readonly #policies: Policies;
  readonly #dedupWindowMs: number;

  constructor(batchers: Batchers, sweeper: Sweeper) {
    const { registry, signaller, policies, dedupWindowMs } = batchers.context;
    this.insertSignaller = signaller;
    this.#batchers = batchers;
    this.#registry = registry;
    this.#sweeper = sweeper;
    this.#policies = policies;
    this.#dedupWindowMs = dedupWindowMs;
  }

  now(queue?: QueueKey): number {
    return this.#registry.now(queue);
  }

  /** What a queue is declared with is stored in it, hence in a call of each. */
  async declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void> {
    await this.#registry.declare(queues);
    if (options === undefined) return;
    const deadLetter = options?.deadLetter;
    const deadLetterQueues =
      deadLetter == null ? [] : queues.map(({ ns }) => ({ ns, name: deadLetter.queue }));
    await Promise.all([
      this.#registry.declare(deadLetterQueues),
      ...queues.map((queue) => {
        const text = options === null ? '' : this.#policies.encodeOptions(queue, options);
        return this.#batchers.call(queue, OPTIONS, text, { stores: true, creates: true });
      }),
    ]);
  }

  queues(ns: string): Promise<string[]> {
    return this.#registry.names(ns);
  }

  async insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    { signal = null, onRepeat = null, request = null }: InsertOptions = {},
  ): Promise<ElementId[]> {
    const isEmpty = elements.length === 0;
    if (isEmpty && request === null) return [];
    const room = this.#policies.room(queue);
    // Before anything is sent: what is rejected creates no queue.
    if (room.limit !== null && isBeyond(room.limit, elements)) throw groupsRejected(room);
    const call = insertCall(elements, { windowMs: this.#dedupWindowMs, room, onRepeat, request });
    // Nothing is stored, and no queue made, by a look at a key.
    if (isEmpty) return this.#batchers.call(queue, INSERT, call);
    return this.#batchers.call(queue, INSERT, call, {
      join: 'insert',
      stores: true,
      creates: true,
      signal,
      items: elements.length,
      bytes: call.bytes,
      dues: this.#expiries(queue, elements),
    });
  }

  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult> {
    const { group, count, leaseMs, owner, tids, ids = null, maxBytes = null } = options;
    if (ids?.length === 0) return Promise.resolve({ deliveries: [], nextDueAt: null });
    const lease = leaseMs === null ? null : Math.max(1, Math.ceil(leaseMs));
    const call = {
      group,
      count,
      leaseMs: lease,
      owner: lease === null ? 0 : ownerNumber(owner),
      holders: lease === null ? '' : holderTexts(owner, tids),
      ids,
      maxBytes,
    };
    return this.#batchers.call(queue, TAKE, call, {
      join: ids === null && maxBytes === null ? `take ${lease} ${call.owner} ${group}` : null,
      items: count,
      ...(lease === null ? {} : { dues: [{ queue, ms: lease }] }),
    });
  }

  /** Each item is atomic; those of one queue are one call. If some calls fail, all is `outcome-unknown`. */
  async settle(items: readonly SettleItem[]): Promise<SettleResult[]> {
    if (items.length === 0) return [];
    const room = this.#makeRoom(items);
    // Without a reason to wait, the calls are made at once, in their place among other calls.
    return room === null ? this.#settle(items) : this.#batchers.inTime(room.then(() => this.#settle(items)));
  }

  async undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    const args = undoArgs(deliveries);
    const bytes = deliveries.reduce((sum, { body }) => sum + body.length, 0);
    const expiries = deliveries.map((delivery) => ({ expiresAt: expiryOf(delivery) }));
    const dues = this.#expiries(queue, expiries);
    await this.#batchers.call(queue, UNDO, args, {
      join: 'undo',
      creates: true,
      items: deliveries.length,
      bytes,
      dues,
    });
    // A sweep for what expired in the consumer's hands may have been before it was back.
    if (dues.length > 0) this.#sweepSoon(queue);
  }

  scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    if (options.ids?.length === 0) return Promise.resolve({ deliveries: [], next: null });
    return this.#batchers.call(queue, SCAN, options, FREE);
  }

  purge(queue: QueueKey, states: readonly DeliveryState[] = DELIVERY_STATES): Promise<PurgeStep> {
    return this.#batchers.call(queue, PURGE, { states, limit: PURGE_STEP });
  }

  /** After the calls that were made before it. */
  async drop(queue: QueueKey): Promise<boolean> {
    await this.counts(queue);
    return this.#registry.drop(queue);
  }

  counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts> {
    return this.#batchers.call(queue, COUNTS, group ?? null, FREE);
  }

  usage(ns: string, needsBytes = true): Promise<Usage> {
    return this.#registry.usage(ns, needsBytes);
  }

  sweep(): Promise<SweepResult> {
    return this.#sweeper.sweep();
  }

  async #settle(items: readonly SettleItem[]): Promise<SettleResult[]> {
    const [first] = items;
    if (first === undefined) return [];
    const isOneQueue = items.every(({ queue }) => queue === first.queue || isSame(queue, first.queue));
    if (isOneQueue) return this.#settleQueue(items);
    const byQueue = Map.groupBy(items, ({ queue }) => queueText(queue));
    const settled = await Promise.allSettled(Array.from(byQueue.values(), (own) => this.#settleQueue(own)));
    const failed = settled.find((each) => each.status === 'rejected');
    if (failed !== undefined) throw inPart(settled, failed.reason);
    const results = new Map<SettleItem, SettleResult>();
    for (const [i, own] of [...byQueue.values()].entries()) {
      const each = settled[i];
      if (each?.status !== 'fulfilled') continue;
      for (const [at, item] of own.entries()) results.set(item, each.value[at] as SettleResult);
    }
    return items.map((item) => results.get(item) as SettleResult);
  }

  #settleQueue(items: readonly SettleItem[]): Promise<SettleResult[]> {
    const policies = this.#policies;
    const queue = (items[0] as SettleItem).queue;
    const dues: Due[] = [];
    let bytes = 0;
    let stores = false;
    let moves = false;
    for (const { action } of items) {
      if (action.kind === 'extend') dues.push({ queue, ms: action.leaseMs });
      if (action.kind === 'move')
        dues.push(...this.#retentionOf(action.to), { queue: action.to, ms: MOVED_SWEEP_MS });
      if (action.kind !== 'finish' && action.kind !== 'extend') moves = true;
      if (action.kind === 'move') stores = true;
      if (action.kind !== 'finish' || action.inserts === undefined) continue;
      moves = true;
      for (const { queue: to, element } of action.inserts) {
        stores = true;
        bytes += element.body.length;
        dues.push(...this.#retentionOf(to), ...this.#expiries(to, [element]));
      }
    }
    const deadLetters = moves ? policies.deadLetterQueue(queue) : null;
    if (deadLetters !== null) dues.push(...this.#retentionOf(deadLetters));
    const options = { join: 'settle', items: items.length, bytes, stores, moves, dues };
    const retentionMs = (to: QueueKey): number => policies.retentionMs(to);
    const call = { items, windowMs: this.#dedupWindowMs, retentionMs };
    const settling = this.#batchers.call(queue, SETTLE, call, options);
    return stores ? settling.then((results) => this.#sweepTargets(items, results)) : settling;
  }

  /** Only the server knows when what it moved expires: a sweep of the target looks, as soon as there is one. */
  #sweepTargets(items: readonly SettleItem[], results: SettleResult[]): SettleResult[] {
    for (const [i, { action }] of items.entries()) {
      if (action.kind !== 'move' || results[i]?.outcome !== 'done') continue;
      this.#sweepSoon(action.to);
    }
    return results;
  }

  /** If this fails, there is the entry from before the batch. */
  #sweepSoon(queue: QueueKey): void {
    this.#registry.addDue(queue, this.now(queue)).catch(() => {});
  }

  #retentionOf(queue: QueueKey): Due[] {
    const ms = this.#policies.retentionMs(queue);
    return ms === 0 ? [] : [{ queue, ms }];
  }

  /** When to sweep a queue for the first of these elements that expires. */
  #expiries(queue: QueueKey, elements: readonly Pick<NewElement, 'expiresAt'>[]): Due[] {
    let first = Number.POSITIVE_INFINITY;
    for (const { expiresAt } of elements) first = Math.min(first, expiresAt ?? first);
    if (first === Number.POSITIVE_INFINITY) return [];
    return [{ queue, ms: Math.max(1, Math.ceil(first - this.now(queue))) }];
  }

  /**
   * Groups that are not the default ones must fit before anything is finished: an outbox entry cannot be rejected when it
   * arrives. Exchanges name none, and so nothing is asked for here. Null: nothing to do.
   * @throws QuaysideError `too-many-groups`
   */
  #makeRoom(items: readonly SettleItem[]): Promise<unknown> | null {
    let targets: Map<string, { readonly room: GroupRoom; readonly groups: Set<GroupName> }> | null = null;
    const add = (queue: QueueKey, element: Pick<NewElement, 'groups'>): void => {
      const room = this.#policies.room(queue);
      const named = room.limit === null ? [] : [...limitedGroups(room.limit, [element])];
      if (named.length === 0) return;
      targets ??= new Map();
      const groups = targets.get(queueText(queue))?.groups ?? new Set();
      for (const group of named) groups.add(group);
      targets.set(queueText(queue), { room, groups });
    };
    for (const { action } of items) {
      if (action.kind === 'move') add(action.to, action);
      if (action.kind !== 'finish' || action.inserts === undefined) continue;
      for (const { queue, element } of action.inserts) add(queue, element);
    }
    if (targets === null) return null;
    const needed = [...(targets as Map<string, { room: GroupRoom; groups: Set<GroupName> }>).values()];
    for (const { room, groups } of needed) {
      if (room.limit !== null && groups.size > room.limit.most) throw groupsRejected(room);
    }
    return Promise.all(
      needed.map(({ room, groups }) => {
        const call = { room, groups: [...groups].join(',') };
        return this.#batchers.call(room.queue, ROOM, call, { stores: true, creates: true });
      }),
    );
  }
}

function isSame(a: QueueKey, b: QueueKey): boolean {
  return a.name === b.name && a.ns === b.ns;
}

/** A queue is swept so long after a move to it was sent: later than its deadline, in case its reply is lost. */
const MOVED_SWEEP_MS = 10_000;

/** The error of items in several queues of which some failed: what changed nothing is said only if nothing changed. */
function inPart(settled: readonly PromiseSettledResult<SettleResult[]>[], cause: unknown): unknown {
  const isChanged = settled.some(
    (each) =>
      each.status === 'fulfilled' &&
      each.value.some(({ outcome }) => outcome === 'done' || outcome === 'dead-lettered'),
  );
  const unknown = settled.find(
    (each) => each.status === 'rejected' && (each.reason as QuaysideError).code === 'outcome-unknown',
  );
  if (!isChanged) return unknown?.status === 'rejected' ? unknown.reason : cause;
  return new QuaysideError('outcome-unknown', 'Only the items of some queues were settled for sure.', {
    cause,
  });
}
