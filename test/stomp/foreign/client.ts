/** A message as a third-party library returns it. */
export interface ForeignMessage {
  readonly body: Buffer;
  readonly headers: Readonly<Record<string, string>>;
}

export type AckMode = 'auto' | 'client' | 'client-individual';

/** What the suite needs of a third-party library, in terms that all of them support. */
export interface ForeignClient {
  /** Resolves after the receipt if the library can wait for one and the headers name no transaction. */
  send(destination: string, body: Buffer, headers?: Readonly<Record<string, string>>): Promise<void>;
  subscribe(
    destination: string,
    id: string,
    ack: AckMode,
    headers?: Readonly<Record<string, string>>,
  ): Promise<void>;
  next(): Promise<ForeignMessage>;
  ack(message: ForeignMessage, transaction?: string): Promise<void>;
  nack(message: ForeignMessage, headers: Readonly<Record<string, string>>): Promise<void>;
  begin(transaction: string): Promise<void>;
  commit(transaction: string): Promise<void>;
  abort(transaction: string): Promise<void>;
  /**
   * To be called after the connection was cut. Resolves when the library, or its user as its documentation says, has
   * reconnected.
   */
  recover(): Promise<void>;
  disconnect(): Promise<void>;
}

export interface ForeignOptions {
  readonly port: number;
  readonly version: string;
  readonly login: string;
  readonly passcode: string;
  /** The heart-beat intervals that the client offers and wants, ms. */
  readonly beats: readonly [number, number];
}

/** A library, with the STOMP versions that it supports. */
export interface ForeignLibrary {
  readonly name: string;
  readonly versions: readonly string[];
  /** Whether it connects by WebSocket. */
  readonly isOverWebSocket?: boolean;
  /** Whether it sends heart-beats. */
  readonly beats: boolean;
  /** Rejects if the server rejects the login. */
  open(options: ForeignOptions): Promise<ForeignClient>;
}

/** A queue of values; `take` waits until there is one. */
export class Mailbox<T> {
  readonly #values: T[] = [];
  readonly #waiting: ((value: T) => void)[] = [];

  put(value: T): void {
    const waiting = this.#waiting.shift();
    if (waiting === undefined) this.#values.push(value);
    else waiting(value);
  }

  take(): Promise<T> {
    if (this.#values.length > 0) return Promise.resolve(this.#values.shift() as T);
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
    });
  }
}
