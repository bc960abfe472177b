import { connect, type Socket } from 'node:net';

/** An answer, parsed only as far as a load generator needs. */
export interface WireAnswer {
  readonly status: number;
  /** Status line and headers as received, without the blank line. */
  readonly head: string;
  readonly bodyBytes: number;
  readonly body: Buffer;
}

const CONTENT_LENGTH = /\r\ncontent-length: *(\d+)/i;

/**
 * A keep-alive connection that sends prepared requests one at a time, and calls back when the answer is complete. It
 * parses as little as possible, because it shares the machine's cores with the server that it measures. Answers must
 * have a content length.
 */
export class WireConnection {
  readonly #socket: Socket;
  #rest: Buffer | null = null;
  #onAnswer: ((answer: WireAnswer) => void) | null = null;
  #onError: ((error: Error) => void) | null = null;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('data', (chunk) => this.#read(chunk));
    socket.on('error', (error) => this.#onError?.(error));
    socket.on('close', () => this.#onError?.(new Error('The server closed the connection.')));
  }

  static open(url: string): Promise<WireConnection> {
    const { hostname, port } = new URL(url);
    const { promise, resolve, reject } = Promise.withResolvers<WireConnection>();
    const socket = connect({ host: hostname, port: Number(port), noDelay: true });
    socket.once('error', reject);
    socket.once('connect', () => {
      socket.off('error', reject);
      resolve(new WireConnection(socket));
    });
    return promise;
  }

  /** Sends without a promise per request. Only one request may be in flight. */
  send(request: string, onAnswer: (answer: WireAnswer) => void, onError: (error: Error) => void): void {
    if (this.#socket.destroyed) {
      // The socket would ignore the request.
      onError(new Error('The server has closed the idle connection.'));
      return;
    }
    this.#onAnswer = onAnswer;
    this.#onError = onError;
    this.#socket.write(request, 'latin1');
  }

  ask(request: string): Promise<WireAnswer> {
    const { promise, resolve, reject } = Promise.withResolvers<WireAnswer>();
    this.send(request, resolve, reject);
    return promise;
  }

  close(): void {
    this.#onError = null;
    this.#socket.destroy();
  }

  #read(chunk: Buffer): void {
    const data = this.#rest === null ? chunk : Buffer.concat([this.#rest, chunk]);
    const end = data.indexOf('\r\n\r\n');
    if (end < 0) {
      this.#rest = data;
      return;
    }
    const head = data.toString('latin1', 0, end);
    const bodyBytes = Number(CONTENT_LENGTH.exec(head)?.[1] ?? 0);
    if (data.length < end + 4 + bodyBytes) {
      this.#rest = data;
      return;
    }
    this.#rest = null;
    const body = data.subarray(end + 4, end + 4 + bodyBytes);
    this.#onAnswer?.({ status: Number(head.slice(9, 12)), head, bodyBytes, body });
  }
}

/** A complete request; without a body, no content length is sent. */
export function wireRequest(method: string, path: string, authorization: string, body = ''): string {
  return `${method} ${path}${wireTail(authorization, body)}`;
}

/** The part after the path, for generators that send many paths. */
export function wireTail(authorization: string, body = ''): string {
  const length = body === '' ? '' : `content-type: application/json\r\ncontent-length: ${body.length}\r\n`;
  return ` HTTP/1.1\r\nhost: bench\r\nauthorization: ${authorization}\r\n${length}\r\n${body}`;
}
