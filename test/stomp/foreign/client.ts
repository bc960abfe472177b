/** A message as somebody else's library hands it over. */
export interface ForeignMessage {
  readonly body: Buffer;
  readonly headers: Readonly<Record<string, string>>;
}

export type AckMode = 'auto' | 'client' | 'client-individual';

/** What the suite asks of a foreign library, in terms that each of them has. */
export interface ForeignClient {
  /** Sends; resolves with the receipt where the library has a way to wait for one, and `transaction` is not given. */
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
  /** The connection was cut: resolves when the library, or its user as it tells them to, has it back. */
  recover(): Promise<void>;
  disconnect(): Promise<void>;
}

export interface ForeignOptions {
  readonly port: number;
  readonly version: string;
  readonly login: string;
  readonly passcode: string;
  /** What the client sends and wants, ms. */
  readonly beats: readonly [number, number];
}

/** A library in the versions that it speaks. */
export interface ForeignLibrary {
  readonly name: string;
  readonly versions: readonly string[];
  /** Whether it connects by WebSocket. */
  readonly isOverWebSocket?: boolean;
  /** Whether it sends heart-beats. */
  readonly beats: boolean;
  /** Rejects where the server refuses the login. */
  open(options: ForeignOptions): Promise<ForeignClient>;
}

/** Values that wait for somebody, or somebodies that wait for a value. */
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
