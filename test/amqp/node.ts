import { AMQP_DEFAULTS, AMQP_WEB_SOCKET, type AmqpOptions } from '../../src/amqp/options.ts';
import { AmqpServer } from '../../src/amqp/server.ts';
import { openFor, SessionNode, type SessionNodeOptions } from '../support/session-node.ts';
import { AmqpClient } from './client.ts';

export { stalled, TestAuthenticator, until } from '../support/session-node.ts';

export interface AmqpNodeOptions extends SessionNodeOptions {
  readonly options?: Partial<AmqpOptions>;
}

/** A node with AMQP and no other front end, on an engine of its own. */
export class AmqpNode extends SessionNode<AmqpServer> {
  readonly #clients: AmqpClient[] = [];

  static async start(given: AmqpNodeOptions = {}): Promise<AmqpNode> {
    const options = { ...AMQP_DEFAULTS, port: 0, ...given.options };
    const node = new AmqpNode(await openFor(given), given, (parts) => new AmqpServer({ ...parts, options }));
    await node.start();
    return node;
  }

  /** A client that is logged in; it is cut when the node stops, if it is still there. */
  async client(user = 'test', fields: object = {}): Promise<AmqpClient> {
    const client = await AmqpClient.open(this.port, user, fields);
    this.#clients.push(client);
    return client;
  }

  protected override get webSocket() {
    return { path: '/amqp', webSocket: AMQP_WEB_SOCKET };
  }

  protected override cut(): void {
    for (const client of this.#clients) client.cut();
  }
}
