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
import type { ReadySignal } from '../../engine/signaller.ts';
import type { Delivery, DeliveryState, ElementId, GroupName, NewElement } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { ownerNumber } from '../../model/owner.ts';
import type { Client } from './client.ts';
import {
  readDeliveries,
  readInserted,
  readOutcomes,
  readSizes,
  writeDeliveryBack,
  writeNewElement,
  writeRef,
} from './codec.ts';
import type { Housekeeping } from './housekeeping.ts';
import type { MessageReader } from './message.ts';
import { DONE, OUTCOMES } from './operations.ts';
import type { SteadyTime } from './steady-time.ts';

/**
 * The Storage port over the worker: each verb writes its arguments into the batch that gathers and reads
 * its answer. What the verbs do stands in `worker/verbs/`, one file per verb.
 */
export class SqliteStorage implements Storage {
  readonly capabilities: StorageCapabilities = { sched: true, reserve: true, pipeline: true, remove: true };
  readonly undoesLostTakes = false;
  readonly ordersTransfers = true;
  readonly carries = null;
  readonly #client: Client;
  readonly #time: SteadyTime;
  readonly #housekeeping: Housekeeping;

  constructor(client: Client, time: SteadyTime, housekeeping: Housekeeping) {
    this.#client = client;
    this.#time = time;
    this.#housekeeping = housekeeping;
  }

  now(): number {
    return this.#time.now();
  }

  declare(queues: readonly QueueKey[]): Promise<void> {
    const call = this.#client.begin('declare');
    call.value(queues.length);
    for (const queue of queues) call.value(this.#client.handle(queue));
    return this.#client.end('declare', nothing);
  }

  queues(ns: string): Promise<string[]> {
    this.#client.begin('queues').value(ns);
    return this.#client.end('queues', readTexts);
  }

  insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    _signal?: ReadySignal | null,
    onRepeat: OnRepeat | null = null,
  ): Promise<ElementId[]> {
    const call = this.#client.begin('insert');
    const count = elements.length;
    const now = this.#time.now();
    call.value(this.#client.handle(queue));
    call.value(count);
    for (const element of elements) writeNewElement(call, element, this.#dueAt(element, now));
    return this.#client.end('insert', (reply) => readInserted(reply, elements, onRepeat));
  }

  take(queue: QueueKey, { group, count, leaseMs, owner }: TakeOptions): Promise<TakeResult> {
    this.#housekeeping.due();
    const call = this.#client.begin('take');
    call.value(this.#client.handle(queue));
    call.value(group);
    call.value(count);
    call.value(leaseMs);
    if (leaseMs !== null) call.value(ownerNumber(owner));
    return this.#client.end('take', (reply) => ({
      deliveries: readDeliveries(reply, group),
      nextDueAt: reply.numberOrNull(),
    }));
  }

