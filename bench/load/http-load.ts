import { type CpuTime, cpuTimeOf } from '../process.ts';
import { runAutocannon } from './autocannon.ts';
import { runWrk, wrkVersion } from './wrk.ts';

/** One request, sent again and again over keep-alive connections. */
export interface HttpLoad {
  readonly url: string;
  /** The server's process, whose CPU time is read before and after. */
  readonly pid: number;
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly connections: number;
  /** Whole seconds. */
  readonly seconds: number;
  /** The load ends earlier once this many requests were sent: as many as there are elements to take. */
  readonly atMost?: number;
}

export interface LoadResult {
  readonly requests: number;
  readonly perSecond: number;
  /** CPU of the server per request, microseconds. */
  readonly cpu: CpuTime;
}

/** What a load generator counts. Failed: a status that is not 200, a broken connection, a timeout. */
export interface LoadCount {
  readonly requests: number;
  readonly failed: number;
  readonly seconds: number;
}

/** The name of the load generator that {@link runLoad} uses here. */
export function loadGenerator(): string {
  return wrkVersion() ?? 'autocannon (wrk is not installed; it takes more CPU from the server)';
}

/** @throws Error where any request failed: such a round says nothing */
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
