import { connect, type Socket } from 'node:net';

/** An answer, taken apart no further than a load generator needs. */
export interface WireAnswer {
  readonly status: number;
  /** Status line and headers as they came, without the blank line. */
  readonly head: string;
  readonly bodyBytes: number;
  readonly body: Buffer;
}

const CONTENT_LENGTH = /\r\ncontent-length: *(\d+)/i;

/**
 * One keep-alive connection that sends ready-made requests, one at a time, and calls back when the answer is
 * whole. It parses as little as it can, since it shares the machine's cores with the server it measures.
 * Answers must have a content length; nothing else is understood.
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

  /** The callback form: no promise per request. Only one request may be under way. */
  send(request: string, onAnswer: (answer: WireAnswer) => void, onError: (error: Error) => void): void {
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

/** A whole request as text; without a body no content length is sent. */
export function wireRequest(method: string, path: string, authorization: string, body = ''): string {
  return `${method} ${path}${wireTail(authorization, body)}`;
}

/** What follows the path, for generators that send many paths. */
export function wireTail(authorization: string, body = ''): string {
  const length = body === '' ? '' : `content-type: application/json\r\ncontent-length: ${body.length}\r\n`;
  return ` HTTP/1.1\r\nhost: bench\r\nauthorization: ${authorization}\r\n${length}\r\n${body}`;
}
