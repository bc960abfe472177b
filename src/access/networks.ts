import { BlockList, isIP } from 'node:net';

/** Stands for peers of a Unix socket, which have no address; nginx uses the same. */
const UNIX_PEERS = 'unix:';

/** An entry that is no network. The message names it and says what is allowed. */
export class NetworkError extends Error {
  /** Its place in the list. */
  readonly index: number;

  constructor(entry: string, index: number) {
    super(`${JSON.stringify(entry.slice(0, 64))} is no network`);
    this.name = 'NetworkError';
    this.index = index;
  }
}

/** What to write instead of an entry that is no network. */
export const NETWORK_HINT = `Write an address (10.0.0.7), a network (10.0.0.0/8, fd00::/8) or ${UNIX_PEERS}`;

/**
 * A set of addresses that an operator names by networks: `10.0.0.0/8`, `fd00::/8`, `10.0.0.7`, `unix:`.
 * An IPv4 address matches an IPv4 network in its IPv6-mapped form too.
 */
export class Networks {
  readonly #blocks = new BlockList();
  #hasUnix = false;

  /** @throws NetworkError for the first entry that is none */
  constructor(entries: readonly string[]) {
    for (const [index, entry] of entries.entries()) {
      if (entry === UNIX_PEERS) this.#hasUnix = true;
      else if (!this.#add(entry)) throw new NetworkError(entry, index);
    }
  }

  /** @param address as a socket has it; '' for a peer of a Unix socket */
  has(address: string): boolean {
    if (address === '') return this.#hasUnix;
    const bare = withoutZone(address);
    const version = isIP(bare);
    return version !== 0 && this.#blocks.check(bare, version === 4 ? 'ipv4' : 'ipv6');
  }

  #add(entry: string): boolean {
    const [, address = '', prefix] = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(entry) ?? [];
    const version = isIP(address);
    if (version === 0 || address.includes('%')) return false;
    const bits = version === 4 ? 32 : 128;
    const length = prefix === undefined ? bits : Number(prefix);
    if (length > bits) return false;
    this.#blocks.addSubnet(address, length, version === 4 ? 'ipv4' : 'ipv6');
    return true;
  }
}

function withoutZone(address: string): string {
  const at = address.indexOf('%');
  return at === -1 ? address : address.slice(0, at);
}

/**
 * The block of addresses that one party may be taken to own: /24 of IPv4, /64 of IPv6 (docs/adr/0008-failed-logins.md).
 * What is no address (a socket's path) is its own block.
 */
export function addressBlock(address: string): string {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1] ?? address;
  if (isIP(mapped) === 4) return `${mapped.slice(0, mapped.lastIndexOf('.'))}.0/24`;
  const bare = mapped.split('%')[0] ?? mapped;
  if (isIP(bare) !== 6) return address;
  return `${firstFourGroups(bare).join(':')}::/64`;
}

function firstFourGroups(address: string): string[] {
  const [head = '', tail] = address.split('::');
  const before = head === '' ? [] : head.split(':');
  const after = tail === undefined || tail === '' ? [] : tail.split(':');
  // A dotted IPv4 ending stands for two groups.
  const written = before.length + after.length + (address.includes('.') ? 1 : 0);
  const zeros = tail === undefined ? 0 : 8 - written;
  const groups = [...before, ...Array.from({ length: zeros }, () => '0'), ...after];
  return groups.slice(0, 4).map((group) => Number.parseInt(group, 16).toString(16));
}
