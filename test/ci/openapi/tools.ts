import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { installTools } from '../../../scripts/install-tools.ts';

const run = promisify(execFile);

const FOLDER = fileURLToPath(new URL('.', import.meta.url));

export function installOpenApiTools(): Promise<void> {
  return installTools(FOLDER);
}

/** Runs one of the tools. Resolves with its exit code and output. */
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
