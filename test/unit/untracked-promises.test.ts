import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const PRELOAD = fileURLToPath(new URL('../support/untracked-promises.ts', import.meta.url));

/** Runs a test file as `npm test` does. */
function run(program: string): { readonly code: number | null; readonly output: string } {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const args = ['--import', PRELOAD, '--input-type=module', '--eval', program];
  const { status, stdout } = spawnSync(process.execPath, args, { env, encoding: 'utf8' });
  return { code: status, output: stdout };
}

describe('A process of npm test', () => {
  it('does not track promises, and fails on an unhandled rejection', () => {
    const { code, output } = run(`
      import { executionAsyncId } from 'node:async_hooks';
      import { test } from 'node:test';
      test('a test', async () => {
        await null;
        console.log('async id', executionAsyncId());
        Promise.reject(new Error('not caught'));
      });`);
    assert.match(output, /async id 0\n/);
    assert.match(output, /Error: not caught/);
    assert.equal(code, 1);
  });
});
