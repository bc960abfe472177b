import { randomBytes } from 'node:crypto';
import { isUnapplied, unavailable } from '../../engine/calls.ts';
import { insertByElementKeys } from '../../engine/request-keys.ts';
import { SCAN_BYTES } from '../../engine/scan-cursor.ts';
import type {
  InsertOptions,
  OnRepeat,
  PurgeStep,
  QueueCounts,
  ScanOptions,
  ScanPage,
  SettleItem,
  SettleResult,
  Storage,
  StorageCapabilities,
  TakeOptions,
  TakeResult,
} from '../../engine/storage.ts';
import {
  type Delivery,
  type DeliveryState,
  type ElementContent,
  type ElementId,
  type GroupName,
  type NewElement,
  NO_BODY,
  PLAIN_GROUP,
} from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import { contradictionIn, isSameContent } from '../../model/fingerprint.ts';
import type { QueueKey } from '../../model/names.ts';
import { single, type Verb } from './batcher.ts';
import type { Arg } from './client/connection.ts';
import { CUT, decodeContent, elementId, encodeContent, LEFT } from './encoding.ts';
import { queueText } from './keys.ts';
import { QueueStorage } from './storage.ts';

const NOTHING = { deliveries: [], nextDueAt: null, next: null };

/**
 * The Storage port on plain Redis lists: the fastest variant, for elements that are due immediately and are popped.
 * Calls are never sent twice: without a reply, the outcome of an insert or a pop is unknown, and a pop may lose its
 * elements.
 */
export class ListStorage extends QueueStorage implements Storage {
  readonly capabilities: StorageCapabilities = {
    sched: false,
    reserve: false,
    pipeline: false,
    remove: false,
    expiry: false,
  };
  readonly undoesLostTakes = false;
  readonly ordersTransfers = true;
  readonly #tag = randomBytes(6).toString('hex');
  #numbers = 0;
  /** By queue: popped items that cannot be decoded and could not be put behind the others yet. */
  readonly #unplaced = new Map<string, readonly Damaged[]>();

  declare(queues: readonly QueueKey[]): Promise<void> {
    return this.context.registry.declare(queues);
  }

  insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    options: InsertOptions = {},
  ): Promise<ElementId[]> {
    return insertByElementKeys(queue, elements, options, (keyed, rest) => this.#insert(queue, keyed, rest));
  }

  async #insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    { signal = null, onRepeat = null, leftMs }: InsertOptions,
  ): Promise<ElementId[]> {
    if (elements.length === 0) return [];
    // Elements that contradict each other, as in the lookup of a key, are not stored, and must not create the queue.
    const creates = contradictionIn(elements) < 0;
    const windowMs = this.context.dedupWindowMs;
    const now = this.now(queue);
    let bytes = 0;
    const items = elements.map((element) => {
      check(queue, element, now);
      const id = elementId(this.#tag, ++this.#numbers);
      const { dedupKey, fingerprint } = element;
      const key = dedupKey === null ? null : this.context.keys.listDedup(queue, dedupKey);
      const item = encodeItem({ ...element, id, matureAt: now });
      bytes += item.length;
      return { id, key, fingerprint: fingerprint ?? '', item };
    });
    const call = { items, dropped: this.context.keys.listDropped(queue), windowMs, onRepeat };
    const deadlineAt = this.context.executor.deadline(leftMs);
    const ready = signal && { signal, elements };
    const options = { join: 'lpush', stores: true, creates, ready, items: items.length, bytes };
    return this.batchers.call(queue, LPUSH, call, { ...options, deadlineAt });
  }

  async take(queue: QueueKey, { group, count, leaseMs, maxBytes, leftMs }: TakeOptions): Promise<TakeResult> {
    if (leaseMs !== null) throw notSupported(queue, 'reservations');
    if (group !== PLAIN_GROUP) return NOTHING;
    const call = { count, maxBytes: maxBytes ?? null };
    const deadlineAt = this.context.executor.deadline(leftMs);
    const { damaged, isBlocked, ...taken } = await this.batchers.call(queue, RPOP, call, {
      join: maxBytes === undefined ? 'rpop' : null,
      items: count,
      deadlineAt,
    });
    const isPutBehind = await this.#putBehind(queue, damaged, deadlineAt);
    if (!isBlocked) return taken;
    const message = 'An element at the front of the list cannot be decoded';
    if (isPutBehind) {
      throw unavailable(`${message}; it was put behind the others.`);
    }
    throw new QuaysideError(
      'outcome-unknown',
      `${message}; whether it was put behind the others is unknown.`,
    );
  }

  /**
   * Puts items that cannot be decoded at the left end, so that they do not block the others. Does not reject, because
   * the other items of the pop would be lost. Returns whether it succeeded.
   */
  async #putBehind(queue: QueueKey, found: readonly Damaged[], deadlineAt: number): Promise<boolean> {
    const text = queueText(queue);
    const damaged = [...(this.#unplaced.get(text) ?? []), ...found];
    if (damaged.length === 0) return true;
    this.#unplaced.delete(text);
    const { log } = this.context;
    for (const { id, cause } of found) {
      const fields = { queue: text, id, err: cause };
      log.warn(fields, 'the content of an element cannot be decoded; it is postponed');
    }
    const items = damaged.map(({ id, item }) => ({ id, key: null, fingerprint: '', item }));
    const bytes = items.reduce((sum, { item }) => sum + item.length, 0);
    const dropped = this.context.keys.listDropped(queue);
    const call = { items, dropped, windowMs: this.context.dedupWindowMs, onRepeat: null };
    const options = { creates: true, items: items.length, bytes, deadlineAt };
    try {
      await this.batchers.call(queue, LPUSH, call, options);
      return true;
    } catch (err) {
      // If the outcome is unknown, they are not sent again: they might be stored twice.
      const isCertain = isUnapplied(err);
      if (isCertain) this.#unplaced.set(text, [...(this.#unplaced.get(text) ?? []), ...damaged]);
      const fields = { queue: text, ids: damaged.map(({ id }) => id), err };
      if (isCertain)
        log.warn(fields, 'elements that cannot be decoded are put behind the others by the next pop');
      else log.warn(fields, 'elements that cannot be decoded may be lost');
      return false;
    }
  }

  settle([item]: readonly SettleItem[]): Promise<SettleResult[]> {
    return item === undefined
      ? Promise.resolve([])
      : Promise.reject(notSupported(item.queue, 'reservations'));
  }

  async undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    const items = deliveries.map((delivery) => encodeItem(delivery)).reverse();
    const bytes = items.reduce((sum, { length }) => sum + length, 0);
    await this.batchers.call(queue, RPUSH, items, { creates: true, items: items.length, bytes });
  }

  async scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    const { group, states, after, limit, bodies, ids, leftMs } = options;
    if (ids !== undefined) throw notSupported(queue, 'reading elements by id');
    if (!states.includes('ready') || group !== PLAIN_GROUP) return NOTHING;
    const skip = after !== null && /^\d{1,15}$/.test(after) ? Number(after) : 0;
    const deadlineAt = this.context.executor.deadline(leftMs);
    return this.batchers.call(queue, LRANGE, { skip, limit, bodies }, { pageBytes: SCAN_BYTES, deadlineAt });
  }

  async purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep> {
    const includesReady = states === undefined || states.includes('ready');
    const removed = includesReady ? await this.batchers.call(queue, DROP, undefined) : 0;
    return { removed, isDone: true };
  }

  drop(queue: QueueKey): Promise<boolean> {
    return this.batchers.inTime(this.context.registry.drop(queue));
  }

  async counts(queue: QueueKey, group: GroupName = PLAIN_GROUP): Promise<QueueCounts> {
    const { count, nextMatureAt } = await this.batchers.call(queue, LLEN, undefined);
    const found = group === PLAIN_GROUP ? { ready: count, nextMatureAt } : { ready: 0, nextMatureAt: null };
    return { ...found, scheduled: 0, reserved: 0, groups: new Map() };
  }

  /** Only removes unused queues: Redis expires dedup keys, and there are no leases. */
  async sweep(): Promise<null> {
    await this.sweeper.forgetUnused();
    return null;
  }
}

function check(queue: QueueKey, { matureAt, delayMs, groups, expiresAt }: NewElement, now: number): void {
  if (expiresAt != null) throw notSupported(queue, 'elements that expire');
  if (matureAt === null ? delayMs > 0 : matureAt > now) throw notSupported(queue, 'a maturity in the future');
  if (groups.some((group) => group !== PLAIN_GROUP)) throw notSupported(queue, 'consumer groups');
}

function notSupported({ ns }: QueueKey, what: string): QuaysideError {
  return new QuaysideError('not-supported', `Queues of namespace ${ns} do not support ${what}.`);
}

// The verbs: see `library/list.lua`.

interface ListItem {
  readonly id: ElementId;
  /** The Redis key of the element's dedup key; null: it has none. */
  readonly key: string | null;
  readonly fingerprint: string;
  readonly item: Buffer;
}

interface PushCall {
  readonly items: readonly ListItem[];
  /** The key that exists if the queue was dropped: it makes dedup keys void. */
  readonly dropped: string;
  readonly windowMs: number;
  readonly onRepeat: OnRepeat | null;
}

const LPUSH: Verb<PushCall, ElementId[]> = {
  name: 'lpush',
  keys(calls) {
    const keys = calls.flatMap(({ items }) => items.flatMap(({ key }) => key ?? []));
    return keys.length === 0 ? [] : [(calls[0] as PushCall).dropped, ...keys];
  },
  encode(calls) {
    const items = calls.flatMap((call) => call.items);
    const sizes = calls.map((call) => call.items.length).join(',');
    const isKeyed = items.some(({ key }) => key !== null);
    const args: Arg[] = [isKeyed ? (calls[0] as PushCall).windowMs : '', items.length, sizes];
    for (const { id, key, fingerprint, item } of items)
      args.push(key === null ? '' : 1, id + fingerprint, item);
    return args;
  },
  decode({ elements }, calls) {
    let next = 0;
    return calls.map(({ items, onRepeat }) => {
      let isMismatched = false;
      const ids = items.map(({ id, fingerprint }, index) => {
        const stored = elements[next++]?.toString('latin1') ?? '';
        const first = stored.slice(0, ID_LENGTH);
        if (stored === '') return id;
        const isSame = isSameContent(stored.slice(ID_LENGTH), fingerprint);
        if (isSame && first === id) return id;
        isMismatched ||= !isSame;
        onRepeat?.(index, isSame);
        return first;
      });
      return isMismatched ? [] : ids;
    });
  },
};

