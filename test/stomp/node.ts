import { STOMP_DEFAULTS, type StompOptions } from '../../src/stomp/options.ts';
import { StompServer } from '../../src/stomp/server.ts';
import { openFor, SessionNode, type SessionNodeOptions } from '../support/session-node.ts';
import { StompClient, type StompVersion } from './client.ts';

export { POLICIES, stalled, TestAuthenticator, until } from '../support/session-node.ts';

export interface StompNodeOptions extends SessionNodeOptions {
  readonly options?: Partial<StompOptions>;
}

/** A node with STOMP and no other front end, on an engine of its own. */
export class StompNode extends SessionNode<StompServer> {
  readonly #clients: StompClient[] = [];

  static async start(given: StompNodeOptions = {}): Promise<StompNode> {
    const options = { ...STOMP_DEFAULTS, port: 0, ...given.options };
    const node = new StompNode(
      await openFor(given),
      given,
      (parts) => new StompServer({ ...parts, options }),
    );
    await node.start();
    return node;
  }

  /** A client that is logged in; it is cut when the node stops, if it is still there. */
  async client(version: StompVersion = '1.2', headers: Record<string, string> = {}): Promise<StompClient> {
    const client = await StompClient.login(this.port, version, headers);
    this.#clients.push(client);
    return client;
  }

  /** A connection on which nothing was said. */
  async stranger(): Promise<StompClient> {
    const client = await StompClient.open(this.port);
    this.#clients.push(client);
    return client;
  }

  protected override cut(): void {
    for (const client of this.#clients) client.socket.destroy();
  }
}
