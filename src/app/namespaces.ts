import { hash } from 'node:crypto';
import type { Configured } from '../broker/cluster.ts';
import type { NamespaceSetup } from '../broker/ports.ts';
import { milliseconds, type OwnOptions, toOptions } from '../broker/queue-options.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import type { NamespacePolicy } from '../engine/engine.ts';
import type { QueueRule } from '../engine/queue-policy.ts';
import { LocalSignaller } from '../engine/signaller.ts';
import { type CounterName, type Counters, JointStats, type Stats } from '../engine/stats.ts';
import type { GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { EventLog } from '../util/log.ts';
import { maskUrl } from '../util/mask.ts';
import type { EngineSet } from './engines.ts';

/** Signaller URL for signals within this process, which need no engine. */
export const LOCAL_SIGNALS = 'local:';

/** The part of a namespace's configuration that engines use. */
export function policyOf(name: string, config: NamespaceConfig): NamespacePolicy {
  const { deadLetter = null, retentionMs = null, retryDelay = null } = toOptions(config);
  return {
    name,
    groups: config.variant === 'stream' ? [...new Set(config.groups ?? ['default'])] : null,
    deadLetter,
    retentionMs,
    retryDelay,
    queues: queueRulesOf(config),
    maxGroups: config.maxGroups,
  };
}

/** The default collection of counters. */
const DEFAULT_COLLECTION = 'stats';

const MEMORY = 'sqlite::memory:';
/** Default `maxBytes` of an in-memory store: 1 GiB. */
const MEMORY_MAX_BYTES = 2 ** 30;

/** The namespaces with their ports and public settings, for the broker. */
export function namespaceSetups(config: Config, engines: EngineSet, log: EventLog): NamespaceSetup[] {
  const local = new LocalSignaller(log);
  return Object.entries(config.namespaces).map(([name, namespace]) => {
    const { type, storage, definitions, disk } = engines.of(namespace);
    const signals = signalsOf(name, namespace, engines, local);
    const counts = countsOf(namespace, engines);
    return {
      policy: policyOf(name, namespace),
      configured: configuredOf(namespace),
      type: `${type}:${namespace.variant}`,
      leaseMs: milliseconds(namespace.lease),
      queues: queueRulesOf(namespace),
      maxQueues: namespace.maxQueues,
      maxElements: namespace.maxElements ?? null,
      maxBytes: namespace.maxBytes ?? (namespace.url === MEMORY ? MEMORY_MAX_BYTES : null),
      maxExchanges: namespace.maxExchanges,
      storage,
      ownsStore: disk !== undefined,
      definitions,
      signaller: signals.signaller,
      stats: counts.stats,
      shown: { url: maskUrl(namespace.url), signaller: signals.shown, stats: counts.shown },
    };
  });
}

/** Maximum length of one value: every announcement of a node contains all of them. */
const MAX_VALUE = 200;

/** The options that must be equal on all nodes that serve a namespace, as short strings for comparison. */
function configuredOf(config: NamespaceConfig): Configured {
  const { variant, lease, deadLetter, retryDelay, queues = {}, groups, retention } = config;
  const rules = Object.entries(queues).sort(([a], [b]) => (a < b ? -1 : 1));
  const options = {
    variant,
    lease,
    deadLetter: deadLetter ?? null,
    retryDelay: retryDelay ?? null,
    queues: rules.length === 0 ? null : Object.fromEntries(rules),
    ...(variant === 'stream' ? { groups: groups ?? ['default'], retention: retention ?? null } : {}),
  };
  return Object.fromEntries(Object.entries(options).map(([option, value]) => [option, shortText(value)]));
}

function shortText(value: unknown): string {
  const text = typeof value === 'string' ? value : value === null ? 'not set' : JSON.stringify(value);
  if (text.length <= MAX_VALUE) return text;
  return `${text.slice(0, MAX_VALUE / 2)}… (SHA-256 ${hash('sha256', text).slice(0, 16)})`;
}

function signalsOf(
  name: string,
  config: NamespaceConfig,
  engines: EngineSet,
  local: LocalSignaller,
): Pick<NamespaceSetup, 'signaller'> & { shown: NamespaceSetup['shown']['signaller'] } {
  const { url, channel = `namespace:${name}` } = config.signaller ?? {};
  const signaller =
    url === LOCAL_SIGNALS ? local : (url === undefined ? engines.of(config) : engines.at(url)).signaller;
  return { signaller, shown: { type: signaller.type, url: maskUrl(url ?? config.url), channel } };
}

function countsOf(
  config: NamespaceConfig,
  engines: EngineSet,
): Pick<NamespaceSetup, 'stats'> & { shown: NamespaceSetup['shown']['stats'] } {
  const { url, coll = DEFAULT_COLLECTION } = config.stats ?? {};
  const elementEngine = engines.of(config);
  const { type, stats } = url === undefined ? elementEngine : engines.at(url);
  const chosen = coll === DEFAULT_COLLECTION ? stats : new StatsCollection(stats, coll);
  return {
    stats: chosen === elementEngine.stats ? chosen : new JointStats(chosen, elementEngine.stats),
    shown: { type, url: maskUrl(url ?? config.url), coll },
  };
}

/**
 * Counters of a namespace with its own collection (`stats: {coll: …}`), so that two installations with the same
 * namespace names can share a statistics store.
 */
class StatsCollection implements Stats {
  readonly #stats: Stats;
  readonly #collection: string;
  /** Engines identify queues by object identity, so each key must map to the same object. */
  readonly #keys = new WeakMap<QueueKey, QueueKey>();

  constructor(stats: Stats, collection: string) {
    this.#stats = stats;
    this.#collection = collection;
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Record<CounterName, number>>): void {
    this.#stats.add(this.#keyOf(queue), group, deltas);
  }

  read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    return this.#stats.read(this.#keyOf(queue));
  }

  flush(): Promise<void> {
    return this.#stats.flush();
  }

  discard(queue: QueueKey): void {
    this.#stats.discard(this.#keyOf(queue));
  }

  /** Namespace names contain no slash, so the combined names are unambiguous. */
  #keyOf(queue: QueueKey): QueueKey {
    let key = this.#keys.get(queue);
    if (key === undefined) {
      key = { ns: `${this.#collection}/${queue.ns}`, name: queue.name };
      this.#keys.set(queue, key);
    }
    return key;
  }
}

/** The configured queue options of a namespace, by pattern. */
function queueRulesOf({ queues = {} }: NamespaceConfig): QueueRule<OwnOptions>[] {
  return Object.entries(queues).map(([pattern, config]) => ({ pattern, options: toOptions(config) }));
}
