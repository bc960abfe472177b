import type { CancelTimer } from '../../../util/clock.ts';
import type { Address, Login } from '../settings.ts';
import {
  addressText,
  asString,
  type Command,
  RedisConnection,
  type Reply,
  START_CONNECT_MS,
} from './connection.ts';
import { Master, type ServerOptions } from './master.ts';

/** The delay of a requested refresh of the slot map, so that many requests cause only one. */
const REFRESH_AFTER_MS = 200;
const REFRESH_EVERY_MS = 15_000;
const QUERY_MS = 1_000;

/**
 * Knows which master has which slot: one master for all, at a fixed address or found by Sentinels, or the masters of a
 * cluster. The slot map is read from the first server that replies.
 */
export class Topology {
  /** Whether queues may be stored on different servers, so that no call may touch two of them. */
  isCluster = false;
  readonly #options: ServerOptions;
  readonly #listeners: (() => void)[] = [];
  /** By address, in the order in which they are queried for the slot map. */
  readonly #masters = new Map<string, Master>();
  /** By slot. Without a cluster, only the first is used. */
  #slots: (Master | undefined)[] = [];
  /** Connections for single commands to servers that need not be masters. */
  readonly #queries = new Set<RedisConnection>();
  #isStarted = false;
  #isStopped = false;
  #isRefreshDue = false;
  /** The addresses of the URL, in the order in which Sentinels are queried for the master. */
  #sentinels: readonly Address[];
  #isCheckingSentinels = false;
  #cancelRefresh: CancelTimer = () => {};

  constructor(options: ServerOptions) {
    this.#options = options;
    this.#sentinels = options.settings.addresses;
  }

