import { dirname, resolve } from 'node:path';
import { checkRules, checkTree } from './check.ts';
import { type EnvironmentSetting, readEnvironment, setIn } from './environment.ts';
import { type ConfigNotes, readConfigFile, readSecretsOf } from './files.ts';
import type { Config, NamespaceConfig } from './options.ts';
import {
  ConfigError,
  type ConfigProblem,
  type ErrorAt,
  type Path,
  pathText,
  type Report,
} from './problem.ts';
import { isTree, RENAMED, ROOT, schemaAt, type Tree, withDefaults } from './schema.ts';

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
  readonly warnings: readonly string[];
  /** For values that turn out to be wrong when they are used. */
  readonly errorAt: ErrorAt;
}

/**
 * Environment over file over defaults.
 * @throws ConfigError with everything that is wrong
 */
export async function loadConfig({ file, env, cwd }: ConfigSources): Promise<LoadedConfig> {
  const base = file === null ? cwd : dirname(resolve(cwd, file));
  const tree = file === null ? {} : await readConfigFile(resolve(cwd, file));
  const overlay = readEnvironment(env, base);
  const { settings } = overlay;
  const sourceOf = (path: Path): string | null =>
    settings.findLast(({ path: own }) => own.every((part, i) => part === path[i]))?.variable ?? file;
  const problemAt = (path: Path, problem: string, hint: string): ConfigProblem => {
    return { source: sourceOf(path), path: pathText(path), problem, hint };
  };
  const notes: ConfigNotes = { problems: [...overlay.problems], warnings: [...overlay.warnings] };
  const { problems, warnings } = notes;
  const report: Report = (...wrong) => problems.push(problemAt(...wrong));

  readSecretsOf(tree, ROOT, { source: file, path: [], base }, notes);
  checkNames(tree, report);
  for (const { variable, path, value } of settings) {
    if (!isTree(value)) continue;
    readSecretsOf(value, schemaAt(path) ?? {}, { source: variable, path, base }, notes);
    checkNames(value, report, path);
  }
  problems.push(...repeatedSettings(settings));
  expandShortForms(tree);
  for (const { path, value } of settings) setIn(tree, path, value);
  expandShortForms(tree);
  renameOptions(tree, (from, to, isRepeated) => {
    warnings.push(`${sourceOf(from)}: ${pathText(from)} is now called ${pathText(to)}`);
    if (isRepeated)
      report(from, `is now called ${pathText(to)}, which is given as well`, 'Take the old name away');
  });
  const filled = withDefaults(ROOT, tree) as Tree;
  checkTree(filled, report);
  if (problems.length > 0) throw new ConfigError(problems);
  const config = filled as Config;
  checkRules(config, report);
  if (problems.length > 0) throw new ConfigError(problems);
  return {
    config: withAbsolutePaths(config, base),
    warnings,
    errorAt: (...wrong) => new ConfigError([problemAt(...wrong)]),
  };
}

/**
 * `users: { test1: secret }` is short for `users: { test1: { password: secret } }`, and `console: false` for
 * `console: { enabled: false }`.
 */
function expandShortForms(tree: Tree): void {
  if (typeof tree.console === 'boolean') tree.console = { enabled: tree.console };
  const users = isTree(tree.http) ? tree.http.users : undefined;
  if (!isTree(users)) return;
  for (const [name, user] of Object.entries(users)) {
    if (typeof user === 'string') users[name] = { password: user };
  }
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
        hint: 'Take one of them away',
      });
    }
    seen.set(text, variable);
  }
  return problems;
}

/** A key of this name would change objects instead of being one of their keys. */
function checkNames(tree: Tree, report: Report, path: Path = []): void {
  for (const [key, value] of Object.entries(tree)) {
    if (key === '__proto__') report([...path, key], 'cannot be a name', 'Choose another name');
    else if (isTree(value)) checkNames(value, report, [...path, key]);
  }
}

/**
 * Moves the values of old names to their new ones.
 * @param onRenamed called for each old name that is given, and with whether the new one is, too
 */
function renameOptions(tree: Tree, onRenamed: (from: Path, to: Path, isRepeated: boolean) => void): void {
  for (const { from, to } of RENAMED) {
    const group = groupOf(tree, from);
    const oldName = from.at(-1) ?? '';
    if (group === undefined || !Object.hasOwn(group, oldName)) continue;
    const target = groupOf(tree, to) ?? group;
    const newName = to.at(-1) ?? '';
    const isRepeated = Object.hasOwn(target, newName);
    if (!isRepeated) target[newName] = group[oldName];
    delete group[oldName];
    onRenamed(from, to, isRepeated);
  }
}

/** The group that an option is in; undefined if it is not there. */
function groupOf(tree: Tree, path: Path): Tree | undefined {
  let at: unknown = tree;
  for (const key of path.slice(0, -1)) at = isTree(at) ? at[key] : undefined;
  return isTree(at) ? at : undefined;
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
  const files = Object.entries(tls).map(([name, file]) => [name, resolve(base, file)]);
  return { ...group, tls: Object.fromEntries(files) };
}
