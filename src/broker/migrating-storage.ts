import { isUnknownOutcome, laterStep, unknownOutcome } from '../engine/calls.ts';
import { isKeySeen, isRequestSeen } from '../engine/request-keys.ts';
import type { Signaller } from '../engine/signaller.ts';
import {
  type FinishAction,
  type GroupCounts,
  type InsertOptions,
  type OnRepeat,
  type PurgeStep,
  type QueueCounts,
  type QueueOptions,
  type ScanOptions,
  type ScanPage,
  SETTLED,
  type SettleItem,
  type SettleResult,
  type Storage,
  type StorageCapabilities,
  type TakeOptions,
  type TakeResult,
  type TimeLeft,
  type Usage,
} from '../engine/storage.ts';
import {
  bodyBytes,
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementId,
  type GroupName,
  type NewElement,
} from '../model/element.ts';
import { contentFingerprint } from '../model/fingerprint.ts';
import type { QueueKey } from '../model/names.ts';
import { earlier } from '../util/clock.ts';
import { RELEASE } from './queue.ts';

/** A smaller difference between the engines' clocks is ignored: a node knows the time of a server only roughly. */
const CLOCK_NOISE_MS = 100;
/** A `nextDueAt` in the past, so that the caller takes again. */
const TAKE_AGAIN = 0;
/**
 * Keeps an element of the old engine reserved while its copies are stored in the new one: for three times the deadlines
 * of both calls.
 */
const HOLD = { kind: 'extend', leaseMs: 30_000 } as const;

/**
 * Joins two engines for as long as a namespace moves from one to the other.
 *
 * - Inserts go to the new engine. A take drains the old engine first and then queries the new one, which keeps the
 *   order of a queue: elements of the old engine are older.
 * - An element stays in its engine, with its id and lease, until it is finished. Ids begin with random tags, so that an
 *   engine never knows another one's id. So a settlement is tried in the old engine, and in the new one if the old one
 *   has no such element.
 * - Each call queries the old engine first. The parts for the new engine start in the order of the calls, so that calls
 *   take effect in their order there, too. A call may take as long as the deadlines of both engines together.
 * - If settling an element of the old engine inserts copies, the copies are first stored in the new one, under derived
 *   keys, and then all elements of the call are finished: at least once, and no copy twice, as between any two engines.
 *   Moves of waiting elements stay within their engine and are atomic.
 */
export class MigratingStorage implements Storage {
  readonly capabilities: StorageCapabilities;
  readonly undoesLostTakes: boolean;
  /** Copies of elements of the old engine are stored in a later turn. */
  readonly ordersTransfers = false;
  readonly insertSignaller: Signaller | null;
  /** The old engine. Only this process uses it, so nobody else stores anything in it. */
  readonly #from: Storage;
  /** The new engine, for all inserts from now on, under the same queue names. */
  readonly #to: Storage;
  /**
   * Deliveries popped from the new engine, where undoing them returns them. All others were popped from the old one,
   * perhaps before the migration started.
   */
  readonly #popped = new WeakSet<Delivery>();
  /**
   * Deliveries whose pops were undone. If a call fails in one engine and is repeated, it must not return the others
   * again: they may have been popped by then.
   */
  readonly #returned = new WeakSet<Delivery>();
  /** Resolves when the parts for the new engine of all earlier calls have started. Never rejects. */
  #started: Promise<void> = Promise.resolve();
  /** How many calls have a part for the new engine that has not started. */
  #pending = 0;

  constructor({ from, to }: { from: Storage; to: Storage }) {
    this.#from = from;
    this.#to = to;
    const [a, b] = [from.capabilities, to.capabilities];
    this.capabilities = {
      sched: a.sched && b.sched,
      reserve: a.reserve && b.reserve,
      pipeline: a.pipeline && b.pipeline,
      remove: a.remove && b.remove,
      expiry: a.expiry && b.expiry,
    };
    this.undoesLostTakes = from.undoesLostTakes && to.undoesLostTakes;
    this.insertSignaller = to.insertSignaller;
  }

