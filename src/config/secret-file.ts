import { readFileSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { type ConfigProblem, type Path, pathText } from './problem.ts';
import { entrySchema, isTree, type OptionSchema, type Tree } from './schema.ts';

/** Ends the name of a key that names the file with a secret: `passwordFile` for `password`. */
const SUFFIX = 'File';

/** What came of reading secrets: values are in their places. */
export interface SecretNotes {
  readonly problems: ConfigProblem[];
  readonly warnings: string[];
}

/** A secret that stands in a file of its own. */
export interface SecretFile {
  /** What names the file: a configuration file or a variable. */
  readonly source: string | null;
  readonly file: string;
  /** The option that it is for. */
  readonly path: Path;
}

/** The secret, without the file's last line end; null, with a problem, if the file cannot be read. */
export function readSecretFile({ source, file, path }: SecretFile, notes: SecretNotes): string | null {
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
      remedy: 'Name a file that this user may read',
    });
    return null;
  }
}

/**
 * Puts the secrets of files into the places of the keys that name them: `password` for `passwordFile`.
 * @param from where the tree came from, where it stands, and what relative paths are taken from
 */
export function readSecretsOf(
  tree: Tree,
  schema: OptionSchema,
  from: { readonly source: string | null; readonly path: Path; readonly base: string },
  notes: SecretNotes,
): void {
  const { source, path, base } = from;
  for (const [key, own] of Object.entries(schema.properties ?? {})) {
    const name = key + SUFFIX;
    if (own.secret === undefined || typeof tree[name] !== 'string') continue;
    const file = resolve(base, tree[name]);
    delete tree[name];
    if (Object.hasOwn(tree, key)) {
      const problem = `is given by ${name} as well`;
      notes.problems.push({
        source,
        path: pathText([...path, key]),
        problem,
        remedy: 'Take one of them away',
      });
      continue;
    }
    // Something stands in for a secret that cannot be read: that it is missing would be a second problem.
    tree[key] = readSecretFile({ source, file, path: [...path, name] }, notes) ?? 'unread:';
  }
  for (const [key, value] of Object.entries(tree)) {
    const inner = schema.properties?.[key] ?? entrySchema(schema);
    if (isTree(value) && inner !== undefined)
      readSecretsOf(value, inner, { ...from, path: [...path, key] }, notes);
  }
}
