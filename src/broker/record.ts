import { COUNTER_NAMES, type Counters, zeroCounters } from '../engine/stats.ts';
import type { GroupCounts, QueueCounts, StorageCapabilities } from '../engine/storage.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import type { QueueReading, RecentRates } from './activity.ts';
import type { Queue } from './queue.ts';

/** What a queue can do (spec 2.2): the engine's, and whether several groups read the same element. */
export interface Capabilities extends Omit<StorageCapabilities, 'expiry'> {
  readonly tape: boolean;
}

/** Counts under the names of the spec. */
interface ShownSizes {
  readonly next_mature_t: string | null;
  readonly totalSize: number;
  readonly size: number;
  readonly schedSize: number;
  readonly resvSize: number;
}

/** The queue information record of the spec's 2.2, field for field; what follows `groups` is ours. */
export interface QueueRecord extends ShownSizes {
  readonly type: string;
  readonly capabilities: Capabilities;
  readonly factory: {
    readonly name: string;
    readonly type: string;
    readonly opts: { readonly name: string; readonly url: string };
    readonly signaller: {
      readonly type: string;
      readonly opts: {
        readonly url: string;
        /** Always empty; the spec names the field. */
        readonly mongo_opts: Readonly<Record<string, never>>;
        readonly channel: string;
      };
    };
    readonly stats: { readonly type: string; readonly opts: { readonly url: string; readonly coll: string } };
  };
  readonly stats: Counters & { readonly groups?: Readonly<Record<GroupName, Counters>> };
  readonly paused: boolean;
  /** Streams only. */
  readonly groups?: Readonly<Record<GroupName, ShownSizes>>;
  /** For how many seconds the oldest ready element has been ready; null if none is. */
  readonly oldestReadyAge: number | null;
  /** Of the whole queue, so left out if one group was asked for; null: this node has just started. */
  readonly rates?: RecentRates | null;
}

/** @param group counted for this group alone, or null */
export function queueRecord(
  queue: Queue,
  group: GroupName | null,
  counts: QueueCounts,
  counters: ReadonlyMap<GroupName, Counters>,
): QueueRecord {
  const { namespace, paused } = queue;
  const { name, type, capabilities, isStream } = namespace;
  const oldestMs = oldestReadyMs(queue, counts);
  const { url, signaller, stats } = namespace.setup.shown;
  return {
    type,
    capabilities,
    factory: {
      name,
      type,
      opts: { name, url },
      signaller: {
        type: signaller.type,
        opts: { url: signaller.url, mongo_opts: {}, channel: signaller.channel },
      },
      stats: { type: stats.type, opts: { url: stats.url, coll: stats.coll } },
    },
    stats: group === null ? total(counters, isStream) : (counters.get(group) ?? zeroCounters()),
    paused,
    ...shownSizes(counts),
    ...(isStream && group === null && { groups: byGroup(counts.groups, shownSizes) }),
    oldestReadyAge: oldestMs === null ? null : Math.round(oldestMs) / 1000,
    ...(group === null && { rates: namespace.activity.rates(queue.key.name, sumOf(counters)) }),
  };
}

/** Counts of a queue, and what was counted of it, as `QueueWatch` keeps them. */
export async function readQueue(queue: Queue): Promise<QueueReading> {
  const { storage, stats } = queue.namespace;
  const [counts, counters] = await Promise.all([storage.counts(queue.key), stats.read(queue.key)]);
  const { ready, scheduled, reserved, nextMatureAt } = counts;
  return {
    counts: { ready, scheduled, reserved, nextMatureAt },
    totals: sumOf(counters),
    oldestReadyMs: oldestReadyMs(queue, counts),
  };
}

/**
 * For how long the oldest ready element of a queue has been ready; null if none is. What became ready first is what has the
 * earliest maturity of all that waits.
 */
export function oldestReadyMs(
  { namespace: { storage }, key }: Pick<Queue, 'namespace' | 'key'>,
  { ready, nextMatureAt }: GroupCounts,
): number | null {
  if (ready === 0 || nextMatureAt === null) return null;
  const ageMs = storage.now(key) - nextMatureAt;
  return Number.isFinite(ageMs) ? Math.max(0, ageMs) : 0;
}

/** A stream's puts are counted once for the queue, under the plain group, and once for each named group. */
function sumOf(counters: ReadonlyMap<GroupName, Counters>): Counters {
  const sum = zeroCounters();
  for (const [group, own] of counters) {
    for (const name of COUNTER_NAMES) {
      if (name !== 'put' || group === PLAIN_GROUP) sum[name] += own[name];
    }
  }
  return sum;
}

function total(counters: ReadonlyMap<GroupName, Counters>, isStream: boolean): QueueRecord['stats'] {
  const sum = sumOf(counters);
  if (!isStream) return sum;
  const named = new Map([...counters].filter(([group]) => group !== PLAIN_GROUP));
  return { ...sum, groups: byGroup(named, (own) => own) };
}

/** The counts under the names of the spec. */
export function shownSizes({ ready, scheduled, reserved, nextMatureAt }: GroupCounts): ShownSizes {
  return {
    next_mature_t: nextMatureAt === null ? null : new Date(nextMatureAt).toISOString(),
    totalSize: ready + scheduled + reserved,
    size: ready,
    schedSize: scheduled,
    resvSize: reserved,
  };
}

/** Group names come from clients: `Object.fromEntries` defines, so `__proto__` is a key like any other. */
function byGroup<From, To>(
  groups: ReadonlyMap<GroupName, From>,
  show: (value: From) => To,
): Record<GroupName, To> {
  return Object.fromEntries([...groups].map(([name, value]) => [name, show(value)]));
}
