import { COUNTER_NAMES, type Counters, zeroCounters } from '../engine/stats.ts';
import type { GroupCounts, QueueCounts, StorageCapabilities } from '../engine/storage.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
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

/** The queue information record of the spec's 2.2, field for field. */
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
}

/** @param group counted for this group alone, or null */
export function queueRecord(
  { namespace, paused }: Queue,
  group: GroupName | null,
  counts: QueueCounts,
  counters: ReadonlyMap<GroupName, Counters>,
): QueueRecord {
  const { name, type, capabilities, isStream } = namespace;
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
  };
}

/** A stream's puts are counted once for the queue, under the plain group, and once for each named group. */
function total(counters: ReadonlyMap<GroupName, Counters>, isStream: boolean): QueueRecord['stats'] {
  const sum = zeroCounters();
  for (const [group, own] of counters) {
    for (const name of COUNTER_NAMES) {
      if (name !== 'put' || group === PLAIN_GROUP) sum[name] += own[name];
    }
  }
  if (!isStream) return sum;
  const named = new Map([...counters].filter(([group]) => group !== PLAIN_GROUP));
  return { ...sum, groups: byGroup(named, (own) => own) };
}

function shownSizes({ ready, scheduled, reserved, nextMatureAt }: GroupCounts): ShownSizes {
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
