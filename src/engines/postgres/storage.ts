import { CALL_TIMEOUT_MS, inTime, NOT_REACHABLE, unavailable } from '../../engine/calls.ts';
import { insertByElementKeys } from '../../engine/request-keys.ts';
import { SCAN_BYTES } from '../../engine/scan-cursor.ts';
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
  contentBytes,
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementContent,
  type ElementId,
  type GroupName,
  type NewElement,
  PLAIN_GROUP,
} from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Clock } from '../../util/clock.ts';
import type { Batcher } from './batcher.ts';
import { ConnectionLost, Refused } from './connection.ts';
import type { Housekeeping } from './housekeeping.ts';
import { insertOperations, kindsOf } from './insert.ts';
import type { AuxiliaryConnection } from './link.ts';
import { type CallSize, type Context, MAX_RETURNED_BYTES } from './operations.ts';
import { queueOperations, type Read, readQueues, readStreamCounts, readUsage } from './queues.ts';
import type { GroupUse, RegisteredQueue, Subscription } from './registry.ts';
import { scanOperations } from './scan.ts';
import { settlements } from './settle.ts';
import { takeOperations, undoOperation } from './take.ts';

/** Estimated size of one element or reference on the wire, without its body. */
const ROW_BYTES = 100;
/** Assumed upper bound of a body whose size is not known yet. */
const BODY_BYTES = 1024 * 1024;
/** For a statement that may change many rows, or locks a table: no other call should share its batch. */
const OWN_BATCH: CallSize = { bytes: 0, rows: 1, isAlone: true };

function operationsOf(context: Context) {
  return {
    ...queueOperations(context),
    insert: insertOperations(context),
    take: takeOperations(context),
    settlements: settlements(context),
    undo: undoOperation(context),
    scan: scanOperations(context),
  };
}

/** The Storage port: converts each call into items for the batcher. The files of the operations have their SQL. */
export class PostgresStorage implements Storage {
  readonly capabilities = ALL_CAPABILITIES;
  readonly undoesLostTakes = false;
  readonly ordersTransfers = true;
  readonly aheadMs = 0;
  readonly insertSignaller = null;

  readonly #context: Context;
  readonly #batcher: Batcher;
  readonly #housekeeping: Housekeeping;
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: Clock;
  /** Settles when the last requested count of a stream has been read. */
  #streamCount: Promise<unknown> = Promise.resolve();
  readonly #operations: ReturnType<typeof operationsOf>;

  constructor(
    context: Context,
    {
      batcher,
      housekeeping,
      auxiliary,
      clock,
    }: {
      batcher: Batcher;
      housekeeping: Housekeeping;
      auxiliary: AuxiliaryConnection;
      clock: Clock;
    },
  ) {
    this.#context = context;
    this.#batcher = batcher;
    this.#housekeeping = housekeeping;
    this.#operations = operationsOf(context);
    this.#auxiliary = auxiliary;
    this.#clock = clock;
  }

  now(): number {
    return this.#context.clock.now;
  }

  async declare(keys: readonly QueueKey[], options?: QueueOptions | null): Promise<void> {
    const operation = options === undefined ? this.#operations.declare : this.#operations.declareOptions;
    const items = keys.map((key) => {
      const queue = this.#context.registry.queue(key);
      return { operation, item: { queue, options }, queues: [queue] };
    });
    await this.#batcher.submitAll(items, { bytes: keys.length * ROW_BYTES, rows: keys.length });
  }

