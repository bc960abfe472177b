import { isRecord } from '../util/is-record.ts';
import { MASK, maskUrl } from '../util/mask.ts';
import { allowedText, type Schema } from '../util/schema.ts';
import type { Path } from './errors.ts';
import { type Config, Options } from './options.ts';

// What is declared about the options: types, defaults, names of variables, and their descriptions.

/** A map of options, not yet checked. */
export type Tree = Record<string, unknown>;

/** The schema of the whole configuration. */
export const ROOT: Schema = Options;

/** Renamed options, each with its group. The old names work, with a warning. */
export const RENAMED = [{ group: 'http', from: 'openMetrics', to: 'metricsWithoutLogin' }] as const;

/** The schema of the entries of a map option; undefined if the option is not a map. */
export function entrySchema(schema: Schema): Schema | undefined {
  return schema.patternProperties && Object.values(schema.patternProperties)[0];
}

/** The schema at a path of keys and list indexes; undefined if nothing is declared there. */
export function schemaAt(path: Path): Schema | undefined {
  let at: Schema | undefined = ROOT;
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
export function withDefaults(schema: Schema, value: unknown): unknown {
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
export function describeType(schema: Schema): string {
  if (schema.enum !== undefined) return allowedText(schema);
  switch (schema.type) {
    case 'array':
      return listText(schema);
    case 'object':
      return entrySchema(schema) === undefined ? 'a group of options' : 'a map by name';
    default:
      return allowedText(schema);
  }
}

function listText({ items, minItems, maxItems }: Schema): string {
  const what = items?.type === 'object' ? 'groups of options' : 'strings';
  return minItems === undefined ? `a list of ${what}` : `a list of ${minItems} to ${maxItems} ${what}`;
}

/** Prefix of all variables. */
export const VARIABLE_PREFIX = 'QUAYSIDE_';

/** The variable that sets an option. User-chosen names are in angle brackets. */
export function variableName(path: Path): string {
  return VARIABLE_PREFIX + path.map((part) => (part.startsWith('<') ? part : segmentOf(part))).join('__');
}

/** `bodyLimit` -> `BODY_LIMIT` */
export function segmentOf(name: string): string {
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

function describe(schema: Schema, path: readonly string[]): OptionDescription[] {
  const descriptions =
    schema.description === undefined ? [] : [describeOne(schema, schema.description, path)];
  const entry = entrySchema(schema);
  if (entry !== undefined && entry.type === 'object')
    descriptions.push(...describe(entry, [...path, '<name>']));
  for (const [key, inner] of Object.entries(schema.properties ?? {}))
    descriptions.push(...describe(inner, [...path, key]));
  return descriptions;
}

function describeOne(schema: Schema, help: string, path: readonly string[]): OptionDescription {
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
  const masked = mapStrings(ROOT, config, ({ secret }, text) => {
    if (secret === undefined) return text;
    return secret === 'whole' ? MASK : maskUrl(text);
  });
  return stringify(masked, { lineWidth: 0 });
}

/** A copy of the value in which each string is replaced by what `map` returns for it and its schema. */
export function mapStrings(
  schema: Schema,
  value: unknown,
  map: (schema: Schema, text: string) => string,
): unknown {
  if (typeof value === 'string') return map(schema, value);
  if (!isRecord(value)) return value;
  const entry = entrySchema(schema) ?? {};
  return Object.fromEntries(
    Object.entries(value).map(([key, inner]) => [
      key,
      mapStrings(schema.properties?.[key] ?? entry, inner, map),
    ]),
  );
}
