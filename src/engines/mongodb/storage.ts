import type {
  BrowseOptions,
  BrowsePage,
  DeliveryRef,
  ExtendItem,
  ExtendOutcome,
  Move,
  QueueSizes,
  RemoveOutcome,
  RollbackItem,
  SettleOutcome,
  Storage,
  StorageCapabilities,
  SweepResult,
  TakeOptions,
  TakeResult,
} from '../../engine/storage.ts';
import {
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementContent,
  type ElementId,
  type GroupName,
  type NewElement,
  PLAIN_GROUP,
} from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import { extendOutcome, type LoneArgs, type Sending, type Settled, type SettleItem } from './call.ts';
import { MOST_BODY_BYTES } from './documents.ts';
import type { Housekeeping } from './housekeeping.ts';
import type { Parts } from './parts.ts';
import type { Scheduler } from './scheduler.ts';
import { Look } from './verbs/look.ts';
import { Purge } from './verbs/purge.ts';
import { PutBack } from './verbs/put-back.ts';
import { Transfer } from './verbs/transfer.ts';

/** The Storage port: each verb becomes a call for the scheduler. What the calls do stands in `verbs/`. */
export class MongoStorage implements Storage {
  readonly capabilities: StorageCapabilities = { sched: true, reserve: true, pipeline: true, remove: true };
  readonly undoesLostTakes = false;
  readonly carries = null;
  readonly #parts: Parts;
  readonly #scheduler: Scheduler;
  readonly #housekeeping: Housekeeping;
  readonly #look: Look;
  readonly #purge: Purge;
  readonly #putBack: PutBack;
  readonly #transfer: Transfer;

  constructor(parts: Parts, scheduler: Scheduler, housekeeping: Housekeeping) {
    this.#parts = parts;
    this.#scheduler = scheduler;
    this.#housekeeping = housekeeping;
    this.#look = new Look(parts);
    this.#purge = new Purge(parts);
    this.#putBack = new PutBack(parts);
    this.#transfer = new Transfer(parts);
  }

  now(): number {
    return this.#parts.store.time.estimate;
  }

  declare(queues: readonly QueueKey[]): Promise<void> {
    return this.#alone(queues, 0, (call) => {
      this.#parts.store.assertUp();
      call.begin();
      return this.#parts.known.make(queues);
    });
  }

  queues(ns: string): Promise<string[]> {
    return this.#scheduler.call({
      kind: 'question',
      queues: [],
      run: async () => {
        this.#parts.store.assertUp();
        return this.#parts.known.names(ns);
      },
    });
  }

  async insert(queue: QueueKey, elements: readonly NewElement[]): Promise<ElementId[]> {
    if (elements.length === 0) return [];
    return this.#scheduler.call({ kind: 'insert', queue, elements }, weigh(elements));
  }

  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult> {
    return this.#scheduler.call({ kind: 'take', queue, ...options });
  }

  async commit(queue: QueueKey, refs: readonly DeliveryRef[]): Promise<SettleOutcome[]> {
    return this.#settle(queue, refs, (ref) => ({ ...ref, verb: 'commit' })) as Promise<SettleOutcome[]>;
  }

  async rollback(queue: QueueKey, items: readonly RollbackItem[]): Promise<SettleOutcome[]> {
    return this.#settle(queue, items, (item) => ({ ...item, verb: 'rollback' })) as Promise<SettleOutcome[]>;
  }

  async extend(queue: QueueKey, items: readonly ExtendItem[]): Promise<ExtendOutcome[]> {
    return (await this.#settle(queue, items, (item) => ({ ...item, verb: 'extend' }))).map(extendOutcome);
  }

  async remove(queue: QueueKey, ids: readonly ElementId[]): Promise<RemoveOutcome[]> {
    const named = { group: PLAIN_GROUP, token: null, verb: 'remove' } as const;
    return this.#settle(queue, ids, (id) => ({ ...named, id })) as Promise<RemoveOutcome[]>;
  }

  async putBack(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    return this.#alone([queue], weigh(deliveries), (call) => this.#putBack.run(call, queue, deliveries));
  }

  /** All moves of a call are one transaction. */
  async transfer(moves: readonly Move[]): Promise<SettleOutcome[]> {
    if (moves.length === 0) return [];
    const inserts = moves.flatMap((move) => move.inserts);
    const queues = [...moves.map(({ from }) => from), ...inserts.map(({ queue }) => queue)];
    const bytes = weigh(inserts.map(({ element }) => element));
    return this.#alone(queues, bytes, (call) => this.#transfer.run(call, moves));
  }

  browse(queue: QueueKey, options: BrowseOptions): Promise<BrowsePage> {
    return this.#ask(queue, () => this.#look.browse(queue, options));
  }

  /** Goes in steps of two thousand; an error may leave a part of the elements. */
  purge(queue: QueueKey, states: readonly DeliveryState[] = DELIVERY_STATES): Promise<number> {
    return this.#alone([queue], 0, async (call) => {
      await this.#housekeeping.before();
      return this.#purge.run(call, queue, states);
    });
  }

  sizes(queue: QueueKey, group?: GroupName): Promise<QueueSizes> {
    return this.#ask(queue, () => this.#look.sizes(queue, group ?? null));
  }

  nextDueAt(queue: QueueKey, group: GroupName): Promise<number | null> {
    return this.#ask(queue, () => this.#look.nextDueAt(queue, group));
  }

  sweep(): Promise<SweepResult> {
    return this.#alone([], 0, () => this.#housekeeping.sweep());
  }

  async #settle<I>(queue: QueueKey, items: readonly I[], named: (item: I) => SettleItem): Promise<Settled[]> {
    if (items.length === 0) return [];
    return this.#scheduler.call({ kind: 'settle', queue, items: items.map(named) });
  }

  #ask<R>(queue: QueueKey, run: () => Promise<R>): Promise<R> {
    const asked = async (): Promise<R> => {
      await this.#housekeeping.before();
      return run();
    };
    return this.#scheduler.call({ kind: 'question', queues: [queue], run: asked });
  }

  async #alone<R>(
    queues: readonly QueueKey[],
    bytes: number,
    run: LoneArgs<R>['run'] & ((call: Sending) => Promise<R>),
  ): Promise<R> {
    return this.#scheduler.call({ kind: 'alone', queues, run }, bytes);
  }
}

/** Bytes of the bodies. @throws QuaysideError `body-too-large` for one that no document can hold */
function weigh(elements: readonly ElementContent[]): number {
  let bytes = 0;
  for (const { body } of elements) {
    if (body.byteLength > MOST_BODY_BYTES) {
      throw new QuaysideError(
        'body-too-large',
        `MongoDB holds bodies of at most ${MOST_BODY_BYTES} bytes; this one has ${body.byteLength}.`,
      );
    }
    bytes += body.byteLength;
  }
  return bytes;
}
