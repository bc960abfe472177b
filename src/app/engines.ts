import { parseRetryDelay } from '../broker/queue-options.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import type { ConfigError, ErrorAt } from '../config/problem.ts';
import type { Engine, EngineLog, NamespacePolicy, OpenEngine } from '../engine/engine.ts';
import type { Clock } from '../util/clock.ts';
import { hasRawUserInfo, maskText } from '../util/mask.ts';
import type { Service } from '../util/service.ts';
import { queueRulesOf } from './queue-rules.ts';
import { withStartError } from './stack.ts';

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
  /** The engine; a failure to start is a ConfigError. */
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
      const service = withStartError(engine, (error) => explain(error, 'cannot be opened'));
      engines.set(key, { engine, namespaces: namespaces.map(([name]) => name), service });
    } catch (error) {
      throw explain(missingDriver(error) ?? error, 'cannot be used');
    }
  }
  return new EngineSet(engines);
}

type NamedConfig = readonly [name: string, config: NamespaceConfig];

/** Those of the movable namespaces that may move to an engine; none to one that stores no elements, or lists. */
function foreignTo(own: readonly NamedConfig[], movable: readonly NamedConfig[]): readonly NamedConfig[] {
  const [first] = own;
  if (first === undefined || first[1].variant === 'list') return [];
  return movable.filter(([name]) => !own.some(([known]) => known === name));
}

/** The part of a namespace's configuration that engines use. */
export function policyOf(name: string, config: NamespaceConfig): NamespacePolicy {
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
  const message = maskText(error instanceof Error ? error.message : String(error)).replace(/\.$/, '');
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
