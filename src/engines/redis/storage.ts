import { isBeyond } from '../../engine/group-limit.ts';
import type {
  BrowseOptions,
  BrowsePage,
  DeliveryRef,
  ExtendItem,
  ExtendOutcome,
  Move,
  OnRepeat,
  QueueSizes,
  RemoveOutcome,
  RollbackItem,
  SettleOutcome,
  Storage,
  StorageCapabilities,
  SweepResult,
  TakeOptions,
  TakeResult,
  Usage,
} from '../../engine/old-port.ts';
import type { ReadySignal, Signaller } from '../../engine/signaller.ts';
import {
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementId,
  type GroupName,
  type NewElement,
} from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { ownerNumber } from '../../model/owner.ts';
import { INSERT, insertCall, refusedGroups } from './calls/insert.ts';
import type { Lanes } from './calls/lanes.ts';
import { DUE, SIZES } from './calls/look.ts';
import { COMMIT, EXTEND, PUT_BACK, putBackArgs, REMOVE, ROLLBACK } from './calls/settle.ts';
import { BROWSE, TAKE } from './calls/take.ts';
import { purge } from './purge.ts';
import type { Registry } from './registry.ts';
import type { Sweeper } from './sweeper.ts';
import { type TransferParts, transfer } from './transfer.ts';
import { type UsageParts, usage } from './usage.ts';

export interface StorageParts extends TransferParts, UsageParts {
  readonly lanes: Lanes;
  readonly registry: Registry;
  readonly sweeper: Sweeper;
  readonly dedupWindowMs: number;
  readonly signaller: Signaller;
}

const FREE = { kind: 'free' } as const;

/** The Storage port on the function library: what the verbs do stands in `library/`, one file per verb. */
export class RedisStorage implements Storage {
  readonly capabilities: StorageCapabilities = { sched: true, reserve: true, pipeline: true, remove: true };
  readonly undoesLostTakes = true;
  readonly ordersTransfers = false;
  readonly carries: Signaller;
  readonly #parts: StorageParts;
  readonly #lanes: Lanes;

  constructor(parts: StorageParts) {
    this.#parts = parts;
    this.#lanes = parts.lanes;
    this.carries = parts.signaller;
  }

  now(queue?: QueueKey): number {
    return this.#parts.registry.now(queue);
  }

  async declare(queues: readonly QueueKey[]): Promise<void> {
    await this.#parts.registry.declare(queues);
  }

  queues(ns: string): Promise<string[]> {
    return this.#parts.registry.names(ns);
  }

  async insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    signal: ReadySignal | null = null,
    onRepeat: OnRepeat | null = null,
  ): Promise<ElementId[]> {
    if (elements.length === 0) return [];
    const room = this.#parts.policies.room(queue);
    // Before anything is sent: what is refused makes no queue.
    if (room.limit !== null && isBeyond(room.limit, elements)) throw refusedGroups(room);
    const call = insertCall(elements, this.#parts.dedupWindowMs, room, onRepeat);
    return this.#lanes.call(queue, INSERT, call, {
      join: 'insert',
      inserts: true,
      makes: true,
      signal,
      items: elements.length,
      bytes: call.bytes,
    });
  }

  take(queue: QueueKey, { group, count, leaseMs, owner }: TakeOptions): Promise<TakeResult> {
    const lease = leaseMs === null ? null : Math.max(1, Math.ceil(leaseMs));
    const call = { group, count, leaseMs: lease, owner: lease === null ? 0 : ownerNumber(owner) };
    return this.#lanes.call(queue, TAKE, call, {
      join: `take ${lease} ${call.owner} ${group}`,
      items: count,
      dueMs: lease,
    });
  }

  async commit(queue: QueueKey, refs: readonly DeliveryRef[]): Promise<SettleOutcome[]> {
    if (refs.length === 0) return [];
    return this.#lanes.call(queue, COMMIT, refs, { join: 'commit', items: refs.length });
  }

  async rollback(queue: QueueKey, items: readonly RollbackItem[]): Promise<SettleOutcome[]> {
    if (items.length === 0) return [];
    return this.#lanes.call(queue, ROLLBACK, items, { join: 'rollback', items: items.length, moves: true });
  }

  async extend(queue: QueueKey, items: readonly ExtendItem[]): Promise<ExtendOutcome[]> {
    if (items.length === 0) return [];
    const dueMs = Math.min(...items.map(({ leaseMs }) => leaseMs));
    return this.#lanes.call(queue, EXTEND, items, { join: 'extend', items: items.length, dueMs });
  }

  async putBack(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    const args = putBackArgs(deliveries);
    const bytes = deliveries.reduce((sum, { body }) => sum + body.length, 0);
    await this.#lanes.call(queue, PUT_BACK, args, {
      join: 'back',
      makes: true,
      items: deliveries.length,
      bytes,
    });
  }

  async remove(queue: QueueKey, ids: readonly ElementId[]): Promise<RemoveOutcome[]> {
    if (ids.length === 0) return [];
    return this.#lanes.call(queue, REMOVE, ids, { join: 'remove', items: ids.length });
  }

  transfer(moves: readonly Move[]): Promise<SettleOutcome[]> {
    return transfer(this.#parts, moves);
  }

  browse(queue: QueueKey, options: BrowseOptions): Promise<BrowsePage> {
    return this.#lanes.call(queue, BROWSE, options, FREE);
  }

  purge(queue: QueueKey, states: readonly DeliveryState[] = DELIVERY_STATES): Promise<number> {
    return purge(this.#lanes, queue, states);
  }

  sizes(queue: QueueKey, group?: GroupName): Promise<QueueSizes> {
    return this.#lanes.call(queue, SIZES, group ?? null, FREE);
  }

  nextDueAt(queue: QueueKey, group: GroupName): Promise<number | null> {
    return this.#lanes.call(queue, DUE, group, FREE);
  }

  usage(ns: string, needsBytes = true): Promise<Usage> {
    return usage(this.#parts, ns, needsBytes);
  }

  sweep(): Promise<SweepResult> {
    return this.#parts.sweeper.sweep();
  }
}
