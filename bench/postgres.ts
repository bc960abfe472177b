import { readdirSync, readFileSync } from 'node:fs';
import type { Engine } from '../src/engine/engine.ts';
import { open } from '../src/engines/postgres/index.ts';
import { systemClock } from '../src/util/clock.ts';
import type { PostgresServer } from '../test/support/postgres-server.ts';
import { NAMESPACE } from './quayside.ts';

const TICK_US = 10_000;

/** Opens only the PostgreSQL engine, on the schema that a server with this URL would use. */
export async function openPostgresEngine(url: string): Promise<Engine> {
  const engine = open({
    url,
    dataDir: '',
    namespaces: [{ name: NAMESPACE, groups: null, deadLetter: null, retentionMs: null }],
    clock: systemClock,
    dedupWindowMs: 24 * 3600 * 1000,
    settings: {},
    log: { info: () => {}, warn: (fields, message) => console.warn(message, fields) },
  });
  await engine.start();
  return engine;
}

/** CPU time of all processes of a PostgreSQL server, including ended ones, µs. */
export function postgresCpu({ pid }: PostgresServer): number {
  let ticks = 0;
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const fields = statOf(entry);
    if (entry !== String(pid) && fields[1] !== String(pid)) continue;
    ticks += Number(fields[11]) + Number(fields[12]);
    // The CPU time of ended sessions is part of the process that started them.
    if (entry === String(pid)) ticks += Number(fields[13]) + Number(fields[14]);
  }
  return ticks * TICK_US;
}

/** The fields of a process's `stat` from its state on; empty if it has just ended. */
function statOf(entry: string): string[] {
  try {
    // The second field is the command in parentheses, which may contain spaces; start after it.
    return readFileSync(`/proc/${entry}/stat`, 'latin1').split(') ')[1]?.split(' ') ?? [];
  } catch {
    return [];
  }
}
