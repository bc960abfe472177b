import { BlockList, isIP } from 'node:net';

/** Represents peers of a Unix socket, which have no address. The notation is that of nginx. */
const UNIX_PEERS = 'unix:';

/** A list entry that is not a network. The message quotes it. */
export class NetworkError extends Error {
  /** Index of the entry in the list. */
  readonly index: number;

  constructor(entry: string, index: number) {
    super(`${JSON.stringify(entry.slice(0, 64))} is not a network`);
    this.name = 'NetworkError';
    this.index = index;
  }
}

/** Hint for errors about invalid entries. */
export const NETWORK_HINT = `Write an address (10.0.0.7), a network (10.0.0.0/8, fd00::/8) or ${UNIX_PEERS}`;

/**
 * A set of addresses, given as networks: `10.0.0.0/8`, `fd00::/8`, `10.0.0.7`, `unix:`. An IPv4-mapped IPv6 address
 * matches IPv4 networks as well.
 */
export class Networks {
  readonly #blocks = new BlockList();
  #hasUnix = false;

  /** @throws NetworkError for the first invalid entry */
  constructor(entries: readonly string[]) {
    for (const [index, entry] of entries.entries()) {
      if (entry === UNIX_PEERS) this.#hasUnix = true;
      else if (!this.#add(entry)) throw new NetworkError(entry, index);
    }
  }

  /** @param address a socket's remote address; '' for a peer of a Unix socket */
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
    const maxLength = version === 4 ? 32 : 128;
    const prefixLength = prefix === undefined ? maxLength : Number(prefix);
    if (prefixLength > maxLength) return false;
    this.#blocks.addSubnet(address, prefixLength, version === 4 ? 'ipv4' : 'ipv6');
    return true;
  }
}

function withoutZone(address: string): string {
  const at = address.indexOf('%');
  return at === -1 ? address : address.slice(0, at);
}

/**
 * The block of addresses that is assumed to belong to one party: a /24 of IPv4 or a /64 of IPv6
 * (docs/adr/0008-failed-logins.md). A string that is not an IP address, such as a socket path, is its own block.
 */
export function addressBlock(address: string): string {
  const unmapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1] ?? address;
  if (isIP(unmapped) === 4) return `${unmapped.slice(0, unmapped.lastIndexOf('.'))}.0/24`;
  const bare = unmapped.split('%')[0] ?? unmapped;
  if (isIP(bare) !== 6) return address;
  return `${firstFourGroups(bare).join(':')}::/64`;
}

/**
 * The name under which clients that have not logged in share turns with those of the same network. No user
 * has it: names contain no colon.
 */
export function strangersOf(address: string): string {
  return `:${addressBlock(address)}`;
}

function firstFourGroups(address: string): string[] {
  const [head = '', tail] = address.split('::');
  const before = head === '' ? [] : head.split(':');
  const after = tail === undefined || tail === '' ? [] : tail.split(':');
  // A dotted IPv4 suffix represents two groups.
  const written = before.length + after.length + (address.includes('.') ? 1 : 0);
  const zeros = tail === undefined ? 0 : 8 - written;
  const groups = [...before, ...Array.from({ length: zeros }, () => '0'), ...after];
  return groups.slice(0, 4).map((group) => Number.parseInt(group, 16).toString(16));
}
