import { MASK, maskUrl } from '../util/mask.ts';
import { type Config, Options } from './options.ts';

/** What the walks over the declared options need to know of a schema. */
export interface OptionSchema {
  readonly type?: string;
  readonly enum?: readonly unknown[];
  readonly properties?: Readonly<Record<string, OptionSchema>>;
  readonly patternProperties?: Readonly<Record<string, OptionSchema>>;
  readonly items?: OptionSchema;
  readonly default?: unknown;
  readonly description?: string;
  readonly secret?: 'whole' | 'in-url';
  readonly hint?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
}

/** All options. */
export const ROOT = Options as OptionSchema;

/** Options that had another name before. The old name works, with a warning. */
export const RENAMED: readonly { readonly from: Path; readonly to: Path }[] = [
  { from: ['http', 'openMetrics'], to: ['http', 'metricsWithoutLogin'] },
];

/** The schema of whatever is named freely under a map option; undefined if the option is no map. */
export function entrySchema(schema: OptionSchema): OptionSchema | undefined {
  return schema.patternProperties && Object.values(schema.patternProperties)[0];
}

/** The schema at a path of keys, list places included; undefined where nothing is declared there. */
export function schemaAt(path: Path): OptionSchema | undefined {
  let at: OptionSchema | undefined = ROOT;
  for (const key of path) {
    if (at?.properties !== undefined) at = Object.hasOwn(at.properties, key) ? at.properties[key] : undefined;
    else at = at && (entrySchema(at) ?? at.items);
  }
  return at;
}

/**
 * A copy of the value with what was not given filled in, at every depth and in every map entry; options in
 * the order of their declaration, what is not declared after them.
 */
export function withDefaults(schema: OptionSchema, value: unknown): unknown {
  const given = value === undefined ? structuredClone(schema.default) : value;
  if (!isTree(given)) return given;
  const declared = schema.properties ?? {};
  const entry = entrySchema(schema) ?? {};
  const filled: [string, unknown][] = [];
  for (const [key, own] of Object.entries(declared)) {
    if (Object.hasOwn(given, key)) filled.push([key, withDefaults(own, given[key])]);
    else if (own.default !== undefined) filled.push([key, withDefaults(own, undefined)]);
  }
  for (const [key, inner] of Object.entries(given)) {
    if (!Object.hasOwn(declared, key)) filled.push([key, withDefaults(entry, inner)]);
  }
  return Object.fromEntries(filled);
}

/** What a value must be, in words: for error messages, the help and the documentation. */
export function typeText(schema: OptionSchema): string {
  if (schema.enum !== undefined) return `one of ${schema.enum.join(', ')}`;
  switch (schema.type) {
    case 'integer':
      return `a whole number${rangeText(schema)}`;
    case 'number':
      return `a number${rangeText(schema)}`;
    case 'boolean':
      return 'true or false';
    case 'array':
      return schema.items?.type === 'object' ? 'a list of groups of options' : 'a list of texts';
    case 'object':
      return entrySchema(schema) === undefined ? 'a group of options' : 'a map by name';
    default:
      return 'a text';
  }
}

export type Tree = Record<string, unknown>;

export function isTree(value: unknown): value is Tree {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function rangeText({ minimum, maximum, exclusiveMinimum }: OptionSchema): string {
  const from = exclusiveMinimum === undefined ? minimum && ` from ${minimum}` : ` above ${exclusiveMinimum}`;
  const low = minimum === 0 ? ' from 0' : (from ?? '');
  return maximum === undefined ? String(low) : `${low} to ${maximum}`;
}

/** What the names of all variables begin with. */
export const PREFIX = 'QUAYSIDE_';

/** The variable that sets an option; what users name stands between angle brackets. */
export function variableName(path: Path): string {
  return PREFIX + path.map((part) => (part.startsWith('<') ? part : segmentOf(part))).join('__');
}

/** `bodyLimit` -> `BODY_LIMIT` */
export function segmentOf(name: string): string {
  return name.replace(/[A-Z]/g, (capital) => `_${capital}`).toUpperCase();
}

/** One option, as the help and `docs/reference/configuration.md` show it. */
export interface OptionDescription {
  /** What the user names stands between angle brackets: `namespaces.<name>.url`. */
  readonly path: string;
  readonly type: string;
  /** As written in the file; '' where there is none. */
  readonly default: string;
  readonly help: string;
  readonly variable: string;
}

/** All options, in the order of their declaration. */
export function describeOptions(): OptionDescription[] {
  return describe(ROOT, []);
}

function describe(schema: OptionSchema, path: readonly string[]): OptionDescription[] {
  const own = schema.description === undefined ? [] : [describeOne(schema, schema.description, path)];
  const entry = entrySchema(schema);
  if (entry !== undefined && entry.type === 'object') own.push(...describe(entry, [...path, '<name>']));
  for (const [key, inner] of Object.entries(schema.properties ?? {}))
    own.push(...describe(inner, [...path, key]));
  return own;
}

function describeOne(schema: OptionSchema, help: string, path: readonly string[]): OptionDescription {
  const isGroup = schema.type === 'object';
  return {
    path: path.map((part, i) => (i === 0 ? part : `.${part}`)).join(''),
    type: typeText(schema),
    default: isGroup || schema.default === undefined ? '' : JSON.stringify(schema.default),
    help,
    variable: variableName(path),
  };
}

/** What is in force, as YAML that could be a configuration file, secrets masked. */
export async function showConfig(config: Config): Promise<string> {
  const { stringify } = await import('yaml');
  return stringify(masked(ROOT, config), { lineWidth: 0 });
}

/** A secret that is in a URL leaves the rest of the URL to be seen. */
function masked(schema: OptionSchema, value: unknown): unknown {
  if (typeof value === 'string') {
    if (schema.secret === undefined) return value;
    return schema.secret === 'whole' ? MASK : maskUrl(value);
  }
  if (!isTree(value)) return value;
  const entry = entrySchema(schema);
  return Object.fromEntries(
    Object.entries(value).map(([key, inner]) => [
      key,
      masked(schema.properties?.[key] ?? entry ?? {}, inner),
    ]),
  );
}

/** One thing that is wrong with the configuration, and what to do about it. */
export interface ConfigProblem {
  /** Where the value came from: the file, or an environment variable; null for a default. */
  readonly source: string | null;
  /** As in {@link pathText}; '' for the whole file. */
  readonly path: string;
  /** What is wrong; reads on from the path. Never holds a secret. */
  readonly problem: string;
  readonly hint: string;
}

/** Reports that the value at a path cannot be used. */
export type Report = (path: Path, problem: string, hint: string) => void;

/** Makes the error for the value at a path, with where it came from. */
export type ErrorAt = (path: Path, problem: string, hint: string) => ConfigError;

/** A configuration with which the server does not start. One line a problem, for people to read. */
export class ConfigError extends Error {
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    super(problems.map(problemLine).join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

export type Path = readonly string[];

/** `http.port`; a name that has a dot or a space in it is shown in brackets. */
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
