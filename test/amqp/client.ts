import rhea, {
  type AmqpError,
  type Connection,
  type Delivery,
  type EventContext,
  type Message,
  type Receiver,
  type Sender,
  type Session,
} from 'rhea';

/** The outcome of a sent message, or how a whole link ended. */
export interface Outcome {
  readonly kind: 'accepted' | 'rejected' | 'released' | 'modified' | 'settled';
  readonly error: AmqpError | null;
}

/** The error of a link or connection that the server rejected or closed. */
export class Ended extends Error {
  readonly condition: string;
  readonly info: Readonly<Record<string, string>>;

  constructor(error: AmqpError | Error | undefined) {
    const { condition = '', description = '', info = {} } = (error ?? {}) as AmqpError & { info?: object };
    super(`${condition}: ${description}`);
    this.condition = condition;
    this.info = info as Record<string, string>;
  }
}

/** rhea's client with promises instead of events. */
export class AmqpClient {
  readonly connection: Connection;
  /**
   * Resolves to the error with which the server closed, or null if the connection was cut or closed without an error.
   */
  readonly closed: Promise<Ended | null>;

  private constructor(connection: Connection, closed: Promise<Ended | null>) {
    this.connection = connection;
    this.closed = closed;
  }

  /** Resolves when the connection is open. @throws Error if it cannot be opened */
  static open(port: number, user = 'test', fields: object = {}): Promise<AmqpClient> {
    const container = rhea.create_container({ id: `client-${user}` });
    container.on('error', () => {});
    const options = { host: '127.0.0.1', port, username: user, password: user, reconnect: false, ...fields };
    const connection = container.connect(options);
    connection.setMaxListeners(0);
    const ended = Promise.withResolvers<Ended | null>();
    const opened = Promise.withResolvers<AmqpClient>();
    // Errors are reported by `connection_error` and `disconnected`.
    connection.on('error', () => {});
    connection.on('protocol_error', () => {});
    connection.on('connection_open', () => opened.resolve(new AmqpClient(connection, ended.promise)));
    connection.on('connection_close', () => ended.resolve(null));
    connection.on('connection_error', () => {
      const error = new Ended(connection.error);
      ended.resolve(error);
      opened.reject(error);
    });
    connection.on('disconnected', (context: EventContext) => {
      ended.resolve(null);
      opened.reject(context.error ?? new Error('disconnected'));
    });
    return opened.promise;
  }

  /** Attaches a sending link. @throws Ended if the server rejects it */
  async sender(target: string | object, fields: object = {}): Promise<TestSender> {
    const sender = this.connection.open_sender({ target, autosettle: true, ...fields } as never);
    return new TestSender(sender, await attached(sender, 'sender'));
  }

  /**
   * Attaches a receiving link with the given credit. Nothing is accepted automatically.
   * @throws Ended if the server rejects it
   */
  async receiver(source: string | object, fields: object = {}, credit = 0): Promise<TestReceiver> {
    const options = { source, credit_window: 0, autoaccept: false, autosettle: true, ...fields };
    const receiver = this.connection.open_receiver(options as never);
    const wrapped = new TestReceiver(receiver, attached(receiver, 'receiver'));
    await wrapped.attached;
    if (credit > 0) receiver.add_credit(credit);
    return wrapped;
  }

  /** A session in addition to the default one, not yet begun. */
  session(): Session {
    return (this.connection as unknown as { create_session(): Session }).create_session();
  }

  /** Sends a close and waits for the server's close. */
  async close(): Promise<void> {
    this.connection.close();
    await this.closed;
  }

  /** Destroys the socket. */
  cut(): void {
    const socket = socketOf(this.connection);
    socket.destroy();
    // rhea gets no other event here, and would keep its timers running.
    socket.emit('end');
  }
}

interface ClientSocket {
  destroy(): void;
  emit(event: 'end'): void;
  resetAndDestroy(): void;
  end(): void;
  write(bytes: Buffer | string): void;
  pause(): void;
  resume(): void;
}

export function socketOf(connection: Connection): ClientSocket {
  return (connection as unknown as { socket: ClientSocket }).socket;
}

