import { Networks } from '../access/networks.ts';
import type { Authenticator } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { ListenerOptions } from '../session/options.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';

/** What an operator may set, checked by `config` before it comes here. Lengths are in ms, sizes in bytes. */
export interface AmqpOptions extends ListenerOptions {
  /** The largest body of a message. */
  readonly bodyLimit: number;
  /** From the connection to the end of the SASL exchange. */
  readonly loginTimeoutMs: number;
  /** `idle-time-out` of this server's `open`: a client that is silent for twice as long is taken for gone. */
  readonly idleTimeoutMs: number;
  /** How long a client may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
  /** The user as whom clients of SASL ANONYMOUS act; null: it is not served. */
  readonly anonymousUser: string | null;
}

/** The defaults of the configuration. */
export const AMQP_DEFAULTS: AmqpOptions = {
  host: '127.0.0.1',
  port: 5672,
  bodyLimit: 1_048_576,
  tls: null,
  trustedProxies: new Networks([]),
  maxSockets: 10_000,
  loginTimeoutMs: 10_000,
  idleTimeoutMs: 30_000,
  stallTimeoutMs: 90_000,
  anonymousUser: null,
  drainMs: 10_000,
  logsAccess: false,
};

/** AMQP over WebSocket (OASIS, "AMQP WebSocket Binding", 1.0). */
export const AMQP_WEB_SOCKET = { subprotocols: ['amqp'], sendsText: false };

/** Everything that the front end stands on. */
export interface AmqpParts {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly options: AmqpOptions;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  /** Of the program; shown in `open`. */
  readonly version: string;
  /** The first id of transfers and deliveries, which wrap at 2^32; 0 by default. */
  readonly firstId?: number;
}
