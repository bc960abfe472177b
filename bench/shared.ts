import { setTimeout as delay } from 'node:timers/promises';
import type { HttpLoad } from './load/http-load.ts';
import { cpuTimeOf } from './process.ts';
import { AUTHORIZATION, benchPath, ELEMENT } from './quayside.ts';
import type { Finding } from './scenario.ts';

/** The load of every insert scenario: 46 bytes over 64 connections. */
export function insertLoad(
  { url, pid }: { url: string; pid: number },
  queue: string,
  seconds: number,
): HttpLoad {
  return {
    url,
    pid,
    method: 'PUT',
    path: benchPath(queue),
    headers: { authorization: AUTHORIZATION, 'content-type': 'application/json' },
    body: ELEMENT,
    connections: 64,
    seconds,
  };
}

/** A figure with a fixed limit instead of a reference; `ratio` is its share of the limit. */
export function limit(what: string, figure: string, reference: string, ratio: number): Finding {
  return { what, figure, reference, ratio, target: { kind: 'at most', ratio: 1 } };
}

/** The share of one core that the server uses while idle. */
export async function idleShare({ pid }: { pid: number }, lengthMs: number): Promise<number> {
  const before = cpuTimeOf(pid).total;
  const from = performance.now();
  await delay(lengthMs);
  return (cpuTimeOf(pid).total - before) / 1000 / (performance.now() - from);
}
