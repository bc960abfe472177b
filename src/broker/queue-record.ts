import { COUNTER_NAMES, type Counters, zeroCounters } from '../engine/stats.ts';
import type { GroupCounts, QueueCounts } from '../engine/storage.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import type { QueueRecord, QueueSizes } from '../model/records.ts';
import { compareStrings } from '../util/compare-strings.ts';
import type { QueueReading } from './activity.ts';
import type { Queue } from './queue.ts';

// What is shown of a queue: counts of its elements and of what was done with them.

/** The queue information record of spec 2.2. @param group the group that was counted; null: all */
export function queueRecord(
  queue: Queue,
  group: GroupName | null,
  counts: QueueCounts,
  counters: ReadonlyMap<GroupName, Counters>,
): QueueRecord {
  const { namespace, paused } = queue;
  const { name, type, capabilities, isStream } = namespace;
  const oldestMs = oldestReadyMs(queue, counts);
  const totals = sumOf(counters);
  const allStats = isStream ? { ...totals, groups: namedGroups(counters) } : totals;
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
    stats: group === null ? allStats : (counters.get(group) ?? zeroCounters()),
    paused,
    ...shownSizes(counts),
    ...(isStream && group === null && { groups: sizesByGroup(counts) }),
    oldestReadyAge: oldestMs === null ? null : Math.round(oldestMs) / 1000,
    ...(group === null && { rates: namespace.activity.rates(queue.key.name, totals) }),
  };
}

/** Reads counts and counters of a queue, for `QueueWatch`. */
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
 * How long the oldest ready element of a queue has been ready, ms; null if no element is ready. The element that became
 * ready first has the earliest maturity of all waiting ones. If a producer gave a maturity in the past, the age counts
 * from that: the insertion of the first element says nothing of those behind it, which may have waited for longer.
 */
export function oldestReadyMs(
  { namespace: { storage }, key }: Pick<Queue, 'namespace' | 'key'>,
  { ready, nextMatureAt }: GroupCounts,
): number | null {
  if (ready === 0 || nextMatureAt === null) return null;
  const ageMs = storage.now(key) - nextMatureAt;
  return Number.isFinite(ageMs) ? Math.max(0, ageMs) : 0;
}

/**
 * Adds the counters of all groups. A stream's inserts are counted once for the queue, under the plain group, and once
 * per named group; the latter are left out.
 */
function sumOf(counters: ReadonlyMap<GroupName, Counters>): Counters {
  const sum = zeroCounters();
  for (const [group, groupCounters] of counters) {
    for (const name of COUNTER_NAMES) {
      if (name !== 'put' || group === PLAIN_GROUP) sum[name] += groupCounters[name];
    }
  }
  return sum;
}

function namedGroups(counters: ReadonlyMap<GroupName, Counters>): Record<GroupName, Counters> {
  const { [PLAIN_GROUP]: _, ...named } = sortedByName(counters);
  return named;
}

function sizesByGroup({ groups }: QueueCounts): Record<GroupName, QueueSizes> {
  return sortedByName([...groups].map(([name, counts]) => [name, shownSizes(counts)] as const));
}

/** Engines return groups in different orders. */
function sortedByName<T>(groups: Iterable<readonly [GroupName, T]>): Record<GroupName, T> {
  // Group names come from clients: `Object.fromEntries` defines, so `__proto__` is a key like any other.
  return Object.fromEntries([...groups].sort(([a], [b]) => compareStrings(a, b)));
}

/** The counts under the names of the spec. */
export function shownSizes({ ready, scheduled, reserved, nextMatureAt }: GroupCounts): QueueSizes {
  return {
    next_mature_t: nextMatureAt === null ? null : new Date(nextMatureAt).toISOString(),
    totalSize: ready + scheduled + reserved,
    size: ready,
    schedSize: scheduled,
    resvSize: reserved,
  };
}
