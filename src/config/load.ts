import { dirname, resolve } from 'node:path';
import { didYouMean } from '../util/did-you-mean.ts';
import { isRecord } from '../util/is-record.ts';
import { quote } from '../util/quote.ts';
import { type Schema, schemaErrors, type Violation } from '../util/schema.ts';
import {
  describeType,
  entrySchema,
  mapStrings,
  RENAMED,
  ROOT,
  schemaAt,
  type Tree,
  withDefaults,
} from './declared.ts';
import {
  ConfigError,
  type ConfigProblem,
  type ErrorAt,
  type Path,
  pathText,
  type Report,
  withoutPeriod,
} from './errors.ts';
import { type Config, Options } from './options.ts';
import { checkRules } from './rules.ts';
import {
  type ConfigNotes,
  type EnvironmentSetting,
  readConfigFile,
  readEnvironment,
  readSecretsOf,
} from './sources.ts';

interface ConfigSources {
  /** Path from the command line; null: defaults and environment only. */
  readonly file: string | null;
  readonly env: NodeJS.ProcessEnv;
  /** The working folder. */
  readonly cwd: string;
}

export interface LoadedConfig {
  /** Checked, with defaults filled in and absolute paths. */
  readonly config: Config;
  readonly warnings: readonly string[];
  /** Creates the error for a value that turns out to be invalid when it is used. */
  readonly errorAt: ErrorAt;
}

/**
 * Merges environment over file over defaults, and checks the result.
 * @throws ConfigError with all problems
 */
export async function loadConfig({ file, env, cwd }: ConfigSources): Promise<LoadedConfig> {
  const base = file === null ? cwd : dirname(resolve(cwd, file));
  const tree = file === null ? {} : await readConfigFile(resolve(cwd, file));
  const overlay = readEnvironment(env, base);
  const { settings } = overlay;
  const sourceOf = (path: Path): string | null =>
    settings.findLast(({ path: settingPath }) => settingPath.every((part, i) => part === path[i]))
      ?.variable ?? file;
  const problemAt = (path: Path, problem: string, hint: string): ConfigProblem => {
    return { source: sourceOf(path), path: pathText(path), problem, hint };
  };
  const notes: ConfigNotes = { problems: [...overlay.problems], warnings: [...overlay.warnings] };
  const { problems, warnings } = notes;
  const report: Report = (...wrong) => problems.push(problemAt(...wrong));

  readSecretsOf(tree, ROOT, { source: file, path: [], base }, notes);
  checkNames(tree, report);
  for (const { variable, path, value } of settings) {
    if (!isRecord(value)) continue;
    readSecretsOf(value, schemaAt(path) ?? {}, { source: variable, path, base }, notes);
    checkNames(value, report, path);
  }
  problems.push(...repeatedSettings(settings));
  expandShortForms(tree);
  for (const { path, value } of settings) {
    setIn(tree, path, value);
    // The next variable may set an option below a value that this one gave in its short form.
    expandShortForms(tree);
  }
  renameOptions(tree, (from, to, isRepeated) => {
    warnings.push(`${sourceOf(from)}: ${pathText(from)} is now called ${pathText(to)}`);
    if (isRepeated)
      report(from, `is now called ${pathText(to)}, which is given as well`, 'Remove the old name');
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
  const users = isRecord(tree.http) ? tree.http.users : undefined;
  if (!isRecord(users)) return;
  for (const [name, user] of Object.entries(users)) {
    if (typeof user === 'string') users[name] = { password: user };
  }
}

/** Reports options that two variables set, such as `X` and `X_FILE`, because neither takes precedence. */
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
        hint: 'Remove one of them',
      });
    }
    seen.set(text, variable);
  }
  return problems;
}

/** Rejects `__proto__`: assigning it would change an object's prototype instead of adding a key. */
function checkNames(tree: Tree, report: Report, path: Path = []): void {
  for (const [key, value] of Object.entries(tree)) {
    if (key === '__proto__') report([...path, key], 'cannot be a name', 'Choose another name');
    else if (isRecord(value)) checkNames(value, report, [...path, key]);
  }
}

/**
 * Moves values from old option names to the new ones.
 * @param onRenamed called for each old name in use; `isRepeated` if the new name is given as well
 */