  now(queue?: QueueKey): number {
    return this.#to.now(queue);
  }

  get aheadMs(): number {
    return this.#to.aheadMs;
  }

  /**
   * Declared in both engines. Options apply to elements of the old one, too. Pause flags are stored in both, and an
   * engine deletes the flag of a resumed queue only if it knows the queue.
   */
  async declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void> {
    await Promise.all([this.#to.declare(queues, options), this.#from.declare(queues, options)]);
  }

  async queues(ns: string): Promise<string[]> {
    const names = await Promise.all([this.#from.queues(ns), this.#to.queues(ns)]);
    return [...new Set(names.flat())].sort();
  }

  insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    options: InsertOptions = {},
  ): Promise<ElementId[]> {
    const { request = null } = options;
    if (request !== null) {
      // If the old engine has seen the key, it stored all elements of the request.
      return this.#inOrder(isRequestSeen(this.#from, queue, request), (isSeen) =>
        // Without the signal, which is for the new engine: a repeat stores nothing to announce.
        isSeen
          ? this.#from.insert(queue, elements, { ...options, signal: null })
          : this.#to.insert(queue, elements, options),
      );
    }
    const hasKeys = elements.some(({ dedupKey }) => dedupKey !== null);
    if (!hasKeys && this.#pending === 0) return this.#to.insert(queue, elements, options);
    const nothingSeen = Promise.resolve(elements.map(() => null));
    const seen = hasKeys ? this.#seenBefore(queue, elements) : nothingSeen;
    return this.#inOrder(seen, (before) => this.#insertUnseen(queue, elements, before, options));
  }

  async #insertUnseen(
    queue: QueueKey,
    elements: readonly NewElement[],
    seen: readonly (SeenElement | null)[],
    options: InsertOptions,
  ): Promise<ElementId[]> {
    const { onRepeat = null } = options;
    const mismatch = seen.findIndex((before) => before?.isSame === false);
    if (mismatch !== -1) {
      onRepeat?.(mismatch, false);
      return [];
    }
    const places = seen.flatMap((before, index) => (before === null ? [index] : []));
    const unseen = places.map((index) => elements[index] as NewElement);
    for (const [index, before] of seen.entries()) if (before !== null) onRepeat?.(index, true);
    const ids = await this.#to.insert(queue, unseen, {
      ...options,
      onRepeat: (place, isSame) => onRepeat?.(places[place] ?? place, isSame),
    });
    if (ids.length < unseen.length) return [];
    const stored = ids.values();
    return seen.map((before) => before?.id ?? stored.next().value ?? '');
  }

