import { hash } from 'node:crypto';
import type { Configured } from '../broker/cluster.ts';
import type { NamespaceSetup } from '../broker/ports.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import type { EngineLog } from '../engine/engine.ts';
import { LocalSignaller } from '../engine/local-signaller.ts';
import { maskUrl } from '../util/mask.ts';
import { type EngineSet, LOCAL_SIGNALS, policyOf } from './engines.ts';
import { JointStats } from './joint-stats.ts';
import { StatsCollection, USUAL_COLLECTION } from './stats-collection.ts';

const MEMORY = 'sqlite::memory:';
/** What a store in memory may take if nothing else is configured: 1 GiB. */
const MEMORY_MAX_BYTES = 2 ** 30;

/** The namespaces as the broker takes them: each with its ports and what to show of them. */
export function namespaceSetups(config: Config, engines: EngineSet, log: EngineLog): NamespaceSetup[] {
  const local = new LocalSignaller(log);
  return Object.entries(config.namespaces).map(([name, namespace]) => {
    const { type, storage, definitions } = engines.of(namespace);
    const signals = signalsOf(name, namespace, engines, local);
    const counts = countsOf(namespace, engines);
    return {
      policy: policyOf(name, namespace),
      configured: configuredOf(namespace),
      type: `${type}:${namespace.variant}`,
      leaseMs: namespace.lease * 1000,
      maxQueues: namespace.maxQueues,
      maxElements: namespace.maxElements ?? null,
      maxBytes: namespace.maxBytes ?? (namespace.url === MEMORY ? MEMORY_MAX_BYTES : null),
      maxExchanges: namespace.maxExchanges,
      storage,
      definitions,
      signaller: signals.signaller,
      stats: counts.stats,
      shown: { url: maskUrl(namespace.url), signaller: signals.shown, stats: counts.shown },
    };
  });
}

/** Other nodes are told this in every greeting, so each value is short. */
const MAX_TEXT = 200;

/** What all nodes that serve a namespace should configure alike, by option. */
function configuredOf({ variant, lease, deadLetter, groups, retention }: NamespaceConfig): Configured {
  const options = {
    variant,
    lease,
    deadLetter: deadLetter ?? null,
    ...(variant === 'stream' ? { groups: groups ?? ['default'], retention: retention ?? null } : {}),
  };
  return Object.fromEntries(Object.entries(options).map(([option, value]) => [option, shortText(value)]));
}

function shortText(value: unknown): string {
  const text = typeof value === 'string' ? value : value === null ? 'not set' : JSON.stringify(value);
  if (text.length <= MAX_TEXT) return text;
  return `${text.slice(0, MAX_TEXT / 2)}… (SHA-256 ${hash('sha256', text).slice(0, 16)})`;
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
  const carrier = url ?? config.url;
  return { signaller, shown: { type: signaller.type, url: maskUrl(carrier), channel } };
}

function countsOf(
  config: NamespaceConfig,
  engines: EngineSet,
): Pick<NamespaceSetup, 'stats'> & { shown: NamespaceSetup['shown']['stats'] } {
  const { url, coll = USUAL_COLLECTION } = config.stats ?? {};
  const own = engines.of(config);
  const { type, stats } = url === undefined ? own : engines.at(url);
  const kept = coll === USUAL_COLLECTION ? stats : new StatsCollection(stats, coll);
  return {
    stats: kept === own.stats ? kept : new JointStats(kept, own.stats),
    shown: { type, url: maskUrl(url ?? config.url), coll },
  };
}
