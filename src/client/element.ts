import type { DataCodec } from './codec.ts';
import { bytesOfBase64 } from './lines.ts';

/** An element that was taken. */
export interface Element<T> {
  readonly id: string;
  /** The decoded body. @throws ValidationError if the body cannot be decoded, or does not match the schema */
  readonly data: T;
  readonly body: Uint8Array;
  readonly contentType: string;
  /** The encoding of the body, such as `gzip`; null: none. The client does not decompress it. */
  readonly contentEncoding: string | null;
  /** Element headers. Names are in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** Failed tries so far. */
  readonly tries: number;
  /** The maturity of the delivery. */
  readonly mature: Date;
}

/** The members that elements have in all responses. */
export interface ReceivedElement {
  readonly id: string;
  readonly tries: number;
  readonly mature: string;
  readonly contentType: string | null;
  readonly contentEncoding: string | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly text?: string;
  readonly base64?: string;
}

/** Result of decoding a body. The error is stored, not thrown: the element must still be settled. */
export type Decoded = { readonly data: unknown } | { readonly error: unknown };

export class ReceivedBase<T> implements Element<T> {
  // `declare` makes browsers load less code: only the constructor sets these members.
  declare readonly id: string;
  declare readonly contentType: string;
  declare readonly contentEncoding: string | null;
  declare readonly headers: Readonly<Record<string, string>>;
  declare readonly tries: number;
  declare readonly mature: Date;
  readonly #received: ReceivedElement;
  readonly #decoded: Decoded;

  constructor(received: ReceivedElement, decoded: Decoded) {
    this.#received = received;
    this.#decoded = decoded;
    this.id = received.id;
    this.contentType = received.contentType ?? 'application/octet-stream';
    this.contentEncoding = received.contentEncoding;
    this.headers = received.headers;
    this.tries = received.tries;
    this.mature = new Date(received.mature);
  }

  get data(): T {
    if ('error' in this.#decoded) throw this.#decoded.error;
    return this.#decoded.data as T;
  }

  get body(): Uint8Array {
    return bytesOf(this.#received);
  }
}

export async function decodedBy(codec: DataCodec, received: ReceivedElement): Promise<Decoded> {
  try {
    const { text = null, contentType } = received;
    const data = await codec.decode({
      text,
      contentType,
      get bytes() {
        return bytesOf(received);
      },
    });
    return { data };
  } catch (error) {
    return { error };
  }
}

function bytesOf({ text, base64 }: ReceivedElement): Uint8Array {
  return base64 === undefined ? new TextEncoder().encode(text ?? '') : bytesOfBase64(base64);
}
