import type { ConfigError, ErrorAt } from '../config/errors.ts';
import type { Config, NamespaceConfig } from '../config/options.ts';
import { type Engine, type OpenEngine, problemOf, StoreUnavailable, WrongStore } from '../engine/engine.ts';
import { fileOf } from '../engines/sqlite/settings.ts';
import { type Clock, toMs } from '../util/clock.ts';
import type { EventLog } from '../util/log.ts';
import { hasRawUserInfo } from '../util/mask.ts';
import { type Service, withStartError } from '../util/service.ts';
import { CommandFailed } from './command-line.ts';
import { LOCAL_SIGNALS, policyOf } from './namespaces.ts';

/** How to load an engine, and which options of a namespace to pass to it. */
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

/** Engines by URL scheme. An engine's code and driver are loaded only if it is used. */
const ENGINES: Readonly<Record<string, EngineModule>> = {
  sqlite: SQLITE,
  redis: REDIS,
  rediss: REDIS,
  postgres: POSTGRES,
  postgresql: POSTGRES,
};

/** Dependencies of engines. */
export interface EngineParts {
  readonly clock: Clock;
  readonly log: EventLog;
  readonly errorAt: ErrorAt;
}

/** An engine and its use in the configuration. */
interface LoadedEngine {
  readonly engine: Engine;
  /** Namespaces whose elements it stores; empty if it serves only signals or statistics. */
  readonly namespaces: readonly string[];
  /** Its `start` throws a ConfigError, or a CommandFailed if a later start may succeed. */
  readonly service: Service;
}

/** The engines of a server by `keyOf` of a namespace, or by URL. */
export class EngineSet {
  readonly #engines: ReadonlyMap<string, LoadedEngine>;

  constructor(engines: ReadonlyMap<string, LoadedEngine>) {
    this.#engines = engines;
  }

  all(): LoadedEngine[] {
    return [...this.#engines.values()];
  }

  /** The engine that stores a namespace's elements. */
  of(config: NamespaceConfig): Engine {
    return this.at(keyOf(config));
  }

  /** The engine at a URL, for signals or statistics. */
  at(url: string): Engine {
    const loaded = this.#engines.get(url);
    if (loaded === undefined) throw new Error('an engine that the configuration names was not loaded');
    return loaded.engine;
  }
}

/**
 * Opens one engine per URL in the configuration, for elements, signals or statistics; namespaces with the same URL
 * share it. Does not start them.
 * @throws ConfigError for a URL that no engine of this version can open
 */
export async function loadEngines(
  config: Pick<Config, 'namespaces' | 'dataDir' | 'dedup'>,
  parts: EngineParts,
): Promise<EngineSet> {
  const engines = new Map<string, LoadedEngine>();
  // Namespaces that may migrate to another engine, which must then know their policies.
  const migratable = Object.entries(config.namespaces).filter(
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
        namespaces: [...namespaces, ...namespacesThatMayMigrateTo(namespaces, migratable)].map(
          ([name, own]) => policyOf(name, own),
        ),
        clock: parts.clock,
        dedupWindowMs: toMs(config.dedup.window),
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

/**
 * Whether a later start may succeed without a change here: a Redis or PostgreSQL server may be restarted or repaired,
 * and the disk of a file may have space again.
 */
function mayStartLater(engine: Engine, error: unknown): boolean {
  if (error instanceof StoreUnavailable) return true;
  return engine.examine !== undefined && !(error instanceof WrongStore);
}

type NamedConfig = readonly [name: string, config: NamespaceConfig];

/** The migratable namespaces that may migrate to an engine; none if it stores lists or no elements. */
function namespacesThatMayMigrateTo(
  namespaces: readonly NamedConfig[],
  migratable: readonly NamedConfig[],
): readonly NamedConfig[] {
  const [first] = namespaces;
  if (first === undefined || first[1].variant === 'list') return [];
  return migratable.filter(([name]) => !namespaces.some(([known]) => known === name));
}

/** An engine required by the configuration. */
interface RequiredEngine {
  readonly url: string;
  /** Path of the first option with this URL, for errors. */
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

/** The paths of the SQLite files that the configuration names. */
export function sqliteFiles({ namespaces, dataDir }: Pick<Config, 'namespaces' | 'dataDir'>): string[] {
  const urls = Array.from(requiredEngines(namespaces).values(), ({ url }) => url);
  return urls.filter((url) => engineOfScheme(url) === SQLITE).map((url) => fileOf({ url, dataDir }));
}

/** Lists have another storage format and other guarantees, so they have a separate engine even at the same URL. */
function keyOf({ url, variant }: NamespaceConfig): string {
  return variant === 'list' ? `list ${url}` : url;
}

function engineModule(url: string, path: readonly string[], errorAt: ErrorAt): EngineModule {
  const found = engineOfScheme(url);
  if (found === undefined) {
    const scheme = schemeOf(url);
    // MongoDB was removed (docs/adr/0007-no-mongodb.md), but old configurations may still name it.
    const isRemoved = scheme === 'mongodb' || scheme === 'mongodb+srv';
    const problem = isRemoved
      ? `${scheme}: (MongoDB) is no longer supported`
      : `there is no engine "${scheme}:"`;
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

/** Explains a missing driver: drivers are optional dependencies, which the embedded engine does not need. */
function missingDriver(error: unknown): Error | null {
  const { code, message } = error as NodeJS.ErrnoException;
  const [, driver] = (code === 'ERR_MODULE_NOT_FOUND' && /package '([^']+)'/.exec(message)) || [];
  return driver === undefined ? null : new Error(`its driver is not installed; run npm install ${driver}`);
}

function engineError(
  error: unknown,
  what: string,
  path: readonly string[],
  { errorAt }: EngineParts,
): ConfigError {
  const { problem, hint = 'Correct it, or name another' } = problemOf(error);
  return errorAt(path, `${what}: ${problem}`, hint.charAt(0).toUpperCase() + hint.slice(1));
}
