import { variableName } from './environment.ts';
import { entrySchema, type OptionSchema, ROOT, typeText } from './schema.ts';

/** One option, as the help and `docs/configuration.md` show it. */
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
