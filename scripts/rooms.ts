/**
 * `node scripts/rooms.ts [--words] [--cuts]`: prints for each folder of `src` the number of lines, files and exports of
 * its TypeScript (`.ts`, `.tsx`) and Lua, the share of exports that only one other file imports, the number of import
 * cycles, and how often the retired `WORDS` occur, which `docs/glossary.md` replaces. `--words` prints where each word
 * occurs; `--cuts` prints which exports of a file are imported by only one other file.
 *
 * An export with one user may mean that one subject is split between two files, which may belong together.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/**
 * Retired words, searched as whole words and as parts of identifiers, in any case. Two uses are allowed: `letter` in
 * "dead letter" and `flight` in "in flight".
 */
const WORDS =
  'lane flight parcel courier cargo carrier errand tally lapse farewell greeting bye ear hear hears told whoever anew meanwhile beside putOff giveBack putBack handout wayOut breach deafen asker stray readings toldOnce letter'.split(
    ' ',
  );
const WORDS_IN = ['src', 'test', 'bench', 'scripts', 'docs', 'README.md', 'CONTRIBUTING.md', 'CHANGELOG.md'];

interface Source {
  readonly path: string;
  readonly text: string;
  readonly lines: number;
  readonly exports: readonly string[];
  /** The relative imports of the file, with the imported names. */
  readonly imports: readonly {
    readonly path: string;
    readonly names: readonly string[];
    readonly isType: boolean;
  }[];
}

const { values } = parseArgs({
  options: { words: { type: 'boolean', default: false }, cuts: { type: 'boolean', default: false } },
});
const sources = tracked('src')
  .filter((path) => /\.(tsx?|lua)$/.test(path))
  .map(read);
const rooms = Map.groupBy(sources, ({ path }) => roomOf(path));
const users = countUsers();
const cycles = findCycles();
const words = findWords();

console.log(`${'room'.padEnd(22)} lines files exports one-user cycles words`);
for (const [room, files] of [...rooms].sort(([a], [b]) => a.localeCompare(b))) print(room, files);
print('src', sources);
for (const cycle of cycles) console.log(`cycle: ${cycle.join(' -> ')}`);
const elsewhere = words.filter(({ path }) => !path.startsWith('src/'));
console.log(`words outside src: ${elsewhere.length}`);
if (values.cuts) printCuts();
if (values.words) for (const { path, line, word } of words) console.log(`${path}:${line}: ${word}`);

function print(room: string, files: readonly Source[]): void {
  const paths = new Set(files.map(({ path }) => path));
  const exported = files.flatMap(({ path, exports }) =>
    exports.map((name) => users.get(`${path} ${name}`) ?? 0),
  );
  const single = exported.filter((count) => count === 1).length;
  const share = exported.length === 0 ? 0 : Math.round((100 * single) / exported.length);
  const columns = [
    files.reduce((sum, { lines }) => sum + lines, 0),
    files.length,
    exported.length,
    `${share} %`,
    cycles.filter((cycle) => cycle.some((path) => paths.has(path))).length,
    words.filter(({ path }) => paths.has(path)).length,
  ];
  console.log(
    room.padEnd(22) +
      columns.map((column, at) => String(column).padStart([6, 6, 8, 9, 7, 6][at] ?? 6)).join(''),
  );
}

function tracked(...paths: string[]): string[] {
  return execFileSync('git', ['ls-files', ...paths], { cwd: ROOT, encoding: 'utf8' })
    .split('\n')
    .filter(Boolean);
}

function roomOf(path: string): string {
  const [, first = '', second = ''] = path.split('/');
  return first === 'engines' ? `${first}/${second}` : first;
}

function read(path: string): Source {
  const text = readFileSync(join(ROOT, path), 'utf8');
  const declared = text.matchAll(
    /^export (?:async |abstract |declare )*(?:function\*?|class|const|let|interface|type) ([\w$]+)/gm,
  );
  const found = text.matchAll(/^(?:import|export)\s+(type\s+)?([^'";]*?)\s*from\s+'(\.[^']+)'/gms);
  const imports = [...found].map(([, type, clause = '', target = '']) => {
    const names = clause
      .replace(/[{}]/g, ' ')
      .split(',')
      .map((name) => name.trim())
      .filter(Boolean);
    return {
      path: join(dirname(path), target),
      names: names.map((name) => name.replace(/^type /, '').replace(/ as .*/, '')),
      isType: type !== undefined || names.every((name) => name.startsWith('type ')),
    };
  });
  const dynamic = [...text.matchAll(/import\('(\.[^']+)'\)/g)].map(([, target = '']) => ({
    path: join(dirname(path), target),
    names: ['open'],
    isType: true,
  }));
  return {
    path,
    text,
    lines: text.split('\n').length - 1,
    exports: [...declared].map(([, name = '']) => name),
    imports: [...imports, ...dynamic],
  };
}

/** The number of other files of `src` that import an export, by `path name`. */
function countUsers(): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { imports } of sources) {
    for (const { path, names } of imports) {
      for (const name of names) counts.set(`${path} ${name}`, (counts.get(`${path} ${name}`) ?? 0) + 1);
    }
  }
  return counts;
}

function printCuts(): void {
  const cuts = new Map<string, string[]>();
  for (const { path: user, imports } of sources) {
    for (const { path, names } of imports) {
      const alone = names.filter((name) => users.get(`${path} ${name}`) === 1);
      const cut = `${path} -> ${user}`;
      if (alone.length > 0) cuts.set(cut, [...(cuts.get(cut) ?? []), ...alone]);
    }
  }
  for (const [cut, names] of [...cuts].sort(([a], [b]) => a.localeCompare(b))) {
    console.log(`cut: ${cut}: ${names.join(', ')}`);
  }
}

/** Import cycles that exist at run time, found by depth-first search. */
function findCycles(): string[][] {
  const needs = new Map(
    sources.map(({ path, imports }) => [
      path,
      imports.filter(({ isType }) => !isType).map((one) => one.path),
    ]),
  );
  const done = new Set<string>();
  const found: string[][] = [];
  const visit = (path: string, trail: readonly string[]): void => {
    const at = trail.indexOf(path);
    if (at >= 0) found.push([...trail.slice(at), path]);
    if (at >= 0 || done.has(path)) return;
    for (const next of needs.get(path) ?? []) visit(next, [...trail, path]);
    done.add(path);
  };
  for (const path of needs.keys()) visit(path, []);
  return found;
}

function findWords(): { path: string; line: number; word: string }[] {
  // A part of an identifier starts with a capital or after a non-letter, and ends before the next part.
  const parts = WORDS.map((word) => {
    const [first = '', ...rest] = word;
    return `(?:(?<![A-Za-z])${first}|${first.toUpperCase()})${rest.join('')}(?:s|es)?(?![a-z])`;
  });
  const pattern = new RegExp(parts.join('|'), 'g');
  const thisFile = 'scripts/rooms.ts';
  return tracked(...WORDS_IN)
    .filter((path) => path !== thisFile && /\.(tsx?|lua|md|sh)$/.test(path))
    .flatMap((path) =>
      readFileSync(join(ROOT, path), 'utf8')
        .split('\n')
        .flatMap((text, at) =>
          [...text.replace(/dead[- _]?letter|in[- ]?flight/gi, '').matchAll(pattern)].map(([word]) => ({
            path,
            line: at + 1,
            word,
          })),
        ),
    );
}
