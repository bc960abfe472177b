import type { NamespaceConfig } from '../config/options.ts';
import { ConfigError, pathText } from '../config/problem.ts';
import type { Engine, EngineLog, NamespacePolicy, OpenEngine } from '../engine/engine.ts';
import type { Clock } from '../util/clock.ts';
import { hasRawUserInfo, maskText } from '../util/mask.ts';
import type { Service } from '../util/service.ts';

/** How to load an engine, and which settings of a namespace it takes. */
interface EngineSource {
  load(): Promise<{ open: OpenEngine }>;
  settings(config: NamespaceConfig): Readonly<Record<string, unknown>>;
}

const SQLITE: EngineSource = {
  load: () => import('../engines/sqlite/index.ts'),
  settings: ({ durability, cacheBytes, damagedLog }) => ({ durability, cacheBytes, damagedLog }),
};

const REDIS: EngineSource = {
  load: () => import('../engines/redis/index.ts'),
  settings: ({ variant }) => (variant === 'list' ? { variant } : {}),
};

const POSTGRES: EngineSource = {
  load: () => import('../engines/postgres/index.ts'),
  settings: () => ({}),
};

/** Concrete engines, by the scheme of their URLs. An engine's code and driver are loaded only where it is used. */
const ENGINES: Readonly<Record<string, EngineSource>> = {
  sqlite: SQLITE,
  redis: REDIS,
  rediss: REDIS,
  postgres: POSTGRES,
  postgresql: POSTGRES,
};

export interface EngineSources {
  readonly namespaces: Readonly<Record<string, NamespaceConfig>>;
  readonly dataDir: string;
  readonly dedupWindowMs: number;
  readonly clock: Clock;
  readonly log: EngineLog;
  /** Where the value at a path of the configuration came from. */
  readonly sourceOf: (path: readonly string[]) => string | null;
}

/** An engine that a configuration asks for. */
interface Wanted {
  readonly url: string;
  /** Where the URL stands first, for what is wrong with it. */
  readonly path: readonly string[];
  /** Namespaces whose elements it keeps; none where it only carries signals or statistics. */
  readonly namespaces: string[];
}

/** The engines of a server, by what names them. */
export class EngineSet {
  readonly #engines: ReadonlyMap<string, Engine>;
  readonly #paths: ReadonlyMap<Engine, readonly string[]>;

  constructor(engines: ReadonlyMap<string, Engine>, paths: ReadonlyMap<Engine, readonly string[]>) {
    this.#engines = engines;
    this.#paths = paths;
  }

  all(): Engine[] {
    return [...this.#engines.values()];
  }

  /** The engine of a namespace's elements. */
  of(config: NamespaceConfig): Engine {
    return this.#find(keyOf(config));
  }

  /** The engine of a URL that carries signals or statistics. */
  at(url: string): Engine {
    return this.#find(url);
  }

  /** Where in the configuration an engine is named first. */
  pathOf(engine: Engine): readonly string[] {
    return this.#paths.get(engine) ?? [];
  }

  #find(key: string): Engine {
    const engine = this.#engines.get(key);
    if (engine === undefined) throw new Error('an engine that the configuration names was not loaded');
    return engine;
  }
}

/** Signals that end at this process need no engine. */
export const LOCAL_SIGNALS = 'local:';

/**
 * One engine for each URL that the namespaces name, for elements, signals or statistics; namespaces
 * that name the same URL share it.
 * @throws ConfigError for a URL that no engine of this version can open
 */
export async function loadEngines(sources: EngineSources): Promise<EngineSet> {
  const engines = new Map<string, Engine>();
  const paths = new Map<Engine, readonly string[]>();
  for (const [key, wanted] of wantedBy(sources.namespaces)) {
    const engine = await loadEngine(sources, wanted);
    engines.set(key, engine);
    paths.set(engine, wanted.path);
  }
  return new EngineSet(engines, paths);
}

function wantedBy(namespaces: EngineSources['namespaces']): Map<string, Wanted> {
  const wanted = new Map<string, Wanted>();
  const want = (key: string, url: string, path: readonly string[]): Wanted => {
    const known = wanted.get(key) ?? { url, path, namespaces: [] };
    wanted.set(key, known);
    return known;
  };
  for (const [name, config] of Object.entries(namespaces)) {
    want(keyOf(config), config.url, ['namespaces', name, 'url']).namespaces.push(name);
  }
  for (const [name, { signaller, stats }] of Object.entries(namespaces)) {
    if (signaller?.url !== undefined && signaller.url !== LOCAL_SIGNALS) {
      want(signaller.url, signaller.url, ['namespaces', name, 'signaller', 'url']);
    }
    if (stats?.url !== undefined) want(stats.url, stats.url, ['namespaces', name, 'stats', 'url']);
  }
  return wanted;
}