function renameOptions(tree: Tree, onRenamed: (from: Path, to: Path, isRepeated: boolean) => void): void {
  for (const { group, from, to } of RENAMED) {
    const options = tree[group];
    if (!isRecord(options) || !Object.hasOwn(options, from)) continue;
    const isRepeated = Object.hasOwn(options, to);
    if (!isRepeated) options[to] = options[from];
    delete options[from];
    onRenamed([group, from], [group, to], isRepeated);
  }
}

/** Resolves the paths of files and folders, also those in the URLs of engines. */
function withAbsolutePaths(config: Config, base: string): Config {
  return mapStrings(ROOT, config, ({ path }, text) => {
    if (path === undefined) return text;
    return path === 'whole' ? resolve(base, text) : withAbsoluteFiles(text, base);
  }) as Config;
}

/** Parameters of an engine URL whose values are paths of PEM files. */
const FILE_PARAMETER = /([?&](?:ca|cert|key|sslrootcert|sslcert|sslkey)=)([^&#]+)/g;

function withAbsoluteFiles(url: string, base: string): string {
  if (!/^(redis|postgres)/.test(url)) return url;
  return url.replace(FILE_PARAMETER, (_, name: string, file: string) => {
    const path = new URLSearchParams(`file=${file}`).get('file') ?? '';
    return name + encodeURIComponent(resolve(base, path)).replaceAll('%2F', '/');
  });
}

/**
 * Sets a value in the tree and creates missing parent groups. If a parent is not a group, does nothing: the check
 * reports the parent.
 */
function setIn(tree: Tree, path: Path, value: unknown): void {
  let at = tree;
  for (const key of path.slice(0, -1)) {
    const inner = Object.hasOwn(at, key) ? (at[key] ?? {}) : {};
    if (!isRecord(inner)) return;
    at[key] = inner;
    at = inner;
  }
  at[path.at(-1) ?? ''] = value;
}

/** Checks a tree with defaults filled in against the declared options. */
function checkTree(tree: Tree, report: Report): void {
  for (const { path: keys, rule, schema, value, error } of schemaErrors(Options, tree)) {
    const path = keys.map(String);
    if (rule === 'unknown') reportUnknown(path, schema, report);
    else if (rule === 'missing') report(path, 'is missing', hintFor(schema, 'Give it'));
    else {
      const problem =
        error === undefined
          ? wrongValue(schema, rule, value)
          : withoutPeriod(error(path.at(-1) ?? '', value as never));
      report(path, problem, hintFor(schema, 'Correct it'));
    }
  }
}

/** @param group the schema of the options around it */
function reportUnknown(path: Path, group: Schema, report: Report): void {
  const known = Object.keys(group.properties ?? {});
  const hint = didYouMean(path.at(-1) ?? '', known).trim() || `Allowed here: ${known.join(', ')}`;
  report(path, 'there is no such option', hint);
}

function wrongValue(schema: Schema, rule: Violation['rule'], value: unknown): string {
  // The hint describes the form; the pattern itself would help few users.
  const isWrongForm = rule === 'pattern' && typeof value === 'string' && value !== '';
  if (isWrongForm) return wrongForm(schema, value);
  return `must be ${describeType(schema)}${quotedValue(schema, value)}`;
}

function wrongForm({ secret }: Schema, value: string): string {
  return secret === undefined ? `cannot be ${quote(value)}` : 'does not have the right form';
}

/** How a message quotes an invalid value; '' for secrets and objects. */
function quotedValue(schema: Schema, value: unknown): string {
  if (schema.secret !== undefined || schema.type === 'object' || entrySchema(schema) !== undefined) return '';
  if (typeof value === 'object' && value !== null) return '';
  return value === '' ? ', and not empty' : `, not ${quote(value)}`;
}

/** @param request what to do if the option has neither a hint nor a default */
function hintFor(schema: Schema, request: string): string {
  const { hint, type, default: defaultValue, description } = schema;
  if (hint !== undefined) return hint;
  if (type === 'object') return 'Write its options below it, or a JSON object into a variable';
  if (defaultValue === undefined) return description === undefined ? request : `${request}: ${description}`;
  return `Correct it, or leave it out for the default, ${JSON.stringify(defaultValue)}`;
}
