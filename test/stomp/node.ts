import assert from 'node:assert/strict';
import { STALL_TIMEOUT_MS } from '../../src/session/socket-writer.ts';
import { STOMP_DEFAULTS, type StompOptions } from '../../src/stomp/options.ts';
import { StompServer } from '../../src/stomp/session.ts';
import { openFor, SessionNode, type SessionNodeOptions, stalled } from '../support/session-node.ts';
import { until } from '../support/until.ts';
import { StompClient, type StompVersion } from './client.ts';

export { stalled, TestAuthenticator } from '../support/session-node.ts';

export interface StompNodeOptions extends SessionNodeOptions {
  readonly options?: Partial<StompOptions>;
}

/** A node with STOMP and no other front end, on an engine of its own. */
export class StompNode extends SessionNode<StompServer> {
  protected override readonly path = '/stomp';
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

  /** Returns a client that is logged in. Its connection is cut when the node stops. */
  async client(version: StompVersion = '1.2', headers: Record<string, string> = {}): Promise<StompClient> {
    const client = await StompClient.login(this.port, version, headers);
    this.#clients.push(client);
    return client;
  }

  /** Returns a connection on which nothing was sent. */
  async stranger(): Promise<StompClient> {
    const client = await StompClient.open(this.port);
    this.#clients.push(client);
    return client;
  }

  protected override cut(): void {
    for (const client of this.#clients) client.socket.destroy();
  }
}

/**
 * Reads one large body in parts. After each part it lets the time pass after which a client that reads nothing is
 * disconnected.
 */
export async function readSlowly(node: StompNode, client: StompClient): Promise<void> {
  // Each part is larger than the socket buffers of the kernels, so that every time-out sees that some of it was read.
  const [size, part] = [60_000_000, 12_000_000];
  await node.insert('large', { body: Buffer.alloc(size, 'x') });
  let bytes = 0;
  client.socket.removeAllListeners('data');
  client.socket.on('data', (chunk) => {
    bytes += chunk.length;
  });
  client.socket.pause();
  client.send('SUBSCRIBE', { destination: '/q/N/large', id: 'large', ack: 'auto' });
  await stalled(node, 1);
  for (let read = part; read < size; read += part) {
    client.socket.resume();
    await until(() => bytes >= read);
    client.socket.pause();
    assert.equal(node.server.counts.stalled, 1);
    node.clock.advance(STALL_TIMEOUT_MS);
  }
  client.socket.resume();
  await until(() => bytes > size && node.server.counts.stalled === 0);
}
