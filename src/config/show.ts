import { stringify } from 'yaml';
import { MASK, maskUrl } from '../util/mask.ts';
import type { Config } from './options.ts';
import { entrySchema, isTree, type OptionSchema, ROOT } from './schema.ts';

/** What is in force, as YAML that could be a configuration file, secrets masked. */
export function showConfig(config: Config): string {
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
