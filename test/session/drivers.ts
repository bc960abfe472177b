import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import rhea from 'rhea';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import type { SessionServer } from '../../src/session/server.ts';
import { STOMP_LIMITS } from '../../src/stomp/options.ts';
import {
  AmqpClient,
  Ended,
  type Got,
  socketOf,
  type TestReceiver,
  type TestSender,
  textOf,
} from '../amqp/client.ts';
import { AmqpNode } from '../amqp/node.ts';
import { StompClient } from '../stomp/client.ts';
import { StompNode } from '../stomp/node.ts';
import type { SessionNode } from '../support/session-node.ts';
import { addressOf, destination } from './addresses.ts';

/** Options of a consumer. */
export interface Consume {
  /** `N` by default. */
  readonly ns?: string;
  /** Whether the consumer pops; it reserves by default. */
  readonly isPop?: boolean;
  /** Max. unsettled elements. */
  readonly window?: number;
  /** If omitted, leases are renewed until the session ends. */
  readonly leaseMs?: number;
}

/** What is sent with an element. */
export interface SentParts {
  /** `N` by default. */
  readonly ns?: string;
  /** Element headers. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly delayMs?: number;
  readonly ttlMs?: number;
  /** AMQP only: the `message-id`. */
  readonly messageId?: string;
}

export interface Taken {
  readonly id: string;
  readonly body: string;
  readonly tries: number;
  /** ISO 8601. */
  readonly mature: string;
  /** An element header; over STOMP, MESSAGE must have it with and without the prefix. */
  header(name: string): string | undefined;
  /** Sends a commit without waiting for its result. */
  accept(): void;
  /** Sends a rollback without a delay, and without waiting for its result. */
  reject(reason?: string): void;
}

export interface SessionConsumer {
  /** Deliveries that arrived but were not yet returned by `next`. */
  readonly inbox: readonly unknown[];
  next(): Promise<Taken>;
  /** Resolves when the consumer ends, with the server's error code, or null if there was none. */
  readonly ended: Promise<string | null>;
}

/** A logged-in client of STOMP or AMQP. */
export interface SessionClient {
  /** The underlying TCP connection. */
  readonly socket: Socket;
  /** @throws Error whose message is the server's error code */
  consume(queue: string, options?: Consume): Promise<SessionConsumer>;
  /** What the tids of its consumers start with. */
  readonly name: string;
  /** Resolves when the element is stored. @throws Error whose message is the server's error code or outcome */
  send(queue: string, body: string | Buffer, parts?: SentParts): Promise<void>;
  /** The id and body of each element that a browsing consumer of a queue of `N` is shown. */
  browse(queue: string): Promise<[string, string][]>;
  /** Ends the session in the protocol's own way. */
  leave(): void;
  /** Resolves when the session ends, with the server's error code, or null if there was none. */
  readonly ended: Promise<string | null>;
}

export interface NodeOptions {
  readonly port?: number;
  readonly maxSockets?: number;
  /** Whether the server expects heart-beats from clients that promise them. */
  readonly beats?: boolean;
}

/** A protocol over a transport. */
export interface SessionDriver {
  readonly name: string;
  readonly isOverWebSocket: boolean;
  /** How long a client that promised heart-beats may be silent, ms. */
  readonly silenceMs: number;
  /** How many elements a session may have that are not settled. */
  readonly maxUnsettled: number;
  /** The error code that clients receive when the server stops; null if there is none. */
  readonly stopCode: string | null;
  start(options?: NodeOptions): Promise<SessionNode<SessionServer>>;
  /** @param beats whether the client promises heart-beats */
  connect(node: { readonly port: number }, user?: string, beats?: boolean): Promise<SessionClient>;
}

interface WebSocketClient {
  readonly _socket: Socket;
  on(event: 'open' | 'error', listener: () => void): void;
}

const ws = createRequire(import.meta.url)('ws') as {
  readonly WebSocket: new (url: string, protocols: readonly string[]) => WebSocketClient;
  createWebSocketStream(socket: WebSocketClient): Duplex;
};

class StompSessionClient implements SessionClient {
  readonly socket: Socket;
  readonly ended: Promise<string | null>;
  readonly #client: StompClient;
  readonly #receipts = new Map<string, PromiseWithResolvers<void>>();
  readonly #consumers = new Map<string, Inbox>();
  #made = 0;

  constructor(client: StompClient, socket: Socket) {
    this.#client = client;
    this.socket = socket;
    this.ended = this.#read();
  }

  get name(): string {
    return this.#client.session;
  }

