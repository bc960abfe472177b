import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import type { CrashMoment } from '../engines.ts';

/**
 * Statements outside of transactions of calls: those that prepare one, and those that the engine runs in the
 * background. Cutting at one of them would mean cutting before the call has started.
 */
const NO_CALLS = new Set([
  ...[
    'groups',
    'alive',
    'note use',
    'probe',
    'oldest batch',
    'sum counts',
    'apply retention',
    'forget keys',
    'expire',
  ],
  ...['forget unused groups', 'forget unused queues'],
]);

const FLUSH = Buffer.from([0x48, 0, 0, 0, 4]);

interface Cut {
  readonly moment: CrashMoment;
  readonly done: () => void;
}

/** A message of PostgreSQL's protocol: a type of one byte, a length, a content. */
interface Message {
  readonly kind: string;
  readonly bytes: Buffer;
}

/**
 * Proxies between engine and server, and can end all connections at a chosen moment of the next transaction: after its
 * statements have run and before its commit is sent, or after it was committed and before the reply is forwarded.
 */
export class PostgresProxy {
  readonly #server: Server;
  readonly #pairs = new Set<Pair>();
  readonly serverPorts: number[] = [];
  #cut: Cut | null = null;

  static async start(serverPort: number): Promise<PostgresProxy> {
    const proxy = new PostgresProxy(serverPort);
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  private constructor(serverPort: number) {
    this.#server = createServer({ noDelay: true }, (client) => {
      const server = connect({ port: serverPort, host: '127.0.0.1', noDelay: true });
      server.once('connect', () => this.serverPorts.push(server.localPort ?? 0));
      const pair = new Pair(client, server, this);
      this.#pairs.add(pair);
      client.once('close', () => this.#pairs.delete(pair));
    });
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the proxy does not listen');
    return address.port;
  }

  /** Ends all connections at that moment of the next transaction, and resolves when it has. */
  cutAt(moment: CrashMoment): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#cut = { moment, done: resolve };
    return promise;
  }

  /** The moment at which the next transaction is cut; null: it is not. */
  get moment(): CrashMoment | null {
    return this.#cut?.moment ?? null;
  }

  cut(): void {
    const cut = this.#cut;
    this.#cut = null;
    this.#server.close();
    for (const pair of this.#pairs) pair.end();
    cut?.done();
  }

  async stop(): Promise<void> {
    for (const pair of this.#pairs) pair.end();
    if (!this.#server.listening) return;
    this.#server.close();
    await once(this.#server, 'close');
  }
}

/** One client connection and its connection to the server. */
class Pair {
  readonly #client: Socket;
  readonly #server: Socket;
  readonly #proxy: PostgresProxy;
  readonly #requests = new Framing(true);
  readonly #answers = new Framing(false);
  #statement = '';
  /** Number of commands sent without a reply so far. */
  #unanswered = 0;
  #isCutting = false;
  #isHeld = false;
  /** Replies that were not forwarded. */
  readonly #kept: Buffer[] = [];

  constructor(client: Socket, server: Socket, proxy: PostgresProxy) {
    this.#client = client;
    this.#server = server;
    this.#proxy = proxy;
    // Corked: what came together is passed on together, not with a system call for each message.
    client.on('data', (bytes) => {
      server.cork();
      for (const message of this.#requests.read(bytes)) this.#ask(message);
      server.uncork();
    });
    server.on('data', (bytes) => {
      client.cork();
      for (const message of this.#answers.read(bytes)) this.#answer(message);
      client.uncork();
    });
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const) {
      one.on('error', () => {});
      one.once('close', () => other.destroy());
    }
  }

  end(): void {
    this.#client.destroy();
    this.#server.destroy();
  }

  #ask({ kind, bytes }: Message): void {
    if (this.#isHeld) return;
    if (kind === 'B') this.#statement = statementOf(bytes);
    const isQuery = kind === 'Q';
    const ends = kind === 'S' || isQuery;
    const begins = isQuery && bytes.includes('BEGIN');
    const single = kind === 'S' && !this.#isCutting && !NO_CALLS.has(this.#statement);
    if (this.#proxy.moment !== null && (begins || single)) this.#isCutting = true;
    if (this.#isCutting && this.#proxy.moment === 'before-commit') {
      if (single || (isQuery && (bytes.includes('COMMIT') || bytes.includes('ROLLBACK')))) {
        this.#isHeld = true;
        this.#server.write(FLUSH);
        // Replies keep the order of commands, so everything sent earlier has been replied to once this one has.
        if (this.#unanswered === 0 && !single) this.#proxy.cut();
        return;
      }
    }
    // The first message, which has no type, has been replied to when the session is ready.
    if (ends || kind === '') this.#unanswered += 1;
    this.#server.write(bytes);
  }

  #answer({ kind, bytes }: Message): void {
    if (kind === 'Z') this.#unanswered -= 1;
    if (!this.#isCutting) {
      this.#client.write(bytes);
      return;
    }
    const isDone =
      this.#proxy.moment === 'before-commit'
        ? this.#isHeld && (kind === 'C' || kind === 'E' || kind === 'Z') && this.#unanswered <= 0
        : kind === 'Z' && this.#unanswered === 0 && bytes.at(-1) === 'I'.charCodeAt(0);
    if (isDone) {
      this.#proxy.cut();
      return;
    }
    this.#kept.push(bytes);
    // A transaction whose client waits for these replies before it ends it: forward them.
    const isAwaited = kind === 'Z' && this.#unanswered === 0 && bytes.at(-1) === 'T'.charCodeAt(0);
    if (isAwaited && !this.#isHeld) for (const one of this.#kept.splice(0)) this.#client.write(one);
  }
}

/** Splits a stream into messages. The first one of a client has no type. */
class Framing {
  #chunks: Buffer[] = [];
  #received = 0;
  /**
   * Bytes needed for a complete message: joining all chunks whenever one arrives would copy a large message many times.
   */
  #needed = 0;
  #isFirst: boolean;

  constructor(isClient: boolean) {
    this.#isFirst = isClient;
  }

  *read(bytes: Buffer): Iterable<Message> {
    this.#chunks.push(bytes);
    this.#received += bytes.length;
    if (this.#received < this.#needed) return;
    let left: Buffer = this.#chunks.length === 1 ? bytes : Buffer.concat(this.#chunks);
    for (;;) {
      const typeBytes = this.#isFirst ? 0 : 1;
      this.#needed = typeBytes + 4;
      if (left.length >= this.#needed) this.#needed = typeBytes + left.readUInt32BE(typeBytes);
      this.#chunks = left.length === 0 ? [] : [left];
      this.#received = left.length;
      if (left.length < this.#needed) return;
      const message = left.subarray(0, this.#needed);
      left = left.subarray(this.#needed);
      yield { kind: this.#isFirst ? '' : String.fromCharCode(message[0] ?? 0), bytes: message };
      this.#isFirst = false;
    }
  }
}

/** The name of the statement in a Bind message: the second of two null-terminated strings. */
function statementOf(bytes: Buffer): string {
  const from = bytes.indexOf(0, 5) + 1;
  return bytes.toString('utf8', from, bytes.indexOf(0, from));
}
