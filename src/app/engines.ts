import { hash } from 'node:crypto';
import type { Configured } from '../broker/cluster.ts';
import type { NamespaceSetup } from '../broker/ports.ts';
import { type OwnOptions, parseOptions, parseRetryDelay } from '../broker/queue-options.ts';
import type { ConfigError, ErrorAt } from '../config/load.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import {
  type Engine,
  type EngineLog,
  type NamespacePolicy,
  type OpenEngine,
  WrongStore,
} from '../engine/engine.ts';
import type { QueueRule } from '../engine/queue-policy.ts';
import { LocalSignaller } from '../engine/signaller.ts';
import { type CounterName, type Counters, JointStats, type Stats } from '../engine/stats.ts';
import type { GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { hasRawUserInfo, maskText, maskUrl } from '../util/mask.ts';
import { messageOf } from '../util/message-of.ts';
import { type Service, withStartError } from '../util/service.ts';
import { CommandFailed } from './command-line.ts';

/** How to load an engine, and which settings of a namespace it takes. */
interface EngineModule {
  load(): Promise<{ open: OpenEngine }>;
  settings(config: NamespaceConfig): Readonly<Record<string, unknown>>;
}

const SQLITE: EngineModule = {
  load: () => import('../engines/sqlite/index.ts'),
  settings: ({ durability, cacheBytes, damagedLog }) => ({ durability, cacheBytes, damagedLog }),
};

const REDIS: EngineModule = {
  load: () => import('../engines/redis/index.ts'),
  settings: ({ variant }) => (variant === 'list' ? { variant } : {}),
};

const POSTGRES: EngineModule = {
  load: () => import('../engines/postgres/index.ts'),
  settings: () => ({}),
};

/** Concrete engines, by the scheme of their URLs. An engine's code and driver are loaded only if it is used. */
const ENGINES: Readonly<Record<string, EngineModule>> = {
  sqlite: SQLITE,
  redis: REDIS,
  rediss: REDIS,
  postgres: POSTGRES,
  postgresql: POSTGRES,
};

/** Signals that end at this process need no engine. */
export const LOCAL_SIGNALS = 'local:';

/** What engines are opened with. */
export interface EngineParts {
  readonly clock: Clock;
  readonly log: EngineLog;
  readonly errorAt: ErrorAt;
}

/** An engine, and what the configuration uses it for. */
interface LoadedEngine {
  readonly engine: Engine;
  /** Namespaces whose elements it stores; none if it only carries signals or statistics. */
  readonly namespaces: readonly string[];
  /** The engine; a failure to start is a ConfigError, or a CommandFailed if the same start may succeed later. */
  readonly service: Service;
}

/** The engines of a server, by what names them. */
export class EngineSet {
  readonly #engines: ReadonlyMap<string, LoadedEngine>;

  constructor(engines: ReadonlyMap<string, LoadedEngine>) {
    this.#engines = engines;
  }

  all(): LoadedEngine[] {
    return [...this.#engines.values()];
  }

  /** The engine of a namespace's elements. */
  of(config: NamespaceConfig): Engine {
    return this.at(keyOf(config));
  }

  /** The engine of a URL that carries signals or statistics. */
  at(url: string): Engine {
    const loaded = this.#engines.get(url);
    if (loaded === undefined) throw new Error('an engine that the configuration names was not loaded');
    return loaded.engine;
  }
}

/**
 * One engine for each URL that the namespaces name, for elements, signals or statistics; namespaces
 * that name the same URL share it. None is started.
 * @throws ConfigError for a URL that no engine of this version can open
 */
export async function loadEngines(
  config: Pick<Config, 'namespaces' | 'dataDir' | 'dedup'>,
  parts: EngineParts,
): Promise<EngineSet> {
  const engines = new Map<string, LoadedEngine>();
  // They may move to any other engine that stores elements as theirs does, and then their policies hold there.
  const movable = Object.entries(config.namespaces).filter(
    ([, { url, variant }]) => engineOfScheme(url) === SQLITE && variant !== 'list',
  );
  for (const [key, { url, path, namespaces }] of requiredEngines(config.namespaces)) {
    const explain = (error: unknown, what: string): ConfigError => engineError(error, what, path, parts);
    const { load, settings } = engineModule(url, path, parts.errorAt);
    const first = namespaces[0]?.[1];
    try {
      const { open } = await load();
      const engine = open({
        url,
        dataDir: config.dataDir,
        namespaces: [...namespaces, ...foreignTo(namespaces, movable)].map(([name, own]) =>
          policyOf(name, own),
        ),
        clock: parts.clock,
        dedupWindowMs: config.dedup.window * 1000,
        settings: first === undefined ? {} : settings(first),
        log: parts.log,
      });
      const service = withStartError(engine, (error) => {
        const explained = explain(error, 'cannot be opened');
        return mayStartLater(engine, error) ? new CommandFailed(explained.message) : explained;
      });
      engines.set(key, { engine, namespaces: namespaces.map(([name]) => name), service });
    } catch (error) {
      throw explain(missingDriver(error) ?? error, 'cannot be used');
    }
  }
  return new EngineSet(engines);
}

/** A server elsewhere may be restarted, fail over or get another password, and this configuration is right again. */
function mayStartLater(engine: Engine, error: unknown): boolean {
  return engine.examine !== undefined && !(error instanceof WrongStore);
}

type NamedConfig = readonly [name: string, config: NamespaceConfig];

/** Those of the movable namespaces that may move to an engine; none to one that stores no elements, or lists. */
function foreignTo(own: readonly NamedConfig[], movable: readonly NamedConfig[]): readonly NamedConfig[] {
  const [first] = own;
  if (first === undefined || first[1].variant === 'list') return [];
  return movable.filter(([name]) => !own.some(([known]) => known === name));
}

/** The part of a namespace's configuration that engines use. */
function policyOf(name: string, config: NamespaceConfig): NamespacePolicy {
  return {
    name,
    groups: config.variant === 'stream' ? [...new Set(config.groups ?? ['default'])] : null,
    deadLetter: config.deadLetter ?? null,
    retentionMs: config.retention === undefined ? null : config.retention * 1000,
    retryDelay: config.retryDelay === undefined ? null : parseRetryDelay(config.retryDelay),
    queues: queueRulesOf(config),
    maxGroups: config.maxGroups,
  };
}

/** An engine that a configuration names. */
interface RequiredEngine {
  readonly url: string;
  /** Where the URL is named first, for errors. */
  readonly path: readonly string[];
  /** Namespaces whose elements it stores. */
  readonly namespaces: [name: string, config: NamespaceConfig][];
}

function requiredEngines(namespaces: Config['namespaces']): Map<string, RequiredEngine> {
  const required = new Map<string, RequiredEngine>();
  const require = (key: string, url: string, path: readonly string[]): RequiredEngine => {
    const known = required.get(key) ?? { url, path, namespaces: [] };
    required.set(key, known);
    return known;
  };
  for (const [name, config] of Object.entries(namespaces)) {
    require(keyOf(config), config.url, ['namespaces', name, 'url']).namespaces.push([name, config]);
  }
  for (const [name, { signaller, stats }] of Object.entries(namespaces)) {
    if (signaller?.url !== undefined && signaller.url !== LOCAL_SIGNALS) {
      require(signaller.url, signaller.url, ['namespaces', name, 'signaller', 'url']);
    }
    if (stats?.url !== undefined) require(stats.url, stats.url, ['namespaces', name, 'stats', 'url']);
  }
  return required;
}

/** Lists are stored and promised otherwise, so they have an engine of their own even at the same URL. */
function keyOf({ url, variant }: NamespaceConfig): string {
  return variant === 'list' ? `list ${url}` : url;
}

function engineModule(url: string, path: readonly string[], errorAt: ErrorAt): EngineModule {
  const found = engineOfScheme(url);
  if (found === undefined) {
    const scheme = schemeOf(url);
    // A removed engine (docs/adr/0007-no-mongodb.md), which a configuration may still name.
    const isRemoved = scheme === 'mongodb' || scheme === 'mongodb+srv';
    const problem = isRemoved ? `${scheme}: (MongoDB) is not served` : `there is no engine "${scheme}:"`;
    throw errorAt(path, problem, `Use one of ${Object.keys(ENGINES).join(':, ')}:`);
  }
  if (hasRawUserInfo(url)) {
    throw errorAt(
      path,
      'has an @ after a /, ? or #, so it is not clear where its password ends',
      'Percent-encode user and password: / as %2F, ? as %3F, # as %23, @ as %40',
    );
  }
  return found;
}

function engineOfScheme(url: string): EngineModule | undefined {
  const scheme = schemeOf(url);
  return Object.hasOwn(ENGINES, scheme) ? ENGINES[scheme] : undefined;
}

function schemeOf(url: string): string {
  return url.slice(0, url.indexOf(':'));
}

/** Drivers are optional dependencies: an installation without them serves the embedded engine. */
function missingDriver(error: unknown): Error | null {
  const { code, message } = error as NodeJS.ErrnoException;
  const [, driver] = (code === 'ERR_MODULE_NOT_FOUND' && /package '([^']+)'/.exec(message)) || [];
  return driver === undefined ? null : new Error(`its driver is not installed; run npm install ${driver}`);
}

/** Messages of engines say what is wrong, and after a semicolon what to do about it. */
export function problemOf(error: unknown): { readonly problem: string; readonly hint: string | undefined } {
  const message = maskText(messageOf(error)).replace(/\.$/, '');
  const [, problem = message, hint] = /^(.*); ([^;]+)$/s.exec(message) ?? [];
  return { problem, hint };
}

function engineError(
  error: unknown,
  what: string,
  path: readonly string[],
  { errorAt }: EngineParts,
): ConfigError {
  const { problem, hint = 'Mend it, or name another' } = problemOf(error);
  return errorAt(path, `${what}: ${problem}`, hint.charAt(0).toUpperCase() + hint.slice(1));
}

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

/** The options of queues by patterns that a namespace is configured with. */
function queueRulesOf({ queues = {} }: NamespaceConfig): QueueRule<OwnOptions>[] {
  return Object.entries(queues).map(([pattern, config]) => ({ pattern, options: parseOptions(config) }));
}