  async consume(queue: string, options: Consume = {}): Promise<Inbox> {
    const { ns = 'N', isPop = false, window = 1000, leaseMs } = options;
    this.#made += 1;
    const id = `${this.#made}`;
    const inbox = new Inbox(this.ended);
    this.#consumers.set(id, inbox);
    await this.#ask('SUBSCRIBE', {
      destination: destination(queue, ns),
      id,
      ack: isPop ? 'auto' : 'client-individual',
      'x-wsize': `${window}`,
      'x-lease': leaseMs === undefined ? null : `${leaseMs}`,
    });
    return inbox;
  }

  send(queue: string, body: string | Buffer, parts: SentParts = {}): Promise<void> {
    const { ns = 'N', headers = {}, delayMs, ttlMs } = parts;
    const own = Object.entries(headers).map(([name, value]) => [`x-ks-hdr-${name}`, value]);
    const times = { 'x-delta-t': delayMs?.toString() ?? null, 'x-ks-ttl': ttlMs?.toString() ?? null };
    return this.#ask(
      'SEND',
      { destination: destination(queue, ns), ...times, ...Object.fromEntries(own) },
      body,
    );
  }

  async browse(queue: string): Promise<[string, string][]> {
    const inbox = new Inbox(this.ended);
    this.#consumers.set('browser', inbox);
    this.#client.send('SUBSCRIBE', { destination: destination(queue), id: 'browser', browser: 'true' });
    const shown: [string, string][] = [];
    for (let taken = await inbox.next(); taken.id !== ''; taken = await inbox.next()) {
      shown.push([taken.id, taken.body]);
    }
    return shown;
  }

  leave(): void {
    this.#client.send('DISCONNECT');
  }

  #ask(command: string, headers: Record<string, string | null>, body: string | Buffer = ''): Promise<void> {
    this.#made += 1;
    const receipt = `${this.#made}`;
    const answered = Promise.withResolvers<void>();
    this.#receipts.set(receipt, answered);
    this.#client.send(command, { ...headers, receipt }, body);
    return answered.promise;
  }

  async #read(): Promise<string | null> {
    let code: string | null = null;
    for (let frame = await this.#client.nextOrEnd(); frame !== null; frame = await this.#client.nextOrEnd()) {
      const { command, headers, body } = frame;
      const receipt = this.#receipts.get(headers.get('receipt-id') ?? '');
      if (command === 'ERROR') {
        code = headers.get('message') ?? '';
        receipt?.reject(new Error(code));
      } else if (command === 'RECEIPT') receipt?.resolve();
      else {
        this.#consumers.get(headers.get('subscription') ?? '')?.put({
          id: headers.get('message-id') ?? '',
          body: body.toString(),
          tries: Number(headers.get('x-tries')),
          mature: headers.get('x-mature') ?? '',
          header: (name) => {
            const value = headers.get(`x-ks-hdr-${name}`);
            assert.equal(headers.get(name), value, `${name} without the prefix`);
            return value;
          },
          accept: () => this.#client.send('ACK', { id: headers.get('ack') ?? null }),
          reject: (reason) =>
            this.#client.send('NACK', { id: headers.get('ack') ?? null, 'x-ks-reason': reason ?? null }),
        });
      }
    }
    this.#client.socket.destroy();
    return code;
  }
}

class AmqpSessionClient implements SessionClient {
  readonly socket: Socket;
  readonly ended: Promise<string | null>;
  readonly #client: AmqpClient;
  readonly #senders = new Map<string, Promise<TestSender>>();

  constructor(client: AmqpClient, socket: Socket) {
    this.#client = client;
    this.socket = socket;
    this.ended = client.closed.then((error) => error?.info.code ?? null);
  }

  get name(): string {
    return this.#client.connection.container_id.replace(/^quayside-/, '');
  }

  async consume(queue: string, options: Consume = {}): Promise<Inbox> {
    const { ns = 'N', isPop = false, window = 1000, leaseMs } = options;
    const address = leaseMs === undefined ? addressOf(queue, ns) : `${addressOf(queue, ns)}?lease=${leaseMs}`;
    const receiver = await this.#client
      .receiver(address, isPop ? { snd_settle_mode: 1 } : {}, window)
      .catch(rethrow);
    const inbox = new Inbox(receiver.ended().then((error) => error?.info.code ?? null));
    void this.#pump(receiver, inbox, window);
    return inbox;
  }

  async send(queue: string, body: string | Buffer, parts: SentParts = {}): Promise<void> {
    const { ns = 'N', headers, delayMs, ttlMs, messageId } = parts;
    const address = addressOf(queue, ns);
    const sender = this.#senders.get(address) ?? this.#client.sender(address);
    this.#senders.set(address, sender);
    const message = {
      body,
      ...(headers !== undefined && { application_properties: headers }),
      ...(delayMs !== undefined && { message_annotations: { 'x-opt-delivery-delay': delayMs } }),
      ...(ttlMs !== undefined && { ttl: ttlMs }),
      ...(messageId !== undefined && { message_id: messageId }),
    };
    const { kind, error } = await (await sender.catch(rethrow)).send(message);
    if (kind !== 'accepted') throw new Error(error === null ? kind : new Ended(error).info.code);
  }

