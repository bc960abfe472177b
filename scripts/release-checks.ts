import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The files that repeat the version of `package.json`, and where in them. */
const PLACES: readonly { readonly file: string; readonly pattern: RegExp }[] = [
  { file: 'package-lock.json', pattern: /^ {2}"version": "([^"]+)"/m },
  { file: 'clients/python/pyproject.toml', pattern: /^version = "([^"]+)"/m },
  { file: 'ops/helm/quayside/Chart.yaml', pattern: /^version: (\S+)/m },
  { file: 'ops/helm/quayside/Chart.yaml', pattern: /^appVersion: "?([^"\s]+)/m },
];

export function versionOf(root: string): string {
  return (JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }).version;
}

/** A message for each file whose version differs from that of `package.json`. */
export function versionProblems(root: string): string[] {
  const version = versionOf(root);
  return PLACES.flatMap(({ file, pattern }) => {
    const [, found = 'none'] = pattern.exec(readFileSync(join(root, file), 'utf8')) ?? [];
    return found === version ? [] : [`${file} has version ${found}, and package.json has ${version}`];
  });
}

/** Messages about a missing or malformed changelog section of a version. */
export function changelogProblems(changelog: string, version: string): string[] {
  const heading = new RegExp(`^## ${version.replaceAll('.', '\\.')} - \\d{4}-\\d\\d-\\d\\d$`);
  const section = sectionsOf(changelog).find(([first = '']) => heading.test(first));
  if (section === undefined) return [`CHANGELOG.md has no section "## ${version} - YYYY-MM-DD"`];
  return upgradingProblems(section);
}

/** A message for each version whose changelog section does not start with the upgrade notes. */
export function orderProblems(changelog: string): string[] {
  return sectionsOf(changelog).flatMap(upgradingProblems);
}

/**
 * A message if `test/upgrades` has no data written by this version, from which later versions are tested to upgrade.
 */
export function keptDataProblems(root: string, version: string): string[] {
  const folder = join('test', 'upgrades', version);
  return existsSync(join(root, folder)) ? [] : [`${folder} is missing: run node test/upgrades/make.ts`];
}

/** The lines of each version's section. */
function sectionsOf(changelog: string): string[][] {
  return changelog
    .split(/^(?=## )/m)
    .slice(1)
    .map((section) => section.split('\n'));
}

function upgradingProblems([heading = '', ...lines]: readonly string[]): string[] {
  const first = lines.find((line) => line !== '');
  return first === '### Upgrading'
    ? []
    : [`"${heading}" of CHANGELOG.md does not begin with "### Upgrading"`];
}