  /** Resolves when every slot can be served. @throws Error that says what is missing, perhaps with a hint */
  async start(): Promise<void> {
    const { cluster, sentinel, login, maskedUrl } = this.#options.settings;
    this.isCluster = sentinel === null && (await this.#isPartOfCluster());
    if (cluster !== null && cluster !== this.isCluster) {
      throw new Error(`cluster is ${cluster}, but the server is ${this.isCluster ? '' : 'not '}part of one`);
    }
    // Most clusters reject the SELECT already. Clusters with several databases are untested.
    if (this.isCluster && login.db !== 0) {
      throw new Error(
        `it is part of a cluster; leave out database ${login.db}, as only 0 is used on a cluster`,
      );
    }
    if (this.isCluster) {
      await this.#refresh();
      this.#refreshAfter(REFRESH_EVERY_MS);
      const missing = SLOTS - this.#slots.filter((master) => master !== undefined).length;
      if (missing > 0) throw new Error(`no server has ${missing} of the cluster's slots; assign them first`);
    } else {
      this.#slots = [this.#open(maskedUrl, () => this.#locate())];
    }
    await Promise.all(this.masters().map(({ ready }) => ready));
    this.#isStarted = true;
  }

  stop(): void {
    this.#isStopped = true;
    this.#cancelRefresh();
    for (const connection of this.#queries) connection.close();
    for (const master of this.#masters.values()) master.stop();
  }

  /** How many queues a call may name, at most `max`: those of a cluster are in different slots, and a call has one. */
  queuesPerCall(max: number): number {
    return this.isCluster ? 1 : max;
  }

  /** The slot of a key; 0 without a cluster, as even reading the estimated time of a queue's server needs it. */
  slotOf(key: string): number {
    return this.isCluster ? slotOf(key) : 0;
  }

  /** Null if no master is known to have it. */
  masterOf(slot: number): Master | null {
    return this.#slots[slot] ?? null;
  }

  /** The estimated time of the master that has the slot. */
  serverTime(slot: number): number {
    return this.masterOf(slot)?.serverTime ?? this.#serverTime;
  }

  /** The masters that are known now. */
  masters(): readonly Master[] {
    return [...this.#masters.values()];
  }

  /** The server that a redirection by another one names; without a host, it is on the same one. */
  redirected(address: string, by: Master): Master {
    const host = address.startsWith(':') ? parseAddress(this.#addressOf(by) ?? '').host : '';
    return this.#masterAt(`${host}${address}`);
  }

  /** Handles a `MOVED`, which names the server that has this slot now. */
  moved(slot: number, address: string, by: Master): void {
    this.#slots[slot] = this.redirected(address, by);
    this.refresh();
  }

  /**
   * Something contradicts the slot map: reads it again soon.
   * @param doubted a server that is queried last: it may be cut off from the others, which have replaced it
   */
  refresh(doubted?: Master): void {
    const address = this.#addressOf(doubted);
    if (doubted !== undefined && address !== null) {
      this.#masters.delete(address);
      this.#masters.set(address, doubted);
    }
    if (!this.isCluster || this.#isRefreshDue) return;
    this.#isRefreshDue = true;
    this.#refreshAfter(REFRESH_AFTER_MS);
  }

  /** Calls `listener` whenever slots may have moved, or a server is available again. */
  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  /** For a server that has not replied yet: the clocks of a cluster agree, while this machine's may be wrong. */
  get #serverTime(): number {
    const [first] = this.#masters.values();
    return first?.serverTime ?? this.#options.clock.now();
  }

  /** Null: it is no longer used. */
  #addressOf(server: Master | undefined): string | null {
    for (const [address, master] of this.#masters) if (master === server) return address;
    return null;
  }

  #masterAt(address: string): Master {
    return this.#masters.get(address) ?? this.#open(address, async () => parseAddress(address));
  }

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }

  #open(address: string, locate: () => Promise<Address>): Master {
    const { onReady, onDown } = this.#options;
    const master = new Master({
      ...this.#options,
      server: address,
      locate,
      isSuccessor: this.#isStarted,
      serverTime: this.#serverTime,
      onReady: (...facts) => {
        onReady(...facts);
        this.#changed();
      },
      onDown: (server, reason) => {
        onDown(server, reason);
        this.refresh();
      },
      onAlone: () => void this.#checkSentinels(master),
    });
    this.#masters.set(address, master);
    if (this.#isStopped) master.stop();
    return master;
  }

  /** The address of the only master. @throws Error why no Sentinel knows it */
  async #locate(): Promise<Address> {
    const { sentinel, addresses } = this.#options.settings;
    if (sentinel === null) return addresses[0] as Address;
    const { login, master } = sentinel;
    try {
      return await this.#queryFirst(this.#sentinels, login, ...masterQuery(master));
    } catch (error) {
      const { message } = error as Error;
      const at = message.search(/(ERR )?unknown command 'SENTINEL'/);
      if (at < 0) throw error;
      throw new Error(
        `${message.slice(0, at)}it is not a Sentinel; leave out sentinel, or name the Sentinels`,
      );
    }
  }

  /**
   * After a failover that an operator requested, the old master serves on for ten seconds, until the Sentinels make it
   * a replica. Nothing that it acknowledges then would survive. So while a master has no replica, the Sentinels are
   * queried, and it is left if most of them name another one: a single one may know less than the others.
   */
  async #checkSentinels(current: Master): Promise<void> {
    const { sentinel } = this.#options.settings;
    if (sentinel === null || this.#isCheckingSentinels) return;
    this.#isCheckingSentinels = true;
    const sentinels = this.#sentinels;
    const [command, read] = masterQuery(sentinel.master);
    const replies = await Promise.allSettled(
      sentinels.map(async (address) => read(await this.#query(address, sentinel.login, command, QUERY_MS))),
    );
    this.#isCheckingSentinels = false;
    const named = replies.map((reply) => (reply.status === 'fulfilled' ? addressText(reply.value) : null));
    for (const address of new Set(named)) {
      const agreeing = sentinels.filter((_, i) => named[i] === address);
      if (address === null || agreeing.length <= sentinels.length / 2) continue;
      const others = sentinels.filter((one) => !agreeing.includes(one));
      // One of the others may still name the old master, and must not be the first that a new connection queries.
      this.#sentinels = [...agreeing, ...others];
      current.moveTo(address);
    }
  }

  #isPartOfCluster(): Promise<boolean> {
    const { addresses, login } = this.#options.settings;
    const command = { name: 'INFO', args: ['cluster'] };
    return this.#queryFirst(addresses, login, command, (reply) =>
      asString(reply).includes('cluster_enabled:1'),
    );
  }

  #refreshAfter(ms: number): void {
    this.#cancelRefresh();
    if (this.#isStopped) return;
    this.#cancelRefresh = this.#options.clock.after(ms, async () => {
      this.#isRefreshDue = true;
      const isDone = await this.#refresh().then(
        () => true,
        () => false,
      );
      this.#isRefreshDue = false;
      if (isDone) this.#refreshAfter(REFRESH_EVERY_MS);
      else this.refresh();
    });
  }

  /** Reads the slot map from the known servers, those of the URL last. @throws Error why none replied */
  async #refresh(): Promise<void> {
    const { settings } = this.#options;
    const servers = [...[...this.#masters.keys()].map(parseAddress), ...settings.addresses];
    const command = { name: 'CLUSTER', args: ['SLOTS'] };
    const addresses = await this.#queryFirst(servers, settings.login, command, readSlots);
    const current = new Set(addresses);
    // Open new masters first: they inherit the estimate of the time from the others.
    this.#slots = addresses.map((address) => (address === undefined ? undefined : this.#masterAt(address)));
    for (const [address, master] of this.#masters) {
      if (current.has(address)) continue;
      this.#masters.delete(address);
      master.stop();
    }
    this.#changed();
  }

  /**
   * Queries one server after the other until one replies.
   * @throws Error why the last one did not, or if the topology was stopped
   */
  async #queryFirst<T>(
    addresses: readonly Address[],
    login: Login,
    command: Command,
    read: (reply: Reply, address: Address) => T,
  ): Promise<T> {
    let lastError: unknown = new Error('the engine is stopped');
    for (const [i, address] of addresses.entries()) {
      if (this.#isStopped) break;
      const isLastAtStart = !this.#isStarted && i === addresses.length - 1;
      try {
        const firstConnectMs = isLastAtStart ? START_CONNECT_MS : QUERY_MS;
        return read(await this.#query(address, login, command, firstConnectMs), address);
      } catch (error) {
        const prefix = addresses.length > 1 ? `${addressText(address)}: ` : '';
        lastError = new Error(`${prefix}${(error as Error).message}`);
      }
    }
    throw lastError;
  }

  /**
   * Sends one command to a server, on a connection of its own.
   * @throws Error why there was no reply, without credentials
   */
  async #query(
    address: Address,
    login: Login,
    { name, args }: Command,
    firstConnectMs: number,
  ): Promise<Reply> {
    let reply: Reply = null;
    const connection = new RedisConnection({
      clock: this.#options.clock,
      login,
      firstConnectMs,
      locate: async () => address,
      setUp: async () => {
        reply = await connection.send(name, args);
      },
    });
    this.#queries.add(connection);
    try {
      await connection.ready;
      return reply;
    } finally {
      this.#queries.delete(connection);
      connection.close();
    }
  }
}

