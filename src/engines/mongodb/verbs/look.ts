import type { Filter } from 'mongodb';
import type { BrowseOptions, BrowsePage, GroupSizes, QueueSizes } from '../../../engine/storage.ts';
import type { DeliveryState, GroupName } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import { delivery, deliveryId, type ElementDocument } from '../documents.ts';
import type { Parts } from '../parts.ts';
import { IN_ORDER } from '../schema.ts';
import { MAX_TIME_MS } from '../settings.ts';
import type { Store } from '../store.ts';

/** A page holds no more bytes of bodies than about this. */
const MOST_BYTES = 16 * 1024 * 1024;

const QUERY = { hint: IN_ORDER, maxTimeMS: MAX_TIME_MS } as const;
const EMPTY: GroupSizes = { ready: 0, scheduled: 0, reserved: 0, nextMatureAt: null };

/** One group's elements of one state, counted by the index. */
interface Count {
  readonly _id: { readonly group: GroupName; readonly state: string; readonly isDue: boolean };
  readonly count: number;
  readonly first: Date;
}

/** Groups of a queue that something waits in or is reserved for. @throws what the driver throws */
export async function groupsWithDeliveries({ collections }: Store, queue: QueueKey): Promise<GroupName[]> {
  const match = { ...inQueue(queue, null), state: { $in: ['waiting', 'reserved'] } };
  const found = collections.elements.aggregate<{ _id: GroupName }>(
    [{ $match: match }, { $group: { _id: '$group' } }],
    QUERY,
  );
  return (await found.toArray()).map(({ _id }) => _id);
}

/** Reads that change nothing. They follow the index `in_order`; counts read nothing but it. */
export class Look {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** @throws what the driver throws, or Lost where there is no primary */
  async sizes(queue: QueueKey, group: GroupName | null): Promise<QueueSizes> {
    this.#parts.store.assertUp();
    const now = await this.#parts.store.time.recent();
    const isWhole = group === null && this.#parts.policies.isStream(queue.ns);
    const counts = this.#count(queue, group ?? (isWhole ? null : ''), now);
    const [byGroup, elements] = await Promise.all([counts, isWhole ? this.#countElements(queue, now) : null]);
    if (elements === null) return { ...(byGroup.values().next().value ?? EMPTY), groups: new Map() };
    const moments = [...byGroup.values()].flatMap(({ nextMatureAt }) => nextMatureAt ?? []);
    const nextMatureAt = moments.length === 0 ? null : Math.min(...moments);
    return { ...elements, nextMatureAt, groups: byGroup };
  }

  /** @throws what the driver throws, or Lost where there is no primary */
  async nextDueAt(queue: QueueKey, group: GroupName): Promise<number | null> {
    this.#parts.store.assertUp();
    const [first] = await this.#elements
      .find(waiting(queue, group), {
        ...QUERY,
        sort: { at: 1, id: 1 },
        limit: 1,
        projection: { _id: 0, at: 1 },
      })
      .toArray();
    return first?.at.getTime() ?? null;
  }

  /** @throws what the driver throws, or Lost where there is no primary */
  async browse(queue: QueueKey, { group, state, after, limit }: BrowseOptions): Promise<BrowsePage> {
    this.#parts.store.assertUp();
    const now = await this.#parts.store.time.recent();
    const from = placeOf(after);
    const found = await this.#page(inState(queue, group, state, now), from, limit);
    const ids = found.map(({ id }) => deliveryId(id, group));
    const documents = await this.#elements.find({ _id: { $in: ids } }, { maxTimeMS: MAX_TIME_MS }).toArray();
    const byId = new Map(documents.map((document) => [document._id, document]));
    // What has gone, or changed its state, since the index was read is not of this moment's picture.
    const shown = ids.flatMap((id) => {
      const document = byId.get(id);
      return document === undefined || stateOf(document, now) !== state ? [] : [document];
    });
    const last = found.at(-1);
    return {
      deliveries: shown.map((document) => {
        const { until } = document;
        return delivery(document, until === undefined ? null : { token: '', until: until.getTime() });
      }),
      next: last === undefined || !last.hasMore ? null : `${last.at.getTime()}.${last.id}`,
    };
  }

  get #elements() {
    return this.#parts.store.collections.elements;
  }

  async #page(filter: Filter<ElementDocument>, from: Place | null, limit: number): Promise<Entry[]> {
    const fields = { _id: 0, at: 1, id: 1, bytes: 1 } as const;
    const found = await this.#elements
      .find(from === null ? filter : { $and: [filter, ...beyond(from)] }, {
        ...QUERY,
        sort: { at: 1, id: 1 },
        limit: limit + 1,
        projection: fields,
      })
      .toArray();
    let bytes = 0;
    const fitting = found.findIndex((entry, index) => {
      bytes += entry.bytes;
      return index >= limit || (index > 0 && bytes > MOST_BYTES);
    });
    const count = fitting < 0 ? found.length : fitting;
    return found.slice(0, count).map(({ at, id }, index) => ({
      at,
      id,
      hasMore: index === count - 1 && count < found.length,
    }));
  }

