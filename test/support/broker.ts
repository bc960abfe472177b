import { Broker } from '../../src/broker/broker.ts';
import type { Configured } from '../../src/broker/cluster.ts';
import type { NamespaceSetup } from '../../src/broker/ports.ts';
import type { OwnOptions } from '../../src/broker/queue-options.ts';
import type { Engine, NamespacePolicy } from '../../src/engine/engine.ts';
import type { QueueRule } from '../../src/engine/queue-policy.ts';
import { LocalSignaller, type Signaller } from '../../src/engine/signaller.ts';
import type { Clock } from '../../src/util/clock.ts';
import { seededRandom } from './random.ts';

export const SILENT_LOG = { debug: () => {}, info: () => {}, warn: () => {} };

/** A namespace of a test: its policy and its engine. */
export interface TestNamespace {
  readonly policy: NamespacePolicy;
  readonly engine: Engine;
  readonly maxQueues?: number;
  readonly maxExchanges?: number;
  readonly maxElements?: number;
  readonly maxBytes?: number;
  /** The configuration that the node publishes to other nodes; default: none. */
  readonly configured?: Configured;
}

/** A policy whose rules may also contain the options of the broker. */
type TestPolicy = Omit<NamespacePolicy, 'queues'> & { readonly queues: readonly QueueRule<OwnOptions>[] };

export function plain(name: string, policy: Partial<TestPolicy> = {}): NamespacePolicy {
  return { name, groups: null, deadLetter: null, retentionMs: null, ...policy };
}

/** The engine with signals as between processes, to run several nodes in this one. */
export function betweenProcesses(engine: Engine): Engine {
  const local = new LocalSignaller(SILENT_LOG);
  const signaller: Signaller = {
    type: 'memory',
    publish: (topic, message) => local.publish(topic, message),
    subscribe: (topic, listener) => local.subscribe(topic, listener),
  };
  return Object.create(engine, { signaller: { value: signaller } });
}

/**
 * Creates a broker on engines that are already started. The caller starts and stops it. @param seed determines the
 * node's id; different for each further node on the same engines
 */
export function brokerOn(
  namespaces: readonly TestNamespace[],
  clock: Clock,
  seed = 1,
  log: ConstructorParameters<typeof Broker>[0]['log'] = SILENT_LOG,
  version = '',
): Broker {
  return new Broker({
    node: { host: '', pid: 0, version },
    namespaces: namespaces.map(setup),
    clock,
    random: seededRandom(seed).next,
    waiting: { total: 1000, perUser: 100 },
    log,
  });
}

function setup({
  policy,
  engine,
  maxQueues = 1000,
  maxExchanges = 1000,
  maxElements,
  maxBytes,
  configured = {},
}: TestNamespace): NamespaceSetup {
  const { type, storage, definitions, signaller, stats } = engine;
  return {
    policy,
    configured,
    type: `${type}:${policy.groups === null ? 'simple' : 'stream'}`,
    leaseMs: 120_000,
    queues: (policy.queues ?? []) as TestPolicy['queues'],
    maxQueues,
    maxExchanges,
    maxElements: maxElements ?? null,
    maxBytes: maxBytes ?? null,
    storage,
    ownsStore: engine.disk !== undefined,
    definitions,
    signaller,
    stats,
    shown: {
      url: `${type}:test`,
      signaller: { type: signaller.type, url: `${type}:test`, channel: policy.name },
      stats: { type, url: `${type}:test`, coll: 'stats' },
    },
  };
}
