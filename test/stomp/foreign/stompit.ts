import stompit from 'stompit';
import {
  type ForeignClient,
  type ForeignLibrary,
  type ForeignMessage,
  type ForeignOptions,
  Mailbox,
} from './client.ts';

class StompIt implements ForeignClient {
  readonly #failover: stompit.ConnectFailover;
  readonly #messages = new Mailbox<ForeignMessage & { readonly message: stompit.Message }>();
  readonly #subscriptions: (() => Promise<void>)[] = [];
  #client: stompit.Client;
  /** Reconnections that `recover` has not returned yet. */
  readonly #recoveries = new Mailbox<void>();
  #isOver = false;

  private constructor(failover: stompit.ConnectFailover, client: stompit.Client) {
    this.#failover = failover;
    this.#client = client;
    this.#watch(client);
  }

  static async open({ port, version, login, passcode, beats }: ForeignOptions): Promise<ForeignClient> {
    const server: stompit.ConnectOptions = {
      host: '127.0.0.1',
      port,
      connectHeaders: {
        host: 'localhost',
        login,
        passcode,
        'accept-version': version,
        'heart-beat': beats.join(','),
      },
    };
    // The first login is tried once, so that a rejection is reported; later ones are repeated until the server is
    // available again.
    const client = await new Promise<stompit.Client>((resolve, reject) => {
      stompit.connect(server, (error, connected) => (error ? reject(error) : resolve(connected)));
    });
    return new StompIt(new stompit.ConnectFailover([server], { initialReconnectDelay: 10 }), client);
  }

  send(destination: string, body: Buffer, headers: Record<string, string> = {}): Promise<void> {
    return this.#asked((onReceipt) => {
      const length = { 'content-length': String(body.length) };
      this.#client.send({ destination, ...length, ...headers }, { onReceipt }).end(body);
    });
  }

  async subscribe(
    destination: string,
    id: string,
    ack: string,
    headers: Record<string, string> = {},
  ): Promise<void> {
    const subscribe = async (): Promise<void> => {
      this.#client.subscribe({ destination, id, ack, ...headers }, (error, message) => {
        if (!error) void this.#read(message);
      });
    };
    this.#subscriptions.push(subscribe);
    await subscribe();
  }

  next(): Promise<ForeignMessage> {
    return this.#messages.take();
  }

  ack(message: ForeignMessage, transaction?: string): Promise<void> {
    const of = message as ForeignMessage & { message: stompit.Message };
    const headers = transaction === undefined ? {} : { transaction };
    return this.#asked((onReceipt) => this.#client.ack(of.message, headers, { onReceipt }));
  }

  nack(message: ForeignMessage, headers: Record<string, string>): Promise<void> {
    const of = message as ForeignMessage & { message: stompit.Message };
    return this.#asked((onReceipt) => this.#client.nack(of.message, headers, { onReceipt }));
  }

  begin(transaction: string): Promise<void> {
    return this.#frame('BEGIN', transaction);
  }

  commit(transaction: string): Promise<void> {
    return this.#frame('COMMIT', transaction);
  }

  abort(transaction: string): Promise<void> {
    return this.#frame('ABORT', transaction);
  }

  recover(): Promise<void> {
    return this.#recoveries.take();
  }

  disconnect(): Promise<void> {
    this.#isOver = true;
    return new Promise((resolve, reject) => {
      this.#client.disconnect((error) => (error ? reject(error) : resolve()));
    });
  }

  #frame(command: string, transaction: string): Promise<void> {
    return this.#asked((onReceipt) => {
      this.#client.sendFrame(command, { transaction }, { onReceipt }).end();
    });
  }

  #watch(client: stompit.Client): void {
    client.on('error', () => {
      if (this.#isOver) return;
      this.#failover.connect((error, connected) => {
        if (error) return;
        this.#client = connected;
        this.#watch(connected);
        for (const again of this.#subscriptions) void again();
        this.#recoveries.put();
      });
    });
  }

  async #read(message: stompit.Message): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of message) chunks.push(chunk as Buffer);
    this.#messages.put({ message, headers: message.headers, body: Buffer.concat(chunks) });
  }

  #asked(send: (onReceipt: () => void) => void): Promise<void> {
    return new Promise((resolve) => send(resolve));
  }
}

export const STOMPIT: ForeignLibrary = {
  name: 'stompit',
  versions: ['1.0', '1.1', '1.2'],
  beats: true,
  open: (options) => StompIt.open(options),
};
