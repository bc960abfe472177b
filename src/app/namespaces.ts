import { hash } from 'node:crypto';
import type { Configured } from '../broker/cluster.ts';
import type { NamespaceSetup } from '../broker/ports.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import type { EngineLog } from '../engine/engine.ts';
import { LocalSignaller } from '../engine/signaller.ts';
import { type CounterName, type Counters, JointStats, type Stats } from '../engine/stats.ts';
import type { GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import { maskUrl } from '../util/mask.ts';
import { type EngineSet, LOCAL_SIGNALS, policyOf } from './engines.ts';
import { queueRulesOf } from './queue-rules.ts';

/** What counters are stored under if a namespace names no collection. */
const USUAL_COLLECTION = 'stats';

const MEMORY = 'sqlite::memory:';
/** What a store in memory may take if nothing else is configured: 1 GiB. */
const MEMORY_MAX_BYTES = 2 ** 30;

/** The namespaces as the broker takes them: each with its ports and what to show of them. */
export function namespaceSetups(config: Config, engines: EngineSet, log: EngineLog): NamespaceSetup[] {
  const local = new LocalSignaller(log);
  return Object.entries(config.namespaces).map(([name, namespace]) => {
    const { type, storage, definitions, disk } = engines.of(namespace);
    const signals = signalsOf(name, namespace, engines, local);
    const counts = countsOf(namespace, engines);
    return {
      policy: policyOf(name, namespace),
      configured: configuredOf(namespace),
      type: `${type}:${namespace.variant}`,
      leaseMs: namespace.lease * 1000,
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

/** Of one value: each announcement of a node to the others has them all. */
const MAX_VALUE = 200;

/** What all nodes that serve a namespace should configure alike, by option. */
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
  const { url, coll = USUAL_COLLECTION } = config.stats ?? {};
  const own = engines.of(config);
  const { type, stats } = url === undefined ? own : engines.at(url);
  const chosen = coll === USUAL_COLLECTION ? stats : new StatsCollection(stats, coll);
  return {
    stats: chosen === own.stats ? chosen : new JointStats(chosen, own.stats),
    shown: { type, url: maskUrl(url ?? config.url), coll },
  };
}

/**
 * Counters of a namespace that names a collection of its own (`stats: {coll: …}`): two installations may
 * share one store of statistics though their namespaces have the same names.
 */
class StatsCollection implements Stats {
  readonly #stats: Stats;
  readonly #collection: string;
  /** Engines know their queues by the object: each key has one counterpart. */
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

  /** No namespace's name has a slash, so none can be meant by two keys. */
  #keyOf(queue: QueueKey): QueueKey {
    let key = this.#keys.get(queue);
    if (key === undefined) {
      key = { ns: `${this.#collection}/${queue.ns}`, name: queue.name };
      this.#keys.set(queue, key);
    }
    return key;
  }
}
