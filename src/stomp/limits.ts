import { LOGIN_BYTES } from '../session/client-session.ts';

/**
 * Bounds on what one client may make this server keep (reliability, S18). `docs/protocols/stomp.md` lists the
 * same numbers, and a test compares them.
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
  /** Bodies of all open transactions of a session, in largest bodies. */
  transactionBodies: 4,
  /** The default delay of a NACK, ms. */
  nackDelayMs: 5000,
} as const;
