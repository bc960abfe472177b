import { SESSION_DEFAULTS, type SessionOptions, type SessionParts } from '../session/options.ts';

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

/** STOMP over WebSocket. A name says no more than that it is STOMP: the version is agreed on by CONNECT. */
export const STOMP_WEB_SOCKET = { subprotocols: ['v12.stomp', 'v11.stomp', 'v10.stomp'], usesText: true };

/** What the STOMP front end needs. */
export type StompParts = SessionParts<StompOptions>;
