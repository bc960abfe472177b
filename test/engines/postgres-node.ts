import assert from 'node:assert/strict';
import type { Engine, NamespacePolicy } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/postgres/index.ts';
import type { Clock } from '../../src/util/clock.ts';
import type { EventLog } from '../../src/util/log.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { CountingClock, runSql, SILENT } from './postgres.ts';

const DAY_MS = 24 * 3600 * 1000;

export const NODE_NAMESPACES: readonly NamespacePolicy[] = [
  { name: 'plain', groups: null, deadLetter: null, retentionMs: null },
  { name: 'jobs', groups: null, deadLetter: { maxTries: 3, queue: 'dead' }, retentionMs: null },
  { name: 'stream', groups: ['g1', 'g2'], deadLetter: null, retentionMs: null },
];

export interface NodeOptions {
  readonly schema: string;
  /** {@link NODE_NAMESPACES} if not given. */
  readonly namespaces?: readonly NamespacePolicy[];
  /** Port of a proxy; default: the server's own. */
  readonly port?: number;
  /** URL used instead of the server's own with `port`. */
  readonly url?: string;
  readonly log?: EventLog;
  /** The clock of the node's timeouts; default: the system's. */
  readonly clock?: Clock & { readonly pending: number };
}

/** Opens an engine as a node does, on PostgreSQL's own time. The test that opens one calls `stop`. */
export async function openNode(server: PostgresServer, options: NodeOptions): Promise<Engine> {
  const { schema, namespaces = NODE_NAMESPACES, port = server.port } = options;
  const { url = server.url({ port }), log = SILENT, clock = new CountingClock() } = options;
  const engine = open({
    url,
    dataDir: '',
    namespaces,
    clock,
    dedupWindowMs: DAY_MS,
    settings: { schema },
    log,
  });
  await engine.start();
  const stop = engine.stop.bind(engine);
  engine.stop = async () => {
    await stop();
    assert.equal(clock.pending, 0, 'a stopped engine leaves no timer');
  };
  return engine;
}

/** Process ids of the sessions that engines have in this role. */
export async function sessionsOf(
  server: PostgresServer,
  role: 'main' | 'second' | 'listener',
): Promise<number[]> {
  const { rows } = await runSql(
    server,
    `SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'quayside ${role} %' ORDER BY pid`,
  );
  return rows.map(({ pid }) => Number(pid));
}

/** Ends all sessions of that role, as an administrator might. */
export async function endSessions(
  server: PostgresServer,
  role: 'main' | 'second' | 'listener',
): Promise<void> {
  const pids = await sessionsOf(server, role);
  assert.ok(pids.length > 0, `there is a session of role ${role}`);
  await runSql(server, `SELECT pg_terminate_backend(pid) FROM unnest(ARRAY[${pids.join(',')}]) AS u(pid)`);
}
