import type { Library } from '../library.ts';
import { type Connection, type Reply, ReplyError } from './connection.ts';

/** What a server said of itself when the connection was opened. */
export interface ServerFacts {
  readonly isCluster: boolean;
  readonly isReplica: boolean;
  /** Replicas that are connected to it. */
  readonly replicas: number;
  /** Its clock, ms since 1970. */
  readonly now: number;
  /** Whether changes reach its disk: `appendonly`, and how often; null where it does not tell. */
  readonly appendOnly: boolean;
  readonly appendFsync: string | null;
}

/** A server that must not be used as it is; the message says what to change. */
export class UnfitServer extends Error {}

const OLDEST_VERSION = 7;

/**
 * Asks the server what it is, and brings our functions to it if it lacks them.
 * @throws UnfitServer, ReplyError, ConnectionLost
 */
export async function greet(connection: Connection, library: Library): Promise<ServerFacts> {
  const [info, time] = await Promise.all([connection.send('INFO', []), connection.send('TIME', [])]);
  const facts = readInfo(text(info));
  const isReplica = facts.get('role') === 'slave';
  checkVersion(facts);
  checkEviction(facts);
  // Functions come to a replica with its master's data.
  if (!isReplica) await bringLibrary(connection, library);
  return {
    isCluster: facts.get('cluster_enabled') === '1',
    isReplica,
    replicas: Number(facts.get('connected_slaves') ?? 0),
    now: readTime(time),
    appendOnly: facts.get('aof_enabled') === '1',
    appendFsync: await readSetting(connection, 'appendfsync'),
  };
}

/** Loads our functions. Harmless where another node did so first. */
export async function bringLibrary(connection: Connection, library: Library): Promise<void> {
  const found = await connection.send('FUNCTION', ['LIST', 'LIBRARYNAME', library.name]);
  if (Array.isArray(found) && found.length > 0) return;
  try {
    await connection.send('FUNCTION', ['LOAD', library.source]);
  } catch (error) {
    if (!(error instanceof ReplyError && error.message.includes('already exists'))) throw error;
  }
}

/**
 * Asks again what may have changed: answers the replicas that are connected to the server now.
 * @throws UnfitServer where it would throw elements away from now on
 */
export async function lookAgain(connection: Connection): Promise<number> {
  const facts = readInfo(text(await connection.send('INFO', ['replication', 'memory'])));
  checkEviction(facts);
  return Number(facts.get('connected_slaves') ?? 0);
}

function checkVersion(facts: ReadonlyMap<string, string>): void {
  const version = facts.get('redis_version') ?? 'unknown';
  if (Number.parseInt(version, 10) >= OLDEST_VERSION) return;
  throw new UnfitServer(`it is version ${version}; use Redis 7 or Valkey, or a later one`);
}

function checkEviction(facts: ReadonlyMap<string, string>): void {
  const policy = facts.get('maxmemory_policy') ?? 'noeviction';
  if (policy === 'noeviction') return;
  throw new UnfitServer(
    `its maxmemory-policy is ${policy}, which throws elements away when memory is short; set maxmemory-policy noeviction`,
  );
}

async function readSetting(connection: Connection, name: string): Promise<string | null> {
  try {
    const reply = await connection.send('CONFIG', ['GET', name]);
    return Array.isArray(reply) && reply.length > 1 ? text(reply[1]) : null;
  } catch (error) {
    if (error instanceof ReplyError) return null;
    throw error;
  }
}

function readInfo(info: string): ReadonlyMap<string, string> {
  const facts = new Map<string, string>();
  for (const line of info.split('\r\n')) {
    const colon = line.indexOf(':');
    if (colon > 0) facts.set(line.slice(0, colon), line.slice(colon + 1));
  }
  return facts;
}

/** The reply of TIME, as ms since 1970. */
function readTime(reply: Reply): number {
  if (!Array.isArray(reply)) throw new Error('TIME answered something else');
  return Number(text(reply[0])) * 1000 + Math.floor(Number(text(reply[1])) / 1000);
}

export function text(reply: Reply | undefined): string {
  return Buffer.isBuffer(reply) ? reply.toString() : String(reply ?? '');
}
