import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import type { Connection, EventContext } from 'rhea';
import type { Authenticator } from '../../src/access/user.ts';
import { Guard, type GuardOptions } from '../../src/amqp/guard/guard.ts';
import { AMQP_LIMITS } from '../../src/amqp/guard/limits.ts';
import type { Refusal } from '../../src/amqp/guard/refusal.ts';
import { acceptConnection } from '../../src/amqp/rhea.ts';
import { zeroCounts } from '../../src/session/counts.ts';
import { FakeClock } from '../support/clock.ts';
import { TestAuthenticator } from '../support/session-node.ts';
import { RawClient } from './guard-client.ts';
import { AMQP, NULL, open, plain, SASL, uint } from './guard-wire.ts';

/** A connection as the server's side sees it. */
export interface Seen {
  readonly guard: Guard;
  /** The names of rhea's events, in their order. */
  readonly events: string[];
  /** Messages, as rhea gave them. */
  readonly messages: unknown[];
  readonly refusals: Refusal[];
  rhea: Connection | null;
  isGone: boolean;
}

/** `max-frame-size` of clients that are logged in. */
const FRAME_BYTES = 131_072;

const HEARD = [
  'connection_open',
  'connection_close',
  'connection_error',
  'session_open',
  'session_close',
  'session_error',
  'receiver_open',
  'receiver_close',
  'receiver_error',
  'sender_open',
  'sender_close',
  'sender_error',
  'accepted',
  'rejected',
  'released',
  'modified',
  'settled',
  'sendable',
  'disconnected',
  'protocol_error',
  'error',
];

/** Guards with nothing but rhea behind them: who sends has credit and is accepted, who receives gets `onSendable`. */
export class GuardNode {
  readonly clock = new FakeClock();
  readonly counts = zeroCounts();
  readonly seen: Seen[] = [];
  /** For each event `sendable`. */
  onSendable: (context: EventContext, seen: Seen) => void = () => {};
  /** What each link on which a client sends gets at first. */
  credit = 100;
  readonly #server: Server;
  readonly #options: Partial<GuardOptions>;
  readonly #clients: RawClient[] = [];
  #wake: () => void = () => {};

  private constructor(options: Partial<GuardOptions>) {
    this.#options = options;
    this.#server = createServer({ allowHalfOpen: true });
  }

  static async start(
    options: Partial<GuardOptions> & { authenticator?: Authenticator } = {},
  ): Promise<GuardNode> {
    const node = new GuardNode(options);
    node.#accept();
    node.#server.listen(0, '127.0.0.1');
    await once(node.#server, 'listening');
    return node;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** The newest connection. */
  get last(): Seen {
    const last = this.seen.at(-1);
    if (last === undefined) throw new Error('Nobody has connected.');
    return last;
  }

  async stop(): Promise<void> {
    for (const { socket } of this.#clients) socket.destroy();
    for (const { guard } of this.seen) guard.destroy();
    await this.until(() => this.seen.every(({ isGone }) => isGone));
    this.#server.close();
    await once(this.#server, 'close');
  }

  /** Resolves when that is so; asked whenever something happens on a connection. */
  async until(isSo: () => boolean): Promise<void> {
    while (!isSo()) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** A connection on which nothing was said. */
  async stranger(): Promise<RawClient> {
    const client = await RawClient.open(this.port);
    this.#clients.push(client);
    return client;
  }

  /** A client that is logged in, and has said these frames behind its `open`. */
  async client(...frames: readonly Buffer[]): Promise<RawClient> {
    const client = await this.stranger();
    client.write(SASL, plain('test', 'test'));
    await client.until(0x44);
    client.write(AMQP, open(NULL, uint(FRAME_BYTES)), ...frames);
    await client.until(0x10);
    return client;
  }

  #accept(): void {
    this.#server.on('connection', (socket) => {
      const options: GuardOptions = {
        clock: this.clock,
        authenticator: new TestAuthenticator(),
        address: socket.remoteAddress ?? '',
        counts: this.counts,
        containerId: 'guarded',
        messageBytes: 65_536,
        loginTimeoutMs: 10_000,
        idleTimeoutMs: 0,
        stallTimeoutMs: 90_000,
        ...this.#options,
      };
      const guard = new Guard(socket, options, {
        loggedIn: () => this.#loggedIn(seen),
        onRoom: () => {},
        refused: (reason) => seen.refusals.push(reason),
        gone: () => {
          seen.isGone = true;
          this.#wake();
        },
      });
      const seen: Seen = { guard, events: [], messages: [], refusals: [], rhea: null, isGone: false };
      this.seen.push(seen);
    });
  }

  #loggedIn(seen: Seen): void {
    const rhea = acceptConnection(seen.guard.stream, {
      containerId: 'guarded',
      version: '0.0.0',
      frameBytes: AMQP_LIMITS.frameBytes,
      channelMax: AMQP_LIMITS.channelMax,
      idleTimeoutMs: 0,
      unsettled: AMQP_LIMITS.unsettled,
    });
    seen.rhea = rhea;
    for (const name of HEARD) {
      rhea.on(name, (context: EventContext) => {
        seen.events.push(name);
        if (name === 'receiver_open') context.receiver?.add_credit(this.credit);
        if (name === 'sendable') this.onSendable(context, seen);
        this.#wake();
      });
    }
    rhea.on('message', ({ message, delivery }: EventContext) => {
      seen.messages.push(message);
      delivery?.accept();
      this.#wake();
    });
  }
}
