import type { NamespaceSetup } from '../broker/ports.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import type { EngineLog } from '../engine/engine.ts';
import { LocalSignaller } from '../engine/local-signaller.ts';
import { maskUrl } from '../model/mask.ts';
import { type EngineSet, LOCAL_SIGNALS, policyOf } from './engines.ts';
import { JointStats } from './joint-stats.ts';
import { StatsCollection, USUAL_COLLECTION } from './stats-collection.ts';

/** The namespaces as the broker takes them: each with its ports and what to show of them. */
export function namespaceSetups(config: Config, engines: EngineSet, log: EngineLog): NamespaceSetup[] {
  const local = new LocalSignaller(log);
  return Object.entries(config.namespaces).map(([name, namespace]) => {
    const { type, storage, definitions } = engines.of(namespace);
    const signals = signalsOf(name, namespace, engines, local);
    const counts = countsOf(namespace, engines);
    return {
      policy: policyOf(name, namespace),
      type: `${type}:${namespace.variant}`,
      leaseMs: namespace.lease * 1000,
      maxQueues: namespace.maxQueues,
      maxExchanges: namespace.maxExchanges,
      storage,
      definitions,
      signaller: signals.signaller,
      stats: counts.stats,
      shown: { url: maskUrl(namespace.url), signaller: signals.shown, stats: counts.shown },
    };
  });
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
