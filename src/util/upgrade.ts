import type { Socket } from 'node:net';

/** The version of the WebSocket protocol (RFC 6455). */
export const WEB_SOCKET_VERSION = '13';

/** An HTTP upgrade request to WebSocket, with its connection. */
export interface UpgradeRequest {
  /** Flat pairs: name, value, … */
  readonly rawHeaders: readonly string[];
  /** The client's address, as reported by trusted proxies. */
  readonly address: string;
  readonly socket: Socket;
  /** The bytes received after the request. */
  readonly head: Buffer;
  /** Call before the socket is used: no response can be sent any more. */
  readonly onAccepted: () => void;
  /** Attributes the connection to a user. @throws QuaysideError `overloaded` if users have too many connections */
  readonly onLogin: (user: string) => void;
}

/**
 * Handles the upgrade requests of one path: takes over the connection.
 * @throws QuaysideError the reason for which the request is rejected
 */
export type UpgradeHandler = (request: UpgradeRequest) => void;
