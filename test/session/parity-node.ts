import fc from 'fast-check';
import { readAccounts, type UserDefinition } from '../../src/access/account.ts';
import { AmqpServer } from '../../src/amqp/connection.ts';
import { AMQP_DEFAULTS } from '../../src/amqp/options.ts';
import { STOMP_DEFAULTS } from '../../src/stomp/options.ts';
import { StompServer } from '../../src/stomp/session.ts';
import { AmqpClient } from '../amqp/client.ts';
import { Harness, NamedUsers } from '../http/harness.ts';
import { StompClient } from '../stomp/client.ts';
import { anyCharacter } from '../support/any-character.ts';
import { plain, SILENT_LOG } from '../support/broker.ts';
import { type Answer, elementHeadersOf, type QueueClient } from '../support/http-client.ts';

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

/** The body limit of all front ends, bytes. */
export const BODY_LIMIT = 1_048_576;

/** Number of random headers; `npm run test:fuzz` uses the 10,000 that F17 of the reliability plan asks for. */
export const HEADERS_TRIED = Number(process.env.FUZZ_HEADERS ?? 200);

export const headerNames = fc.oneof(
  { weight: 4, arbitrary: fc.stringMatching(/^[a-zA-Z0-9-]{1,12}$/) },
  { weight: 1, arbitrary: fc.string({ minLength: 1, maxLength: 6 }) },
);
const ODD_TEXTS = ['', ' ', ' x', 'x\t', 'a\nb', 'a\rb', '\0', '\x7f', ':', '\\', '\\n', '☃', '\u0085'];
/** Without lone surrogates, which UTF-8 cannot encode. */
export const headerTexts = fc
  .oneof(
    fc.string({ maxLength: 20 }),
    fc.string({ unit: 'grapheme', maxLength: 20 }),
    fc.string({ unit: anyCharacter, maxLength: 20 }),
    fc.constantFrom(...ODD_TEXTS, '\ud800'),
  )
  .map((text) => text.toWellFormed());

/** One broker with its own engine, served over HTTP, STOMP and AMQP to the same users. */
export class ParityNode {
  readonly harness: Harness;
  readonly http: QueueClient;
  readonly #amqp: AmqpServer;
  readonly #stomp: StompServer;
  readonly #clients: (() => void)[] = [];

  private constructor(harness: Harness) {
    this.harness = harness;
    this.http = harness.client();
    const accounts = readAccounts(
      USERS,
      NAMESPACES.map(({ name }) => name),
    );
    const parts = {
      broker: harness.broker,
      authenticator: new NamedUsers(accounts, USERS, harness.tokens),
      log: { ...SILENT_LOG, error: () => {} },
      clock: harness.opened.clock,
      version: '0.0.0',
    };
    const options = { port: 0, bodyLimit: BODY_LIMIT, idleTimeoutMs: 0 };
    this.#amqp = new AmqpServer({ ...parts, options: { ...AMQP_DEFAULTS, ...options } });
    this.#stomp = new StompServer({ ...parts, options: { ...STOMP_DEFAULTS, ...options } });
  }

  static async start(): Promise<ParityNode> {
    const http = { bodyLimit: BODY_LIMIT };
    const node = new ParityNode(await Harness.start({ namespaces: NAMESPACES, users: USERS, http }));
    await node.#amqp.start();
    await node.#stomp.start();
    return node;
  }

  /** The port of one protocol. */
  portOf(protocol: string): number {
    return (protocol === 'AMQP' ? this.#amqp : this.#stomp).address.port;
  }

  /** A logged-in AMQP client, disconnected when the node stops. */
  async amqpClient(user = 'test1'): Promise<AmqpClient> {
    const client = await AmqpClient.open(this.#amqp.address.port, user);
    this.#clients.push(() => client.cut());
    return client;
  }

  async stompClient(user = 'test1'): Promise<StompClient> {
    const login = { login: user, passcode: user };
    const client = await StompClient.login(this.#stomp.address.port, '1.2', login);
    this.#clients.push(() => client.socket.destroy());
    return client;
  }

  async stop(): Promise<void> {
    for (const cut of this.#clients) cut();
    await this.#amqp.stop();
    await this.#stomp.stop();
    await this.harness.close();
  }
}

/** An element header of an HTTP answer, its bytes decoded as UTF-8. */
export function textIn(answer: Answer, name: string): string | undefined {
  const bytes = elementHeadersOf(answer).get(name);
  return bytes === undefined ? undefined : Buffer.from(bytes, 'latin1').toString();
}
