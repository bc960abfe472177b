import { once } from 'node:events';
import { readFileSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { Worker } from 'node:worker_threads';
import { QuaysideError } from '../model/errors.ts';
import { checkGroup, checkName } from '../model/names.ts';
import { didYouMean, nearestName } from '../util/did-you-mean.ts';
import { isRecord } from '../util/is-record.ts';
import { MASK, maskUrl } from '../util/mask.ts';
import { conflictOf } from '../util/name-pattern.ts';
import { quote } from '../util/quote.ts';
import { type SchemaError, schemaErrors } from '../util/schema.ts';
import { workerEntry } from '../util/worker-entry.ts';
import { type Config, type NamespaceConfig, Options, type QueueConfig } from './options.ts';
import type { YamlOutcome } from './yaml.ts';

// Loads the configuration according to the declared options: first reading and checking, then describing options and
// errors.

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

/** The object that contains an option; undefined if it does not exist. */
function groupOf(tree: Tree, path: Path): Tree | undefined {
  let at: unknown = tree;
  for (const key of path.slice(0, -1)) at = isRecord(at) ? at[key] : undefined;
  return isRecord(at) ? at : undefined;
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

/** Parameters of an engine URL whose values are paths of PEM files. */
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

interface Target {
  readonly path: Path;
  readonly schema: OptionSchema;
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
  const renamed = RENAMED.find(({ from }) => variableName(from) === variable);
  return renamed === undefined
    ? null
    : { path: renamed.from, schema: schemaAt(renamed.to) ?? {}, fromFile: false };
}

function resolveVariable(variable: string): { path: Path; schema: OptionSchema } | null {
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

function convert(schema: OptionSchema, text: string): unknown {
  switch (schema.type) {
    case 'integer':
    case 'number':
      return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text;
    case 'boolean':
      return text === 'true' ? true : text === 'false' ? false : text;
    case 'array':
      if (schema.items?.type === 'object') return parseJson(text);
      return text === '' ? [] : text.split(',').map((item) => item.trim());
    case 'object':
      return parseJson(text);
    default:
      return text;
  }
}

function parseJson(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return json;
  }
}

function unknownVariable(variable: string): ConfigProblem {
  const meant = nearestVariable(variable);
  const hint =
    meant === null
      ? 'Remove the variable, or find its name with `npm start -- --help`'
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
function optionPaths(schema: OptionSchema, path: Path): Path[] {
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
    text = await readFile(file, 'utf8');
  } catch (error) {
    throw wrongFile(
      file,
      `cannot be read (${(error as NodeJS.ErrnoException).code})`,
      'Name a file that this user may read with --config',
    );
  }
  return parseConfig(file, text);
}

async function parseConfig(file: string, text: string): Promise<Tree> {
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
  try {
    const value: unknown = JSON.parse(text);
    const generated = JSON.stringify(value, null, text.startsWith('{\n') ? 2 : 0);
    return generated === text.trimEnd() ? value : null;
  } catch {
    return null;
  }
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

function wrongFile(file: string, problem: string, hint: string): ConfigError {
  return new ConfigError([{ source: file, path: '', problem, hint }]);
}

/** Suffix of the keys that give the path of a secret's file: `passwordFile` for `password`. */
const FILE_KEY_SUFFIX = 'File';

/** Problems and warnings found while reading a configuration. */
interface ConfigNotes {
  readonly problems: ConfigProblem[];
  readonly warnings: string[];
}

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
    const value = readFileSync(file, 'utf8').replace(/\r?\n$/, '');
    if (process.platform !== 'win32' && (statSync(file).mode & 0o007) !== 0) {
      notes.warnings.push(`${source}: everybody on this machine may read ${file}; run chmod 600 on it`);
    }
    return value;
  } catch (error) {
    notes.problems.push({
      source,
      path: pathText(path),
      problem: `the file ${file} cannot be read (${(error as NodeJS.ErrnoException).code})`,
      hint: 'Name a file that this user may read',
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
  schema: OptionSchema,
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

/** Checks a tree with defaults filled in against the declared options. */
function checkTree(tree: Tree, report: Report): void {
  for (const { path, rule } of schemaErrors(Options, tree)) {
    if (rule === 'unknown') reportUnknown(path, report);
    else if (rule === 'missing') report(path, 'is missing', hintFor(schemaAt(path)));
    else reportWrong(path, tree, report, rule);
  }
}

function reportUnknown(path: Path, report: Report): void {
  const known = Object.keys(schemaAt(path.slice(0, -1))?.properties ?? {});
  const hint = didYouMean(path.at(-1) ?? '', known).trim() || `Allowed here: ${known.join(', ')}`;
  report(path, 'there is no such option', hint);
}

function reportWrong(path: Path, tree: Tree, report: Report, rule: SchemaError['rule']): void {
  const schema = schemaAt(path) ?? {};
  const value = valueAt(tree, path);
  const allowed = describeType(schema);
  const quoted = quotedValue(schema, value);
  // The hint describes the form; the pattern itself would help few users.
  const isWrongForm = rule === 'pattern' && typeof value === 'string' && value !== '';
  const problem = isWrongForm ? 'does not have the right form' : `must be ${allowed}`;
  report(path, `${problem}${quoted}`, hintFor(schema));
}

/** How a message quotes an invalid value; '' for secrets and objects. */
function quotedValue(schema: OptionSchema, value: unknown): string {
  if (schema.secret !== undefined || schema.type === 'object' || entrySchema(schema) !== undefined) return '';
  if (typeof value === 'object' && value !== null) return '';
  return value === '' ? ', and not empty' : `, not ${quote(value)}`;
}

function hintFor(schema: OptionSchema | undefined): string {
  if (schema?.hint !== undefined) return schema.hint;
  const { default: defaultValue, description } = schema ?? {};
  if (schema?.type === 'object') return 'Write its options below it';
  if (defaultValue === undefined) return description === undefined ? 'Give it' : `Give it: ${description}`;
  return `Correct it, or leave it out for the default, ${JSON.stringify(defaultValue)}`;
}

function valueAt(tree: Tree, path: Path): unknown {
  let at: unknown = tree;
  for (const key of path) at = isRecord(at) || Array.isArray(at) ? (at as Tree)[key] : undefined;
  return at;
}

/** Checks the rules that involve several options or that the schema cannot express. */
function checkRules(config: Config, report: Report): void {
  if (config.http.host.startsWith('/')) checkSocket(config.http, report);
  else checkListening('http', config.http, report);
  for (const group of ['stomp', 'amqp'] as const) {
    if (config[group].port === undefined) {
      if (config[group].webSocket) {
        report([group, 'webSocket'], `is on, but ${group} is off`, `Give ${group}.port, or leave it out`);
      }
      continue;
    }
    if (config[group].host.startsWith('/')) {
      report([group, 'host'], 'is a Unix socket, which only HTTP listens on', 'Name an address');
    } else checkListening(group, config[group], report);
  }
  checkPorts(config, report);
  const { anonymousUser } = config.amqp;
  if (anonymousUser !== undefined && !Object.hasOwn(config.http.users, anonymousUser)) {
    report(
      ['amqp', 'anonymousUser'],
      `${anonymousUser} is not a user in http.users`,
      'Add that user, or leave it out',
    );
  }
  for (const [i, origin] of config.http.allowedOrigins.entries()) checkOrigin(origin, i, report);
  for (const [name, namespace] of Object.entries(config.namespaces)) checkNamespace(name, namespace, report);
  checkSharedEngines(config.namespaces, report);
  checkSharedFiles(config, report);
}

type Listening = Pick<Config['http'], 'host' | 'tls' | 'insecure'>;

function checkListening(group: string, { host, tls, insecure }: Listening, report: Report): void {
  if (tls !== undefined || insecure || isLoopback(host)) return;
  report(
    [group, 'host'],
    `${host} can be reached from other machines, and without TLS passwords travel in the clear`,
    `Give ${group}.tls a certificate, or set ${group}.insecure: true where a proxy or a private network protects it`,
  );
}

function isWildcardAddress(host: string): boolean {
  return host === '0.0.0.0' || host === '::';
}

/** Rejects two listeners on the same port: otherwise the second would report that another program uses it. */
function checkPorts(config: Config, report: Report): void {
  const listening = (['http', 'stomp', 'amqp'] as const).flatMap((group) => {
    const { host, port = 0 } = config[group];
    return port === 0 || host.startsWith('/') ? [] : [{ group, host, port }];
  });
  for (const [i, { group, host, port }] of listening.entries()) {
    const other = listening
      .slice(0, i)
      .find((one) => one.port === port && (one.host === host || [one.host, host].some(isWildcardAddress)));
    if (other === undefined) continue;
    report([group, 'port'], `is ${port}, the port of ${other.group} as well`, 'Choose another port');
  }
}

/** A Unix socket needs no TLS: its file mode controls access, and its traffic does not leave the machine. */
function checkSocket({ tls }: Listening, report: Report): void {
  if (process.platform === 'win32') {
    report(['http', 'host'], 'is a Unix socket, which Windows does not have', 'Name an address');
  }
  if (tls !== undefined) {
    report(['http', 'tls'], 'is not for a Unix socket', 'Leave it out, or name an address as http.host');
  }
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** Rejects origins that no browser sends in this form, such as one with the default port: they would never match. */
function checkOrigin(origin: string, index: number, report: Report): void {
  const sent = URL.parse(origin)?.origin;
  if (sent === origin.toLowerCase()) return;
  const hint = sent === undefined ? 'Write it as https://jobs.example' : `Write ${sent}`;
  report(
    ['http', 'allowedOrigins', String(index)],
    `${quote(origin)} is not what a browser sends as an origin`,
    hint,
  );
}

function checkNamespace(name: string, namespace: NamespaceConfig, report: Report): void {
  const path = ['namespaces', name];
  attempt(() => checkName('namespace', name), path, 'Choose another name', report);
  if (name.includes('/') || name === '*') {
    report(path, 'contains a slash, or is *', 'Choose another name');
  }
  if (namespace.deadLetter !== undefined) {
    const { queue } = namespace.deadLetter;
    attempt(() => checkName('queue', queue), [...path, 'deadLetter', 'queue'], 'Choose another name', report);
  }
  for (const [i, group] of (namespace.groups ?? []).entries()) {
    attempt(() => checkGroup('groups', group), [...path, 'groups', String(i)], 'Choose another name', report);
  }
  for (const option of ['groups', 'retention'] as const) {
    if (namespace[option] === undefined || namespace.variant === 'stream') continue;
    report([...path, option], 'is for streams only', 'Set variant: stream, or leave it out');
  }
  checkRetryDelay(namespace, path, report);
  for (const [pattern, options] of Object.entries(namespace.queues ?? {})) {
    checkQueueOptions(pattern, options, namespace, [...path, 'queues', pattern], report);
  }
  const conflict = conflictOf(Object.keys(namespace.queues ?? {}));
  if (conflict !== null) {
    const [first, second] = conflict;
    report(
      [...path, 'queues', second],
      `is as specific as ${first}, and a name can match both`,
      'Give one of them more characters, or merge them',
    );
  }
  checkEngineOptions(namespace, path, report);
}

function checkQueueOptions(
  pattern: string,
  options: QueueConfig,
  { variant }: NamespaceConfig,
  path: Path,
  report: Report,
): void {
  attempt(() => checkName('queue', pattern), path, 'Choose another pattern', report);
  if (options.deadLetter !== undefined) {
    const { queue } = options.deadLetter;
    attempt(() => checkName('queue', queue), [...path, 'deadLetter', 'queue'], 'Choose another name', report);
    if (queue === pattern) {
      report(
        [...path, 'deadLetter', 'queue'],
        'is the queue itself',
        'Name another queue, or leave deadLetter out',
      );
    }
  }
  checkRetryDelay(options, path, report);
  if (options.retention !== undefined && variant !== 'stream') {
    report([...path, 'retention'], 'is for streams only', 'Set variant: stream, or leave it out');
  }
  for (const option of ['lease', 'deadLetter', 'retryDelay', 'ttl'] as const) {
    if (options[option] === undefined || variant !== 'list') continue;
    report([...path, option], 'is not for lists, which have only maxElements', 'Leave it out, or use simple');
  }
}

function checkRetryDelay(
  { retryDelay }: Pick<NamespaceConfig, 'retryDelay'>,
  path: Path,
  report: Report,
): void {
  if (retryDelay?.max === undefined || retryDelay.max >= retryDelay.first) return;
  report(
    [...path, 'retryDelay', 'max'],
    `is ${retryDelay.max}, less than first, which is ${retryDelay.first}`,
    'Give at least first',
  );
}

const isSqlite = (url: string): boolean => url.startsWith('sqlite:');
const isRedis = (url: string): boolean => /^rediss?:/.test(url);

/** Options of the SQLite engine, shared by all namespaces in one file. */
const SQLITE_OPTIONS = ['durability', 'cacheBytes', 'damagedLog'] as const;

/** Checks the options that only some engines have. */
function checkEngineOptions(namespace: NamespaceConfig, path: Path, report: Report): void {
  const { url, variant, signaller } = namespace;
  for (const option of SQLITE_OPTIONS) {
    if (namespace[option] === undefined || isSqlite(url)) continue;
    report([...path, option], 'is for sqlite: only', 'Leave it out');
  }
  if (variant === 'list' && !isRedis(url)) {
    report([...path, 'variant'], 'list is for redis: only', 'Use simple or stream, or a redis: URL');
  }
  for (const option of ['deadLetter', 'retryDelay'] as const) {
    if (variant !== 'list' || namespace[option] === undefined) continue;
    report([...path, option], 'is not for lists, which count no tries', 'Leave it out, or use simple');
  }
  if (signaller?.url !== undefined && signaller.url !== url && isSqlite(signaller.url)) {
    report(
      [...path, 'signaller', 'url'],
      'is a SQLite file, which no other process can use',
      'Name local: or a networked engine',
    );
  }
}

/** Namespaces with the same URL share one engine, so their engine options must be equal. */
function checkSharedEngines(namespaces: Config['namespaces'], report: Report): void {
  const first = new Map<string, [string, NamespaceConfig]>();
  for (const [name, namespace] of Object.entries(namespaces)) {
    const shared = first.get(namespace.url);
    if (shared === undefined) {
      first.set(namespace.url, [name, namespace]);
      continue;
    }
    for (const option of SQLITE_OPTIONS) {
      if (shared[1][option] === namespace[option]) continue;
      report(
        ['namespaces', name, option],
        `is ${namespace[option] ?? 'not given'}, but ${shared[1][option] ?? 'not given'} in namespace ${shared[0]} of the same engine`,
        'Give both the same, or give them different URLs',
      );
    }
  }
}

/** Rejects two URLs of one file: otherwise the second engine would report that another process has it open. */
function checkSharedFiles({ namespaces, dataDir }: Config, report: Report): void {
  const first = new Map<string, { readonly name: string; readonly url: string }>();
  for (const [name, { url }] of Object.entries(namespaces)) {
    if (!isSqlite(url) || url === 'sqlite::memory:') continue;
    const file = resolve(dataDir, url.slice('sqlite:'.length));
    const other = first.get(file) ?? { name, url };
    first.set(file, other);
    if (url === other.url) continue;
    report(
      ['namespaces', name, 'url'],
      `names the file of namespace ${other.name} by another URL`,
      `Write ${maskUrl(other.url)}, so that both share one engine, or name another file`,
    );
  }
}

function attempt(check: () => void, path: Path, hint: string, report: Report): void {
  try {
    check();
  } catch (error) {
    if (!(error instanceof QuaysideError)) throw error;
    report(path, error.message.replace(/\.$/, ''), hint);
  }
}

/** The parts of a schema that the functions below use. */
interface OptionSchema {
  readonly type?: string;
  readonly enum?: readonly unknown[];
  readonly properties?: Readonly<Record<string, OptionSchema>>;
  readonly patternProperties?: Readonly<Record<string, OptionSchema>>;
  readonly items?: OptionSchema;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly default?: unknown;
  readonly description?: string;
  readonly secret?: 'whole' | 'in-url';
  readonly hint?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
}

/** The schema of the whole configuration. */
export const ROOT = Options as OptionSchema;

/** Renamed options. The old names work, with a warning. */
const RENAMED: readonly { readonly from: Path; readonly to: Path }[] = [
  { from: ['http', 'openMetrics'], to: ['http', 'metricsWithoutLogin'] },
];

/** The schema of the entries of a map option; undefined if the option is not a map. */
function entrySchema(schema: OptionSchema): OptionSchema | undefined {
  return schema.patternProperties && Object.values(schema.patternProperties)[0];
}

/** The schema at a path of keys and list indexes; undefined if nothing is declared there. */
function schemaAt(path: Path): OptionSchema | undefined {
  let at: OptionSchema | undefined = ROOT;
  for (const key of path) {
    if (at?.properties !== undefined) at = Object.hasOwn(at.properties, key) ? at.properties[key] : undefined;
    else at = at && (entrySchema(at) ?? at.items);
  }
  return at;
}

/**
 * A copy of the value with defaults filled in at every depth and in every map entry. Declared options are in the order
 * of their declaration, followed by undeclared ones.
 */
export function withDefaults(schema: OptionSchema, value: unknown): unknown {
  const given = value === undefined ? structuredClone(schema.default) : value;
  if (!isRecord(given)) return given;
  const declared = schema.properties ?? {};
  const entry = entrySchema(schema) ?? {};
  const filled: [string, unknown][] = [];
  for (const [key, option] of Object.entries(declared)) {
    if (Object.hasOwn(given, key)) filled.push([key, withDefaults(option, given[key])]);
    else if (option.default !== undefined) filled.push([key, withDefaults(option, undefined)]);
  }
  for (const [key, inner] of Object.entries(given)) {
    if (!Object.hasOwn(declared, key)) filled.push([key, withDefaults(entry, inner)]);
  }
  return Object.fromEntries(filled);
}

/** Describes the allowed values for error messages, help and documentation. */
function describeType(schema: OptionSchema): string {
  if (schema.enum !== undefined) return `one of ${schema.enum.join(', ')}`;
  switch (schema.type) {
    case 'integer':
      return `a whole number${rangeText(schema)}`;
    case 'number':
      return `a number${rangeText(schema)}`;
    case 'boolean':
      return 'true or false';
    case 'array':
      return listText(schema);
    case 'object':
      return entrySchema(schema) === undefined ? 'a group of options' : 'a map by name';
    default:
      return 'a string';
  }
}

export type Tree = Record<string, unknown>;

function listText({ items, minItems, maxItems }: OptionSchema): string {
  const what = items?.type === 'object' ? 'groups of options' : 'strings';
  if (minItems === undefined) return `a list of ${what}`;
  return maxItems === undefined
    ? `a list of ${what}, and not empty`
    : `a list of ${minItems} to ${maxItems} ${what}`;
}

function rangeText({ minimum, maximum, exclusiveMinimum }: OptionSchema): string {
  const from = exclusiveMinimum === undefined ? minimum && ` from ${minimum}` : ` above ${exclusiveMinimum}`;
  const low = minimum === 0 ? ' from 0' : (from ?? '');
  return maximum === undefined ? String(low) : `${low} to ${maximum}`;
}

/** Prefix of all variables. */
const VARIABLE_PREFIX = 'QUAYSIDE_';

/** The variable that sets an option. User-chosen names are in angle brackets. */
function variableName(path: Path): string {
  return VARIABLE_PREFIX + path.map((part) => (part.startsWith('<') ? part : segmentOf(part))).join('__');
}

/** `bodyLimit` -> `BODY_LIMIT` */
function segmentOf(name: string): string {
  return name.replace(/[A-Z]/g, (capital) => `_${capital}`).toUpperCase();
}

/** One option as shown by the help and `docs/reference/configuration.md`. */
export interface OptionDescription {
  /** User-chosen names are in angle brackets: `namespaces.<name>.url`. */
  readonly path: string;
  readonly type: string;
  /** As written in a configuration file; '' if there is none. */
  readonly default: string;
  readonly help: string;
  readonly variable: string;
}

/** All options, in the order of their declaration. */
export function describeOptions(): OptionDescription[] {
  return describe(ROOT, []);
}

function describe(schema: OptionSchema, path: readonly string[]): OptionDescription[] {
  const descriptions =
    schema.description === undefined ? [] : [describeOne(schema, schema.description, path)];
  const entry = entrySchema(schema);
  if (entry !== undefined && entry.type === 'object')
    descriptions.push(...describe(entry, [...path, '<name>']));
  for (const [key, inner] of Object.entries(schema.properties ?? {}))
    descriptions.push(...describe(inner, [...path, key]));
  return descriptions;
}

function describeOne(schema: OptionSchema, help: string, path: readonly string[]): OptionDescription {
  const isGroup = schema.type === 'object';
  return {
    path: path.map((part, i) => (i === 0 ? part : `.${part}`)).join(''),
    type: describeType(schema),
    default: isGroup || schema.default === undefined ? '' : JSON.stringify(schema.default),
    help,
    variable: variableName(path),
  };
}

/** The effective configuration as YAML that can be used as a configuration file, except that secrets are masked. */
export async function showConfig(config: Config): Promise<string> {
  const { stringify } = await import('yaml');
  return stringify(masked(ROOT, config), { lineWidth: 0 });
}

/** Masks secrets; of a URL that contains one, only the secret is masked. */
function masked(schema: OptionSchema, value: unknown): unknown {
  if (typeof value === 'string') {
    if (schema.secret === undefined) return value;
    return schema.secret === 'whole' ? MASK : maskUrl(value);
  }
  if (!isRecord(value)) return value;
  const entry = entrySchema(schema);
  return Object.fromEntries(
    Object.entries(value).map(([key, inner]) => [
      key,
      masked(schema.properties?.[key] ?? entry ?? {}, inner),
    ]),
  );
}

/** One problem of the configuration, with a hint for its solution. */
export interface ConfigProblem {
  /** The configuration file or environment variable that gave the value; null for a default. */
  readonly source: string | null;
  /** As in {@link pathText}; '' for the whole file. */
  readonly path: string;
  /** The problem, worded to follow the path. Never contains a secret. */
  readonly problem: string;
  readonly hint: string;
}

/** Reports an invalid value. */
type Report = (path: Path, problem: string, hint: string) => void;

/** Creates the error for an invalid value, including its source. */
export type ErrorAt = (path: Path, problem: string, hint: string) => ConfigError;

/** An invalid configuration. The message has one line per problem. */
export class ConfigError extends Error {
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    super(problems.map(problemLine).join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

export type Path = readonly string[];

/** Formats a path as `http.port`; names with other characters than `\w`, `*` and `-` are quoted in brackets. */
export function pathText(path: Path): string {
  return path
    .map((part, i) => {
      if (!/^[\w*-]+$/.test(part)) return `[${JSON.stringify(part)}]`;
      return i === 0 ? part : `.${part}`;
    })
    .join('');
}

function problemLine({ source, path, problem, hint }: ConfigProblem): string {
  const where = [source, path].filter((part) => part !== null && part !== '').join(': ');
  return `${where}: ${problem}. ${hint}${hint.endsWith('?') ? '' : '.'}`;
}
