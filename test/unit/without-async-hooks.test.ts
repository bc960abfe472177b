import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const PRELOAD = fileURLToPath(new URL('../support/without-async-hooks.ts', import.meta.url));

interface Run {
  readonly code: number | null;
  readonly output: string;
  readonly errors: string;
}

/** Runs a test file as `npm test` does. */
function run(program: string): Run {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const args = ['--import', PRELOAD, '--test-reporter=tap', '--input-type=module', '--eval', program];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { env, encoding: 'utf8' });
  return { code: status, output: stdout, errors: stderr };
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

  it('fails on an error in a timer, and prints its stack', () => {
    const { code, output, errors } = run(`
      import { test } from 'node:test';
      import { setTimeout as delay } from 'node:timers/promises';
      test('a test', async () => {
        setTimeout(function inTimer() { throw new Error('not caught'); }, 1);
        await delay(20);
      });`);
    assert.match(output, /Error: not caught/);
    assert.match(errors, /Error: not caught\n +at Timeout\.inTimer/);
    assert.equal(code, 1);
  });

  it('runs the hooks and tests of nested suites in their order', () => {
    const { code, output } = run(`
      import { after, before, describe, it } from 'node:test';
      const log = (text) => () => console.log('>' + text);
      describe('outer', () => {
        before(log('before outer'));
        after(log('after outer'));
        it('first', log('first'));
        describe('inner', () => {
          before(log('before inner'));
          it('second', log('second'));
          after(log('after inner'));
        });
        it('third', log('third'));
      });
      describe('next', () => it('fourth', log('fourth')));`);
    const lines = output.split('\n').filter((line) => line.startsWith('>'));
    assert.deepEqual(
      lines.map((line) => line.slice(1)),
      ['before outer', 'first', 'before inner', 'second', 'after inner', 'third', 'after outer', 'fourth'],
    );
    assert.match(output, /^ {8}ok 1 - second$/m);
    assert.equal(code, 0);
  });
});