  /**
   * For each element of an insert what the old engine returns for it; null if that has not seen its key. Stores nothing
   * there.
   */
  #seenBefore(queue: QueueKey, elements: readonly NewElement[]): Promise<(SeenElement | null)[]> {
    return Promise.all(
      elements.map(async (element) => {
        const { dedupKey } = element;
        if (dedupKey === null || !(await isKeySeen(this.#from, queue, dedupKey))) return null;
        let isSame = true;
        const onRepeat: OnRepeat = (_, same) => {
          isSame = same;
        };
        const [id = ''] = await this.#from.insert(queue, [element], { onRepeat });
        return { id, isSame };
      }),
    );
  }

  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult> {
    return this.#inOrder(this.#from.take(queue, options), (fromOld) =>
      this.#takeFromNew(queue, options, fromOld),
    );
  }

  async #takeFromNew(queue: QueueKey, options: TakeOptions, fromOld: TakeResult): Promise<TakeResult> {
    const { count, maxBytes, tids } = options;
    const { deliveries } = fromOld;
    const oldDueAt = this.#byNewClock(fromOld.nextDueAt, queue);
    const bytesLeft = maxBytes === undefined ? undefined : maxBytes - bodyBytes(deliveries);
    if (deliveries.length === count || fromOld.isCut === true || fromOld.isLeft === true) return fromOld;
    if (bytesLeft !== undefined && bytesLeft <= 0) return { deliveries, nextDueAt: TAKE_AGAIN, isLeft: true };
    let fromNew: TakeResult;
    try {
      fromNew = await this.#to.take(queue, {
        ...options,
        count: count - deliveries.length,
        ...(Array.isArray(tids) && { tids: tids.slice(deliveries.length) }),
        ...(bytesLeft !== undefined && { maxBytes: bytesLeft }),
      });
    } catch (error) {
      if (deliveries.length === 0) throw error;
      if (!isUnknownOutcome(error)) return { deliveries, nextDueAt: TAKE_AGAIN, isLeft: true };
      // Report `outcome-unknown` without elements, so these are returned first. If they certainly could not be, they
      // would be lost: then return them to the caller without an error.
      if (await this.#release(this.#from, queue, deliveries)) throw error;
      return { deliveries, nextDueAt: TAKE_AGAIN, isLeft: true };
    }
    for (const delivery of fromNew.deliveries) if (delivery.lease === null) this.#popped.add(delivery);
    if (bytesLeft !== undefined && deliveries.length > 0 && bodyBytes(fromNew.deliveries) > bytesLeft) {
      // A take may exceed `maxBytes` by its first element, which is not the first one of this call.
      const isReleased = await this.#release(this.#to, queue, fromNew.deliveries);
      if (isReleased) return { deliveries, nextDueAt: TAKE_AGAIN, isCut: true };
    }
    return {
      deliveries: [...deliveries, ...fromNew.deliveries],
      nextDueAt:
        deliveries.length + fromNew.deliveries.length === count ? null : earlier(oldDueAt, fromNew.nextDueAt),
      ...(fromNew.isCut !== undefined && { isCut: fromNew.isCut }),
      ...(fromNew.isLeft !== undefined && { isLeft: fromNew.isLeft }),
    };
  }

  /**
   * Returns deliveries to their places. Reservations that cannot be returned end with their leases. Resolves with false
   * if pops were certainly not undone, so that only the caller has these elements.
   */
  async #release(storage: Storage, queue: QueueKey, deliveries: readonly Delivery[]): Promise<boolean> {
    const popped = deliveries.filter(({ lease }) => lease === null);
    const reserved = deliveries.flatMap(({ id, group, lease }): SettleItem[] =>
      lease === null ? [] : [{ queue, id, group, from: 'reserved', token: lease.token, action: RELEASE }],
    );
    try {
      await Promise.all([
        popped.length > 0 && storage.undoTake(queue, popped),
        reserved.length > 0 && storage.settle(reserved),
      ]);
      return true;
    } catch (error) {
      return popped.length === 0 || isUnknownOutcome(error);
    }
  }

  /**
   * A call with copies keeps the elements that it finishes reserved in the old engine until the new one has done its
   * part: no element may be finished before its copies are stored.
   */
  settle(items: readonly SettleItem[], time?: TimeLeft): Promise<SettleResult[]> {
    const hasCopies = items.some((item) => copiesOf(item).length > 0);
    const first = hasCopies
      ? items.map((item) => (isCommit(item) ? { ...item, action: HOLD } : item))
      : items;
    return this.#inOrder(this.#from.settle(first, time), async (results) => {
      const held = hasCopies ? heldElements(items, results) : [];
      const indices = items.flatMap((_, i) => (results[i]?.outcome === 'not-found' ? [i] : []));
      const merged = [...results];
      let isChanged = results.some((result, i) => first[i] === items[i] && isChange(result));
      try {
        if (held.length > 0) await this.#insertCopies(held, time);
        const forNew = indices.map((i) => items[i] as SettleItem);
        const fromNew = forNew.length === 0 ? [] : await this.#to.settle(forNew, time);
        for (const [at, i] of indices.entries()) merged[i] = fromNew[at] ?? SETTLED['not-found'];
        isChanged ||= fromNew.some(isChange);
        if (held.length > 0) await this.#finish(held, merged, time);
      } catch (error) {
        throw isChanged ? unknownOutcome(error as Error) : error;
      }
      return merged;
    });
  }

  async #insertCopies(held: readonly HeldElement[], time: TimeLeft | undefined): Promise<void> {
    const byQueue = Map.groupBy(
      held.flatMap(({ copies }) => copies),
      ({ queue: { ns, name } }) => JSON.stringify([ns, name]),
    );
    await Promise.all(
      [...byQueue.values()].map((copies) => {
        const [{ queue } = { queue: null }] = copies;
        return (
          queue &&
          this.#to.insert(
            queue,
            copies.map(({ element }) => element),
            time,
          )
        );
      }),
    );
  }

  /** Finishes held elements, and writes the outcomes into `results`. */
  async #finish(
    held: readonly HeldElement[],
    results: SettleResult[],
    time: TimeLeft | undefined,
  ): Promise<void> {
    const finished = await this.#from.settle(
      held.map(({ item }) => ({ ...item, action: { kind: 'finish' } })),
      time,
    );
    for (const [at, { places }] of held.entries()) {
      const result = finished[at] ?? SETTLED['not-found'];
      for (const [i, place] of places.entries()) {
        results[place] = i > 0 && result.outcome === 'done' ? SETTLED['not-found'] : result;
      }
    }
  }

  async undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    const pending = deliveries.filter((delivery) => !this.#returned.has(delivery));
    const isNew = (delivery: Delivery): boolean => this.#popped.has(delivery);
    const undone = await Promise.allSettled([
      this.#undo(
        this.#from,
        queue,
        pending.filter((delivery) => !isNew(delivery)),
      ),
      this.#undo(this.#to, queue, pending.filter(isNew)),
    ]);
    const errors = undone.flatMap((result) => (result.status === 'rejected' ? [result.reason] : []));
    // Prefer an unknown outcome, after which the caller must not repeat the call.
    if (errors.length > 0) throw errors.find(isUnknownOutcome) ?? errors[0];
  }

  async #undo(storage: Storage, queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    await storage.undoTake(queue, deliveries);
    for (const delivery of deliveries) this.#returned.add(delivery);
  }

  async scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    const { ids, states, after, limit } = options;
    if (ids !== undefined) {
      const { deliveries: fromOld } = await this.#from.scan(queue, options);
      const found = new Set(fromOld.map(({ id }) => id));
      const missing = ids.filter((id) => !found.has(id));
      const { deliveries } =
        missing.length === 0 ? { deliveries: [] } : await this.#to.scan(queue, { ...options, ids: missing });
      return { deliveries: [...fromOld, ...deliveries], next: null };
    }
    const parts = DELIVERY_STATES.filter((state) => states.includes(state)).flatMap((state) => [
      { storage: this.#from, state },
      { storage: this.#to, state },
    ]);
    const deliveries: ScanPage['deliveries'] = [];
    let { part, inner } = readCursor(after, parts);
    for (; part < parts.length; part += 1, inner = null) {
      const { storage, state } = parts[part] as (typeof parts)[number];
      const left = limit - deliveries.length;
      // After a full page, look one element ahead to find out whether there is a next page.
      const limits = left > 0 ? { limit: left } : { limit: 1, bodies: false };
      const page = await storage.scan(queue, { ...options, ...limits, states: [state], after: inner });
      if (left === 0 && page.deliveries.length > 0) break;
      if (left === 0) continue;
      for (const delivery of page.deliveries) {
        const { cursor } = delivery;
        deliveries.push({
          ...delivery,
          cursor: cursor === null ? null : writeCursor({ part, inner: cursor }),
        });
      }
      // The engine may have ended its page early because of large bodies.
      if (page.next !== null) return { deliveries, next: writeCursor({ part, inner: page.next }) };
    }
    return { deliveries, next: part === parts.length ? null : writeCursor({ part, inner: null }) };
  }

  purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep> {
    return this.#inOrder(this.#from.purge(queue, states), async (fromOld) => {
      if (!fromOld.isDone) return fromOld;
      const fromNew = this.#to.purge(queue, states);
      const { removed, isDone } = await (fromOld.removed > 0 ? laterStep(fromNew) : fromNew);
      return { removed: fromOld.removed + removed, isDone };
    });
  }

  /** The old engine drops last: it gains no elements, so the count of a moment ago is still valid. */
  drop(queue: QueueKey): Promise<boolean> {
    return this.#inOrder(this.#from.counts(queue), async (fromOld) => {
      if (fromOld.ready + fromOld.scheduled + fromOld.reserved > 0) return false;
      return (await this.#to.drop(queue)) && laterStep(this.#from.drop(queue));
    });
  }

  counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts> {
    return this.#inOrder(this.#from.counts(queue, group), async (fromOld) => {
      const fromNew = await this.#to.counts(queue, group);
      const converted = (counts: GroupCounts): GroupCounts => ({
        ...counts,
        nextMatureAt: this.#byNewClock(counts.nextMatureAt, queue),
      });
      const groups = new Map<GroupName, GroupCounts>();
      for (const [name, counts] of fromOld.groups) groups.set(name, converted(counts));
      for (const [name, counts] of fromNew.groups) {
        const before = groups.get(name);
        groups.set(name, before === undefined ? counts : sumOf(before, counts));
      }
      return { ...sumOf(converted(fromOld), fromNew), groups };
    });
  }

  async usage(ns: string, needsBytes?: boolean): Promise<Usage> {
    const [fromOld, fromNew] = await Promise.all([
      this.#from.usage(ns, needsBytes),
      this.#to.usage(ns, needsBytes),
    ]);
    return {
      elements: fromOld.elements + fromNew.elements,
      bytes: fromOld.bytes === null || fromNew.bytes === null ? null : fromOld.bytes + fromNew.bytes,
    };
  }

  async sweep(): Promise<number | null> {
    const [old, current] = [this.#from.sweep(), this.#to.sweep()];
    await Promise.allSettled([old, current]);
    return earlier(this.#byNewClock(await old), await current);
  }

  takeAffected(): QueueKey[] {
    return [...this.#from.takeAffected(), ...this.#to.takeAffected()];
  }

  /** Converts a moment of the old engine's clock to that of the new one, with which callers compare it. */
  #byNewClock(at: number | null, queue?: QueueKey): number | null {
    const leadMs = this.#to.now(queue) - this.#from.now(queue);
    // While the clocks agree, moments are exact, and equal in all calls. A clock may not be known yet.
    const isNoise = Math.abs(leadMs) <= CLOCK_NOISE_MS || !Number.isFinite(leadMs);
    return at === null || isNoise ? at : at + leadMs;
  }

  /**
   * Calls `next` with the result of the old engine, after the `next` of all earlier calls has been called. `next` must
   * start its call to the new engine synchronously.
   */
  async #inOrder<A, B>(fromOld: Promise<A>, next: (result: A) => Promise<B>): Promise<B> {
    const before = this.#started;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#started = promise;
    this.#pending += 1;
    const [result] = await Promise.allSettled([fromOld, before]);
    this.#pending -= 1;
    try {
      if (result.status === 'rejected') throw result.reason;
      // Not awaited, so that the part of the next call can start as soon as this one has.
      return next(result.value);
    } finally {
      resolve();
    }
  }
}

