import { Networks } from '../access/networks.ts';
import type { Authenticator } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';
import type { TlsMaterial } from '../util/sockets.ts';

/**
 * What every front end with sessions lets an operator set, checked by `config` before. Lengths are in ms, sizes in
 * bytes.
 */
export interface SessionOptions {
  readonly host: string;
  /** 0: any free port; see `SessionServer.address`. */
  readonly port: number;
  /** The largest body of an element that a client sends. */
  readonly bodyLimit: number;
  /** PEM contents; null: plain TCP. */
  readonly tls: TlsMaterial | null;
  /** Proxies whose connections begin with a PROXY protocol header. */
  readonly trustedProxies: Networks;
  /** Connections kept at once; further ones are closed when they come. */
  readonly maxSockets: number;
  /** From the connection to the end of what the client has to send to log in. */
  readonly loginTimeoutMs: number;
  /** How long a client may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
  /** How long `stop` waits for sessions to end before it cuts their connections. */
  readonly drainMs: number;
  /** Whether each connection is logged when it has ended. */
  readonly logsAccess: boolean;
}

/** The defaults of the configuration; each protocol has its own port. */
export const SESSION_DEFAULTS: Omit<SessionOptions, 'port'> = {
  host: '127.0.0.1',
  bodyLimit: 1_048_576,
  tls: null,
  trustedProxies: new Networks([]),
  maxSockets: 10_000,
  loginTimeoutMs: 10_000,
  stallTimeoutMs: 90_000,
  drainMs: 10_000,
  logsAccess: false,
};

/** What a front end with sessions needs. */
export interface SessionParts<Options extends SessionOptions = SessionOptions> {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly options: Options;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  /** Of the program; clients are shown it. */
  readonly version: string;
}
