import assert from 'node:assert/strict';
import { existsSync, globSync, readdirSync, readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { filesOf } from '../support/together.ts';

const ROOT = new URL('../../', import.meta.url);
const TEXT = readFileSync(new URL('CONTRIBUTING.md', ROOT), 'utf8');

/** Paths of the source and of what stands with it; those with `<…>` or `…` are patterns. */
const PATH = /`((?:src|test|bench|scripts|docs)\/[\w./-]+)`/g;
/** `name` in `path`: a declaration in that file. */
const PLACE = /`([^`\n]+)` in `((?:src|test|scripts)\/[\w./-]+)`/g;
/** Files of the journeys are named from `src` on, at the start of a line. */
const JOURNEY_FILE = /^ +((?:http|broker|engine)\/[\w-]+\.ts) /gm;
/** A function of a journey, such as `Queue.insert`. */
const METHOD = /`([A-Z]\w+)\.(#?[a-z]\w*)`/g;
/** A class or type, such as `BufferedStats`. */
const TYPE = /`((?:[A-Z][a-z]+)+)`/g;
const NPM_COMMANDS = ['ci', 'pack', 'run'];
/** Scripts that npm runs itself. */
const LIFECYCLE = ['prepack', 'prepare'];

/**
 * Whether a source in TypeScript or Lua declares a function, type, value or method of this name: a mention is not
 * enough.
 */
function declares(source: string, name: string): boolean {
  const statement = `(?:function\\*?|class|interface|type|enum|const|let|local) +${name}\\b`;
  const member = ` +(?:(?:static|async|get|set|readonly|abstract) +)*${name}(?:<[^\\n]*>)?(?:[?:=]|\\()(?![^\\n]*;$)`;
  return new RegExp(`^(?:(?:export|declare|abstract|async|default) +)*${statement}|^${member}`, 'm').test(
    source,
  );
}

/** The names of the members that the class or interface of this name declares; none if it is not in this source. */
function membersOf(source: string, type: string): string[] {
  const body = new RegExp(`^(?:export |abstract )*(?:class|interface) ${type}\\b[^]*?\n}`, 'm').exec(
    source,
  )?.[0];
  const member =
    /^ {2}(?:(?:static|async|get|set|readonly|abstract|protected|private) )*(#?\w+)(?=[(<:?]| =)/gm;
  return [...(body ?? '').matchAll(member)].map(([, name = '']) => name);
}

describe('CONTRIBUTING', () => {
  it('names paths that exist', () => {
    const paths = [...TEXT.matchAll(PATH)].map(([, path = '']) => path);
    const ofJourneys = [...TEXT.matchAll(JOURNEY_FILE)].map(([, path]) => `src/${path}`);
    assert.ok(paths.length > 20);
    assert.ok(ofJourneys.length > 4);
    assert.deepEqual(
      [...paths, ...ofJourneys].filter((path) => !existsSync(fileURLToPath(new URL(path, ROOT)))),
      [],
    );
  });

  it('names commands that run each test file, `npm test` each once', () => {
    const { scripts } = JSON.parse(readFileSync(new URL('package.json', ROOT), 'utf8'));
    // `test:ci` installs packages into folders of `test/ci`.
    const exclude = ['**/node_modules/**'];
    const all = globSync('test/**/*.test.ts', { cwd: fileURLToPath(ROOT), exclude });
    const filesRunBy = (command: string): string[] => {
      const patterns = [...scripts[command].matchAll(/"?(test\/[^" ]+\.test\.ts)/g)].map(
        ([, pattern]) => pattern,
      );
      return patterns.flatMap((pattern) => globSync(pattern, { cwd: fileURLToPath(ROOT) })).flatMap(filesOf);
    };
    const run = filesRunBy('test');
    assert.deepEqual(run.toSorted(), [...new Set(run)].sort());
    const others = ['test:ci', 'test:install', 'test:python', 'test:shovel'].flatMap(filesRunBy);
    const commanded = new Set([...run, ...others]);
    assert.deepEqual(
      all.filter((path) => !path.startsWith('test/all/') && !commanded.has(path)),
      [],
    );
  });

  it('names what the files that it points to declare', () => {
    const places = [...TEXT.matchAll(PLACE)];
    assert.ok(places.length >= 10);
    assert.deepEqual(
      places
        .filter(([, name = '', path = '']) => {
          const url = new URL(path, ROOT);
          return path.endsWith('.ts') || path.endsWith('.lua')
            ? !declares(readFileSync(url, 'utf8'), name)
            : !existsSync(url);
        })
        .map(([whole]) => whole),
      [],
    );
  });

  it('names each script of package.json, and no other', () => {
    const { scripts } = JSON.parse(readFileSync(new URL('package.json', ROOT), 'utf8'));
    const named = [...TEXT.matchAll(/npm (?:run )?([a-z][\w:-]*)/g), ...TEXT.matchAll(/`(test:[\w:]+)`/g)];
    const own = new Set(named.map(([, name = '']) => name).filter((name) => !NPM_COMMANDS.includes(name)));
    assert.deepEqual(
      [...own].sort(),
      Object.keys(scripts)
        .filter((name) => !LIFECYCLE.includes(name))
        .sort(),
    );
  });

  it('shows every folder of src and test in its tree, and no folder that does not exist', () => {
    const [, tree = ''] = TEXT.split('## The tree');
    const lines = (tree.split('```')[1] ?? '').split('\n');
    const foldersOf = (path: string): string[] =>
      readdirSync(new URL(path, ROOT), { withFileTypes: true })
        .filter((entry) => entry.isDirectory())
        .map(({ name }) => name);
    /** The names in a part of the tree at that indentation. */
    const named = (part: readonly string[], indent: string): string[] =>
      part
        .map((line) => new RegExp(`^${indent}((?:[\\w./]+/ ?)+) {2}`).exec(line)?.[1] ?? '')
        .flatMap((names) => names.split(' '))
        .map((name) => name.split('/')[0] ?? '')
        .filter((name) => name !== '');
    const src = lines.indexOf('src/');
    const test = lines.indexOf('test/');
    const after = lines.findIndex((line, at) => at > test && /^\w/.test(line));
    const folders = foldersOf('.');
    assert.deepEqual(
      named(lines, '').filter((name) => !folders.includes(name)),
      [],
    );
    assert.deepEqual(named(lines.slice(src, test), '  ').sort(), foldersOf('src').sort());
    assert.deepEqual(named(lines.slice(test, after), '  ').sort(), foldersOf('test').sort());
  });

  it('names types and methods that exist', () => {
    const source = readdirSync(new URL('src', ROOT), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts'))
      .map((name) => readFileSync(new URL(`src/${name}`, ROOT), 'utf8'));
    const types = [...TEXT.matchAll(TYPE)].map(([, type = '']) => type);
    assert.ok(types.length > 10);
    assert.deepEqual(
      types.filter(
        (type) => !source.some((text) => new RegExp(`(?:class|interface|type) ${type}\\b`).test(text)),
      ),
      [],
    );
    const unknown = [...TEXT.matchAll(METHOD)].filter(
      ([, type = '', method = '']) =>
        type !== 'Date' && !source.some((text) => membersOf(text, type).includes(method)),
    );
    assert.deepEqual(
      unknown.map(([whole]) => whole),
      [],
    );
  });
});