/** An element whose key the old engine has seen. */
interface SeenElement {
  readonly id: ElementId;
  readonly isSame: boolean;
}

type KeyedInsert = NonNullable<FinishAction['inserts']>[number];

/** A reserved element of the old engine that a call with copies finishes. */
interface HeldElement {
  readonly item: SettleItem;
  readonly copies: readonly KeyedInsert[];
  /** Indices of its settlements in the call. */
  readonly places: number[];
}

/** The elements that a call successfully holds. @param results of holding them */
function heldElements(items: readonly SettleItem[], results: readonly SettleResult[]): HeldElement[] {
  const byElement = new Map<string, HeldElement>();
  for (const [place, item] of items.entries()) {
    if (!isCommit(item) || results[place]?.outcome !== 'done') continue;
    const { queue, id, group } = item;
    const element = JSON.stringify([queue.ns, queue.name, id, group]);
    const before = byElement.get(element);
    // The first settlement of an element finishes it; copies of later ones are not stored.
    if (before !== undefined) before.places.push(place);
    else {
      const copies = copiesOf(item).map((copy, i) => keyed(copy, item, i));
      byElement.set(element, { item, copies, places: [place] });
    }
  }
  return [...byElement.values()];
}

function isCommit(item: SettleItem): item is SettleItem & { readonly action: FinishAction } {
  return item.from === 'reserved' && item.action.kind === 'finish';
}