  async #count(queue: QueueKey, group: GroupName | null, now: Date): Promise<Map<GroupName, GroupSizes>> {
    const counts = await this.#elements
      .aggregate<Count>(
        [
          { $match: { ...inQueue(queue, group), state: { $in: ['waiting', 'reserved'] } } },
          {
            $group: {
              _id: { group: '$group', state: '$state', isDue: { $lte: ['$at', now] } },
              count: { $sum: 1 },
              first: { $min: '$at' },
            },
          },
        ],
        QUERY,
      )
      .toArray();
    const sizes = new Map<GroupName, GroupSizes>();
    for (const { _id, count, first } of counts) {
      const before = sizes.get(_id.group) ?? EMPTY;
      sizes.set(_id.group, withCount(before, _id, count, first.getTime()));
    }
    return sizes;
  }

  /** Elements of a stream, each in the most advanced state of its deliveries. */
  async #countElements(queue: QueueKey, now: Date): Promise<GroupSizes> {
    const isWaiting = { $eq: ['$state', 'waiting'] };
    const rank = { $cond: [isWaiting, { $cond: [{ $lte: ['$at', now] }, 2, 1] }, 0] };
    const counts = await this.#elements
      .aggregate<{ _id: number; count: number }>(
        [
          { $match: { ...inQueue(queue, null), state: { $in: ['waiting', 'reserved'] } } },
          { $group: { _id: '$id', rank: { $max: rank } } },
          { $group: { _id: '$rank', count: { $sum: 1 } } },
        ],
        QUERY,
      )
      .toArray();
    const byRank = new Map(counts.map(({ _id, count }) => [_id, count]));
    const of = (number: number): number => byRank.get(number) ?? 0;
    return { ready: of(2), scheduled: of(1), reserved: of(0), nextMatureAt: null };
  }
}

interface Place {
  readonly at: Date;
  readonly id: string;
}

interface Entry extends Place {
  readonly hasMore: boolean;
}

/** The place that a bookmark names; null where it makes no sense. */
function placeOf(after: string | null): Place | null {
  const [, at, id] = /^(-?\d{1,15})\.([0-9a-z]+-[0-9a-z]+)$/.exec(after ?? '') ?? [];
  return at === undefined || id === undefined ? null : { at: new Date(Number(at)), id };
}

/** The first of the two is what the index can begin at. */
function beyond({ at, id }: Place): Filter<ElementDocument>[] {
  return [{ at: { $gte: at } }, { $or: [{ at: { $gt: at } }, { at, id: { $gt: id } }] }];
}

function inQueue({ ns, name }: QueueKey, group: GroupName | null): Filter<ElementDocument> {
  return { ns, queue: name, ...(group !== null && { group }) };
}

function waiting(queue: QueueKey, group: GroupName): Filter<ElementDocument> {
  return { ...inQueue(queue, group), state: 'waiting' };
}

function inState(
  queue: QueueKey,
  group: GroupName,
  state: DeliveryState,
  now: Date,
): Filter<ElementDocument> {
  if (state === 'reserved') return { ...inQueue(queue, group), state };
  return { ...waiting(queue, group), at: state === 'ready' ? { $lte: now } : { $gt: now } };
}

function stateOf({ state, at }: ElementDocument, now: Date): string {
  return state !== 'waiting' ? state : at.getTime() <= now.getTime() ? 'ready' : 'scheduled';
}

function withCount(before: GroupSizes, of: Count['_id'], count: number, first: number): GroupSizes {
  if (of.state === 'reserved') return { ...before, reserved: before.reserved + count };
  const nextMatureAt = Math.min(before.nextMatureAt ?? first, first);
  return of.isDue ? { ...before, ready: count, nextMatureAt } : { ...before, scheduled: count, nextMatureAt };
}
