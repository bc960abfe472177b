/** The part of the package `ws` that is used. It comes without types. */
declare module 'ws' {
  import type { EventEmitter } from 'node:events';
  import type { Duplex } from 'node:stream';

  export interface WebSocket extends EventEmitter {
    readonly OPEN: 1;
    readonly readyState: number;
    send(data: Uint8Array, options: { binary: boolean }, done: (error?: Error) => void): void;
    pong(data: Uint8Array): void;
    /** Starts the closing handshake. */
    close(code?: number, reason?: string): void;
    /** Cuts the connection. */
    terminate(): void;
    pause(): void;
    resume(): void;
  }

  export class WebSocketServer {
    constructor(options: {
      noServer: true;
      clientTracking: false;
      perMessageDeflate: false;
      autoPong: false;
      maxPayload: number;
      maxFragments: number;
      maxBufferedChunks: number;
    });
    handleUpgrade(
      request: { readonly method: string; readonly headers: Readonly<Record<string, string>> },
      socket: Duplex,
      head: Buffer,
      done: (socket: WebSocket) => void,
    ): void;
  }
}