function isChange({ outcome }: SettleResult): boolean {
  return outcome === 'done' || outcome === 'dead-lettered';
}

/** The copies that finishing a reserved element stores. */
function copiesOf(item: SettleItem): readonly KeyedInsert[] {
  return isCommit(item) ? (item.action.inserts ?? []) : [];
}

/**
 * Gives a copy a key derived from its element and content, so that it is not stored twice. The content is included
 * since after a lost response the next consumer may commit the element with other copies, which must be stored.
 */
function keyed(copy: KeyedInsert, { queue, id, group }: SettleItem, index: number): KeyedInsert {
  const { element } = copy;
  if (element.dedupKey !== null) return copy;
  const { ns, name } = queue;
  const dedupKey = JSON.stringify(['migration', ns, name, id, group, index, contentFingerprint(element)]);
  return { queue: copy.queue, element: { ...element, dedupKey } };
}

/** Position of a page: an index of engine and state, and the engine's own cursor; null: the engine's first page. */
interface PartCursor {
  readonly part: number;
  readonly inner: string | null;
}

function writeCursor({ part, inner }: PartCursor): string {
  return `m${part}:${inner ?? ''}`;
}

const CURSOR = /^m(\d):(.*)$/s;

/**
 * The cursor of a page of one state, for the new engine alone: the migration may have ended after the page was read.
 * Null: the first page.
 */
export function cursorAfterMigration(cursor: string): string | null {
  const [, part, inner = ''] = CURSOR.exec(cursor) ?? [];
  if (part === undefined) return cursor;
  // The page was one of the old engine, or its last one.
  return part === '0' || inner === '' ? null : inner;
}

/** A cursor of the old engine, from before the migration, continues there. An invalid one starts at the beginning. */
function readCursor(text: string | null, parts: readonly { readonly state: DeliveryState }[]): PartCursor {
  const [, part = '', inner = ''] = CURSOR.exec(text ?? '') ?? [];
  if (part !== '' && Number(part) < parts.length) {
    return { part: Number(part), inner: inner === '' ? null : inner };
  }
  // The first part of a state is that of the old engine.
  const oldPart = parts.findIndex(({ state }) => text?.startsWith(`${state}.`));
  return oldPart === -1 ? { part: 0, inner: null } : { part: oldPart, inner: text };
}

function sumOf(a: GroupCounts, b: GroupCounts): GroupCounts {
  return {
    ready: a.ready + b.ready,
    scheduled: a.scheduled + b.scheduled,
    reserved: a.reserved + b.reserved,
    nextMatureAt: earlier(a.nextMatureAt, b.nextMatureAt),
  };
}
