import { SESSION_DEFAULTS, type SessionOptions, type SessionParts } from '../session/server.ts';

/** What an operator may set, checked by `config` before it comes here. Lengths are in ms. */
export interface AmqpOptions extends SessionOptions {
  /** `idle-time-out` of this server's `open`: a client that is silent for twice as long is taken for gone. */
  readonly idleTimeoutMs: number;
  /** The user as whom clients of SASL ANONYMOUS act; null: it is not served. */
  readonly anonymousUser: string | null;
}

/** The defaults of the configuration. */
export const AMQP_DEFAULTS: AmqpOptions = {
  ...SESSION_DEFAULTS,
  port: 5672,
  idleTimeoutMs: 30_000,
  anonymousUser: null,
};

/** AMQP over WebSocket (OASIS, "AMQP WebSocket Binding", 1.0). */
export const AMQP_WEB_SOCKET = { subprotocols: ['amqp'], usesText: false };

/** What the AMQP front end needs. */
export interface AmqpParts extends SessionParts<AmqpOptions> {
  /** The first id of transfers and deliveries, which wrap at 2^32; 0 by default. */
  readonly firstId?: number;
}