interface PopCall {
  readonly count: number;
  readonly maxBytes: number | null;
}

/** An item that is malformed, or of a newer version. */
interface Damaged {
  /** The bytes in the place of the id. */
  readonly id: ElementId;
  readonly item: Buffer;
  readonly cause: unknown;
}

interface Popped extends TakeResult {
  readonly damaged: readonly Damaged[];
  /** The call gets no element, because of damaged items. */
  readonly isBlocked: boolean;
}

/**
 * Joined calls are one pop: the first call gets the first elements, and all damaged items. Calls with `maxBytes` are
 * not joined.
 */
const RPOP: Verb<PopCall, Popped> = {
  name: 'rpop',
  encode: (calls) => [calls.reduce((sum, { count }) => sum + count, 0), calls[0]?.maxBytes ?? ''],
  decode({ text, elements }, calls) {
    const { deliveries: popped, damaged } = decodeItems(elements);
    const flags = text[0] ?? 0;
    const nextDueAt = text.length === 0 ? null : readMoment(text, 1);
    return calls.map(({ count }, i) => {
      const deliveries = popped.splice(0, count);
      return {
        deliveries,
        damaged: i === 0 ? damaged : [],
        isBlocked: deliveries.length === 0 && damaged.length > 0,
        nextDueAt: deliveries.length < count ? nextDueAt : null,
        isCut: (flags & CUT) !== 0,
        isLeft: (flags & LEFT) !== 0,
      };
    });
  },
};

const RPUSH = single<readonly Buffer[], undefined>(
  'rpush',
  (items) => [items.length, ...items],
  () => undefined,
);

const LRANGE = single<{ readonly skip: number; readonly limit: number; readonly bodies: boolean }, ScanPage>(
  'lrange',
  ({ skip, limit }) => [skip, limit],
  ({ text, elements }, { skip, bodies }) => {
    const deliveries = elements.flatMap((item, index) =>
      decodeItems([item]).deliveries.map((delivery) => ({
        ...delivery,
        body: bodies ? delivery.body : NO_BODY,
        bytes: delivery.body.byteLength,
        state: 'ready' as const,
        insertedAt: delivery.matureAt,
        expiresAt: null,
        reason: null,
        holder: null,
        cursor: String(skip + index + 1),
      })),
    );
    const isLast = text.toString() === '0';
    return { deliveries, next: isLast ? null : String(skip + elements.length) };
  },
  { isRead: true },
);

const LLEN = single<undefined, { readonly count: number; readonly nextMatureAt: number | null }>(
  'llen',
  () => [],
  ({ text }) => ({
    count: text.readUIntBE(0, 6),
    nextMatureAt: text.length === 6 ? null : readMoment(text, 6),
  }),
  { isRead: true },
);

/** Returns how many elements the queue had. */
const DROP = single<undefined, number>(
  'drop',
  () => [],
  ({ text }) => text.readUIntBE(0, 6),
);

const ITEM_HEAD = 32;
const ID_LENGTH = 22;

function encodeItem(fields: ElementContent & Pick<Delivery, 'id' | 'matureAt' | 'tries'>): Buffer {
  const head = Buffer.alloc(ITEM_HEAD);
  head.writeUIntBE(fields.matureAt, 0, 6);
  head.writeUInt32BE(fields.tries, 6);
  head.write(fields.id, 10, ID_LENGTH, 'latin1');
  return Buffer.concat([head, encodeContent(fields)]);
}

/** The maturity of the next item; 0 (due) for a malformed one that is too short. */
function readMoment(text: Buffer, at: number): number {
  return text.length < at + 6 ? 0 : text.readUIntBE(at, 6);
}

function decodeItems(items: readonly (Buffer | null)[]): { deliveries: Delivery[]; damaged: Damaged[] } {
  const deliveries: Delivery[] = [];
  const damaged: Damaged[] = [];
  for (const item of items) {
    if (item === null) continue;
    try {
      deliveries.push(decodeItem(item));
    } catch (cause) {
      damaged.push({ id: item.toString('latin1', 10, ITEM_HEAD), item, cause });
    }
  }
  return { deliveries, damaged };
}

function decodeItem(item: Buffer): Delivery {
  return {
    id: item.toString('latin1', 10, ITEM_HEAD),
    group: PLAIN_GROUP,
    matureAt: item.readUIntBE(0, 6),
    tries: item.readUInt32BE(6),
    lease: null,
    ...decodeContent(item, ITEM_HEAD),
  };
}
