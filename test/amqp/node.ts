import { AmqpServer } from '../../src/amqp/connection.ts';
import { AMQP_DEFAULTS, type AmqpOptions } from '../../src/amqp/options.ts';
import { openFor, SessionNode, type SessionNodeOptions } from '../support/session-node.ts';
import { AmqpClient } from './client.ts';
import { KIND, RawClient } from './raw-client.ts';
import { AMQP, NULL, open, plain, SASL, uint } from './wire.ts';

export { stalled, TestAuthenticator } from '../support/session-node.ts';

export interface AmqpNodeOptions extends SessionNodeOptions {
  readonly options?: Partial<AmqpOptions>;
  /** The first transfer-id and delivery-id that the server uses. */
  readonly firstId?: number;
}

/** The `max-frame-size` that `rawClient` announces. */
const CLIENT_FRAME_BYTES = 131_072;

/** A node whose only front end is AMQP, on an engine of its own. */
export class AmqpNode extends SessionNode<AmqpServer> {
  protected override readonly path = '/amqp';
  readonly #clients: AmqpClient[] = [];
  readonly #rawClients: RawClient[] = [];
  #timer: NodeJS.Timeout | undefined;

  static async start(given: AmqpNodeOptions = {}): Promise<AmqpNode> {
    // Clients send heart-beats on machine time, which the node's fake clock does not follow.
    const options = { ...AMQP_DEFAULTS, idleTimeoutMs: 0, port: 0, ...given.options };
    const node = new AmqpNode(
      await openFor(given),
      given,
      (parts) => new AmqpServer({ ...parts, options }, given.firstId),
    );
    await node.start();
    return node;
  }

  /** A client that is logged in; it is cut when the node stops. */
  async client(user = 'test', fields: object = {}): Promise<AmqpClient> {
    const client = await AmqpClient.open(this.port, user, fields);
    this.#clients.push(client);
    return client;
  }

  /**
   * Advances the node's clock with the machine's clock, by which clients send heart-beats, until the node stops.
   * @param unheardMs how far the clock may run without a frame from a client, which a busy machine may delay; default:
   *   without limit
   */
  runClock(unheardMs = Infinity): void {
    clearInterval(this.#timer);
    let last = performance.now();
    let heard = this.server.counts.frames;
    let leftMs = unheardMs;
    this.#timer = setInterval(() => {
      const now = performance.now();
      const { frames } = this.server.counts;
      if (frames > heard) leftMs = unheardMs;
      heard = frames;
      const passedMs = Math.min(now - last, leftMs);
      leftMs -= passedMs;
      this.clock.advance(passedMs);
      last = now;
    }, 10);
  }

  override async stop(): Promise<void> {
    clearInterval(this.#timer);
    await super.stop();
  }

  /** A connection on which the client has sent nothing. */
  async newConnection(): Promise<RawClient> {
    const client = await RawClient.open(this.port);
    this.#rawClients.push(client);
    return client;
  }

  /** A logged-in client for raw bytes that has sent these frames after its `open`. */
  async rawClient(...frames: readonly Buffer[]): Promise<RawClient> {
    const client = await this.newConnection();
    client.write(SASL, plain('test', 'test'));
    await client.until(KIND.outcome);
    client.write(AMQP, open(NULL, uint(CLIENT_FRAME_BYTES)), ...frames);
    await client.until(KIND.open);
    return client;
  }

  /** The conditions in the log with which connections ended. */
  get endReasons(): unknown[] {
    return this.logged
      .filter(({ message }) => message === 'an AMQP connection was ended')
      .map(({ fields }) => (fields as { condition?: unknown }).condition);
  }

  protected override cut(): void {
    for (const client of this.#clients) client.cut();
    for (const { socket } of this.#rawClients) socket.destroy();
  }
}
