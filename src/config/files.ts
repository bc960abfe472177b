import { readFileSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import type { Document, YAMLError } from 'yaml';
import { ConfigError, type ConfigProblem, type Path, pathText } from './problem.ts';
import { entrySchema, isTree, type OptionSchema, type Tree } from './schema.ts';

const MAX_ALIASES = 100;
const QUOTE = 'Mend it there; values with special characters go between single quotes';

/**
 * Reads a YAML file; JSON is YAML.
 * @throws ConfigError if it cannot be read, is no YAML, or is no map of options
 */
export async function readConfigFile(file: string): Promise<Tree> {
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
  if (!isTree(content))
    throw wrongFile(file, 'holds no options', 'Write a map, such as "http: { port: 3444 }"');
  return content;
}

/**
 * The value of a text that is character for character what `JSON.stringify` writes, and so has no key twice; null for any other.
 * The YAML parser, of 72 modules, is a sixth of the modules that a start loads.
 */
function generatedJson(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return [JSON.stringify(value), JSON.stringify(value, null, 2)].includes(text.trimEnd()) ? value : null;
  } catch {
    return null;
  }
}

async function parseYaml(file: string, text: string): Promise<unknown> {
  const { parseDocument } = await import('yaml');
  const document = parseDocument(text);
  const error = document.errors[0] ?? document.warnings[0];
  if (error !== undefined) throw wrongFile(file, `is not YAML: ${describe(error)}`, QUOTE);
  return toValue(file, document);
}

/** What is wrong and where. The rest of the parser's message may quote the file, secrets included. */
function describe({ message, linePos }: YAMLError): string {
  const [what = ''] = message.split(/: | at line |\n/);
  const [at] = linePos ?? [];
  return at === undefined ? what : `${what}, at line ${at.line}, column ${at.col}`;
}

function toValue(file: string, document: Document.Parsed): unknown {
  try {
    return document.toJS({ maxAliasCount: MAX_ALIASES });
  } catch {
    throw wrongFile(file, 'has an alias (*name) that stands for nothing, or too many of them', QUOTE);
  }
}

function wrongFile(file: string, problem: string, hint: string): ConfigError {
  return new ConfigError([{ source: file, path: '', problem, hint }]);
}

/** Ends the name of a key that names the file with a secret: `passwordFile` for `password`. */
const SUFFIX = 'File';

/** What was found while a configuration was read. */
export interface ConfigNotes {
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
export function readSecretFile({ source, file, path }: SecretFile, notes: ConfigNotes): string | null {
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
 * Puts the secrets of files into the places of the keys that name them: `password` for `passwordFile`.
 * @param from where the tree came from, where it stands, and what relative paths are taken from
 */
export function readSecretsOf(
  tree: Tree,
  schema: OptionSchema,
  from: { readonly source: string | null; readonly path: Path; readonly base: string },
  notes: ConfigNotes,
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
        hint: 'Take one of them away',
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
