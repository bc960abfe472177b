import { execFile } from 'node:child_process';
import { copyFile, readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);

const FOLDER = fileURLToPath(new URL('.', import.meta.url));
const LOCK = `${FOLDER}package-lock.json`;
/** The lock file by which the tools were installed. */
const INSTALLED = `${FOLDER}node_modules/.installed-by.json`;

/**
 * Installs the tools of `test/openapi/package.json`, as its lock file says, unless they are there. The server needs
 * none of them, so `npm ci` of the project does not bring them.
 */
export async function installTools(): Promise<void> {
  const lock = await readFile(LOCK, 'utf8');
  const installed = await readFile(INSTALLED, 'utf8').catch(() => null);
  if (installed === lock) return;
  await run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: FOLDER });
  await copyFile(LOCK, INSTALLED);
}

/** Runs one of the tools. Resolves with its exit code and what it printed. */
export async function tool(name: string, args: readonly string[]): Promise<{ code: number; output: string }> {
  try {
    const { stdout } = await run(`${FOLDER}node_modules/.bin/${name}`, [...args], {
      cwd: FOLDER,
      env: { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true', CI: 'true' },
    });
    return { code: 0, output: stdout };
  } catch (error) {
    const { code, stdout = '', stderr = '' } = error as { code?: number; stdout?: string; stderr?: string };
    return { code: code ?? 1, output: stdout + stderr };
  }
}
