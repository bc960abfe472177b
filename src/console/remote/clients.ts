import { call, get, path } from '../api.ts';
import type { WaitingConsumer } from './queue-status.ts';

/** A STOMP or AMQP session of the node that answers. */
export interface SessionOfClient {
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
  readonly at: string;
  readonly user: string;
  readonly action: string;
  readonly address: string | null;
  readonly namespace: string | null;
  readonly queue: string | null;
}

interface NamedConsumer extends WaitingConsumer {
  readonly ns: string;
  readonly queue: string;
}

/** What one node knows of its clients. */
export interface ClientsOfNode {
  readonly sessions: readonly SessionOfClient[];
  readonly consumers: readonly NamedConsumer[];
}

const LIMIT = 200;

export async function clientsOfNode(signal: AbortSignal): Promise<ClientsOfNode> {
  const request = { query: { limit: LIMIT }, signal };
  const [{ sessions }, { consumers }] = await Promise.all([
    get<Pick<ClientsOfNode, 'sessions'>>('sessions', request),
    get<Pick<ClientsOfNode, 'consumers'>>('consumers', request),
  ]);
  return { sessions, consumers };
}

/** Who changed what on the node that answers, the latest first, as far as the user may see it. */
export function changesOnNode(signal: AbortSignal): Promise<readonly ChangeLine[]> {
  return get<readonly ChangeLine[]>('audit', { query: { limit: LIMIT }, signal });
}

/** A session of the console of the user who signed in. */
export interface OwnSession {
  readonly id: string;
  readonly startedAt: string;
  readonly usedAt: string;
  readonly expiresAt: string;
  readonly address: string;
  readonly browser: string | null;
  readonly isThis: boolean;
}

/** Those that the node which answers has served, the latest used first. */
export function ownSessions(signal: AbortSignal): Promise<readonly OwnSession[]> {
  return get<readonly OwnSession[]>('console/sessions', { signal });
}

export async function endSession(id: string): Promise<void> {
  await call(path('console', 'sessions', id), { method: 'DELETE' });
}
