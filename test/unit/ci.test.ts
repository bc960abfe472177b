import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** The steps that run at the same time at the end. */
const LAST = ['test', 'run test:ci', 'run test:python'];

/** Runs a copy of `.ci/run` whose steps only print that they have run. The named ones fail. */
function runCi(...failing: readonly string[]): { status: number | null; stdout: string } {
  const folder = mkdtempSync(join(tmpdir(), 'quayside-ci-'));
  const program = (path: string, lines: readonly string[]): void => {
    writeFileSync(join(folder, path), ['#!/bin/sh', ...lines].join('\n'));
    chmodSync(join(folder, path), 0o755);
  };
  try {
    for (const name of ['.ci', 'bin', 'scripts']) mkdirSync(join(folder, name));
    copyFileSync(join(ROOT, '.ci/run'), join(folder, '.ci/run'));
    // Opening a pipe waits for its other side: the checks end after the packages have printed.
    execFileSync('mkfifo', [join(folder, 'pipe')]);
    program('scripts/debian-packages.sh', ['echo "ran packages"', ': > pipe']);
    const fails = failing.map((step) => `"${step}"`).join('|') || '""';
    program('bin/npm', [
      '[ "$*" != "run check" ] || cat pipe',
      'echo "ran $*"',
      `case "$*" in ${fails}) exit 3;; esac`,
    ]);
    const env = { ...process.env, PATH: [join(folder, 'bin'), process.env.PATH].join(delimiter) };
    return spawnSync(join(folder, '.ci/run'), { env, encoding: 'utf8' });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

describe('.ci/run', () => {
  it('runs each step, and prints the output of each once', () => {
    const { status, stdout } = runCi();
    assert.equal(status, 0);
    for (const step of ['packages', 'ci', 'run test:tools', 'run check', 'run audit', ...LAST])
      assert.equal(stdout.split(`ran ${step}\n`).length, 2, `${step}\n${stdout}`);
  });

  it('fails if one of its last steps fails, and prints the output of all of them', () => {
    for (const failing of LAST) {
      const { status, stdout } = runCi(failing);
      assert.equal(status, 3, failing);
      for (const step of LAST) assert.ok(stdout.includes(`ran ${step}\n`), `${step}\n${stdout}`);
      if (failing !== 'test') assert.ok(stdout.includes(`== npm ${failing} (failed)\n`), stdout);
    }
  });

  it('fails if a step before them fails, and prints the output of the step that ran together with it', () => {
    const { status, stdout } = runCi('run check');
    assert.equal(status, 3);
    assert.ok(stdout.includes('ran packages\n'), stdout);
    assert.ok(!stdout.includes('ran test\n'), stdout);
  });

  it('installs all packages of Debian that tests install', () => {
    const installed = new Set(
      /debian-packages\.sh ((?:.*\\\n)*.*)/.exec(read('.ci/run'))?.[1]?.match(/[^\s\\]+/g),
    );
    const needed = globSync('test/**/*.ts', { cwd: ROOT, exclude: ['**/node_modules/**'] })
      .flatMap((path) => [
        ...read(path).matchAll(/(?:needDebian\(|debianPackages: \[|debian-packages\.sh'\), \[)([^)\]]*)/g),
      ])
      .flatMap(([, names = '']) => [...names.matchAll(/'([^']+)'/g)].map(([, name = '']) => name));
    assert.ok(needed.length > 20, `${needed}`);
    assert.deepEqual(
      needed.filter((name) => !installed.has(name)),
      [],
    );
  });
});

function read(path: string): string {
  return readFileSync(join(ROOT, path), 'utf8');
}
