import { isIP } from 'node:net';

/**
 * The block of addresses that one party may be taken to own: /24 of IPv4, /64 of IPv6 (reliability, S4).
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