/** Resolves once the server has attached with a terminus. `ended` resolves when the link ends. */
async function attached(
  link: Sender | Receiver,
  side: 'sender' | 'receiver',
): Promise<{ ended: Promise<Ended | null> }> {
  const ended = Promise.withResolvers<Ended | null>();
  const opened = Promise.withResolvers<void>();
  link.on(`${side}_open`, () => {
    // A rejected link gets an attach without a terminus, followed by a detach with the error.
    if ((side === 'sender' ? link.target : link.source)?.address) opened.resolve();
  });
  link.on(`${side}_error`, () => {
    const error = new Ended(link.error);
    ended.resolve(error);
    opened.reject(error);
  });
  link.on(`${side}_close`, () => ended.resolve(null));
  for (const event of ['disconnected', 'connection_close', 'connection_error']) {
    link.connection.once(event, () => {
      ended.resolve(null);
      opened.reject(new Error(event));
    });
  }
  await opened.promise;
  return { ended: ended.promise };
}

/** A sending link. */
export class TestSender {
  readonly link: Sender;
  /** Resolves to the error with which the server detached the link, or null. */
  readonly ended: Promise<Ended | null>;
  readonly #waiting = new Map<Delivery, (outcome: Outcome) => void>();

  constructor(link: Sender, { ended }: { ended: Promise<Ended | null> }) {
    this.link = link;
    this.ended = ended;
    for (const kind of ['accepted', 'rejected', 'released', 'modified'] as const) {
      link.on(kind, ({ delivery }: EventContext) => this.#outcome(kind, delivery));
    }
  }

  /** Waits for credit, sends, and resolves to the outcome. */
  async send(message: Message | object, format?: number): Promise<Outcome> {
    await this.sendable();
    const outcome = Promise.withResolvers<Outcome>();
    const delivery = this.link.send(message as Message, undefined, format);
    this.#waiting.set(delivery, outcome.resolve);
    return outcome.promise;
  }

  async sendable(): Promise<void> {
    while (!this.link.sendable()) await new Promise((resolve) => this.link.once('sendable', resolve));
  }

  async close(): Promise<void> {
    this.link.close();
    await this.ended;
  }

  #outcome(kind: Outcome['kind'], delivery: Delivery | undefined): void {
    if (delivery === undefined) return;
    const { error = null } = (delivery.remote_state ?? {}) as { error?: AmqpError | null };
    this.#waiting.get(delivery)?.({ kind, error });
    this.#waiting.delete(delivery);
  }
}

export interface Got {
  readonly message: Message & { readonly body: unknown };
  readonly delivery: Delivery;
}

/** A receiving link. */
export class TestReceiver {
  readonly link: Receiver;
  readonly attached: Promise<{ ended: Promise<Ended | null> }>;
  /** Messages that arrived before a call of `next` wanted them. */
  readonly inbox: Got[] = [];
  readonly #waiting: ((got: Got) => void)[] = [];

  constructor(link: Receiver, attachedLink: Promise<{ ended: Promise<Ended | null> }>) {
    this.link = link;
    this.attached = attachedLink;
    link.on('message', ({ message, delivery }: EventContext) => {
      if (message === undefined || delivery === undefined) return;
      // rhea keeps a pre-settled message until it is settled locally, and closes its window at 2048 of them.
      if (delivery.remote_settled) delivery.update(true);
      const got = { message: message as Got['message'], delivery };
      const next = this.#waiting.shift();
      if (next === undefined) this.inbox.push(got);
      else next(got);
    });
  }

  /** The error with which the server detached the link, or null. */
  async ended(): Promise<Ended | null> {
    return (await this.attached).ended;
  }

  /** The next message. The caller must have granted credit for it. */
  next(): Promise<Got> {
    const got = this.inbox.shift();
    if (got !== undefined) return Promise.resolve(got);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Grants credit for one message and resolves to it. */
  take(): Promise<Got> {
    this.link.add_credit(1);
    return this.next();
  }

  /** Drains the link; resolves when the server has used up the credit. */
  async drain(): Promise<void> {
    const drained = new Promise((resolve) => this.link.once('receiver_drained', resolve));
    this.link.drain_credit();
    await drained;
    this.link.drain = false;
  }

  async close(): Promise<void> {
    this.link.close();
    await this.ended();
  }
}

/** The body of a message as a string, whatever its section type. */
export function textOf({ message: { body } }: Got): string {
  const data = (body as { content?: Buffer } | null)?.content ?? body;
  return Buffer.isBuffer(data) ? data.toString() : String(data);
}
