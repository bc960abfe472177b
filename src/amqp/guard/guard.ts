import type { Socket } from 'node:net';
import type { Authenticator, User } from '../../access/user.ts';
import type { Clock } from '../../model/clock.ts';
import type { SessionCounts } from '../../session/counts.ts';
import type { Cargo } from '../../session/handout.ts';
import type { RheaStream } from './rhea-stream.ts';

/** An AMQP error, as `close` carries it. */
export interface Refusal {
  /** Such as `amqp:decode-error`. */
  readonly condition: string;
  /** One sentence for people. */
  readonly description: string;
}

export interface GuardOptions {
  readonly clock: Clock;
  readonly authenticator: Authenticator;
  /** `receivedBytes`, `frames`, `outgoingBytes`, `stalled` and `errors` are counted here. */
  readonly counts: SessionCounts;
  /** `container-id` of the `open` that comes before a `close` where rhea has not opened yet. */
  readonly containerId: string;
  /** The largest encoded message: the largest body, and room for the sections around it. */
  readonly messageBytes: number;
  /** From the connection to the end of the SASL exchange. */
  readonly loginTimeoutMs: number;
  /** How long a peer may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
}

/** Hears from the guard. Calls come one at a time, never from inside a call to the guard's `close` or `hold`. */
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

/**
 * Stands between a socket and rhea: cuts what comes into frames, and checks each before rhea sees a byte of it;
 * does SASL itself; carries away what rhea writes, with bounds.
 *
 * What rhea is spared, and its user need not fear:
 * - Frames that are out of order, too large, or whose values do not fit in them; unknown channels and handles;
 *   transfers beyond credit or window; dispositions of deliveries that never were. Each ends the connection
 *   with a `close` that names the condition.
 * - **Messages come as bytes.** `message-format` 0 is struck out of transfers, so that rhea does not decode them:
 *   in rhea's `message` event `context.message` is a `Buffer` of the encoded sections, unchecked.
 *   Other formats, `resume`, `aborted` and transactions are refused as `amqp:not-implemented`.
 * - A delivery that is larger than `messageBytes` comes cut: its buffer is longer than `messageBytes`, and no
 *   more of it is kept. Whoever gets it answers `amqp:link:message-size-exceeded`.
 * - Link names are prefixed with `s:` or `r:` towards rhea, which knows links by name only: AMQP lets a sender
 *   and a receiver have the same one. The prefix is taken off on the way out; never set `name` of an
 *   `attach`.
 * - `detach` and `end` reach rhea with a turn of the event loop behind them, so that a name or a channel may be
 *   used again at once.
 */
export interface GuardFace {
  /** For rhea's `accept`. */
  readonly stream: RheaStream;
  /** Of the peer. */
  readonly address: string;
  /** Bytes that wait for the peer. */
  readonly bytes: number;
  /** Bytes that may be handed out now: none while the peer is behind. */
  readonly room: number;

  /**
   * Names who rides on a delivery that rhea will send: `channel` is the session's `local.channel`,
   * `deliveryId` the `id` of what `sender.send` answered. To be called in the same turn as `send`. The cargo
   * hears `written` when the kernel has the last byte of the delivery, else `lost`.
   */
  carry(channel: number, deliveryId: number, cargo: Cargo): void;

  /** Nothing is read from the peer while it is held: it has too much under way. */
  hold(isHeld: boolean): void;

  /**
   * Ends the connection from this side at any time: before the login with a SASL outcome, later with a `close`
   * that has this error. What waits behind the write under way is not sent, its cargo hears `lost`.
   * To end politely, close rhea's connection instead.
   */
  close(reason: Refusal): void;

  /** Cuts the connection. */
  destroy(): void;
}

export type MakeGuard = (socket: Socket, options: GuardOptions, owner: GuardOwner) => GuardFace;
