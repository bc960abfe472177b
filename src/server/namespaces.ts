import type { NamespaceSetup } from '../broker/ports.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import type { Engine } from '../engine/engine.ts';
import { maskUrl } from '../model/mask.ts';
import { policyOf } from './engines.ts';

/** The namespaces as the broker takes them: each with the ports of its engine and what to show of them. */
export function namespaceSetups(config: Config, engines: ReadonlyMap<string, Engine>): NamespaceSetup[] {
  return Object.entries(config.namespaces).map(([name, namespace]) => {
    const engine = engines.get(namespace.url);
    if (engine === undefined) throw new Error(`Namespace ${name} has no engine.`);
    return setUp(name, namespace, engine);
  });
}

function setUp(name: string, config: NamespaceConfig, engine: Engine): NamespaceSetup {
  const { type, storage, definitions, signaller, stats } = engine;
  const url = maskUrl(config.url);
  return {
    policy: policyOf(name, config),
    type: `${type}:${config.variant}`,
    leaseMs: config.lease * 1000,
    maxQueues: config.maxQueues,
    storage,
    definitions,
    signaller,
    stats,
    shown: {
      url,
      signaller: { type: signaller.type, url, channel: `namespace:${name}` },
      stats: { type, url, coll: 'stats' },
    },
  };
}
