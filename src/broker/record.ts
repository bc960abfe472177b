import { COUNTER_NAMES, type Counters, zeroCounters } from '../engine/stats.ts';
import type { GroupCounts, QueueCounts, StorageCapabilities } from '../engine/storage.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import type { ShownSetup } from './ports.ts';

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

export interface RecordParts {
  readonly namespace: {
    readonly name: string;
    readonly type: string;
    readonly isStream: boolean;
    readonly capabilities: Capabilities;
  };
  readonly shown: ShownSetup;
  readonly paused: boolean;
  readonly counts: QueueCounts;
  readonly counters: ReadonlyMap<GroupName, Counters>;
  /** Counted for this group alone, or null. */
  readonly group: GroupName | null;
}

export function queueRecord(parts: RecordParts): QueueRecord {
  const { namespace, shown, counts } = parts;
  const { name, type } = namespace;
  return {
    type,
    capabilities: namespace.capabilities,
    factory: {
      name,
      type,
      opts: { name, url: shown.url },
      signaller: {
        type: shown.signaller.type,
        opts: {
          url: shown.signaller.url,
          mongo_opts: {},
          channel: shown.signaller.channel,
        },
      },
      stats: { type: shown.stats.type, opts: { url: shown.stats.url, coll: shown.stats.coll } },
    },
    stats: shownCounters(parts),
    paused: parts.paused,
    ...shownSizes(counts),
    ...(namespace.isStream && parts.group === null && { groups: byGroup(counts.groups, shownSizes) }),
  };
}

/** A stream's puts are counted once for the queue, under the plain group, and once for each named group. */
function shownCounters({ namespace, counters, group }: RecordParts): QueueRecord['stats'] {
  if (group !== null) return counters.get(group) ?? zeroCounters();
  const total = zeroCounters();
  for (const [of, own] of counters) {
    for (const name of COUNTER_NAMES) {
      if (name !== 'put' || of === PLAIN_GROUP) total[name] += own[name];
    }
  }
  if (!namespace.isStream) return total;
  const named = new Map([...counters].filter(([of]) => of !== PLAIN_GROUP));
  return { ...total, groups: byGroup(named, (own) => own) };
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
