import { Networks } from '../access/networks.ts';
import type { Authenticator } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { ListenerOptions } from '../session/options.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';

/** What an operator may set, checked by `config` before it comes here. Lengths are in ms, sizes in bytes. */
export interface StompOptions extends ListenerOptions {
  /** The largest body of a SEND. */
  readonly bodyLimit: number;
  /** Whether one LF follows each frame. */
  readonly trailingNewline: boolean;
  /** From the connection to the end of the CONNECT frame. */
  readonly loginTimeoutMs: number;
  /** The shortest interval at which this server sends heart-beats, whatever a client asks for. */
  readonly sendBeatMs: number;
  /** The interval at which this server wants heart-beats from clients that can send them; 0: none. */
  readonly wantBeatMs: number;
  /** How long a client may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
}

/** The defaults of the configuration. */
export const STOMP_DEFAULTS: StompOptions = {
  host: '127.0.0.1',
  port: 61_613,
  bodyLimit: 1_048_576,
  trailingNewline: true,
  tls: null,
  trustedProxies: new Networks([]),
  maxSockets: 10_000,
  loginTimeoutMs: 10_000,
  sendBeatMs: 1_000,
  wantBeatMs: 10_000,
  stallTimeoutMs: 90_000,
  drainMs: 10_000,
  logsAccess: false,
};

/** STOMP over WebSocket. A name says no more than that it is STOMP: the version is agreed on by CONNECT. */
export const STOMP_WEB_SOCKET = { subprotocols: ['v12.stomp', 'v11.stomp', 'v10.stomp'], sendsText: true };

/** Everything that the front end stands on. */
export interface StompParts {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly options: StompOptions;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  /** Of the program; shown in CONNECTED. */
  readonly version: string;
}
