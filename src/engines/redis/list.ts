import { randomBytes } from 'node:crypto';
import { isRequestSeen, withRequestKeys } from '../../engine/request-keys.ts';
import type { Signaller } from '../../engine/signaller.ts';
import type {
  InsertOptions,
  PurgeStep,
  QueueCounts,
  ScanOptions,
  ScanPage,
  Storage,
  StorageCapabilities,
  SweepResult,
  TakeOptions,
  TakeResult,
  Usage,
} from '../../engine/storage.ts';
import {
  type Delivery,
  type DeliveryState,
  type ElementId,
  type GroupName,
  type NewElement,
  PLAIN_GROUP,
} from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Batchers } from './batcher.ts';
import { elementId } from './ids.ts';
import type { Sweeper } from './sweeper.ts';
import { type UsageParts, usage } from './usage.ts';
import { DROP, encodeItem, LLEN, LPUSH, LRANGE, RPOP, RPUSH } from './verbs/list.ts';

interface ListParts extends UsageParts {
  /** Of lists: what changes something is sent once. */
  readonly batchers: Batchers;
  readonly sweeper: Sweeper;
  readonly dedupWindowMs: number;
  readonly signaller: Signaller;
}

const NOTHING = { deliveries: [], nextDueAt: null, next: null };

/**
 * The Storage port on plain lists: the fastest, for elements that are due at once and popped. Calls are never sent twice,
 * so an insert or a pop without a reply is `outcome-unknown`; what such a pop took is lost.
 */
export class ListStorage implements Storage {
  readonly capabilities: StorageCapabilities = {
    sched: false,
    reserve: false,
    pipeline: false,
    remove: false,
    expiry: false,
  };
  readonly undoesLostTakes = false;
  readonly ordersTransfers = true;
  readonly insertSignaller: Signaller;
  readonly #parts: ListParts;
  readonly #tag = randomBytes(6).toString('hex');
  #numbers = 0;

  constructor(parts: ListParts) {
    this.#parts = parts;
    this.insertSignaller = parts.signaller;
  }

  now(queue?: QueueKey): number {
    return this.#parts.registry.now(queue);
  }

  declare(queues: readonly QueueKey[]): Promise<void> {
    return this.#parts.registry.declare(queues);
  }

  queues(ns: string): Promise<string[]> {
    return this.#parts.registry.names(ns);
  }

  async insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    { request = null, ...options }: InsertOptions = {},
  ): Promise<ElementId[]> {
    if (request === null) return this.#insert(queue, elements, options);
    if (elements.length > 0) return this.#insert(queue, withRequestKeys(elements, request), options);
    if (await isRequestSeen(this, queue, request)) options.onRepeat?.(0, true);
    return [];
  }

  async #insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    { signal = null, onRepeat = null }: InsertOptions,
  ): Promise<ElementId[]> {
    if (elements.length === 0) return [];
    const { batchers, keys, dedupWindowMs: windowMs } = this.#parts;
    const now = this.now(queue);
    let bytes = 0;
    const items = elements.map((element) => {
      check(element, now);
      const id = elementId(this.#tag, ++this.#numbers);
      const { dedupKey, fingerprint } = element;
      const key = dedupKey === null || windowMs === 0 ? null : keys.listDedup(queue, dedupKey);
      const item = encodeItem({ ...element, id, matureAt: now });
      bytes += item.length;
      return { id, key, fingerprint: fingerprint ?? '', item };
    });
    const call = { items, windowMs, onRepeat };
    const options = { join: 'lpush', stores: true, creates: true, signal, items: items.length, bytes };
    return batchers.call(queue, LPUSH, call, options);
  }

  async take(queue: QueueKey, { group, count, leaseMs, ids, maxBytes }: TakeOptions): Promise<TakeResult> {
    if (leaseMs !== null) throw notSupported('reserve');
    if (ids !== undefined) throw notSupported('takes by id');
    if (group !== PLAIN_GROUP) return NOTHING;
    const call = { count, maxBytes: maxBytes ?? null };
    return this.#parts.batchers.call(queue, RPOP, call, {
      join: maxBytes === undefined ? 'rpop' : null,
      items: count,
    });
  }

  settle(): Promise<never> {
    return Promise.reject(notSupported('settling'));
  }

  async undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    const items = deliveries.map((delivery) => encodeItem(delivery)).reverse();
    const bytes = items.reduce((sum, { length }) => sum + length, 0);
    await this.#parts.batchers.call(queue, RPUSH, items, { creates: true, items: items.length, bytes });
  }

  async scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    const { group, states, after, limit, bodies, ids } = options;
    if (ids !== undefined) throw notSupported('scans by id');
    if (!states.includes('ready') || group !== PLAIN_GROUP) return NOTHING;
    const skip = after !== null && /^\d{1,15}$/.test(after) ? Number(after) : 0;
    return this.#parts.batchers.call(queue, LRANGE, { skip, limit, bodies }, { isFree: true });
  }

  async purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep> {
    const isMeant = states === undefined || states.includes('ready');
    const removed = isMeant ? await this.#parts.batchers.call(queue, DROP, undefined) : 0;
    return { removed, isDone: true };
  }

  drop(queue: QueueKey): Promise<boolean> {
    return this.#parts.registry.drop(queue);
  }

  async counts(queue: QueueKey, group: GroupName = PLAIN_GROUP): Promise<QueueCounts> {
    const { count, nextMatureAt } = await this.#parts.batchers.call(queue, LLEN, undefined, { isFree: true });
    const found = group === PLAIN_GROUP ? { ready: count, nextMatureAt } : { ready: 0, nextMatureAt: null };
    return { ...found, scheduled: 0, reserved: 0, groups: new Map() };
  }

  usage(ns: string, needsBytes = true): Promise<Usage> {
    return usage(this.#parts, ns, needsBytes);
  }

  /** Dedup keys end by themselves, and there is no lease. */
  async sweep(): Promise<SweepResult> {
    await this.#parts.sweeper.forgetUnused();
    return { affected: [], nextAt: null };
  }
}

function check({ matureAt, delayMs, groups, expiresAt }: NewElement, now: number): void {
  if (expiresAt != null) throw notSupported('an expiry');
  if (matureAt === null ? delayMs > 0 : matureAt > now) throw notSupported('a maturity');
  if (groups.some((group) => group !== PLAIN_GROUP)) throw notSupported('consumer groups');
}

function notSupported(what: string): QuaysideError {
  return new QuaysideError('not-supported', `Queues of the list variant do not support ${what}.`);
}
