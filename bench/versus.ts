/**
 * `npm run bench:versus -- REVISION [scenario…] [--rounds N] [--least RATIO] [--lines] [--sync-us N]`: runs scenarios
 * of this tree and of an earlier commit in turn, A B A B …, and prints how the ratio of each figure changed. 1 is
 * unchanged, 2 is twice as good. Exit code 1 if a change is below `--least` (0.95), or a figure is missing because its
 * scenario failed.
 *
 * `--lines` prints every line as well, with the absolute figures: a ratio also falls if its reference became faster.
 *
 * `--sync-us` makes each sync of a file take this many microseconds longer, in both trees and their references.
 *
 * Each tree measures itself and its own reference, so a change of the machine's speed cancels out twice.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { compileLibrary } from '../test/support/compile-library.ts';
import { median } from './scenario.ts';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** Parses the lines of `lineOf` in `scenario.ts`. */
const LINE = /^(?<what>[^:]+: .*?): .*, ratio (?<ratio>[\d.]+), target (?<sign>[<>])= /;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: 'string', default: '3' },
    least: { type: 'string', default: '0.95' },
    lines: { type: 'boolean' },
    'sync-us': { type: 'string' },
  },
});
const [revision, ...scenarios] = positionals;
if (revision === undefined)
  throw new Error('Name the revision to compare with: npm run bench:versus -- HEAD~1 insert');

interface Figure {
  readonly isHigherBetter: boolean;
  readonly ratios: number[];
}

type Figures = Map<string, Figure>;

const folder = mkdtempSync(join(tmpdir(), 'quayside-versus-'));
const before = join(folder, 'main');
const syncUs = values['sync-us'];
const slowDisk: Readonly<Record<string, string>> =
  syncUs === undefined
    ? {}
    : {
        LD_PRELOAD: compileLibrary(new URL('./slow-sync.c', import.meta.url), folder),
        SLOW_SYNC_US: syncUs,
      };
try {
  git('worktree', 'add', '--detach', before, revision);
  execFileSync('npm', ['ci', '--no-audit', '--no-fund'], {
    cwd: before,
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const [then, now]: [Figures, Figures] = [new Map(), new Map()];
  for (let round = 1; round <= Number(values.rounds); round++) {
    console.log(`round ${round} of ${values.rounds}`);
    await measure(before, then);
    await measure(ROOT, now);
  }
  process.exitCode = print(then, now) ? 0 : 1;
} finally {
  git('worktree', 'remove', '--force', before);
  rmSync(folder, { recursive: true, force: true });
}

function git(...args: string[]): void {
  execFileSync('git', args, { cwd: ROOT, stdio: ['ignore', 'ignore', 'inherit'] });
}

/** Runs the scenarios of one tree and collects the ratio of each figure. */
async function measure(tree: string, figures: Figures): Promise<void> {
  const program = spawn('node', ['bench/run.ts', ...scenarios], {
    cwd: tree,
    env: { ...process.env, ...slowDisk, PATH: `${join(tree, 'node_modules/.bin')}:${process.env.PATH}` },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [output] = await Promise.all([text(program.stdout), once(program, 'close')]);
  for (const line of output.split('\n')) {
    const { what, ratio, sign } = LINE.exec(line)?.groups ?? {};
    if (what === undefined) continue;
    if (values.lines) console.log(`${tree === ROOT ? 'now' : 'before'}: ${line}`);
    const figure = figures.get(what) ?? { isHigherBetter: sign === '>', ratios: [] };
    figure.ratios.push(Number(ratio));
    figures.set(what, figure);
  }
}

/** Prints the changes. Returns whether every figure is at least `--least` times as good as before. */
function print(then: Figures, now: Figures): boolean {
  let isFine = now.size > 0;
  for (const [what, { isHigherBetter, ratios }] of now) {
    const earlier = then.get(what)?.ratios;
    if (earlier === undefined) {
      console.log(`${what}: ${spread(ratios)}; no figure of ${revision}`);
      continue;
    }
    const [mine, theirs] = [median(ratios), median(earlier)];
    // A ratio of 0 is the best possible figure, such as no growth at all.
    const change = mine === theirs ? 1 : isHigherBetter ? mine / theirs : theirs / mine;
    if (change < Number(values.least)) isFine = false;
    console.log(`${what}: ${spread(ratios)}; before ${spread(earlier)}; change ${change.toFixed(2)}`);
  }
  for (const what of then.keys()) {
    if (now.has(what)) continue;
    console.log(`${what}: no figure of this tree`);
    isFine = false;
  }
  return isFine;
}

function spread(ratios: readonly number[]): string {
  return `${median(ratios).toFixed(2)} (${ratios.map((ratio) => ratio.toFixed(2)).join(', ')})`;
}
