import type { Socket } from 'node:net';

/** A request to turn its connection into a WebSocket, and the connection behind it. */
export interface UpgradeRequest {
  /** Flat pairs: name, value, … */
  readonly rawHeaders: readonly string[];
  /** The client's, as far as trusted proxies say it. */
  readonly address: string;
  readonly socket: Socket;
  /** The first bytes behind the request. */
  readonly head: Buffer;
  /** The connection is that of this user from now on. @throws QuaysideError `overloaded` if users have too many */
  readonly onLogin: (user: string) => void;
}

/** Answers upgrade requests of one path. */
export interface UpgradeHandler {
  /** @throws QuaysideError the reason for which the request is rejected */
  check(rawHeaders: readonly string[]): void;
  /** Takes over the connection of a request that passed `check`. */
  upgrade(request: UpgradeRequest): void;
}
