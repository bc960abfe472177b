import { execFile, spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { HttpLoad, LoadCount } from './http-load.ts';

const SCRIPT = fileURLToPath(new URL('./request.lua', import.meta.url));

let version: string | null | undefined;

/** Version, such as `wrk 4.1.0`; null if it is not installed. */
export function wrkVersion(): string | null {
  if (version === undefined) {
    // It prints its version with the usage text and exits with code 1.
    const { stdout, error } = spawnSync('wrk', ['-v'], { encoding: 'utf8' });
    version = error === undefined ? (stdout.split('[')[0]?.trim() ?? 'wrk') : null;
  }
  return version;
}

interface WrkReport {
  readonly requests: number;
  readonly microseconds: number;
  readonly connect: number;
  readonly read: number;
  readonly write: number;
  readonly status: number;
  readonly timeout: number;
}

/** Uses one thread, because on a small machine a second one would only take a core from the server. */
export async function runWrk(load: HttpLoad): Promise<LoadCount> {
  const args = ['-t1', `-c${load.connections}`, `-d${load.seconds}s`, '--timeout', '10s', '-s', SCRIPT];
  const headers = Object.entries(load.headers).flat();
  const { stdout } = await promisify(execFile)('wrk', [
    ...args,
    load.url + load.path,
    '--',
    String(load.atMost ?? 0),
    load.method,
    load.body,
    ...headers,
  ]);
  const report = JSON.parse(stdout.slice(stdout.lastIndexOf('{'))) as WrkReport;
  const { requests, microseconds, connect, read, write, status, timeout } = report;
  return { requests, failed: connect + read + write + status + timeout, seconds: microseconds / 1e6 };
}