  insert(key: QueueKey, elements: readonly NewElement[], options: InsertOptions = {}): Promise<ElementId[]> {
    return insertByElementKeys(key, elements, options, (keyed, rest) => this.#insert(key, keyed, rest));
  }

  #insert(
    key: QueueKey,
    elements: readonly NewElement[],
    { onRepeat = null, leftMs }: InsertOptions,
  ): Promise<ElementId[]> {
    const queue = this.#context.registry.queue(key);
    const isAllOrNone = hasFingerprints(elements);
    const uses = queue.limit === null ? [] : [{ queue, groups: groupsOf(elements) }];
    const size = { bytes: bytesOf(elements), rows: elements.length, uses, isAlone: isAllOrNone };
    return this.#batcher.submit(
      this.#operations.insert(kindsOf(queue, elements)),
      { queue, elements, onRepeat, isAllOrNone },
      queue,
      size,
      leftMs,
    );
  }

  take(key: QueueKey, options: TakeOptions): Promise<TakeResult> {
    const { count, maxBytes, leftMs } = options;
    const subscription = this.#subscription(key, options.group);
    this.#housekeeping.noteTake(subscription);
    const item = { ...options, subscription };
    const returnedBytes = maxBytes === undefined ? 0 : Math.min(count * BODY_BYTES, maxBytes);
    const size = { bytes: 0, rows: count, returnedBytes };
    return this.#batcher
      .submit(this.#operations.take(item), item, subscription.queue, size, leftMs)
      .catch((error) => this.#onReadFailed(subscription, error));
  }

  settle(items: readonly SettleItem[], { leftMs }: TimeLeft = {}): Promise<SettleResult[]> {
    const { registry } = this.#context;
    let [bytes, rows] = [items.length * ROW_BYTES, items.length];
    const uses: GroupUse[] = [];
    for (const { action } of items) {
      const addUse = (key: QueueKey, groups: readonly GroupName[]): void => {
        const queue = registry.queue(key);
        if (queue.limit !== null) uses.push({ queue, groups });
      };
      if (action.kind === 'move') addUse(action.to, action.groups);
      for (const { queue, element } of (action.kind === 'finish' && action.inserts) || []) {
        addUse(queue, element.groups);
        bytes += bytesOf([element]);
        rows += 1;
      }
    }
    const settleItems = this.#operations.settlements(items);
    return this.#batcher.submitAll(settleItems, { bytes, rows, uses }, leftMs).catch((error) => {
      for (const { subscriptions } of new Set(settleItems.flatMap(({ queues }) => queues)))
        for (const { watermark } of subscriptions.values()) watermark.onReturnFailed();
      throw error;
    });
  }

  async undoTake(key: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    const queue = this.#context.registry.queue(key);
    const size = { bytes: bytesOf(deliveries), rows: deliveries.length };
    await this.#batcher.submit(this.#operations.undo, { queue, deliveries }, queue, size);
  }

  scan(key: QueueKey, options: ScanOptions): Promise<ScanPage> {
    const item = { ...options, subscription: this.#subscription(key, options.group) };
    const returned = options.ids === undefined ? SCAN_BYTES : MAX_RETURNED_BYTES;
    const size: CallSize = { bytes: 0, rows: options.limit, returnedBytes: options.bodies ? returned : 0 };
    const { queue } = item.subscription;
    return this.#batcher.submit(this.#operations.scan(item), item, queue, size, options.leftMs);
  }

  /**
   * One step: 10,000 deliveries or 8 MiB, shared equally by its statements. A delivery that is released between the
   * statements for waiting and for reserved ones must not be missed, so waiting ones are purged once more at the end.
   */
  async purge(key: QueueKey, states: readonly DeliveryState[] = DELIVERY_STATES): Promise<PurgeStep> {
    const queue = this.#context.registry.queue(key);
    const includesWaiting = states.includes('ready') && states.includes('scheduled');
    const allSteps = ['waiting', 'reserved', 'waiting'] as const;
    const withWaiting = states.includes('reserved') ? allSteps : allSteps.slice(0, 1);
    const steps = includesWaiting ? withWaiting : [...new Set(states)];
    const items = steps.map((state) => ({
      operation: this.#operations.purge[state],
      item: { queue, statements: steps.length },
      queues: [queue],
    }));
    const results = await this.#batcher.submitAll(items, OWN_BATCH);
    return {
      removed: results.reduce((sum, { removed }) => sum + removed, 0),
      isDone: results.every(({ isDone }) => isDone),
    };
  }

  drop(key: QueueKey): Promise<boolean> {
    const queue = this.#context.registry.queue(key);
    return this.#context.affected.drop(key, () =>
      this.#batcher.submit(this.#operations.drop, queue, queue, OWN_BATCH),
    );
  }

  async counts(key: QueueKey, group?: GroupName): Promise<QueueCounts> {
    const queue = this.#context.registry.queue(key);
    if (group === undefined && queue.isStream) {
      const deadlineAt = this.#clock.monotonic() + CALL_TIMEOUT_MS;
      return inTime(this.#clock, this.#countStream(queue, deadlineAt), noReply);
    }
    const subscription = this.#subscription(key, group ?? PLAIN_GROUP);
    const counts = await this.#batcher
      .submit(this.#operations.counts, subscription, queue)
      .catch((error) => this.#onReadFailed(subscription, error));
    return { ...counts, groups: new Map() };
  }

  /**
   * Counts a stream on the auxiliary connection after all calls made earlier, one stream at a time: a count may take
   * half a second, and neither calls about elements nor the other work of that connection should wait for more than
   * one. Callers may list a whole namespace concurrently; a count that has waited too long is not read.
   */
  async #countStream(queue: RegisteredQueue, deadlineAt: number): Promise<QueueCounts> {
    await this.ping();
    const counted = this.#streamCount.then(() => {
      if (this.#clock.monotonic() >= deadlineAt) throw noReply();
      return this.#read(readStreamCounts(this.#context, queue));
    });
    this.#streamCount = counted.catch(() => {});
    return counted;
  }

  /** On the auxiliary connection, like {@link usage}. */
  queues(ns: string): Promise<string[]> {
    return this.#read(readQueues(ns));
  }

  /**
   * On the auxiliary connection: with 100,000 queues it takes half a second, for which no call about elements should
   * wait. It includes everything that was acknowledged before.
   */
  usage(ns: string): Promise<Usage> {
    return this.#read(readUsage(this.#context, ns));
  }

  async #read<R>({ read, ...query }: Read<R>): Promise<R> {
    return read(await this.#auxiliary.query(query));
  }

  async sweep(): Promise<number | null> {
    const { clock, expirer } = this.#context;
    expirer.requestPass();
    await this.ping();
    const hasMore = await this.#housekeeping.run();
    return hasMore ? Math.floor(clock.now) : expirer.nextAt;
  }

  takeAffected(): QueueKey[] {
    return this.#context.affected.takeAll();
  }

  /** Updates this node's estimate of the database's clock. */
  async ping(): Promise<void> {
    this.#context.clock.update(await this.#batcher.submit(this.#operations.ping, null, null));
  }

  /** Asks for a probe after a timeout: stepping over many dead entries may have caused it, and would again. */
  #onReadFailed(subscription: Subscription, error: unknown): never {
    const { cause } = error as Error;
    if (cause instanceof Refused && cause.isTimeout) this.#context.prober.requestProbe(subscription);
    throw error;
  }

  #subscription(key: QueueKey, group: GroupName): Subscription {
    const { registry } = this.#context;
    return registry.subscription(registry.queue(key), group);
  }
}

function noReply(): Error {
  return unavailable(NOT_REACHABLE, new ConnectionLost('No reply in time.'));
}

function groupsOf(elements: readonly NewElement[]): readonly GroupName[] {
  return [...new Set(elements.flatMap(({ groups }) => groups))];
}

/** Whether one of several elements may have a key that was seen with other content: then none may be stored. */
function hasFingerprints(elements: readonly NewElement[]): boolean {
  return (
    elements.length > 1 &&
    elements.some(({ dedupKey, fingerprint }) => dedupKey !== null && fingerprint != null)
  );
}

function bytesOf(elements: readonly ElementContent[]): number {
  let bytes = 0;
  for (const element of elements) bytes += ROW_BYTES + contentBytes(element);
  return bytes;
}
