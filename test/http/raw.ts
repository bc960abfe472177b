import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { basic } from './harness.ts';

/** A parsed response. */
export interface RawAnswer {
  readonly status: number;
  readonly reason: string;
  /** Values by lower-case name. */
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string;
}

/** The Authorization header line of the default test user. */
export const AUTHORIZATION = `Authorization: ${basic('test1', 'test1')}`;

/** A request as bytes: its lines, an empty line and the body, encoded as Latin-1. */
export function rawRequest(lines: readonly string[], body = ''): Buffer {
  return Buffer.from(`${lines.join('\r\n')}\r\n\r\n${body}`, 'latin1');
}

/** A request of the default user, after which the server closes the connection. */
export function lastRequest(method: string, path: string): Buffer {
  return rawRequest([`${method} ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION, 'Connection: close']);
}

/** A request of the default user with headers and a body, after which the server closes the connection. */
export function closingRequest(
  method: string,
  target: string,
  headers: readonly string[] = [],
  body = '',
): Buffer {
  return rawRequest(
    [
      `${method} ${target} HTTP/1.1`,
      'Host: test',
      AUTHORIZATION,
      'Connection: close',
      `Content-Length: ${body.length}`,
      ...headers,
    ],
    body,
  );
}

/** A connection on which the test controls every byte. */
export class RawConnection {
  readonly socket: Socket;
  readonly #chunks: Buffer[] = [];
  readonly #closed: Promise<void>;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (chunk) => this.#chunks.push(chunk));
    // A server that rejects a request may reset the connection while the test is still writing.
    socket.on('error', () => {});
    this.#closed = new Promise((resolve) => {
      socket.on('close', () => resolve());
    });
  }

  /** @param localAddress the address of the client; by default, that of the server */
  static async open(port: number, localAddress = '127.0.0.1'): Promise<RawConnection> {
    const socket = connect({ port, host: '127.0.0.1', localAddress });
    await once(socket, 'connect');
    return new RawConnection(socket);
  }

  send(bytes: Buffer | string): void {
    this.socket.write(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes);
  }

  /** Everything received so far, as Latin-1. */
  get received(): string {
    return Buffer.concat(this.#chunks).toString('latin1');
  }

  /** Resolves with all responses when the server has closed the connection. */
  async untilClosed(): Promise<RawAnswer[]> {
    await this.#closed;
    return parseAnswers(this.received);
  }

  /** Resolves as soon as `count` responses have arrived, or with fewer if the connection closes. */
  async answers(count: number): Promise<RawAnswer[]> {
    let answers = parseAnswers(this.received);
    while (answers.length < count && !this.socket.destroyed) {
      await this.next('data');
      answers = parseAnswers(this.received);
    }
    return answers;
  }

  /** Resolves at the next such event, or when the connection closes. */
  async next(event: 'data' | 'drain'): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.socket.once(event, () => resolve());
    await Promise.race([promise, this.#closed]);
  }

  destroy(): void {
    this.socket.destroy();
  }
}

/** Sends bytes and reads until the server closes the connection. */
export async function exchange(port: number, ...bytes: (Buffer | string)[]): Promise<RawAnswer[]> {
  const connection = await RawConnection.open(port);
  for (const part of bytes) connection.send(part);
  return connection.untilClosed();
}

/** The complete responses in `text`, each `100 Continue` included. */
function parseAnswers(text: string): RawAnswer[] {
  const answers: RawAnswer[] = [];
  let rest = text;
  for (;;) {
    const end = rest.indexOf('\r\n\r\n');
    if (end === -1) return answers;
    const [line = '', ...lines] = rest.slice(0, end).split('\r\n');
    const status = /^HTTP\/1\.1 (\d{3}) (.*)$/.exec(line);
    assert.ok(status, `not an answer: ${JSON.stringify(line)}`);
    const headers = new Map(
      lines.map((one) => {
        const colon = one.indexOf(':');
        return [one.slice(0, colon).toLowerCase(), one.slice(colon + 1).trim()];
      }),
    );
    const length = Number(headers.get('content-length') ?? 0);
    const body = rest.slice(end + 4, end + 4 + length);
    if (body.length < length) return answers;
    answers.push({ status: Number(status[1]), reason: status[2] ?? '', headers, body });
    rest = rest.slice(end + 4 + length);
  }
}
