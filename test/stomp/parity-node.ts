import { readAccounts, type UserDefinition } from '../../src/access/account.ts';
import { STOMP_DEFAULTS } from '../../src/stomp/options.ts';
import { StompServer } from '../../src/stomp/session.ts';
import { Harness, NamedUsers } from '../http/harness.ts';
import { plain, SILENT_LOG } from '../support/broker.ts';
import type { QueueClient } from '../support/http-client.ts';
import { StompClient } from './client.ts';

const NAMESPACES = [
  plain('N'),
  plain('jobs', { deadLetter: { maxTries: 2, queue: '__deadletter__' } }),
  plain('events', { groups: ['default'] }),
];

const USERS: readonly UserDefinition[] = [
  { name: 'test1', password: 'test1', rights: null },
  { name: 'reader', password: 'reader', rights: { N: ['read'] } },
  { name: 'writer', password: 'writer', rights: { N: ['write'] } },
];

/** Of both front ends. */
export const BODY_LIMIT = 1_048_576;

/** One broker with HTTP and STOMP in front of it, on an engine of its own, and the same users. */
export class ParityNode {
  readonly harness: Harness;
  readonly http: QueueClient;
  readonly #server: StompServer;
  readonly #clients: StompClient[] = [];

  private constructor(harness: Harness) {
    this.harness = harness;
    this.http = harness.client();
    const accounts = readAccounts(
      USERS,
      NAMESPACES.map(({ name }) => name),
    );
    this.#server = new StompServer({
      broker: harness.broker,
      authenticator: new NamedUsers(accounts, USERS, harness.tokens),
      options: { ...STOMP_DEFAULTS, port: 0, bodyLimit: BODY_LIMIT },
      log: { ...SILENT_LOG, error: () => {} },
      clock: harness.opened.clock,
      version: '0.0.0',
    });
  }

  static async start(): Promise<ParityNode> {
    const http = { bodyLimit: BODY_LIMIT };
    const node = new ParityNode(await Harness.start({ namespaces: NAMESPACES, users: USERS, http }));
    await node.#server.start();
    return node;
  }

  /** A STOMP client that is logged in, closed with the node. */
  async connect(user = 'test1'): Promise<StompClient> {
    const login = { login: user, passcode: user };
    const client = await StompClient.login(this.#server.address.port, '1.2', login);
    this.#clients.push(client);
    return client;
  }

  async stop(): Promise<void> {
    for (const { socket } of this.#clients) socket.destroy();
    await this.#server.stop();
    await this.harness.close();
  }
}

export function destination(queue: string, ns = 'N'): string {
  return `/q/${encodeURIComponent(ns)}/${encodeURIComponent(queue)}`;
}
