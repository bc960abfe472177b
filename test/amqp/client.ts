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

/** How a message that was sent, or a whole link, ended. */
export interface Outcome {
  readonly kind: 'accepted' | 'rejected' | 'released' | 'modified' | 'settled';
  readonly error: AmqpError | null;
}

/** A link or connection that the server refused or ended. */
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

/** rhea's client with promises in the place of events. */
export class AmqpClient {
  readonly connection: Connection;
  /** The error by which the server closed, or null where it was cut or closed without one. */
  readonly closed: Promise<Ended | null>;

  private constructor(connection: Connection, closed: Promise<Ended | null>) {
    this.connection = connection;
    this.closed = closed;
  }

  /** Resolves when the connection is open. @throws Error where it is not opened */
  static open(port: number, user = 'test', fields: object = {}): Promise<AmqpClient> {
    const container = rhea.create_container({ id: `client-${user}` });
    container.on('error', () => {});
    const options = { host: '127.0.0.1', port, username: user, password: user, reconnect: false, ...fields };
    const connection = container.connect(options);
    connection.setMaxListeners(0);
    const ended = Promise.withResolvers<Ended | null>();
    const opened = Promise.withResolvers<AmqpClient>();
    // What went wrong comes with `connection_error` and `disconnected`.
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

  /** A link to send by. @throws Ended where the server refuses it */
  async sender(target: string | object, fields: object = {}): Promise<TestSender> {
    const sender = this.connection.open_sender({ target, autosettle: true, ...fields } as never);
    return new TestSender(sender, await attached(sender, 'sender'));
  }

  /**
   * A link to receive by, with no credit yet unless some is given. Nothing is accepted by itself.
   * @throws Ended where the server refuses it
   */
  async receiver(source: string | object, fields: object = {}, credit = 0): Promise<TestReceiver> {
    const options = { source, credit_window: 0, autoaccept: false, autosettle: true, ...fields };
    const receiver = this.connection.open_receiver(options as never);
    const wrapped = new TestReceiver(receiver, attached(receiver, 'receiver'));
    await wrapped.attached;
    if (credit > 0) receiver.add_credit(credit);
    return wrapped;
  }

  /** A session in addition to the default one of links. Not begun. */
  session(): Session {
    return (this.connection as unknown as { create_session(): Session }).create_session();
  }

  /** Closes politely. */
  async close(): Promise<void> {
    this.connection.close();
    await this.closed;
  }

  /** Cuts the connection. */
  cut(): void {
    const socket = socketOf(this.connection);
    socket.destroy();
    // rhea's client gets no other event, and would keep its timers.
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

/** Resolves, when the server has attached with a terminus, to a promise of the link's end. */
async function attached(
  link: Sender | Receiver,
  side: 'sender' | 'receiver',
): Promise<{ ended: Promise<Ended | null> }> {
  const ended = Promise.withResolvers<Ended | null>();
  const opened = Promise.withResolvers<void>();
  link.on(`${side}_open`, () => {
    // A refusal comes without a terminus, and its error behind it.
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

/** A link by which the client sends. */
export class TestSender {
  readonly link: Sender;
  /** Resolves to the error by which the server ended it, or null. */
  readonly ended: Promise<Ended | null>;
  readonly #waiting = new Map<Delivery, (outcome: Outcome) => void>();

  constructor(link: Sender, { ended }: { ended: Promise<Ended | null> }) {
    this.link = link;
    this.ended = ended;
    for (const kind of ['accepted', 'rejected', 'released', 'modified'] as const) {
      link.on(kind, ({ delivery }: EventContext) => this.#outcome(kind, delivery));
    }
  }

  /** Sends when there is credit; resolves to the outcome. */
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

/** A link by which the client receives. */
export class TestReceiver {
  readonly link: Receiver;
  readonly attached: Promise<{ ended: Promise<Ended | null> }>;
  /** Messages that were not asked for yet. */
  readonly inbox: Got[] = [];
  readonly #waiting: ((got: Got) => void)[] = [];

  constructor(link: Receiver, attachedLink: Promise<{ ended: Promise<Ended | null> }>) {
    this.link = link;
    this.attached = attachedLink;
    link.on('message', ({ message, delivery }: EventContext) => {
      if (message === undefined || delivery === undefined) return;
      // rhea keeps a message that came settled until it is settled here as well, and closes its window at 2048 of them.
      if (delivery.remote_settled) delivery.update(true);
      const got = { message: message as Got['message'], delivery };
      const next = this.#waiting.shift();
      if (next === undefined) this.inbox.push(got);
      else next(got);
    });
  }

  /** The error by which the server ended it, or null. */
  async ended(): Promise<Ended | null> {
    return (await this.attached).ended;
  }

  /** The next message, for which credit was given. */
  next(): Promise<Got> {
    const got = this.inbox.shift();
    if (got !== undefined) return Promise.resolve(got);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Gives credit for one, and resolves to it. */
  take(): Promise<Got> {
    this.link.add_credit(1);
    return this.next();
  }

  /** Uses up the credit: resolves when the server has sent what it had for it. */
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

/** The body of a message as text, whatever form it has. */
export function textOf({ message: { body } }: Got): string {
  const data = (body as { content?: Buffer } | null)?.content ?? body;
  return Buffer.isBuffer(data) ? data.toString() : String(data);
}
