import type { AddressInfo, ListenOptions, Server, Socket } from 'node:net';
import type { FrontEndLog } from './log.ts';

/** A certificate chain and its key, as PEM text. */
export interface TlsMaterial {
  readonly cert: string;
  readonly key: string;
  /** Certificates of the authorities that sign those of clients; without them, clients are asked for none. */
  readonly clientCa?: string;
}

/** What every listener requires of its clients. */
export const TLS_VERSION = { minVersion: 'TLSv1.2' } as const;
export const TLS_HANDSHAKE_MS = 10_000;

/** TCP keep-alive finds peers that vanished without a word and owe nothing. */
export const TCP_KEEP_ALIVE_MS = 30_000;

/** Resolves when a server listens; rejects if the address cannot be had. @param protocol its name, for people */
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

/** Where a server listens. @throws Error if it does not */
export function addressOf(server: Server, protocol: string): AddressInfo {
  const address = server.address();
  if (address === null || typeof address === 'string') {
    throw new Error(`The ${protocol} server does not listen.`);
  }
  return address;
}

/**
 * A buffer of up to this size is copied into one write with the bytes around it, because a second write costs more than
 * the copy. Larger ones are written from where they are.
 */
export const JOINED_BYTES = 4096;

/** Names a connection among those of one listener: the same for a raw socket and the TLS connection within it. */
export function peerOf({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress} ${remotePort}`;
}
