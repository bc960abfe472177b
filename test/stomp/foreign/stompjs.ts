import { connect, type Socket } from 'node:net';
import { Client, type IMessage, type IStompSocket, Versions } from '@stomp/stompjs';
import {
  type ForeignClient,
  type ForeignLibrary,
  type ForeignMessage,
  type ForeignOptions,
  Mailbox,
} from './client.ts';

/** The part of a WebSocket that stompjs uses, over plain TCP. */
class TcpSocket {
  readonly url: string;
  binaryType?: string;
  onopen: ((event?: unknown) => void) | null = null;
  onclose: ((event?: unknown) => void) | null = null;
  onerror: ((event?: unknown) => void) | null = null;
  onmessage: ((event: { data: ArrayBuffer }) => void) | null = null;
  readyState = 0;
  readonly #socket: Socket;

  constructor(port: number) {
    this.url = `tcp://127.0.0.1:${port}`;
    this.#socket = connect({ port, host: '127.0.0.1' });
    this.#socket.on('connect', () => {
      this.readyState = 1;
      this.onopen?.();
    });
    this.#socket.on('data', (bytes) => this.onmessage?.({ data: new Uint8Array(bytes).buffer }));
    this.#socket.on('error', (error) => this.onerror?.(error));
    this.#socket.on('close', () => {
      this.readyState = 3;
      this.onclose?.({ code: 1000, reason: '', wasClean: true });
    });
  }

  send(data: string | ArrayBuffer): void {
    this.#socket.write(typeof data === 'string' ? data : new Uint8Array(data));
  }

  close(): void {
    this.readyState = 2;
    this.#socket.end();
  }

  terminate(): void {
    this.#socket.destroy();
  }
}

class StompJs implements ForeignClient {
  readonly #client: Client;
  readonly #messages = new Mailbox<ForeignMessage & { readonly message: IMessage }>();
  readonly #connects = new Mailbox<void>();
  readonly #subscriptions: (() => Promise<void>)[] = [];
  /** The reject functions of requests that still wait for their RECEIPT. */
  readonly #rejects = new Set<(error: Error) => void>();
  #receipts = 0;

  private constructor(options: ForeignOptions, isOverWebSocket: boolean, refused: (error: Error) => void) {
    const { port, version, login, passcode, beats } = options;
    this.#client = new Client({
      ...(isOverWebSocket
        ? { brokerURL: `ws://127.0.0.1:${port}/stomp` }
        : { webSocketFactory: () => new TcpSocket(port) as unknown as IStompSocket }),
      stompVersions: new Versions([version]),
      connectHeaders: { login, passcode, host: 'localhost' },
      heartbeatOutgoing: beats[0],
      heartbeatIncoming: beats[1],
      reconnectDelay: 20,
      forceBinaryWSFrames: !isOverWebSocket,
      onConnect: async () => {
        for (const again of this.#subscriptions) await again();
        this.#connects.put();
      },
      onStompError: ({ headers }) => {
        void this.#client.deactivate();
        const error = new Error(headers.message);
        refused(error);
        for (const reject of this.#rejects) reject(error);
      },
    });
  }

  static async open(options: ForeignOptions, isOverWebSocket: boolean): Promise<ForeignClient> {
    const { promise, resolve, reject } = Promise.withResolvers<ForeignClient>();
    const own = new StompJs(options, isOverWebSocket, reject);
    own.#client.activate();
    void own.#connects.take().then(() => resolve(own));
    return promise;
  }

  send(destination: string, body: Buffer, headers: Record<string, string> = {}): Promise<void> {
    return this.#asked((receipt) =>
      this.#client.publish({
        destination,
        binaryBody: new Uint8Array(body),
        headers: { ...headers, receipt },
      }),
    );
  }

  async subscribe(
    destination: string,
    id: string,
    ack: string,
    headers: Record<string, string> = {},
  ): Promise<void> {
    const subscribe = (): Promise<void> =>
      this.#asked((receipt) =>
        this.#client.subscribe(destination, (message) => this.#messages.put(taken(message)), {
          ...headers,
          id,
          ack,
          receipt,
        }),
      );
    this.#subscriptions.push(subscribe);
    await subscribe();
  }

  next(): Promise<ForeignMessage> {
    return this.#messages.take();
  }

  ack(message: ForeignMessage, transaction?: string): Promise<void> {
    const of = message as ForeignMessage & { message: IMessage };
    return this.#asked((receipt) =>
      of.message.ack({ receipt, ...(transaction !== undefined && { transaction }) }),
    );
  }

  nack(message: ForeignMessage, headers: Record<string, string>): Promise<void> {
    const of = message as ForeignMessage & { message: IMessage };
    return this.#asked((receipt) => of.message.nack({ ...headers, receipt }));
  }

  async begin(transaction: string): Promise<void> {
    this.#client.begin(transaction);
  }

  async commit(transaction: string): Promise<void> {
    this.#client.commit(transaction);
  }

  async abort(transaction: string): Promise<void> {
    this.#client.abort(transaction);
  }

  recover(): Promise<void> {
    return this.#connects.take();
  }

  disconnect(): Promise<void> {
    return this.#client.deactivate();
  }

  #asked(send: (receipt: string) => void): Promise<void> {
    this.#receipts += 1;
    const receipt = `receipt-${this.#receipts}`;
    return new Promise((resolve, reject) => {
      this.#rejects.add(reject);
      this.#client.watchForReceipt(receipt, () => {
        this.#rejects.delete(reject);
        resolve();
      });
      send(receipt);
    });
  }
}

function taken(message: IMessage): ForeignMessage & { readonly message: IMessage } {
  return { message, headers: { ...message.headers }, body: Buffer.from(message.binaryBody) };
}

export const STOMPJS: ForeignLibrary = {
  name: '@stomp/stompjs',
  versions: ['1.0', '1.1', '1.2'],
  beats: true,
  open: (options) => StompJs.open(options, false),
};

/** As it is used in browsers. */
export const STOMPJS_OVER_WEBSOCKET: ForeignLibrary = {
  ...STOMPJS,
  name: '@stomp/stompjs over WebSocket',
  isOverWebSocket: true,
  open: (options) => StompJs.open(options, true),
};
