import type { Library } from '../library.ts';
import type { Settings } from '../settings.ts';
import {
  asString,
  CONNECT_MS,
  type Command,
  CommandLost,
  type ConnectionOptions,
  RedisConnection,
  type Reply,
  ReplyError,
  START_CONNECT_MS,
} from './connection.ts';

/** One command for a master. */
interface MasterCommand extends Command {
  /** It changes something: if changes wait for replicas, it succeeds only if they have it. */
  readonly writes: boolean;
  /** The slot is moving to this master, which serves it already only after `ASKING`. */
  readonly asking?: boolean;
  /** Sent right behind it on the same connection. Its reply is ignored. */
  readonly follower?: Command | null | undefined;
}

/** The master executed the command, but too few replicas had it in time. */
export class NotReplicated extends Error {}

/** The commands of one turn of the event loop: sent in one packet, with one `WAIT` behind them. */
interface Turn {
  readonly connection: RedisConnection;
  writes: boolean;
  /** The reply to `WAIT`. */
  readonly replicas: PromiseWithResolvers<Reply>;
}

/** Since when a server has been reachable. Moments are by its clock. */
interface Contact {
  readonly since: number;
  /** Leases from before `since` that end before this moment count no try. */
  readonly excusedUntil: number;
}

/** What all masters of an engine have in common. */
export interface ServerOptions extends Pick<ConnectionOptions, 'clock'> {
  readonly library: Library;
  /** False: the functions are used only if the servers have them. */
  readonly loadsLibrary: boolean;
  readonly settings: Settings;
  /**
   * Called for each new connection to a master when it is ready.
   * @param mayHaveLostWrites the server was restarted, or another one took over: it may have lost the last writes
   */
  readonly onReady: (facts: ServerFacts, server: string, mayHaveLostWrites: boolean) => void;
  readonly onDown: (server: string, reason: Error) => void;
  /** Changes stopped waiting for replicas, as there has been none for a while, or wait again, as there is one. */
  readonly onReplicas: (server: string, hasReplicas: boolean) => void;
}

interface MasterOptions extends ServerOptions, Pick<ConnectionOptions, 'locate'> {
  /** Its name for the callbacks. */
  readonly server: string;
  /** It is not one of the masters with which the node started. */
  readonly isSuccessor: boolean;
  /** The estimate of its time now, until its first reply. */
  readonly serverTime: number;
  /** Called every two seconds while it has no replica: another server may have taken over. */
  readonly onAlone: () => void;
}

/** A server that did not reply for this long was unavailable: a heartbeat is sent every two seconds. */
const UNAVAILABLE_MS = 3_000;
/** Leases that end this soon after a server is available again could hardly be settled or extended. */
const GRACE_MS = 5_000;
/** Consecutive heartbeats, two seconds apart, without a replica: one that only reconnects is back by then. */
const HEARTBEATS_WITHOUT_REPLICA = 5;
const ALWAYS: Contact = { since: 0, excusedUntil: 0 };

/** One master server. */
export class Master {
  /** Why a connection was last lost or could not be opened. */
  lastError: Error | null = null;
  readonly #options: MasterOptions;
  /**
   * Two, so that one works while the other waits for replicas. Commands whose order matters are never in flight
   * together.
   */
  readonly #connections: readonly RedisConnection[];
  /** For subscriptions. */
  #furtherConnections: readonly RedisConnection[] = [];
  #turn: Turn | null = null;
  /** Since when nothing can be sent, by the monotonic clock; null while something can. */
  #downSince: number | null;
  /** When it last replied, by the monotonic clock. */
  #repliedAt: number | null = null;
  /** When it replied again after it had been unavailable; null if it never was. */
  #contact: { readonly at: number; readonly givenAt: number | null } | null = null;
  /** The server's clock minus our monotonic one. */
  #timeOffset: number;
  #runId: string | null = null;
  /** Changes wait for no replica, although they did before. */
  #lacksReplicas = false;

