import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect as connectTcp, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { connect as connectTls } from 'node:tls';

/** A frame as a client sees it: header values are unescaped; of repeated headers only the first is kept. */
export interface ServerFrame {
  readonly command: string;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: Buffer;
}

export type StompVersion = '1.0' | '1.1' | '1.2';

/** About how many bytes of parsed frames `received` keeps, for tests that check them. */
const KEPT_BYTES = 64 * 1024;

/**
 * A minimal STOMP client for tests. It shares no code with the server, so that the two cannot have the same mistake,
 * and sends whatever it is given.
 */
export class StompClient {
  readonly socket: Socket;
  /** Determines how headers are escaped and unescaped. */
  version: StompVersion = '1.2';
  /** Heart-beats: line ends between frames, without the one that follows each frame. */
  beats = 0;
  /** Frames that were followed by a line end. */
  newlines = 0;
  #isBehindFrame = false;
  /** The bytes received last. */
  received: Buffer = Buffer.alloc(0);
  #at = 0;
  #isClosed = false;
  #wake: (() => void) | null = null;
  #receipts = 0;
  #session: ServerFrame | null = null;
  readonly #frames: ServerFrame[] = [];

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (bytes) => {
      const from = this.#at > KEPT_BYTES ? this.#at : 0;
      this.#at -= from;
      this.received = Buffer.concat([this.received.subarray(from), bytes]);
      for (let frame = this.#cut(); frame !== null; frame = this.#cut()) this.#frames.push(frame);
      this.#wake?.();
    });
    socket.on('error', () => {});
    const ended = (): void => {
      this.#isClosed = true;
      this.#wake?.();
      socket.end();
    };
    socket.on('end', ended);
    socket.on('close', ended);
  }

  /** @param options for TLS, which is used if `ca` is given; `cert` and `key` are the client's own */
  static async open(
    port: number,
    options: { ca?: string; cert?: string; key?: string } = {},
  ): Promise<StompClient> {
    const { ca } = options;
    const socket =
      ca === undefined
        ? connectTcp({ port, host: '127.0.0.1', allowHalfOpen: true })
        : connectTls({ port, host: '127.0.0.1', servername: 'localhost', ...options });
    await once(socket, ca === undefined ? 'connect' : 'secureConnect');
    return new StompClient(socket);
  }

  /** Uses an open connection: a socket, or a stream over one. */
  static over(socket: Duplex): StompClient {
    return new StompClient(socket as Socket);
  }

  /** Opens and logs in. */
  static async login(
    port: number,
    version: StompVersion = '1.2',
    headers: Headers = {},
  ): Promise<StompClient> {
    const client = await StompClient.open(port);
    client.version = version;
    await client.connect(headers);
    return client;
  }

  /** The header `session` of CONNECTED. */
  get session(): string {
    return this.#session?.headers.get('session') ?? '';
  }

  async connect(headers: Headers = {}): Promise<ServerFrame> {
    const accepts = this.version === '1.0' ? {} : { 'accept-version': this.version, host: 'here' };
    this.send('CONNECT', { ...accepts, login: 'test', passcode: 'test', ...headers });
    this.#session = await this.expect('CONNECTED');
    return this.#session;
  }

  write(bytes: string | Uint8Array): void {
    this.socket.write(bytes);
  }

  /** Sends a frame; header names and values are escaped as the version requires. */
  send(command: string, headers: Headers = {}, body: string | Uint8Array = ''): void {
    this.write(this.frame(command, headers, body));
  }

  /** The bytes of a frame. A header that is null is left out. */
  frame(command: string, headers: Headers = {}, body: string | Uint8Array = ''): Buffer {
    const written = command === 'CONNECT' || command === 'STOMP' ? (text: string) => text : this.#escape;
    const lines = Object.entries(headers)
      .filter(([, value]) => value !== null)
      .map(([name, value]) => `${written(name)}:${written(String(value))}\n`);
    const bytes = Buffer.from(body);
    const length =
      bytes.includes(0) && !('content-length' in headers) ? `content-length:${bytes.length}\n` : '';
    return Buffer.concat([Buffer.from(`${command}\n${lines.join('')}${length}\n`), bytes, Buffer.from('\0')]);
  }

  /** The next frame; rejects if the connection ends before it. */
  async next(): Promise<ServerFrame> {
    const frame = await this.nextOrEnd();
    assert.ok(frame !== null, 'the connection ended before a frame came');
    return frame;
  }

  /** The next frame, or null if the connection ended. */
  async nextOrEnd(): Promise<ServerFrame | null> {
    for (;;) {
      const frame = this.#frames.shift();
      if (frame !== undefined) return frame;
      if (this.#isClosed) return null;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** The next frame, which must have this command. */
  async expect(command: string): Promise<ServerFrame> {
    const frame = await this.next();
    assert.equal(frame.command, command, `got ${show(frame)}`);
    return frame;
  }

  /** The next frame, which must be an ERROR with this code, and the last of the connection. */
  async expectError(code: string): Promise<ServerFrame> {
    const frame = await this.expect('ERROR');
    assert.equal(frame.headers.get('message'), code, show(frame));
    assert.equal(await this.nextOrEnd(), null, 'an ERROR is the last frame');
    this.socket.destroy();
    return frame;
  }

  /** Waits until the connection closes; no further frame may come before that. */
  async expectClose(): Promise<void> {
    const frame = await this.nextOrEnd();
    assert.equal(frame, null, frame === null ? '' : `got ${show(frame)}`);
    this.socket.destroy();
  }

  /** Sends a frame with a receipt and waits for that RECEIPT; other frames are kept. */
  async ask(command: string, headers: Headers = {}, body: string | Uint8Array = ''): Promise<void> {
    this.#receipts += 1;
    const receipt = `ask-${this.#receipts}`;
    this.send(command, { ...headers, receipt }, body);
    await this.receipt(receipt);
  }

  /** Waits for the RECEIPT of that id; other frames are kept. */
  async receipt(id: string): Promise<void> {
    const kept: ServerFrame[] = [];
    for (let frame = await this.next(); ; frame = await this.next()) {
      assert.notEqual(frame.command, 'ERROR', show(frame));
      if (frame.command === 'RECEIPT' && frame.headers.get('receipt-id') === id) break;
      kept.push(frame);
    }
    this.#frames.unshift(...kept);
  }

  /** Disconnects: waits for the RECEIPT of DISCONNECT, and for the server to close. */
  async disconnect(): Promise<void> {
    await this.ask('DISCONNECT');
    assert.equal(await this.nextOrEnd(), null);
    this.socket.destroy();
  }

  /** Resets the connection, like a client that crashes. */
  async vanish(): Promise<void> {
    this.socket.resetAndDestroy();
    while ((await this.nextOrEnd()) !== null);
  }

  readonly #escape = (text: string): string => {
    if (this.version === '1.0') return text;
    const common = text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n').replaceAll(':', '\\c');
    return this.version === '1.1' ? common : common.replaceAll('\r', '\\r');
  };

  #cut(): ServerFrame | null {
    while (this.received[this.#at] === 10) {
      if (this.#isBehindFrame) this.newlines += 1;
      else this.beats += 1;
      this.#isBehindFrame = false;
      this.#at += 1;
    }
    const headEnd = this.received.indexOf('\n\n', this.#at);
    if (headEnd < 0) return null;
    const [command = '', ...lines] = this.received.toString('utf8', this.#at, headEnd).split('\n');
    const headers = new Map<string, string>();
    for (const line of lines) {
      const colon = line.indexOf(':');
      const name = this.#unescape(command, line.slice(0, colon));
      if (!headers.has(name)) headers.set(name, this.#unescape(command, line.slice(colon + 1)));
    }
    const length = headers.get('content-length');
    const bodyAt = headEnd + 2;
    const end = length === undefined ? this.received.indexOf(0, bodyAt) : bodyAt + Number(length);
    if (end < 0 || this.received.length <= end) return null;
    assert.equal(this.received[end], 0, 'a frame ends with NUL');
    this.#at = end + 1;
    this.#isBehindFrame = true;
    return { command, headers, body: Buffer.from(this.received.subarray(bodyAt, end)) };
  }

  #unescape(command: string, text: string): string {
    if (this.version === '1.0' || command === 'CONNECTED') return text;
    return text.replace(/\\(.)/g, (_all, letter: string) => ({ n: '\n', r: '\r', c: ':' })[letter] ?? letter);
  }
}

export type Headers = Readonly<Record<string, string | number | null>>;

export function show({ command, headers, body }: ServerFrame): string {
  return `${command} ${JSON.stringify([...headers])} ${body.toString().slice(0, 200)}`;
}
