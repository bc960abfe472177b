import { dirname, resolve } from 'node:path';
import { asConfig, checkTree, type SourceOf } from './check.ts';
import { type EnvironmentSetting, readEnvironment, setIn } from './environment.ts';
import { readConfigFile } from './file.ts';
import type { Config, NamespaceConfig } from './options.ts';
import { ConfigError, type ConfigProblem, type Path, pathText } from './problem.ts';
import { type Renaming, renamedText, renameOptions } from './renamed.ts';
import { checkRules } from './rules.ts';
import { isTree, ROOT, schemaAt, type Tree, withDefaults } from './schema.ts';
import { readSecretsOf, type SecretNotes } from './secret-file.ts';

export interface ConfigSources {
  /** As given on the command line; null: defaults and environment only. */
  readonly file: string | null;
  readonly env: NodeJS.ProcessEnv;
  /** The working folder. */
  readonly cwd: string;
}

export interface LoadedConfig {
  /** Checked, defaults filled in, paths absolute. */
  readonly config: Config;
  readonly sourceOf: SourceOf;
  readonly warnings: readonly string[];
}

/**
 * Environment over file over defaults.
 * @throws ConfigError with everything that is wrong
 */
export async function loadConfig({ file, env, cwd }: ConfigSources): Promise<LoadedConfig> {
  const base = file === null ? cwd : dirname(resolve(cwd, file));
  const tree = file === null ? {} : await readConfigFile(resolve(cwd, file));
  const overlay = readEnvironment(env, base);
  const sourceOf = sourceFinder(file, overlay.settings);
  const secrets: SecretNotes = { problems: [], warnings: [] };
  readSecretsOf(tree, ROOT, { source: file, path: [], base }, secrets);
  for (const { variable, path, value } of overlay.settings) {
    if (isTree(value)) readSecretsOf(value, schemaAt(path) ?? {}, { source: variable, path, base }, secrets);
  }
  const problems = [
    ...overlay.problems,
    ...secrets.problems,
    ...repeatedSettings(overlay.settings),
    ...unusableNames(tree, sourceOf),
    ...overlay.settings.flatMap(({ path, value }) =>
      isTree(value) ? unusableNames(value, sourceOf, path) : [],
    ),
  ];
  expandShortUsers(tree);
  for (const { path, value } of overlay.settings) setIn(tree, path, value);
  expandShortUsers(tree);
  const warnings = [...overlay.warnings, ...secrets.warnings];
  for (const renaming of renameOptions(tree)) {
    const source = sourceOf(renaming.from);
    warnings.push(`${source}: ${renamedText(renaming)}`);
    if (renaming.isRepeated) problems.push(givenTwice(source, renaming));
  }
  const filled = withDefaults(ROOT, tree) as Tree;
  problems.push(...checkTree(filled, sourceOf));
  if (problems.length > 0) throw new ConfigError(problems);
  const config = asConfig(filled);
  checkRules(config, (path, problem, remedy) => {
    problems.push({ source: sourceOf(path), path: pathText(path), problem, remedy });
  });
  if (problems.length > 0) throw new ConfigError(problems);
  return { config: withAbsolutePaths(config, base), sourceOf, warnings };
}

/** `users: { test1: secret }` is short for `users: { test1: { password: secret } }`. */
function expandShortUsers(tree: Tree): void {
  const users = isTree(tree.http) ? tree.http.users : undefined;
  if (!isTree(users)) return;
  for (const [name, user] of Object.entries(users)) {
    if (typeof user === 'string') users[name] = { password: user };
  }
}

function sourceFinder(file: string | null, settings: readonly EnvironmentSetting[]): SourceOf {
  return (path) => {
    const set = settings.findLast(({ path: own }) => own.every((part, i) => part === path[i]));
    return set?.variable ?? file;
  };
}

/** `X` and `X_FILE`, or two spellings of one option: which one counts would be a guess. */
function repeatedSettings(settings: readonly EnvironmentSetting[]): ConfigProblem[] {
  const seen = new Map<string, string>();
  const problems: ConfigProblem[] = [];
  for (const { variable, path } of settings) {
    const text = pathText(path);
    const before = seen.get(text);
    if (before !== undefined) {
      problems.push({
        source: variable,
        path: text,
        problem: `is given by ${before} as well`,
        remedy: 'Take one of them away',
      });
    }
    seen.set(text, variable);
  }
  return problems;
}

/** An option under its old and its new name. */
function givenTwice(source: string | null, { from, to }: Renaming): ConfigProblem {
  const path = pathText(from);
  const problem = `is now called ${pathText(to)}, which is given as well`;
  return { source, path, problem, remedy: 'Take the old name away' };
}

/** A key of this name would change objects instead of being one of their keys. */
function unusableNames(tree: Tree, sourceOf: SourceOf, path: Path = []): ConfigProblem[] {
  return Object.entries(tree).flatMap(([key, value]) => {
    const at = [...path, key];
    if (key === '__proto__') {
      const problem = 'cannot be a name';
      return [{ source: sourceOf(at), path: pathText(at), problem, remedy: 'Choose another name' }];
    }
    return isTree(value) ? unusableNames(value, sourceOf, at) : [];
  });
}

function withAbsolutePaths(config: Config, base: string): Config {
  return {
    ...config,
    dataDir: resolve(base, config.dataDir),
    ...(config.backupDir !== undefined && { backupDir: resolve(base, config.backupDir) }),
    http: withAbsoluteTls(config.http, base),
    stomp: withAbsoluteTls(config.stomp, base),
    amqp: withAbsoluteTls(config.amqp, base),
    namespaces: Object.fromEntries(
      Object.entries(config.namespaces).map(([name, namespace]) => [name, withAbsoluteUrls(namespace, base)]),
    ),
  };
}

function withAbsoluteUrls(namespace: NamespaceConfig, base: string): NamespaceConfig {
  const { url, signaller, stats } = namespace;
  const absolute = <T extends { url?: string | undefined }>(group: T): T =>
    group.url === undefined ? group : { ...group, url: withAbsoluteFiles(group.url, base) };
  return {
    ...namespace,
    url: withAbsoluteFiles(url, base),
    ...(signaller !== undefined && { signaller: absolute(signaller) }),
    ...(stats !== undefined && { stats: absolute(stats) }),
  };
}

/** The parameters of an engine's URL that name PEM files. */
const FILE_PARAMETER = /([?&](?:ca|cert|key|sslrootcert|sslcert|sslkey)=)([^&#]+)/g;

function withAbsoluteFiles(url: string, base: string): string {
  if (!/^(redis|postgres)/.test(url)) return url;
  return url.replace(FILE_PARAMETER, (_, name: string, file: string) => {
    const path = new URLSearchParams(`file=${file}`).get('file') ?? '';
    return name + encodeURIComponent(resolve(base, path)).replaceAll('%2F', '/');
  });
}

function withAbsoluteTls<T extends Pick<Config['http'], 'tls'>>(group: T, base: string): T {
  const { tls } = group;
  if (tls === undefined) return group;
  return { ...group, tls: { cert: resolve(base, tls.cert), key: resolve(base, tls.key) } };
}
