/**
 * `npm run release` checks that this tree can be released and builds the release files into `release/`. `npm run
 * release -- --check` runs only the quick checks. Nothing is published: docs/internals/release.md lists the steps
 * before and after.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { hash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { changelogProblems, keptDataProblems, versionOf, versionProblems } from './release-checks.ts';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const OUT = join(ROOT, 'release');

/** A step of the release. If it throws, the release stops. */
interface Step {
  readonly name: string;
  run(): void;
}

const version = versionOf(ROOT);

const CHECKS: readonly Step[] = [
  { name: 'all files name one version', run: () => fail(versionProblems(ROOT)) },
  {
    name: 'the changelog has a section for this version, upgrade notes first',
    run: () => fail(changelogProblems(readFileSync(join(ROOT, 'CHANGELOG.md'), 'utf8'), version)),
  },
  { name: 'test/upgrades has data of this version', run: () => fail(keptDataProblems(ROOT, version)) },
  {
    name: 'everything is committed, and the tag does not exist',
    run() {
      const changed = git('status', '--porcelain').trim();
      const hasTag = git('tag', '--list', `v${version}`).trim() !== '';
      fail([
        ...(changed === '' ? [] : [`not committed:\n${changed}`]),
        ...(hasTag ? [`the tag v${version} already exists`] : []),
      ]);
    },
  },
];

const BUILD: readonly Step[] = [
  { name: 'npm ci', run: () => command('npm', 'ci') },
  { name: 'npm run check', run: () => command('npm', 'run', 'check') },
  { name: 'npm test', run: () => command('npm', 'test') },
  { name: 'npm run audit', run: () => command('npm', 'run', 'audit') },
  {
    name: 'the package',
    run() {
      rmSync(OUT, { recursive: true, force: true });
      mkdirSync(OUT);
      command('npm', 'pack', '--pack-destination', OUT);
    },
  },
  { name: 'the Debian package', run: () => command('npm', 'run', 'deb', '--', OUT) },
  {
    name: 'the bill of materials',
    run: () => command('npm', 'run', 'sbom', '--', join(OUT, `quayside-${version}.cdx.json`)),
  },
  {
    name: 'checksums',
    run() {
      const lines = readdirSync(OUT).map(
        (file) => `${hash('sha256', readFileSync(join(OUT, file)))}  ${file}\n`,
      );
      writeFileSync(join(OUT, 'SHA256SUMS'), lines.join(''));
    },
  },
];

const steps = process.argv.includes('--check') ? CHECKS : [...CHECKS, ...BUILD];
for (const [i, { name, run }] of steps.entries()) {
  console.log(`${i + 1}. ${name}`);
  try {
    run();
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    console.error(`Step ${i + 1} failed; nothing was published.`);
    process.exit(1);
  }
}
console.log(`Quayside ${version}: all ${steps.length} steps succeeded.`);

function fail(problems: readonly string[]): void {
  if (problems.length > 0) throw new Error(problems.join('\n'));
}

function git(...args: readonly string[]): string {
  return execFileSync('git', args, { cwd: ROOT, encoding: 'utf8' });
}

function command(program: string, ...args: readonly string[]): void {
  const { status } = spawnSync(program, args, { cwd: ROOT, stdio: 'inherit' });
  if (status !== 0) throw new Error(`${program} ${args.join(' ')} exited with ${status}`);
}