/** Lists are stored and promised otherwise, so they have an engine of their own even at the same URL. */
function keyOf({ url, variant }: NamespaceConfig): string {
  return variant === 'list' ? `list ${url}` : url;
}

/** Starts an engine; its failure is reported as an error of the configuration that names it. */
export function startable(engine: Engine, path: readonly string[], sources: EngineSources): Service {
  return {
    start: () =>
      engine.start().catch((fault: unknown) => {
        throw engineRefusal(sources, path, 'cannot be opened', fault);
      }),
    stop: () => engine.stop(),
  };
}

/** The part of a namespace's configuration that engines use. */
export function policyOf(name: string, config: NamespaceConfig): NamespacePolicy {
  return {
    name,
    groups: config.variant === 'stream' ? [...new Set(config.groups ?? ['default'])] : null,
    deadLetter: config.deadLetter ?? null,
    retentionMs: config.retention === undefined ? null : config.retention * 1000,
    maxGroups: config.maxGroups,
  };
}

async function loadEngine(sources: EngineSources, { url, path, namespaces }: Wanted): Promise<Engine> {
  const scheme = url.slice(0, url.indexOf(':'));
  const source = Object.hasOwn(ENGINES, scheme) ? ENGINES[scheme] : undefined;
  if (source === undefined) {
    const served = `${Object.keys(ENGINES).join(':, ')}:`;
    // A removed engine (docs/adr/0007-no-mongodb.md), which a configuration may still name.
    const removed = scheme === 'mongodb' || scheme === 'mongodb+srv';
    const problem = removed ? `${scheme}: (MongoDB) is not served` : `there is no engine "${scheme}:"`;
    throw refusal(sources, path, problem, `Use one of ${served}`);
  }
  if (hasRawUserInfo(url)) {
    const problem = 'has an @ after a /, ? or #, so it is not clear where its password ends';
    throw refusal(
      sources,
      path,
      problem,
      'Percent-encode user and password: / as %2F, ? as %3F, # as %23, @ as %40',
    );
  }
  const [first] = namespaces;
  try {
    const { open } = await source.load();
    return open({
      url,
      dataDir: sources.dataDir,
      namespaces: namespaces.map((name) => policyOf(name, configOf(sources, name))),
      clock: sources.clock,
      dedupWindowMs: sources.dedupWindowMs,
      settings: first === undefined ? {} : source.settings(configOf(sources, first)),
      log: sources.log,
    });
  } catch (fault) {
    throw engineRefusal(sources, path, 'cannot be used', missingDriver(fault) ?? fault);
  }
}

/** Drivers are optional dependencies: an installation without them serves the embedded engine. */
function missingDriver(fault: unknown): Error | null {
  const { code, message } = fault as NodeJS.ErrnoException;
  const [, driver] = (code === 'ERR_MODULE_NOT_FOUND' && /package '([^']+)'/.exec(message)) || [];
  return driver === undefined ? null : new Error(`its driver is not installed; run npm install ${driver}`);
}

function configOf({ namespaces }: EngineSources, name: string): NamespaceConfig {
  const config = namespaces[name];
  if (config === undefined) throw new Error(`There is no namespace ${name}.`);
  return config;
}

function refusal(
  sources: EngineSources,
  path: readonly string[],
  problem: string,
  remedy: string,
): ConfigError {
  return new ConfigError([{ source: sources.sourceOf(path), path: pathText(path), problem, remedy }]);
}

/** Engines say what is wrong, and after a semicolon what to do about it. */
function engineRefusal(
  sources: EngineSources,
  path: readonly string[],
  what: string,
  fault: unknown,
): ConfigError {
  const text = maskText(fault instanceof Error ? fault.message : String(fault)).replace(/\.$/, '');
  const [, problem = text, remedy = 'Mend it, or name another'] = /^(.*); ([^;]+)$/s.exec(text) ?? [];
  return refusal(sources, path, `${what}: ${problem}`, remedy.charAt(0).toUpperCase() + remedy.slice(1));
}
