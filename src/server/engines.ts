import type { NamespaceConfig } from '../config/options.ts';
import { ConfigError, pathText } from '../config/problem.ts';
import type { Engine, EngineLog, NamespacePolicy, OpenEngine } from '../engine/engine.ts';
import type { Clock } from '../model/clock.ts';
import { maskText } from '../model/mask.ts';
import type { Service } from '../model/service.ts';

/** Concrete engines, by the scheme of their URLs. An engine's code and driver are loaded only where it is used. */
const ENGINES: Readonly<Record<string, () => Promise<{ open: OpenEngine }>>> = {
  sqlite: () => import('../engines/sqlite/index.ts'),
};

/** Schemes that are planned, so that asking for one is answered better than a typing error. */
const NOT_YET = ['redis', 'rediss', 'postgres', 'postgresql', 'mongodb', 'mongodb+srv'];

export interface EngineSources {
  readonly namespaces: Readonly<Record<string, NamespaceConfig>>;
  readonly dataDir: string;
  readonly dedupWindowMs: number;
  readonly clock: Clock;
  readonly log: EngineLog;
  /** Where the value at a path of the configuration came from. */
  readonly sourceOf: (path: readonly string[]) => string | null;
}

/**
 * One engine for each URL that the namespaces name; those with the same URL share it.
 * @throws ConfigError for a URL that no engine of this version can open
 */
export async function loadEngines(sources: EngineSources): Promise<Map<string, Engine>> {
  const names = new Map<string, string[]>();
  for (const [name, { url }] of Object.entries(sources.namespaces)) {
    names.set(url, [...(names.get(url) ?? []), name]);
  }
  const engines = new Map<string, Engine>();
  for (const [url, users] of names) engines.set(url, await loadEngine(sources, url, users));
  return engines;
}

/** Starts an engine; what keeps it from starting is told as a fault of the configuration that names it. */
export function startable(engine: Engine, sources: EngineSources): Service {
  return {
    start: () =>
      engine.start().catch((fault: unknown) => {
        throw engineRefusal(sources, engine.url, 'cannot be opened', fault);
      }),
    stop: () => engine.stop(),
  };
}

/** What an engine is told of a namespace. */
export function policyOf(name: string, config: NamespaceConfig): NamespacePolicy {
  return {
    name,
    groups: config.variant === 'stream' ? [...new Set(config.groups ?? ['default'])] : null,
    deadLetter: config.deadLetter ?? null,
    retentionMs: config.retention === undefined ? null : config.retention * 1000,
  };
}

async function loadEngine(
  sources: EngineSources,
  url: string,
  namespaces: readonly string[],
): Promise<Engine> {
  const scheme = url.slice(0, url.indexOf(':'));
  const load = Object.hasOwn(ENGINES, scheme) ? ENGINES[scheme] : undefined;
  if (load === undefined) {
    const planned = NOT_YET.includes(scheme);
    const problem = planned ? `${scheme}: is not in this version` : `there is no engine ${scheme}:`;
    throw refusal(sources, url, problem, `Use one of ${Object.keys(ENGINES).join(':, ')}:`);
  }
  const { open } = await load();
  const { durability, cacheBytes } = sources.namespaces[namespaces[0] ?? ''] ?? {};
  try {
    return open({
      url,
      dataDir: sources.dataDir,
      namespaces: namespaces.map((name) => policyOf(name, configOf(sources, name))),
      clock: sources.clock,
      dedupWindowMs: sources.dedupWindowMs,
      settings: { durability, cacheBytes },
      log: sources.log,
    });
  } catch (fault) {
    throw engineRefusal(sources, url, 'cannot be used', fault);
  }
}

function configOf({ namespaces }: EngineSources, name: string): NamespaceConfig {
  const config = namespaces[name];
  if (config === undefined) throw new Error(`There is no namespace ${name}.`);
  return config;
}

function refusal(sources: EngineSources, url: string, problem: string, remedy: string): ConfigError {
  const [name = ''] = Object.entries(sources.namespaces).find(([, own]) => own.url === url) ?? [];
  const path = ['namespaces', name, 'url'];
  return new ConfigError([{ source: sources.sourceOf(path), path: pathText(path), problem, remedy }]);
}

/** Engines say what is wrong, and after a semicolon what to do about it. */
function engineRefusal(sources: EngineSources, url: string, what: string, fault: unknown): ConfigError {
  const text = maskText(fault instanceof Error ? fault.message : String(fault)).replace(/\.$/, '');
  const [, problem = text, remedy = 'Mend it, or name another'] = /^(.*); ([^;]+)$/s.exec(text) ?? [];
  return refusal(sources, url, `${what}: ${problem}`, remedy.charAt(0).toUpperCase() + remedy.slice(1));
}
