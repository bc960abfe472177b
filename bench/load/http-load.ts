import { type CpuTime, cpuTimeOf } from '../process.ts';
import { runAutocannon } from './autocannon.ts';
import { runWrk, wrkVersion } from './wrk.ts';

/** One request that is repeated over keep-alive connections. */
export interface HttpLoad {
  readonly url: string;
  /** The server process whose CPU time is measured. */
  readonly pid: number;
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly connections: number;
  /** Whole seconds. */
  readonly seconds: number;
  /** Ends the load early after this many requests, which is the number of elements to take. */
  readonly atMost?: number;
}

export interface LoadResult {
  readonly requests: number;
  readonly perSecond: number;
  /** CPU time of the server per request, µs. */
  readonly cpu: CpuTime;
}

/** The counts of a load generator. Failed: a status other than 200, a broken connection, or a timeout. */
export interface LoadCount {
  readonly requests: number;
  readonly failed: number;
  readonly seconds: number;
}

/** The load generator that {@link runLoad} uses on this machine. */
export function loadGenerator(): string {
  return wrkVersion() ?? 'autocannon (wrk is not installed; it takes more CPU from the server)';
}

/** @throws Error if any request failed, because such a round is meaningless */
export async function runLoad(load: HttpLoad): Promise<LoadResult> {
  const before = cpuTimeOf(load.pid);
  const count = await (wrkVersion() === null ? runAutocannon(load) : runWrk(load));
  const after = cpuTimeOf(load.pid);
  if (count.failed > 0 || count.requests === 0) {
    const { method, url, path } = load;
    throw new Error(`${count.failed} of ${count.requests} requests failed: ${method} ${url}${path}`);
  }
  return {
    requests: count.requests,
    perSecond: count.requests / count.seconds,
    cpu: cpuPer(count.requests, before, after),
  };
}

export function cpuPer(requests: number, before: CpuTime, after: CpuTime): CpuTime {
  return {
    total: (after.total - before.total) / requests,
    mainThread: (after.mainThread - before.mainThread) / requests,
  };
}
