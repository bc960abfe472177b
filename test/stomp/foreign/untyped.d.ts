/** The part of stompit that the tests use; it has no types of its own. */
declare module 'stompit' {
  import type { Readable, Writable } from 'node:stream';

  export type Headers = Record<string, string>;
  export type Message = Readable & { readonly headers: Headers };

  export interface SendOptions {
    readonly onReceipt?: () => void;
  }

  export interface Client {
    send(headers: Headers, options?: SendOptions): Writable;
    sendFrame(command: string, headers: Headers, options?: SendOptions): Writable;
    subscribe(headers: Headers, onMessage: (error: Error | null, message: Message) => void): unknown;
    ack(message: Message, headers?: Headers, sendOptions?: SendOptions): void;
    nack(message: Message, headers?: Headers, sendOptions?: SendOptions): void;
    disconnect(callback: (error: Error | null) => void): void;
    on(event: 'error', listener: (error: Error) => void): void;
  }

  export interface ConnectOptions {
    readonly host: string;
    readonly port: number;
    readonly connectHeaders: Headers;
  }

  export function connect(
    options: ConnectOptions,
    callback: (error: Error | null, client: Client) => void,
  ): void;

  export class ConnectFailover {
    constructor(servers: readonly ConnectOptions[], options: { initialReconnectDelay: number });
    connect(callback: (error: Error | null, client: Client) => void): void;
  }
}