  async browse(queue: string): Promise<[string, string][]> {
    const source = { address: addressOf(queue), distribution_mode: 'copy' };
    const receiver = await this.#client.receiver(source, {}, 1000);
    await receiver.drain();
    return receiver.inbox.map((got) => [idOf(got), textOf(got)]);
  }

  leave(): void {
    this.#client.connection.close();
  }

  async #pump(receiver: TestReceiver, inbox: Inbox, window: number): Promise<void> {
    let settled = 0;
    const replenish = (): void => {
      settled += 1;
      if (settled % Math.ceil(window / 2) === 0) receiver.link.add_credit(Math.ceil(window / 2));
    };
    for (;;) {
      const got = await receiver.next();
      const { message, delivery } = got;
      inbox.put({
        id: idOf(got),
        body: textOf(got),
        tries: message.delivery_count ?? 0,
        mature: new Date(Number(message.message_annotations?.['x-opt-ks-mature'])).toISOString(),
        header: (name) => message.application_properties?.[name] as string | undefined,
        accept: () => {
          delivery.accept();
          replenish();
        },
        reject: (reason) => {
          delivery.reject(reason === undefined ? undefined : { condition: 'app:bad', description: reason });
          replenish();
        },
      });
    }
  }
}

function idOf({ message }: Got): string {
  return String(message.message_annotations?.['x-opt-ks-id']);
}

/** @throws Error with the server's error code */
function rethrow(error: unknown): never {
  throw error instanceof Ended ? new Error(error.info.code) : error;
}

/** Deliveries that arrived and wait to be read by a test. */
class Inbox implements SessionConsumer {
  readonly inbox: Taken[] = [];
  readonly ended: Promise<string | null>;
  #wake: (() => void) | null = null;

  constructor(ended: Promise<string | null>) {
    this.ended = ended;
  }

  put(taken: Taken): void {
    this.inbox.push(taken);
    this.#wake?.();
  }

  async next(): Promise<Taken> {
    for (;;) {
      const taken = this.inbox.shift();
      if (taken !== undefined) return taken;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}

function stompDriver(isOverWebSocket: boolean): SessionDriver {
  return {
    name: isOverWebSocket ? 'STOMP over WebSocket' : 'STOMP',
    isOverWebSocket,
    silenceMs: 20_000,
    maxUnsettled: STOMP_LIMITS.windows,
    stopCode: null,
    start: ({ beats: _, ...options } = {}) => StompNode.start({ options, overWebSocket: isOverWebSocket }),
    connect: async ({ port }, user = 'test', beats = false) => {
      const { stream, socket } = isOverWebSocket
        ? await overWebSocket(port, '/stomp', 'v12.stomp')
        : await overTcp(port);
      const client = StompClient.over(stream);
      await client.connect({ login: user, passcode: user, 'heart-beat': beats ? '10000,0' : null });
      return new StompSessionClient(client, socket);
    },
  };
}

function amqpDriver(isOverWebSocket: boolean): SessionDriver {
  return {
    name: isOverWebSocket ? 'AMQP over WebSocket' : 'AMQP',
    isOverWebSocket,
    silenceMs: 60_000,
    maxUnsettled: AMQP_LIMITS.unsettled,
    stopCode: 'shutting-down',
    start: ({ beats = false, ...given } = {}) => {
      const options = { ...given, idleTimeoutMs: beats ? 30_000 : 0 };
      return AmqpNode.start({ options, overWebSocket: isOverWebSocket });
    },
    connect: async ({ port }, user = 'test') => {
      if (!isOverWebSocket) {
        const client = await AmqpClient.open(port, user);
        return new AmqpSessionClient(client, socketOf(client.connection) as unknown as Socket);
      }
      const webSocket = new ws.WebSocket(`ws://127.0.0.1:${port}/amqp`, ['amqp']);
      // rhea would create a WebSocket of its own, whose socket the test could not reach.
      const made = function made(): WebSocketClient {
        return webSocket;
      };
      const details = rhea.websocket_connect(made as never)('', [] as never, {} as never);
      const client = await AmqpClient.open(port, user, { connection_details: details });
      return new AmqpSessionClient(client, webSocket._socket);
    },
  };
}

async function overTcp(port: number): Promise<{ stream: Socket; socket: Socket }> {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  await once(socket, 'connect');
  return { stream: socket, socket };
}

async function overWebSocket(
  port: number,
  path: string,
  protocol: string,
): Promise<{ stream: Duplex; socket: Socket }> {
  const webSocket = new ws.WebSocket(`ws://127.0.0.1:${port}${path}`, [protocol]);
  const stream = ws.createWebSocketStream(webSocket);
  await new Promise<void>((resolve) => webSocket.on('open', resolve));
  return { stream, socket: webSocket._socket };
}

/** All combinations of protocol and transport. */
export const DRIVERS: readonly SessionDriver[] = [
  stompDriver(false),
  stompDriver(true),
  amqpDriver(false),
  amqpDriver(true),
];
