import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import { PERFORMATIVES } from './wire.ts';

/** A frame or protocol header from the server. */
export interface ServerFrame {
  readonly bytes: Buffer;
  /** `AMQP`, `SASL`, or the descriptor code of the frame; null: a heart-beat. */
  readonly kind: 'AMQP' | 'SASL' | number | null;
}

/** Descriptor codes of the frames of AMQP and SASL. */
export const KIND = {
  ...PERFORMATIVES,
  mechanisms: 0x40,
  challenge: 0x42,
  outcome: 0x44,
} as const;

/** Sends raw bytes, and splits received bytes into frames. */
export class RawClient {
  readonly socket: Socket;
  #bytes = Buffer.alloc(0);
  #hasEnded = false;
  #wake: () => void = () => {};

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.setNoDelay(true);
    socket.on('data', (bytes: Buffer) => {
      this.#bytes = Buffer.concat([this.#bytes, bytes]);
      this.#wake();
    });
    const ended = (): void => {
      this.#hasEnded = true;
      this.#wake();
    };
    socket.on('error', ended);
    socket.on('end', ended);
    socket.on('close', ended);
  }

  static async open(port: number): Promise<RawClient> {
    const client = new RawClient(connect({ port, host: '127.0.0.1', allowHalfOpen: true }));
    await once(client.socket, 'connect');
    return client;
  }

  /** Connects over TLS. */
  static async openTls(port: number, options: ConnectionOptions): Promise<RawClient> {
    const client = new RawClient(
      connectTls({ port, host: '127.0.0.1', servername: 'localhost', ...options }),
    );
    await once(client.socket, 'secureConnect');
    return client;
  }

  /** Sends all parts in one write. */
  write(...parts: readonly Buffer[]): void {
    if (!this.socket.destroyed) this.socket.write(Buffer.concat(parts));
  }

  /** The next frame or header from the server; null if the server closes instead. */
  async next(): Promise<ServerFrame | null> {
    for (;;) {
      const frame = this.#cut();
      if (frame !== null || this.#hasEnded) return frame;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** Reads up to the next frame or header of this kind. @throws Error if the server closes before */
  async until(kind: ServerFrame['kind']): Promise<Buffer> {
    for (let frame = await this.next(); frame !== null; frame = await this.next()) {
      if (frame.kind === kind) return frame.bytes;
    }
    throw new Error(`The server closed without ${kind}.`);
  }

  /** All frames and headers until the server closes. */
  async readToEnd(): Promise<ServerFrame[]> {
    const all: ServerFrame[] = [];
    for (let frame = await this.next(); frame !== null; frame = await this.next()) all.push(frame);
    return all;
  }

  #cut(): ServerFrame | null {
    if (this.#bytes.length < 8) return null;
    const isHeader = this.#bytes.toString('latin1', 0, 4) === 'AMQP';
    const size = isHeader ? 8 : this.#bytes.readUInt32BE(0);
    if (this.#bytes.length < size) return null;
    const bytes = this.#bytes.subarray(0, size);
    this.#bytes = this.#bytes.subarray(size);
    return splitFrame(bytes);
  }
}

/** A whole frame or protocol header with its kind. */
export function splitFrame(bytes: Buffer): ServerFrame {
  if (bytes.toString('latin1', 0, 4) === 'AMQP') return { bytes, kind: bytes[4] === 3 ? 'SASL' : 'AMQP' };
  return { bytes, kind: bytes[10] ?? null };
}

/** The condition of a `close`, a `detach` or an `end`; null if there is none. */
export function conditionOf(bytes: Buffer): string | null {
  const found = /\xa3[\s\S]([a-z]+:[a-z:-]+)/.exec(bytes.toString('latin1'));
  return found?.[1] ?? null;
}

/** The code of a SASL outcome. */
export function codeOf(outcome: Buffer): number | undefined {
  return outcome.at(-1);
}
