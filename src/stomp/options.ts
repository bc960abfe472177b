import { LOGIN_BYTES } from '../session/client-session.ts';
import { SESSION_DEFAULTS, type SessionOptions } from '../session/server.ts';

/** Options of the STOMP front end, validated by `config`. Durations are in ms. */
export interface StompOptions extends SessionOptions {
  /** Whether an LF follows each frame. */
  readonly trailingNewline: boolean;
  /** The shortest interval at which this server sends heart-beats, whatever a client asks for. */
  readonly sendBeatMs: number;
  /** The interval at which this server wants heart-beats from clients that can send them; 0: none. */
  readonly wantBeatMs: number;
}

/** The defaults of the configuration. */
export const STOMP_DEFAULTS: StompOptions = {
  ...SESSION_DEFAULTS,
  port: 61_613,
  trailingNewline: true,
  sendBeatMs: 1_000,
  wantBeatMs: 10_000,
};

/**
 * Limits on what this server stores for one client, so that no client exhausts its memory. `docs/protocols/stomp.md`
 * lists the same numbers, and a test compares them.
 */
export const STOMP_LIMITS = {
  /** Maximum bytes read before CONNECTED. */
  loginBytes: LOGIN_BYTES,
  /** Bytes of a command and its headers: enough for all allowed element headers with every character escaped. */
  headBytes: 24_576,
  /** Headers of one frame: enough for all allowed element headers and those of the protocol. */
  headers: 128,
  /** Bytes of the id of a subscription or transaction, which stays in memory as long as that. */
  idBytes: 1024,
  subscriptions: 256,
  /** Unacknowledged elements of one subscription. */
  window: 65_536,
  /**
   * Unacknowledged elements of all subscriptions of a session. Each takes 300 bytes of memory until the client settles
   * it.
   */
  windows: 262_144,
  /** The window if SUBSCRIBE names none. */
  defaultWindow: 1000,
  /** Open transactions of a session. */
  transactions: 16,
  /** SENDs, ACKs and NACKs of all open transactions of a session. */
  transactionFrames: 1000,
  /** Bodies and element headers of all open transactions of a session, as a multiple of the largest body. */
  transactionBodies: 4,
  /** Absolute limit for the same, bytes: one engine call stores them, and calls to Redis stay below 64 MiB. */
  transactionBytes: 48 * 1024 * 1024,
  /** The default delay of a NACK, ms. */
  nackDelayMs: 5000,
} as const;
