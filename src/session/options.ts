import type { Clock } from '../model/clock.ts';

/** What every front end with sessions lets an operator set, checked by `config` before. */
export interface ListenerOptions {
  readonly host: string;
  /** 0: any free port; see `SessionServer.address`. */
  readonly port: number;
  /** PEM contents; null: plain TCP. */
  readonly tls: TlsMaterial | null;
  /** Connections kept at once; further ones are closed when they come. */
  readonly maxSockets: number;
  /** How long `stop` waits for sessions to end before it cuts their connections, ms. */
  readonly drainMs: number;
}

/** A certificate chain and its key, as PEM text. */
export interface TlsMaterial {
  readonly cert: string;
  readonly key: string;
}

/** Where a front end says what no client hears. Fields never hold a body, a password or a header. */
export interface SessionLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export interface ListenerParts {
  readonly options: ListenerOptions;
  readonly log: SessionLog;
  readonly clock: Clock;
}
