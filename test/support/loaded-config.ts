import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { ConfigError, type ConfigProblem } from '../../src/config/errors.ts';
import { type LoadedConfig, loadConfig } from '../../src/config/load.ts';
import type { Config } from '../../src/config/options.ts';

/** The folder of the files that this test file writes; removed after its last test. */
export let folder: string;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'quayside-config-'));
});

after(() => rm(folder, { recursive: true }));

/** Loads the configuration from a file with this content; null: without a file. */
export async function load(text: string | Buffer | null, env: NodeJS.ProcessEnv = {}): Promise<LoadedConfig> {
  if (text === null) return loadConfig({ file: null, env, cwd: folder });
  await writeFile(join(folder, 'quayside.yaml'), text);
  return loadConfig({ file: 'quayside.yaml', env, cwd: folder });
}

export async function configOf(text: string | null, env: NodeJS.ProcessEnv = {}): Promise<Config> {
  return (await load(text, env)).config;
}

export async function problemsOf(
  text: string | Buffer | null,
  env: NodeJS.ProcessEnv = {},
): Promise<readonly ConfigProblem[]> {
  try {
    await load(text, env);
  } catch (error) {
    assert.ok(error instanceof ConfigError, String(error));
    return error.problems;
  }
  throw new Error('The configuration was accepted.');
}
