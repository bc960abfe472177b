import { once } from 'node:events';
import { readFileSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { Worker } from 'node:worker_threads';
import { didYouMean, nearestName } from '../util/did-you-mean.ts';
import { isRecord } from '../util/is-record.ts';
import { ownCommand } from '../util/own-command.ts';
import { parsedJson } from '../util/parsed-json.ts';
import { quote } from '../util/quote.ts';
import { type Schema, schemaErrors, type Violation } from '../util/schema.ts';
import { NOT_UTF8, UTF8 } from '../util/utf8.ts';
import { workerEntry } from '../util/worker-entry.ts';
import {
  describeType,
  entrySchema,
  mapStrings,
  RENAMED,
  ROOT,
  schemaAt,
  segmentOf,
  type Tree,
  VARIABLE_PREFIX,
  variableName,
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
import type { YamlOutcome } from './yaml.ts';

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

/** Problems and warnings found while reading a configuration. */
interface ConfigNotes {
  readonly problems: ConfigProblem[];
  readonly warnings: string[];
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

// The sources of a configuration: its file, the environment, and the files of secrets.

const FILE_VARIABLE_SUFFIX = '_FILE';

/** Set by users who meant `QUAYSIDE_HTTP__PORT`, or by Kubernetes, whose value is a URL. */
const PORT_VARIABLE = 'QUAYSIDE_PORT';
const SERVICE_URL = /^(tcp|udp|sctp):\/\//;

/** Kubernetes sets these variables if the namespace has a service named `quayside`. */
const SERVICE_LINK = /^QUAYSIDE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)$/;

/** Variables of the clients and of the commands that call a server, which may run in the same shell. */
const CLIENT_VARIABLES: ReadonlySet<string> = new Set([
  'QUAYSIDE_URL',
  'QUAYSIDE_USER',
  'QUAYSIDE_PASSWORD',
  'QUAYSIDE_TOKEN',
]);

/** The options from the environment, not yet checked. */
interface EnvironmentOverlay extends ConfigNotes {
  readonly settings: readonly EnvironmentSetting[];
}

interface EnvironmentSetting {
  readonly variable: string;
  readonly path: Path;
  /** Converted to the option's declared type if possible, otherwise the string, which the check then rejects. */
  readonly value: unknown;
}

/**
 * Reads `QUAYSIDE_HTTP__PORT=3444`, `QUAYSIDE_NAMESPACES__jobs__URL=…` and, for secrets,
 * `QUAYSIDE_HTTP__USERS__test1__PASSWORD_FILE=/run/secrets/test1`. Option names are in upper case with `_` between
 * words; names chosen by users keep their case.
 * @param base the folder to which relative paths refer
 */
function readEnvironment(env: NodeJS.ProcessEnv, base: string): EnvironmentOverlay {
  const settings: EnvironmentSetting[] = [];
  const problems: ConfigProblem[] = [];
  const warnings: string[] = [];
  for (const [variable, text] of Object.entries(env).sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (!variable.startsWith(VARIABLE_PREFIX) || CLIENT_VARIABLES.has(variable) || text === undefined)
      continue;
    if (SERVICE_LINK.test(variable)) {
      if (variable === PORT_VARIABLE && !SERVICE_URL.test(text)) warnings.push(portWarning(text));
      continue;
    }
    const target = findTarget(variable);
    if (target === null) {
      problems.push(unknownVariable(variable));
    } else if (target.fromFile) {
      const secret = { source: variable, file: resolve(base, text), path: target.path };
      const value = readSecretFile(secret, { problems, warnings });
      if (value !== null) settings.push({ variable, path: target.path, value });
    } else {
      settings.push({ variable, path: target.path, value: convert(target.schema, text) });
    }
  }
  return { settings, problems, warnings };
}

interface Target {
  readonly path: Path;
  readonly schema: Schema;
  readonly fromFile: boolean;
}

function findTarget(variable: string): Target | null {
  // Test the suffix first: header names are arbitrary, so `authorization_FILE` would match as a header.
  if (variable.endsWith(FILE_VARIABLE_SUFFIX)) {
    const secret = resolveVariable(variable.slice(0, -FILE_VARIABLE_SUFFIX.length));
    if (secret?.schema.secret !== undefined) return { ...secret, fromFile: true };
  }
  const direct = resolveVariable(variable);
  if (direct !== null) return { ...direct, fromFile: false };
  for (const { group, from, to } of RENAMED) {
    const path = [group, from];
    if (variableName(path) === variable)
      return { path, schema: schemaAt([group, to]) ?? {}, fromFile: false };
  }
  return null;
}

function resolveVariable(variable: string): { path: Path; schema: Schema } | null {
  const path: string[] = [];
  let at = ROOT;
  for (const segment of variable.slice(VARIABLE_PREFIX.length).split('__')) {
    const entry = entrySchema(at);
    const key = entry
      ? segment
      : Object.keys(at.properties ?? {}).find((name) => segmentOf(name) === segment);
    const next = entry ?? (key === undefined ? undefined : at.properties?.[key]);
    if (key === undefined || key === '' || key === '__proto__' || next === undefined) return null;
    path.push(key);
    at = next;
  }
  return { path, schema: at };
}

function convert(schema: Schema, text: string): unknown {
  switch (schema.type) {
    case 'integer':
    case 'number':
      return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text;
    case 'boolean':
      return text === 'true' ? true : text === 'false' ? false : text;
    case 'array':
      if (schema.items?.type === 'object') return parsedJson(text) ?? text;
      return text === '' ? [] : text.split(',').map((item) => item.trim());
    case 'object':
      return parsedJson(text) ?? text;
    default:
      return text;
  }
}

function unknownVariable(variable: string): ConfigProblem {
  const meant = nearestVariable(variable);
  const hint =
    meant === null
      ? `Remove the variable, or find its name with ${ownCommand('--help')}`
      : `Did you mean ${meant}?`;
  return { source: variable, path: '', problem: 'there is no such option', hint };
}

function portWarning(text: string): string {
  return `${PORT_VARIABLE}=${quote(text)} has no effect. Did you mean ${variableName(['http', 'port'])}?`;
}

/** The variable that was probably meant: it differs only in underscores or case, or by a typo. */
function nearestVariable(variable: string): string | null {
  // Longest path first: a user-chosen name may contain underscores, and must not swallow the option names after it.
  const known = optionPaths(ROOT, []).sort((a, b) => b.length - a.length);
  for (const path of known) {
    const meant = variableIfSimilar(variable, path);
    if (meant !== null) return meant;
  }
  return nearestName(variable, known.map(variableName));
}

/**
 * The option's variable if `variable` differs only in underscores and case, otherwise null. Keeps user-chosen names.
 */
function variableIfSimilar(variable: string, path: Path): string | null {
  const parts = path.map((part) => (part.startsWith('<') ? '(.+?)' : segmentOf(part).replaceAll('_', '_*')));
  const groups = new RegExp(`^QUAYSIDE_+${parts.join('_+')}(_+FILE)?$`, 'i').exec(variable);
  if (groups === null) return null;
  let group = 1;
  const named = path.map((part) => (part.startsWith('<') ? (groups[group++] ?? '') : segmentOf(part)));
  return VARIABLE_PREFIX + named.join('__') + (groups[group] === undefined ? '' : FILE_VARIABLE_SUFFIX);
}

/** The paths of all options; `<name>` represents user-chosen names. */
function optionPaths(schema: Schema, path: Path): Path[] {
  const entry = entrySchema(schema);
  const inner = entry === undefined ? [] : optionPaths(entry, [...path, '<name>']);
  const declared = Object.entries(schema.properties ?? {}).flatMap(([key, below]) =>
    optionPaths(below, [...path, key]),
  );
  return [...(path.length === 0 ? [] : [path]), ...declared, ...inner];
}

const YAML_HINT = 'Correct it there; values with special characters go between single quotes';

/**
 * Reads a YAML or JSON file.
 * @throws ConfigError if it is unreadable, is not YAML, or is not a map of options
 */
async function readConfigFile(file: string): Promise<Tree> {
  let text: string;
  try {
    text = UTF8.decode(await readFile(file));
  } catch (error) {
    const { problem, hint } = unreadable(error);
    throw wrongFile(file, problem, hint ?? 'Name a file that this user may read with --config');
  }
  const content = generatedJson(text) ?? (await parseYaml(file, text));
  if (content === null) return {};
  if (!isRecord(content))
    throw wrongFile(file, 'contains no options', 'Write a map, such as "http: { port: 3444 }"');
  return content;
}

/**
 * Parses text that is exactly what `JSON.stringify` writes, which rules out duplicate keys; null for any other text. It
 * avoids loading the YAML parser, whose 72 modules are a sixth of all modules that a start loads.
 */
function generatedJson(text: string): unknown {
  const value = parsedJson(text);
  const generated = JSON.stringify(value, null, text.startsWith('{\n') ? 2 : 0);
  return generated === text.trimEnd() ? value : null;
}

async function parseYaml(file: string, text: string): Promise<unknown> {
  const read = text.length > MAX_SYNC_YAML ? readInThread : (await import('./yaml.ts')).readYaml;
  const outcome = await read(text);
  if ('problem' in outcome) throw wrongFile(file, outcome.problem, YAML_HINT);
  return outcome.value;
}

/**
 * Longer files are parsed in a worker thread: 10,000 users take seconds, which would block a server that reloads them.
 */
const MAX_SYNC_YAML = 262_144;

async function readInThread(text: string): Promise<YamlOutcome> {
  const thread = new Worker(workerEntry('./yaml-thread.ts', import.meta.url), {
    workerData: text,
    execArgv: [],
    name: 'quayside-yaml',
  });
  const [outcome] = (await once(thread, 'message')) as [YamlOutcome];
  return outcome;
}

function unreadable(error: unknown): { readonly problem: string; readonly hint?: string } {
  const { code } = error as NodeJS.ErrnoException;
  if (code !== NOT_UTF8) return { problem: `cannot be read (${code})` };
  return { problem: 'is not in UTF-8', hint: 'Save it in UTF-8' };
}

function wrongFile(file: string, problem: string, hint: string): ConfigError {
  return new ConfigError([{ source: file, path: '', problem, hint }]);
}

/** Suffix of the keys that give the path of a secret's file: `passwordFile` for `password`. */
const FILE_KEY_SUFFIX = 'File';

/** A secret in a file of its own. */
interface SecretFile {
  /** Where the path comes from: a configuration file or a variable. */
  readonly source: string | null;
  readonly file: string;
  /** The option that it sets. */
  readonly path: Path;
}

/** The secret without a trailing line break. If the file is unreadable, adds a problem and returns null. */
function readSecretFile({ source, file, path }: SecretFile, notes: ConfigNotes): string | null {
  try {
    const value = UTF8.decode(readFileSync(file)).replace(/\r?\n$/, '');
    if (process.platform !== 'win32' && (statSync(file).mode & 0o007) !== 0) {
      notes.warnings.push(`${source}: everybody on this machine may read ${file}; run chmod 600 on it`);
    }
    return value;
  } catch (error) {
    const { problem, hint } = unreadable(error);
    notes.problems.push({
      source,
      path: pathText(path),
      problem: `the file ${file} ${problem}`,
      hint: hint ?? 'Name a file that this user may read',
    });
    return null;
  }
}

/**
 * Replaces keys that give the path of a secret's file by the secret: `passwordFile` by `password`.
 * @param from the tree's source and path, and the folder to which relative paths refer
 */
function readSecretsOf(
  tree: Tree,
  schema: Schema,
  from: { readonly source: string | null; readonly path: Path; readonly base: string },
  notes: ConfigNotes,
): void {
  const { source, path, base } = from;
  for (const [key, option] of Object.entries(schema.properties ?? {})) {
    const name = key + FILE_KEY_SUFFIX;
    if (option.secret === undefined || typeof tree[name] !== 'string') continue;
    const file = resolve(base, tree[name]);
    delete tree[name];
    if (Object.hasOwn(tree, key)) {
      const problem = `is given by ${name} as well`;
      notes.problems.push({
        source,
        path: pathText([...path, key]),
        problem,
        hint: 'Remove one of them',
      });
      continue;
    }
    // Use a placeholder for an unreadable secret, so that it is not reported as missing as well.
    tree[key] = readSecretFile({ source, file, path: [...path, name] }, notes) ?? 'unread:';
  }
  for (const [key, value] of Object.entries(tree)) {
    const inner = schema.properties?.[key] ?? entrySchema(schema);
    if (isRecord(value) && inner !== undefined)
      readSecretsOf(value, inner, { ...from, path: [...path, key] }, notes);
  }
}
