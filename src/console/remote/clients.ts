import { call, get, path } from '../api.ts';
import type { LimitedList, OfNodes } from './node-lists.ts';
import type { WaitingConsumer } from './queue-status.ts';

/** A STOMP or AMQP session. */
export interface SessionOfClient {
  readonly node: string;
  readonly id: string;
  readonly protocol: string;
  readonly user: string;
  readonly address: string | null;
  readonly since: string;
  readonly consumers: readonly {
    readonly ns: string;
    readonly queue: string;
    readonly kind: string;
    readonly window: number | null;
    readonly unacknowledged: number;
  }[];
}

export interface ChangeLine {
  readonly node: string;
  readonly at: string;
  readonly user: string;
  readonly action: string;
  readonly address: string | null;
  readonly namespace: string | null;
  readonly queue: string | null;
  /** Further facts, such as the id of an exchange, or how many elements were removed. */
  readonly details: Readonly<Record<string, unknown>>;
}

export interface NamedConsumer extends WaitingConsumer {
  readonly node: string;
  readonly ns: string;
  readonly queue: string;
}

export interface Sessions extends LimitedList {
  readonly sessions: readonly SessionOfClient[];
}

export interface Consumers extends LimitedList {
  readonly consumers: readonly NamedConsumer[];
}

interface Clients {
  readonly sessions: Sessions;
  readonly consumers: Consumers;
}

const LIMIT = 200;

/** Reads the client sessions and the waiting consumers of all nodes. */
export async function clients(signal: AbortSignal): Promise<Clients> {
  const request = { query: { limit: LIMIT }, signal };
  const [sessions, consumers] = await Promise.all([
    get<Sessions>('sessions', request),
    get<Consumers>('consumers', request),
  ]);
  return { sessions, consumers };
}

export interface ChangeList extends LimitedList {
  readonly lines: readonly ChangeLine[];
}

/** Reads the audit log of all nodes, newest first, as far as the user may see it. */
export function changes(signal: AbortSignal): Promise<ChangeList> {
  return get<ChangeList>('audit', { query: { limit: LIMIT }, signal });
}

/** A session of the console. */
export interface ListedSession {
  readonly node: string;
  readonly id: string;
  readonly startedAt: string;
  readonly usedAt: string;
  readonly expiresAt: string;
  readonly address: string;
  readonly browser: string | null;
  readonly isThis: boolean;
}

export interface ListedSessions extends OfNodes {
  readonly sessions: readonly ListedSession[];
}

/** Reads the console sessions of a user, the last used first. Only administrators may read those of others. */
export function consoleSessions(user: string, signal: AbortSignal): Promise<ListedSessions> {
  return get<ListedSessions>('console/sessions', { query: { user }, signal });
}

export async function endSession(user: string, id: string): Promise<void> {
  await call(path('console', 'sessions', id), { method: 'DELETE', query: { user } });
}

export async function endAllSessions(user: string): Promise<void> {
  await call(path('console', 'sessions'), { method: 'DELETE', query: { user } });
}