  commit(queue: QueueKey, refs: readonly DeliveryRef[]): Promise<SettleOutcome[]> {
    const call = this.#client.begin('commit');
    call.value(this.#client.handle(queue));
    call.value(refs.length);
    for (const ref of refs) writeRef(call, ref);
    return this.#client.end('commit', (reply) => readOutcomes<SettleOutcome>(reply, refs.length));
  }

  rollback(queue: QueueKey, items: readonly RollbackItem[]): Promise<SettleOutcome[]> {
    const call = this.#client.begin('rollback');
    call.value(this.#client.handle(queue));
    call.value(items.length);
    for (const item of items) {
      writeRef(call, item);
      call.value(item.delayMs);
      call.flag(item.countTry);
    }
    return this.#client.end('rollback', (reply) => readOutcomes<SettleOutcome>(reply, items.length));
  }

  extend(queue: QueueKey, items: readonly ExtendItem[]): Promise<ExtendOutcome[]> {
    const call = this.#client.begin('extend');
    call.value(this.#client.handle(queue));
    call.value(items.length);
    for (const item of items) {
      writeRef(call, item);
      call.value(item.leaseMs);
    }
    return this.#client.end('extend', (reply) => items.map(() => readExtendOutcome(reply)));
  }

  putBack(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    const call = this.#client.begin('putBack');
    call.value(this.#client.handle(queue));
    call.value(deliveries.length);
    for (const delivery of deliveries) writeDeliveryBack(call, delivery);
    return this.#client.end('putBack', nothing);
  }

  remove(queue: QueueKey, ids: readonly ElementId[]): Promise<RemoveOutcome[]> {
    const call = this.#client.begin('remove');
    call.value(this.#client.handle(queue));
    call.value(ids.length);
    for (const id of ids) call.value(id);
    return this.#client.end('remove', (reply) => readOutcomes<RemoveOutcome>(reply, ids.length));
  }

  transfer(moves: readonly Move[]): Promise<SettleOutcome[]> {
    const call = this.#client.begin('transfer');
    const now = this.#time.now();
    call.value(moves.length);
    for (const { from, finish, inserts } of moves) {
      call.value(this.#client.handle(from));
      writeRef(call, finish);
      call.value(inserts.length);
      for (const { queue, element } of inserts) {
        call.value(this.#client.handle(queue));
        writeNewElement(call, element, this.#dueAt(element, now));
      }
    }
    return this.#client.end('transfer', (reply) => readOutcomes<SettleOutcome>(reply, moves.length));
  }

  browse(queue: QueueKey, { group, state, after, limit }: BrowseOptions): Promise<BrowsePage> {
    const call = this.#client.begin('browse');
    call.value(this.#client.handle(queue));
    call.value(group);
    call.value(state);
    call.value(after);
    call.value(limit);
    return this.#client.end('browse', (reply) => ({
      deliveries: readDeliveries(reply, group),
      next: reply.textOrNull(),
    }));
  }

  purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<number> {
    const call = this.#client.begin('purge');
    call.value(this.#client.handle(queue));
    call.value(states === undefined ? null : states.join(','));
    this.#housekeeping.due();
    return this.#client.end('purge', (reply) => reply.number());
  }

  sizes(queue: QueueKey, group?: GroupName): Promise<QueueSizes> {
    const call = this.#client.begin('sizes');
    call.value(this.#client.handle(queue));
    call.value(group ?? null);
    return this.#client.end('sizes', readSizes);
  }

  nextDueAt(queue: QueueKey, group: GroupName): Promise<number | null> {
    const call = this.#client.begin('nextDueAt');
    call.value(this.#client.handle(queue));
    call.value(group);
    return this.#client.end('nextDueAt', (reply) => reply.numberOrNull());
  }

  #dueAt({ matureAt, delayMs }: NewElement, now: number): number {
    return matureAt === null ? now + delayMs : this.#time.fromWall(matureAt);
  }

  usage(ns: string): Promise<Usage> {
    this.#client.begin('usage').value(ns);
    return this.#client.end('usage', (reply) => ({ elements: reply.number(), bytes: reply.number() }));
  }

  sweep(): Promise<SweepResult> {
    this.#client.begin('sweep');
    return this.#client.end('sweep', (reply) => {
      const nextAt = reply.numberOrNull();
      const touched = Array.from({ length: reply.number() }, () => ({
        ns: reply.text(),
        name: reply.text(),
      }));
      return { touched, nextAt };
    });
  }
}

function nothing(): void {}

function readTexts(reply: MessageReader): string[] {
  return Array.from({ length: reply.number() }, () => reply.text());
}

function readExtendOutcome(reply: MessageReader): ExtendOutcome {
  const outcome = reply.number();
  const until = reply.number();
  if (outcome === DONE) return { outcome: 'done', until };
  return { outcome: OUTCOMES[outcome] as Exclude<SettleOutcome, 'done' | 'dead-lettered'> };
}
