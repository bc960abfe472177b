import { type Socket, SocketAddress } from 'node:net';
import type { Clock } from '../util/clock.ts';

// The PROXY protocol, version 2 (https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt, section 2.2).

const SIGNATURE = Buffer.from('\r\n\r\n\0\r\nQUIT\n', 'latin1');
const FIXED_BYTES = 16;
/** Maximum size of addresses and extensions. HAProxy sends at most a few hundred bytes. */
const MAX_REST_BYTES = 2048;
/** How long the header may take. A proxy sends it immediately. */
const HEADER_MS = 5_000;

const LOCAL = 0x20;
const PROXY = 0x21;
/** Bytes of both addresses and ports, by address family and transport. */
const LENGTHS: ReadonlyMap<number, number> = new Map([
  [0x00, 0], // unspecified
  [0x11, 12], // TCP over IPv4
  [0x21, 36], // TCP over IPv6
  [0x31, 216], // a Unix stream
]);

/** The client's address from the header; null if it is that of the connection itself. */
type HeaderResult = { readonly address: string | null } | { readonly error: string };

/**
 * Reads the PROXY protocol header at the start of a connection, and no byte after it.
 * @param done called at most once, with the client's address, or with an error after the socket was destroyed
 */
export function readProxyHeader(socket: Socket, clock: Clock, done: (result: HeaderResult) => void): void {
  let fixed: Buffer | null = null;
  const finish = (result: HeaderResult): void => {
    cancel();
    socket.off('readable', read);
    socket.off('end', onEnd);
    socket.off('close', onEnd);
    if ('error' in result) socket.destroy();
    done(result);
  };
  const read = (): void => {
    fixed ??= socket.read(FIXED_BYTES) as Buffer | null;
    if (fixed === null) return;
    const error = headerError(fixed);
    if (error !== null) {
      finish({ error });
      return;
    }
    const length = fixed.readUInt16BE(14);
    const rest = length === 0 ? Buffer.alloc(0) : (socket.read(length) as Buffer | null);
    if (rest === null) return;
    finish(
      rest.length < length ? truncated(fixed.length + rest.length) : { address: addressIn(fixed, rest) },
    );
  };
  const onEnd = (): void => finish({ error: 'the connection ended' });
  const cancel = clock.after(HEADER_MS, () =>
    finish({ error: `the header was not complete within ${HEADER_MS} ms` }),
  );
  // Ignored: `close` follows every error.
  socket.on('error', () => {});
  socket.on('end', onEnd);
  socket.on('close', onEnd);
  socket.on('readable', read);
}

/** Reached because `read` returns the remaining bytes at the end of a stream, even if fewer than requested. */
function truncated(bytes: number): { readonly error: string } {
  return { error: `the connection ended within the header, after ${bytes} bytes` };
}

/** @param fixed shorter than the fixed part if the connection ended within it */
function headerError(fixed: Buffer): string | null {
  if (!fixed.subarray(0, SIGNATURE.length).equals(SIGNATURE)) return 'the signature of version 2 is missing';
  if (fixed.length < FIXED_BYTES) return truncated(fixed.length).error;
  const [command = 0, family = 0] = fixed.subarray(12);
  const length = fixed.readUInt16BE(14);
  if (length > MAX_REST_BYTES)
    return `${length} bytes follow the fixed part. Allowed: at most ${MAX_REST_BYTES}`;
  if (command === LOCAL) return null;
  if (command !== PROXY) return `command ${hex(command)}; allowed are ${hex(LOCAL)} and ${hex(PROXY)}`;
  const needed = LENGTHS.get(family);
  if (needed === undefined)
    return `family ${hex(family)}; allowed are ${[...LENGTHS.keys()].map(hex).join(', ')}`;
  return length < needed ? `${length} bytes of addresses; family ${hex(family)} has ${needed}` : null;
}

function addressIn(fixed: Buffer, rest: Buffer): string | null {
  if (fixed[12] !== PROXY) return null;
  if (fixed[13] === 0x11) return [...rest.subarray(0, 4)].join('.');
  if (fixed[13] !== 0x21) return null;
  const groups = Array.from({ length: 8 }, (_, i) => rest.readUInt16BE(2 * i).toString(16));
  return new SocketAddress({ address: groups.join(':'), family: 'ipv6' }).address;
}

function hex(byte: number): string {
  return `0x${byte.toString(16).padStart(2, '0')}`;
}
