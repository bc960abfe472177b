import { SESSION_DEFAULTS, type SessionOptions } from '../session/server.ts';

/** Options of the AMQP front end, validated by `config`. Durations are in ms. */
export interface AmqpOptions extends SessionOptions {
  /** `idle-time-out` of this server's `open`. A client that is silent for twice as long is considered dead. */
  readonly idleTimeoutMs: number;
  /** The user of clients with SASL ANONYMOUS; null: that mechanism is not offered. */
  readonly anonymousUser: string | null;
}

/** The defaults of the configuration. */
export const AMQP_DEFAULTS: AmqpOptions = {
  ...SESSION_DEFAULTS,
  port: 5672,
  idleTimeoutMs: 30_000,
  anonymousUser: null,
};
