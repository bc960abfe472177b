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
