import assert from 'node:assert/strict';
import { once } from 'node:events';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { spawnOwned } from './owned-process.ts';

/** Debian's modules are installed for Debian's Python; another one may come first in PATH. */
const PYTHON = '/usr/bin/python3';

/** The folder of the Python SDK. */
export const PYTHON_SDK = fileURLToPath(new URL('../../clients/python/', import.meta.url));

/**
 * Runs Debian's Python in the folder of the SDK, so that it can import the SDK. @throws Error with the output if it
 * failed
 */
export function runPython(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<string> {
  return run(PYTHON, args, { PYTHONPATH: path.join(PYTHON_SDK, 'src'), ...env });
}

/** Resolves with what the program printed. @throws Error with its output if it failed */
export async function run(
  program: string,
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
  cwd = PYTHON_SDK,
): Promise<string> {
  const child = spawnOwned(program, args, {
    cwd,
    env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', PYTHONWARNINGS: 'error::ResourceWarning', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [printed, errors, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ]);
  assert.equal(code, 0, `${printed}${errors}`);
  return printed;
}
