import type { Authenticator, User } from '../../access/user.ts';
import type { SessionCounts } from '../../session/counts.ts';
import type { Clock } from '../../util/clock.ts';
import type { Refusal } from './refusal.ts';

export interface GuardOptions {
  readonly clock: Clock;
  readonly authenticator: Authenticator;
  /** Of the peer, for the limits on failed logins. */
  readonly address: string;
  /** `receivedBytes`, `frames`, `outgoingBytes`, `stalled` and `errors` are counted here. */
  readonly counts: SessionCounts;
  /** `container-id` of the `open` that comes before a `close` where rhea has not opened yet. */
  readonly containerId: string;
  /** The largest encoded message: the largest body, and room for the sections around it. */
  readonly messageBytes: number;
  /** From the connection to the end of the SASL exchange. */
  readonly loginTimeoutMs: number;
  /** `idle-time-out` of rhea's `open`, ms; 0: a peer may be silent. */
  readonly idleTimeoutMs: number;
  /** How long a peer may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
}

/** Hears from the guard. Neither `refused` nor `gone` is called from inside a call to the guard. */
export interface GuardOwner {
  /**
   * SASL is done. The owner makes rhea's connection here and lets it `accept(guard.stream)`, with `disable_sasl`;
   * everything from the AMQP header on follows there, checked.
   */
  loggedIn(user: User): void;
  /** There is room in the outbox again, or more than before. */
  onRoom(): void;
  /** The guard ended the connection for this reason; `gone` follows. For the log: the peer was told. */
  refused(reason: Refusal): void;
  /**
   * The connection is over. Every cargo has heard its fate, rhea has seen the end of its stream (its event
   * `disconnected`). Comes once, always, and last.
   */
  gone(): void;
}