  constructor(options: MasterOptions) {
    this.#options = options;
    this.#downSince = options.clock.monotonic();
    this.#timeOffset = options.serverTime - this.#downSince;
    this.#connections = [this.#open(), this.#open()];
  }

  /** Resolves when the first connection is set up. @throws Error why it failed */
  get ready(): Promise<void> {
    return Promise.race(this.#connections.map(({ ready }) => ready));
  }

  /** For how long nothing could be sent, ms; 0 if something can. */
  get downMs(): number {
    if (this.#connections.some(({ isHealthy }) => isHealthy)) this.#downSince = null;
    else this.#downSince ??= this.#options.clock.monotonic();
    return this.#downSince === null ? 0 : this.#options.clock.monotonic() - this.#downSince;
  }

  get contact(): Contact {
    if (this.#contact === null) return ALWAYS;
    const since = Math.max(0, this.#contact.givenAt ?? this.#serverTimeAt(this.#contact.at));
    return { since, excusedUntil: since + GRACE_MS };
  }

  /** Starts a new contact: until now the server was unavailable, or rejected changes. */
  renewContact(): void {
    const { clock, settings } = this.#options;
    this.#contact = { at: clock.monotonic(), givenAt: settings.givenTime?.now() ?? null };
  }

  /** The estimate of the server's time now. */
  get serverTime(): number {
    return this.#serverTimeAt(this.#options.clock.monotonic());
  }

  /** Corrects the estimate by the time in a reply. */
  noteServerTime(now: number): void {
    this.#timeOffset = now - this.#options.clock.monotonic();
  }

  /** @throws ReplyError, CommandLost, NotReplicated */
  execute({ name, args, writes, asking = false, follower = null }: MasterCommand): Promise<Reply> {
    this.#turn ??= this.#openTurn();
    if (this.#turn === null) return Promise.reject(new CommandLost(false));
    const { connection, replicas } = this.#turn;
    if (asking) connection.send('ASKING', []).catch(() => {});
    const reply = connection.send(name, args);
    if (follower !== null) connection.send(follower.name, follower.args).catch(() => {});
    if (!writes || connection.wait === 0) return reply;
    this.#turn.writes = true;
    return replicated(reply, replicas.promise, connection.wait);
  }

  /** Loads our functions again, after the server replied that it has none. @throws ReplyError, CommandLost */
  async loadLibrary(): Promise<void> {
    const connection = this.#leastBusy();
    const { library, loadsLibrary } = this.#options;
    if (connection !== null && loadsLibrary) await loadLibrary(connection, library);
  }

  /** A further connection to the same server, for subscriptions. */
  connect(options: Omit<ConnectionOptions, 'clock' | 'locate' | 'login'>): RedisConnection {
    const { clock, locate, settings } = this.#options;
    const firstConnectMs = this.#firstConnectMs;
    const { login } = settings;
    const connection = new RedisConnection({ ...options, clock, locate, login, firstConnectMs });
    const others = this.#furtherConnections.filter(({ isClosed }) => !isClosed);
    this.#furtherConnections = [...others, connection];
    return connection;
  }

  /** Opens new connections: the server replied that it is no longer a master. */
  reconnect(): void {
    for (const connection of this.#connections) connection.reconnect(new CommandLost(false));
  }

  /** Opens new connections in place of those to other servers: the one at this address has taken over. */
  moveTo(address: string): void {
    const reason = new Error(`the Sentinels name another master, ${address}`);
    for (const connection of [...this.#connections, ...this.#furtherConnections])
      if (connection.address !== address) connection.reconnect(reason);
  }

  /** Sends waiting commands, then closes the connections. */
  stop(): void {
    this.#endTurn();
    for (const connection of this.#connections) connection.close();
  }

  get #firstConnectMs(): number {
    return this.#options.isSuccessor ? CONNECT_MS : START_CONNECT_MS;
  }

  #open(): RedisConnection {
    const { clock, locate, settings, server, onReady, onDown, onAlone } = this.#options;
    const { login, wait } = settings;
    // If another server may take over, a master without replicas may be cut off, and what it acknowledged would be
    // lost.
    const isSingle = ({ isCluster }: ServerFacts): boolean => !isCluster && settings.sentinel === null;
    let facts: ServerFacts;
    let heartbeatsWithout = 0;
    return new RedisConnection({
      clock,
      locate,
      login,
      firstConnectMs: this.#firstConnectMs,
      setUp: async (connection) => {
        facts = await checkServer(connection, this.#options);
        this.#setWait(connection, wait ?? Math.min(1, facts.replicas));
        heartbeatsWithout = 0;
        this.noteServerTime(facts.now);
      },
      onReady: () => {
        const mayHaveLostWrites = facts.runId !== this.#runId;
        this.#runId = facts.runId;
        onReady(facts, server, mayHaveLostWrites);
      },
      onDown: (reason) => {
        this.lastError = reason;
        onDown(server, reason);
      },
      onReply: () => this.#noteReply(),
      heartbeat: (connection) => {
        recheckServer(connection, this.#options).then(
          (replicas) => {
            heartbeatsWithout = replicas > 0 ? 0 : heartbeatsWithout + 1;
            if (replicas === 0) onAlone();
            if (wait !== null) return;
            if (replicas > 0) this.#setWait(connection, 1);
            else if (isSingle(facts) && heartbeatsWithout >= HEARTBEATS_WITHOUT_REPLICA)
              this.#setWait(connection, 0);
          },
          (error: Error) => {
            if (error instanceof UnfitRedis) connection.reconnect(error);
          },
        );
      },
    });
  }

  /** Sets how many replicas the changes on this connection wait for. */
  #setWait(connection: RedisConnection, wait: number): void {
    if (connection.wait === wait) return;
    connection.wait = wait;
    if (this.#lacksReplicas === (wait === 0)) return;
    this.#lacksReplicas = wait === 0;
    this.#options.onReplicas(this.#options.server, wait > 0);
  }

  #serverTimeAt(monotonic: number): number {
    return Math.round(monotonic + this.#timeOffset);
  }

  #openTurn(): Turn | null {
    const connection = this.#leastBusy();
    if (connection === null) return null;
    connection.cork();
    process.nextTick(() => this.#endTurn());
    return { connection, writes: false, replicas: Promise.withResolvers() };
  }

  #endTurn(): void {
    if (this.#turn === null) return;
    const { connection, writes, replicas } = this.#turn;
    this.#turn = null;
    if (writes) replicas.resolve(connection.replicated());
    connection.uncork();
  }

  #leastBusy(): RedisConnection | null {
    let found: RedisConnection | null = null;
    for (const connection of this.#connections) {
      if (connection.isHealthy && (found === null || connection.pending < found.pending)) found = connection;
    }
    return found;
  }

  #noteReply(): void {
    const now = this.#options.clock.monotonic();
    // Nothing is known of the time before the first reply, except that a successor's predecessor failed.
    const { isSuccessor } = this.#options;
    if (this.#repliedAt === null ? isSuccessor : now - this.#repliedAt > UNAVAILABLE_MS) this.renewContact();
    this.#repliedAt = now;
  }
}

async function replicated(reply: Promise<Reply>, replicas: Promise<Reply>, wait: number): Promise<Reply> {
  const [replied, count] = await Promise.allSettled([reply, replicas]);
  if (replied.status === 'rejected') throw replied.reason;
  if (count.status === 'fulfilled' && Number(count.value) >= wait) return replied.value;
  if (count.status === 'rejected' && count.reason instanceof CommandLost) throw new CommandLost(true);
  throw new NotReplicated();
}

/** What a server reports about itself on a new connection. */
export interface ServerFacts {
  readonly version: string;
  /** Names the server until it is restarted. */
  readonly runId: string;
  /** Online replicas, without those that are still receiving their first copy. */
  readonly replicas: number;
  readonly isCluster: boolean;
  /** Its clock, ms since 1970. */
  readonly now: number;
  /** Its `appendonly` and `appendfsync`; null if `CONFIG GET` is not permitted. */
  readonly appendOnly: boolean;
  readonly appendFsync: string | null;
}

/** A server that must not be used as it is; the message says what to change. */
class UnfitRedis extends Error {}

const OLDEST_VERSION = 7;

/**
 * Selects the database, checks that the server is a master on which elements are safe, and loads our functions if it
 * lacks them.
 * @throws UnfitRedis, ReplyError, CommandLost
 */
async function checkServer(
  connection: RedisConnection,
  options: Pick<MasterOptions, 'library' | 'loadsLibrary' | 'settings'>,
): Promise<ServerFacts> {
  const { library, loadsLibrary, settings } = options;
  const { db } = settings.login;
  if (db !== 0) await selectDatabase(connection, db);
  const replies = Promise.allSettled([connection.send('INFO', []), connection.send('TIME', [])]);
  const [infoReply, timeReply] = await replies;
  const info = readInfo(resultOf(infoReply));
  // A Sentinel knows no TIME. Valkey calls its mode `server_mode`.
  const mode = info.get('redis_mode') ?? info.get('server_mode');
  if (mode === 'sentinel') throw new UnfitRedis('it is a Sentinel; name its master with ?sentinel=NAME');
  const now = readTime(resultOf(timeReply));
  checkVersion(info);
  checkEviction(info);
  const isCluster = info.get('cluster_enabled') === '1';
  if (info.get('role') === 'slave') {
    throw new UnfitRedis(
      `it is a replica${isCluster ? '' : '; name its master, or its Sentinels with ?sentinel=NAME'}`,
    );
  }
  if (loadsLibrary) await loadLibrary(connection, library);
  else await checkFunctionRights(connection, settings.prefix);
  await checkCommandRights(connection, options);
  return {
    version: info.get('redis_version') ?? 'unknown',
    runId: info.get('run_id') ?? '',
    replicas: replicasIn(info),
    isCluster,
    now,
    appendOnly: info.get('aof_enabled') === '1',
    appendFsync: await readSetting(connection, 'appendfsync'),
  };
}

/**
 * Checks what may have changed since, and returns the number of online replicas.
 * @throws UnfitRedis, ReplyError, CommandLost
 */
async function recheckServer(
  connection: RedisConnection,
  options: Pick<MasterOptions, 'library' | 'settings'>,
): Promise<number> {
  const [reply] = await Promise.all([
    connection.send('INFO', ['replication', 'memory']),
    checkCommandRights(connection, options),
  ]);
  const info = readInfo(reply);
  checkEviction(info);
  return replicasIn(info);
}

/**
 * Loads our functions if they are missing. Another node may do so at the same moment.
 * @throws ReplyError, CommandLost
 */
async function loadLibrary(connection: RedisConnection, library: Library): Promise<void> {
  const found = await connection.send('FUNCTION', ['LIST', 'LIBRARYNAME', library.name]);
  if (Array.isArray(found) && found.length > 0) return;
  try {
    await connection.send('FUNCTION', ['LOAD', library.source]);
  } catch (error) {
    if (!(error instanceof ReplyError && error.message.includes('already exists'))) throw error;
  }
}

/**
 * Checks the rights to load functions and to call them with our keys. Sends commands that Redis rejects for another
 * reason if the user has the right.
 * @throws UnfitRedis, CommandLost
 */
async function checkFunctionRights(connection: RedisConnection, prefix: string): Promise<void> {
  await checkPermitted([
    connection.send('FUNCTION', ['LIST', 'LIBRARYNAME', `${prefix}_none`]),
    connection.send('FUNCTION', ['LOAD', 'no library']),
    sendCall(connection, prefix),
  ]);
}

/** Calls a function that does not exist with a key of ours. */
function sendCall(connection: RedisConnection, prefix: string): Promise<Reply> {
  return connection.send('FCALL', [`${prefix}_none`, 1, `${prefix}:none`]);
}

/** Checks that Redis rejected these commands, if at all, for another reason than a missing right. */
async function checkPermitted(sent: readonly Promise<Reply>[]): Promise<void> {
  for (const reply of await Promise.allSettled(sent)) {
    if (reply.status === 'fulfilled') continue;
    const { reason } = reply;
    if (!(reason instanceof ReplyError)) throw reason;
    // Redis replies with NOPERM to a command that the user may not run, or not with these keys.
    if (reason.message.startsWith('NOPERM')) throw new UnfitRedis(reason.message);
  }
}

/**
 * Checks the rights to run the commands that the functions use: a function that Redis ends for a missing right leaves a
 * part of its changes.
 * @throws UnfitRedis, ReplyError, CommandLost
 */
async function checkCommandRights(
  connection: RedisConnection,
  { library, settings }: Pick<MasterOptions, 'library' | 'settings'>,
): Promise<void> {
  let missing: Reply;
  try {
    missing = await connection.send('FCALL', [
      `${library.name}_rights`,
      0,
      `${settings.prefix}:none`,
      ...library.commands,
    ]);
  } catch (error) {
    // They were flushed, and the next call loads them again; or nobody has loaded them yet.
    if (error instanceof ReplyError && error.message.includes('Function not found')) return;
    throw error;
  }
  if (!Array.isArray(missing) || missing.length === 0) return;
  // Without access to the keys, all commands seem to be missing.
  await checkPermitted([sendCall(connection, settings.prefix)]);
  const names = missing.map(asString);
  const rights = names.map((name) => `+${name.toLowerCase()}`).join(' ');
  throw new UnfitRedis(
    `the user may not run ${names.join(', ')}, which the functions use; give the user ${rights} (ACL SETUSER), or all rights, keys and channels that the page on Redis lists (docs/engines/redis.md)`,
  );
}

/** If the driver selected the database, it would continue in database 0 if that failed. */
async function selectDatabase(connection: RedisConnection, db: number): Promise<void> {
  try {
    await connection.send('SELECT', [db]);
  } catch (error) {
    if (!(error instanceof ReplyError)) throw error;
    throw new UnfitRedis(
      `database ${db} cannot be selected (${error.message}); choose one that it has, which is only 0 on a cluster, and permit the user to run SELECT`,
    );
  }
}

function checkVersion(info: ReadonlyMap<string, string>): void {
  const version = info.get('redis_version') ?? 'unknown';
  if (Number.parseInt(version, 10) >= OLDEST_VERSION) return;
  throw new UnfitRedis(`it is version ${version}; use Redis 7 or later, or Valkey`);
}

function checkEviction(info: ReadonlyMap<string, string>): void {
  const policy = info.get('maxmemory_policy') ?? 'noeviction';
  if (policy === 'noeviction') return;
  throw new UnfitRedis(
    `its maxmemory-policy is ${policy}, which deletes elements when memory is short; set maxmemory-policy noeviction`,
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

function resultOf<T>(result: PromiseSettledResult<T>): T {
  if (result.status === 'rejected') throw result.reason;
  return result.value;
}

function readInfo(reply: Reply): ReadonlyMap<string, string> {
  const lines = asString(reply).split('\r\n');
  return new Map(lines.map((line) => line.split(/:(.*)/s, 2) as [string, string]));
}

/** Counts online replicas. `connected_slaves` includes those that only receive a copy, such as `redis-cli --rdb`. */
function replicasIn(info: ReadonlyMap<string, string>): number {
  let online = 0;
  for (const [name, value] of info) if (/^slave\d+$/.test(name) && value.includes('state=online')) online++;
  return online;
}

/** The reply of TIME, as ms since 1970. */
function readTime(reply: Reply): number {
  if (!Array.isArray(reply)) throw new Error('TIME returned no array');
  return Number(asString(reply[0])) * 1000 + Math.floor(Number(asString(reply[1])) / 1000);
}
