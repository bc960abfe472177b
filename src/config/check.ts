import { Errors } from 'typebox/value';
import { didYouMean } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';
import { type Config, Options } from './options.ts';
import { type ConfigProblem, type Path, pathText } from './problem.ts';
import { entrySchema, isTree, type OptionSchema, schemaAt, type Tree, typeText } from './schema.ts';

/** Where the value at a path came from: the file or an environment variable. */
export type SourceOf = (path: Path) => string | null;

/** Compares a whole tree, defaults filled in, with the declared options. Answers everything that is wrong. */
export function checkTree(tree: Tree, sourceOf: SourceOf): ConfigProblem[] {
  const problems = new Map<string, ConfigProblem>();
  const note = (path: Path, problem: string, remedy: string): void => {
    const text = pathText(path);
    if (!problems.has(text)) problems.set(text, { source: sourceOf(path), path: text, problem, remedy });
  };
  for (const error of Errors(Options, tree)) {
    const path = pathOf(error.instancePath);
    if (error.keyword === 'boolean') {
      // The schema of a key that is not declared is `false`; `additionalProperties` says the same again.
      noteUnknown(path.slice(0, -1), path.at(-1) ?? '', note);
    } else if (error.keyword === 'required') {
      for (const key of error.params.requiredProperties) noteMissing([...path, key], note);
    } else if (error.keyword !== 'additionalProperties') {
      noteWrong(path, tree, note, error.keyword);
    }
  }
  return [...problems.values()];
}

/** A tree in which {@link checkTree} found nothing is a configuration. */
export function asConfig(tree: Tree): Config {
  return tree as Config;
}

type Note = (path: Path, problem: string, remedy: string) => void;

function noteUnknown(path: Path, key: string, note: Note): void {
  const known = Object.keys(schemaAt(path)?.properties ?? {});
  const hint = didYouMean(key, known).trim() || `Known here are ${known.join(', ')}`;
  note([...path, key], 'there is no such option', hint);
}

function noteMissing(path: Path, note: Note): void {
  const schema = schemaAt(path);
  note(path, 'is missing', remedyFor(schema));
}

function noteWrong(path: Path, tree: Tree, note: Note, keyword: string): void {
  const schema = schemaAt(path) ?? {};
  const value = valueAt(tree, path);
  const right = typeText(schema);
  const shown = shownValue(schema, value);
  // The remedy says which form: a pattern would tell nobody.
  const isText = keyword === 'pattern' && typeof value === 'string' && value !== '';
  const problem = isText ? 'does not have the right form' : `must be ${right}`;
  note(path, `${problem}${shown}`, remedyFor(schema));
}

/** What a message says of a wrong value; nothing if it is a secret. */
function shownValue(schema: OptionSchema, value: unknown): string {
  if (schema.secret !== undefined || schema.type === 'object' || entrySchema(schema) !== undefined) return '';
  if (typeof value === 'object' && value !== null) return '';
  return value === '' ? ', and not empty' : `, not ${quote(value)}`;
}

function remedyFor(schema: OptionSchema | undefined): string {
  if (schema?.remedy !== undefined) return schema.remedy;
  const { default: usual, description } = schema ?? {};
  if (schema?.type === 'object') return 'Write its options below it';
  if (usual === undefined) return description === undefined ? 'Give it' : `Give it: ${description}`;
  return `Correct it, or leave it out for the default, ${JSON.stringify(usual)}`;
}

function pathOf(pointer: string): Path {
  return pointer
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}

function valueAt(tree: Tree, path: Path): unknown {
  let at: unknown = tree;
  for (const key of path) at = isTree(at) || Array.isArray(at) ? (at as Tree)[key] : undefined;
  return at;
}
