import { execFile } from 'node:child_process';
import { createRequire } from 'node:module';
import { promisify } from 'node:util';
import type { HttpLoad, LoadCount } from './http-load.ts';

interface AutocannonReport {
  readonly requests: { readonly total: number };
  readonly errors: number;
  readonly timeouts: number;
  readonly non2xx: number;
  readonly duration: number;
}

/** The fallback if `wrk` is not installed; runs in a process of its own. */
export async function runAutocannon(load: HttpLoad): Promise<LoadCount> {
  const program = createRequire(import.meta.url).resolve('autocannon');
  const headers = Object.entries(load.headers).flatMap(([name, value]) => ['-H', `${name}: ${value}`]);
  const { stdout } = await promisify(execFile)(process.execPath, [
    program,
    ...['--json', '--no-progress', '-c', `${load.connections}`, '-m', load.method],
    // A bounded load has no duration, because autocannon supports only one of them.
    ...(load.atMost === undefined ? ['-d', `${load.seconds}`] : ['-a', `${load.atMost}`]),
    ...headers,
    ...(load.body === '' ? [] : ['-b', load.body]),
    load.url + load.path,
  ]);
  const report = JSON.parse(stdout.slice(stdout.indexOf('{'))) as AutocannonReport;
  const failed = report.errors + report.timeouts + report.non2xx;
  return { requests: report.requests.total, failed, seconds: report.duration };
}
