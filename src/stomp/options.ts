import { LOGIN_BYTES } from '../session/client-session.ts';
import { SESSION_DEFAULTS, type SessionOptions, type SessionParts } from '../session/server.ts';

/** What an operator may set, checked by `config` before it comes here. Lengths are in ms. */
export interface StompOptions extends SessionOptions {
  /** Whether one LF follows each frame. */
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

/** STOMP over WebSocket. The names differ only in a version that means nothing here: CONNECT negotiates the version. */
export const STOMP_WEB_SOCKET = { subprotocols: ['v12.stomp', 'v11.stomp', 'v10.stomp'], usesText: true };

/** What the STOMP front end needs. */
export type StompParts = SessionParts<StompOptions>;

/**
 * Bounds on what one client may make this server keep, so that none uses up its memory. `docs/protocols/stomp.md` lists
 * the same numbers, and a test compares them.
 */
export const STOMP_LIMITS = {
  /** Bytes that are read before CONNECTED. */
  loginBytes: LOGIN_BYTES,
  /** Bytes of a command and its headers: all element headers that may be, each character escaped, and the rest. */
  headBytes: 24_576,
  /** Headers of one frame: all element headers that may be, and the rest. */
  headers: 128,
  subscriptions: 256,
  /** Unacknowledged elements of one subscription. */
  window: 65_536,
  /** The window where SUBSCRIBE names none. */
  defaultWindow: 1000,
  /** Transactions that are open at once. */
  transactions: 16,
  /** SENDs, ACKs and NACKs of all open transactions of a session. */
  transactionFrames: 1000,
  /** Bodies and element headers of all open transactions of a session, in largest bodies. */
  transactionBodies: 4,
  /** The same in bytes: one call of an engine stores them, and Redis is sent none of 64 MiB. */
  transactionBytes: 48 * 1024 * 1024,
  /** The default delay of a NACK, ms. */
  nackDelayMs: 5000,
} as const;
