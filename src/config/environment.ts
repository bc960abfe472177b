import { resolve } from 'node:path';
import { nearestName } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';
import { type ConfigNotes, readSecretFile } from './files.ts';
import type { ConfigProblem, Path } from './problem.ts';
import {
  entrySchema,
  isTree,
  type OptionSchema,
  PREFIX,
  RENAMED,
  ROOT,
  schemaAt,
  segmentOf,
  type Tree,
  variableName,
} from './schema.ts';

const FROM_FILE = '_FILE';

/** The port of a person who does not know the two underscores, or of Kubernetes, which writes a URL. */
const PORT = 'QUAYSIDE_PORT';
const SERVICE_URL = /^(tcp|udp|sctp):\/\//;

/** Kubernetes sets these for every service in the namespace, one named `quayside` included. */
const SERVICE_LINK = /^QUAYSIDE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)$/;

/** Of the clients and the commands that call a server, which may be run in the same shell. */
const OF_CLIENTS: ReadonlySet<string> = new Set([
  'QUAYSIDE_URL',
  'QUAYSIDE_USER',
  'QUAYSIDE_PASSWORD',
  'QUAYSIDE_TOKEN',
]);

/** The options of the environment, as found: not yet checked. */
export interface EnvironmentOverlay extends ConfigNotes {
  readonly settings: readonly EnvironmentSetting[];
}

export interface EnvironmentSetting {
  readonly variable: string;
  readonly path: Path;
  /** Of the option's declared type where the text allows it; else the text, which the check rejects. */
  readonly value: unknown;
}

/**
 * Reads `QUAYSIDE_HTTP__PORT=3444`, `QUAYSIDE_NAMESPACES__jobs__URL=…` and, for secrets,
 * `QUAYSIDE_HTTP__USERS__test1__PASSWORD_FILE=/run/secrets/test1`. Option names are in capitals with `_`
 * between words; names that users choose stand as they are.
 * @param base the folder that relative paths are taken from
 */
export function readEnvironment(env: NodeJS.ProcessEnv, base: string): EnvironmentOverlay {
  const settings: EnvironmentSetting[] = [];
  const problems: ConfigProblem[] = [];
  const warnings: string[] = [];
  for (const [variable, text] of Object.entries(env).sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (!variable.startsWith(PREFIX) || OF_CLIENTS.has(variable) || text === undefined) continue;
    if (SERVICE_LINK.test(variable)) {
      if (variable === PORT && !SERVICE_URL.test(text)) warnings.push(portWarning(text));
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

/** Puts a value into the tree, making the groups above it. */
export function setIn(tree: Tree, path: Path, value: unknown): void {
  let at = tree;
  for (const key of path.slice(0, -1)) {
    const inner = at[key];
    const group: Tree = isTree(inner) ? inner : {};
    at[key] = group;
    at = group;
  }
  at[path.at(-1) ?? ''] = value;
}

interface Target {
  readonly path: Path;
  readonly schema: OptionSchema;
  readonly fromFile: boolean;
}

function findTarget(variable: string): Target | null {
  // Before the variable as it stands: the name of a header may be anything, `authorization_FILE` too.
  if (variable.endsWith(FROM_FILE)) {
    const secret = walk(variable.slice(0, -FROM_FILE.length));
    if (secret?.schema.secret !== undefined) return { ...secret, fromFile: true };
  }
  const direct = walk(variable);
  if (direct !== null) return { ...direct, fromFile: false };
  const renamed = RENAMED.find(({ from }) => variableName(from) === variable);
  return renamed === undefined
    ? null
    : { path: renamed.from, schema: schemaAt(renamed.to) ?? {}, fromFile: false };
}

function walk(variable: string): { path: Path; schema: OptionSchema } | null {
  const path: string[] = [];
  let at = ROOT;
  for (const segment of variable.slice(PREFIX.length).split('__')) {
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
      if (schema.items?.type === 'object') return parsed(text);
      return text === '' ? [] : text.split(',').map((item) => item.trim());
    case 'object':
      return parsed(text);
    default:
      return text;
  }
}

function parsed(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return json;
  }
}

function unknownVariable(variable: string): ConfigProblem {
  const meant = meantVariable(variable);
  const hint =
    meant === null
      ? 'Take the variable away, or find its name with `npm start -- --help`'
      : `Did you mean ${meant}?`;
  return { source: variable, path: '', problem: 'there is no such option', hint };
}

function portWarning(text: string): string {
  return `${PORT}=${quote(text)} sets nothing. Did you mean ${variableName(['http', 'port'])}?`;
}

/** The variable that differs by underscores, case or one letter: `QUAYSIDE_HTTP_PORT` for `QUAYSIDE_HTTP__PORT`. */
function meantVariable(variable: string): string | null {
  // The longest first: the name that a user chose may have underscores, an option's own words come before.
  const known = optionPaths(ROOT, []).sort((a, b) => b.length - a.length);
  for (const path of known) {
    const meant = withAnyUnderscores(variable, path);
    if (meant !== null) return meant;
  }
  return nearestName(variable, known.map(variableName));
}

/** The variable of an option if `variable` is the same but for underscores and case; it may hold names of users. */
function withAnyUnderscores(variable: string, path: Path): string | null {
  const parts = path.map((part) => (part.startsWith('<') ? '(.+?)' : segmentOf(part).replaceAll('_', '_*')));
  const names = new RegExp(`^QUAYSIDE_+${parts.join('_+')}(_+FILE)?$`, 'i').exec(variable);
  if (names === null) return null;
  let place = 1;
  const named = path.map((part) => (part.startsWith('<') ? (names[place++] ?? '') : segmentOf(part)));
  return PREFIX + named.join('__') + (names[place] === undefined ? '' : FROM_FILE);
}

/** Of all options; names that users choose are `<name>`. */
function optionPaths(schema: OptionSchema, path: Path): Path[] {
  const entry = entrySchema(schema);
  const inner = entry === undefined ? [] : optionPaths(entry, [...path, '<name>']);
  const own = Object.entries(schema.properties ?? {}).flatMap(([key, below]) =>
    optionPaths(below, [...path, key]),
  );
  return [...(path.length === 0 ? [] : [path]), ...own, ...inner];
}
