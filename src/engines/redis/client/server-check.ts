import type { Library } from '../library.ts';
import { asString, type RedisConnection, type Reply, ReplyError } from './connection.ts';

/** What a server reports about itself on a new connection. */
export interface ServerFacts {
  readonly version: string;
  /** Replicas that are connected to it. */
  readonly replicas: number;
  /** Its clock, ms since 1970. */
  readonly now: number;
  /** Whether changes reach its disk: `appendonly`, and how often; null if it does not tell. */
  readonly appendOnly: boolean;
  readonly appendFsync: string | null;
}

/** A server that must not be used as it is; the message says what to change. */
export class UnfitRedis extends Error {}

const OLDEST_VERSION = 7;

/**
 * Selects the database, checks that the server is a master on which elements are safe, and loads our functions if it
 * lacks them.
 * @param library null: none is loaded
 * @throws UnfitRedis, ReplyError, CommandLost
 */
export async function checkServer(
  connection: RedisConnection,
  library: Library | null,
  db: number,
): Promise<ServerFacts> {
  if (db !== 0) await selectDatabase(connection, db);
  const [reply, time] = await Promise.all([connection.send('INFO', []), connection.send('TIME', [])]);
  const info = readInfo(reply);
  checkVersion(info);
  checkEviction(info);
  if (info.get('role') === 'slave') {
    const isCluster = info.get('cluster_enabled') === '1';
    throw new UnfitRedis(
      `it is a replica${isCluster ? '' : '; name its master, or its Sentinels with ?sentinel=NAME'}`,
    );
  }
  if (library !== null) await loadLibrary(connection, library);
  return {
    version: info.get('redis_version') ?? 'unknown',
    replicas: replicasIn(info),
    now: readTime(time),
    appendOnly: info.get('aof_enabled') === '1',
    appendFsync: await readSetting(connection, 'appendfsync'),
  };
}

/**
 * Checks what may have changed since, and returns the number of replicas that are connected now.
 * @throws UnfitRedis, ReplyError, CommandLost
 */
export async function recheckServer(connection: RedisConnection): Promise<number> {
  const info = readInfo(await connection.send('INFO', ['replication', 'memory']));
  checkEviction(info);
  return replicasIn(info);
}

/** Loads our functions if they are missing. Another node may do so at the same moment. @throws ReplyError, CommandLost */
export async function loadLibrary(connection: RedisConnection, library: Library): Promise<void> {
  const found = await connection.send('FUNCTION', ['LIST', 'LIBRARYNAME', library.name]);
  if (Array.isArray(found) && found.length > 0) return;
  try {
    await connection.send('FUNCTION', ['LOAD', library.source]);
  } catch (error) {
    if (!(error instanceof ReplyError && error.message.includes('already exists'))) throw error;
  }
}

/** The driver's own SELECT would continue in database 0 if it failed. */
async function selectDatabase(connection: RedisConnection, db: number): Promise<void> {
  try {
    await connection.send('SELECT', [db]);
  } catch (error) {
    if (!(error instanceof ReplyError)) throw error;
    throw new UnfitRedis(
      `database ${db} cannot be selected (${error.message}); name one that it has, which is 0 alone on a cluster, and let the user run SELECT`,
    );
  }
}

function checkVersion(info: ReadonlyMap<string, string>): void {
  const version = info.get('redis_version') ?? 'unknown';
  if (Number.parseInt(version, 10) >= OLDEST_VERSION) return;
  throw new UnfitRedis(`it is version ${version}; use Redis 7 or Valkey, or a later one`);
}

function checkEviction(info: ReadonlyMap<string, string>): void {
  const policy = info.get('maxmemory_policy') ?? 'noeviction';
  if (policy === 'noeviction') return;
  throw new UnfitRedis(
    `its maxmemory-policy is ${policy}, which throws elements away when memory is short; set maxmemory-policy noeviction`,
  );
}

async function readSetting(connection: RedisConnection, name: string): Promise<string | null> {
  try {
    const reply = await connection.send('CONFIG', ['GET', name]);
    return Array.isArray(reply) && reply.length > 1 ? asString(reply[1]) : null;
  } catch (error) {
    if (error instanceof ReplyError) return null;
    throw error;
  }
}

function readInfo(reply: Reply): ReadonlyMap<string, string> {
  const lines = asString(reply).split('\r\n');
  return new Map(lines.map((line) => line.split(/:(.*)/s, 2) as [string, string]));
}

function replicasIn(info: ReadonlyMap<string, string>): number {
  return Number(info.get('connected_slaves') ?? 0);
}

/** The reply of TIME, as ms since 1970. */
function readTime(reply: Reply): number {
  if (!Array.isArray(reply)) throw new Error('TIME returned no array');
  return Number(asString(reply[0])) * 1000 + Math.floor(Number(asString(reply[1])) / 1000);
}
