import type {
  AuditLines,
  Engines,
  OwnConsoleSessions,
  Sessions,
  WaitingConsumers,
} from '../../model/records.ts';
import { call, get, path } from '../api.ts';

interface Clients {
  readonly sessions: Sessions;
  readonly consumers: WaitingConsumers;
}

const LIMIT = 200;

/** Reads the client sessions and the waiting consumers of all nodes. @param filter words that each must have */
export async function clients(filter: string, signal: AbortSignal): Promise<Clients> {
  const request = { query: { limit: LIMIT, filter }, signal };
  const [sessions, consumers] = await Promise.all([
    get<Sessions>('sessions', request),
    get<WaitingConsumers>('consumers', request),
  ]);
  return { sessions, consumers };
}

/** Reads the audit log of all nodes, newest first, as far as the user may see it. @param filter as of `clients` */
export function changes(filter: string, signal: AbortSignal): Promise<AuditLines> {
  return get<AuditLines>('audit', { query: { limit: LIMIT, filter }, signal });
}

/** Reads the console sessions of a user, the last used first. Only administrators may read those of others. */
export function consoleSessions(user: string, signal: AbortSignal): Promise<OwnConsoleSessions> {
  return get<OwnConsoleSessions>('console/sessions', { query: { user }, signal });
}

export async function endSession(user: string, id: string): Promise<void> {
  await call(path('console', 'sessions', id), { method: 'DELETE', query: { user } });
}

export async function endAllSessions(user: string): Promise<void> {
  await call(path('console', 'sessions'), { method: 'DELETE', query: { user } });
}

/** Reads the engines of the namespaces that the user may see, as seen by each node. */
export function readEngines(signal: AbortSignal): Promise<Engines> {
  return get<Engines>('engines', { signal });
}
