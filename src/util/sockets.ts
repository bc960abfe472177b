import type { AddressInfo, ListenOptions, Server, Socket } from 'node:net';
import type { FrontEndLog } from './log.ts';

/** A certificate chain and its private key, in PEM. */
export interface TlsMaterial {
  readonly cert: string;
  readonly key: string;
  /** Certificates of the authorities that sign client certificates; if missing, clients are not asked for one. */
  readonly clientCa?: string;
}

/** The minimum TLS version of every listener. */
export const TLS_VERSION = { minVersion: 'TLSv1.2' } as const;
export const TLS_HANDSHAKE_MS = 10_000;

/** TCP keep-alive detects peers that vanished while no data is in flight. */
export const TCP_KEEP_ALIVE_MS = 30_000;

/** Resolves when the server listens; rejects if the address cannot be bound. @param protocol name for log messages */
export function listen(
  server: Server,
  options: ListenOptions,
  protocol: string,
  log: FrontEndLog,
): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once('error', reject);
  server.listen(options, () => {
    server.off('error', reject);
    server.on('error', (error) => log.error({ err: error }, `the ${protocol} listener failed`));
    resolve();
  });
  return promise;
}

/** The address that a server listens on. @throws Error if it does not listen */
export function addressOf(server: Server, protocol: string): AddressInfo {
  const address = server.address();
  if (address === null || typeof address === 'string') {
    throw new Error(`The ${protocol} server is not listening.`);
  }
  return address;
}

/**
 * Buffers up to this size are copied into one write with adjacent bytes, because a second write costs more than the
 * copy. Larger ones are written without a copy.
 */
export const JOINED_BYTES = 4096;

/**
 * Identifies a connection among those of one listener; a raw socket and the TLS connection over it have the same value.
 */
export function peerOf({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress} ${remotePort}`;
}
