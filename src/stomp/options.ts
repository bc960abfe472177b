import type { Authenticator } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { Clock } from '../model/clock.ts';

/** What an operator may set, checked by `config` before it comes here. Lengths are in ms, sizes in bytes. */
export interface StompOptions {
  readonly host: string;
  /** 0: any free port; see `StompServer.address`. */
  readonly port: number;
  /** The largest body of a SEND. */
  readonly bodyLimit: number;
  /** PEM contents; null: plain TCP. */
  readonly tls: TlsMaterial | null;
  /** Connections kept at once; further ones are closed when they come. */
  readonly maxSockets: number;
  /** From the connection to the end of the CONNECT frame. */
  readonly loginTimeoutMs: number;
  /** The shortest interval at which this server sends heart-beats, whatever a client asks for. */
  readonly sendBeatMs: number;
  /** The interval at which this server wants heart-beats from those who can send them; 0: none. */
  readonly wantBeatMs: number;
  /** How long a client may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
  /** How long `stop` waits for sessions to end before it cuts their connections. */
  readonly drainMs: number;
}

/** A certificate chain and its key, as PEM text. */
export interface TlsMaterial {
  readonly cert: string;
  readonly key: string;
}

/** What is used where the configuration says nothing. */
export const STOMP_DEFAULTS: StompOptions = {
  host: '127.0.0.1',
  port: 61_613,
  bodyLimit: 1_048_576,
  tls: null,
  maxSockets: 10_000,
  loginTimeoutMs: 10_000,
  sendBeatMs: 1_000,
  wantBeatMs: 10_000,
  stallTimeoutMs: 90_000,
  drainMs: 10_000,
};

/** Where the front end says what no client hears. Fields never hold a body, a password or a header. */
export interface StompLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** Everything that the front end stands on. */
export interface StompParts {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly options: StompOptions;
  readonly log: StompLog;
  readonly clock: Clock;
  /** Of the program; shown in CONNECTED. */
  readonly version: string;
}