/**
 * @param asked the server that replied, which an entry without a host means
 * @throws Error if it belongs to no cluster, or to none any more: another server may know more
 */
function readSlots(reply: Reply, asked: Address): (string | undefined)[] {
  if (Array.isArray(reply) && reply.length === 0)
    throw new Error('it knows of no slots of a cluster; assign them first, or name servers that have some');
  const slots = new Array<string | undefined>(SLOTS).fill(undefined);
  for (const [from, to, master] of reply as Reply[][]) {
    const [host, port] = master as Reply[];
    slots.fill(`${asString(host) || asked.host}:${asString(port)}`, Number(from), Number(to) + 1);
  }
  return slots;
}

/** The query for the address of a master, and how a Sentinel's reply is read. */
function masterQuery(name: string): [Command, (reply: Reply) => Address] {
  const command = { name: 'SENTINEL', args: ['get-master-addr-by-name', name] };
  const read = (reply: Reply): Address => {
    if (!Array.isArray(reply)) throw new Error(`the Sentinel knows no master "${name}"`);
    return { host: asString(reply[0]), port: Number(asString(reply[1])) };
  };
  return [command, read];
}

/** `host:port`, as in `MOVED`; the host may be an IPv6 address without brackets. */
function parseAddress(address: string): Address {
  const colon = address.lastIndexOf(':');
  return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
}

/** Slots of a cluster, as its specification defines them. */
export const SLOTS = 16_384;

const CRC16_POLYNOMIAL = 0x1021;

const TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8;
  for (let bit = 0; bit < 8; bit++) {
    crc = (crc & 0x8000) !== 0 ? (crc << 1) ^ CRC16_POLYNOMIAL : crc << 1;
  }
  return crc;
});

/** The slot of a key, or of its hash tag if it has one that is not empty. */
export function slotOf(key: string): number {
  const open = key.indexOf('{');
  const close = open < 0 ? -1 : key.indexOf('}', open + 1);
  const hashed = close > open + 1 ? key.slice(open + 1, close) : key;
  let crc = 0;
  for (const byte of Buffer.from(hashed)) {
    crc = ((crc << 8) ^ (TABLE[((crc >> 8) ^ byte) & 0xff] ?? 0)) & 0xffff;
  }
  return crc % SLOTS;
}
