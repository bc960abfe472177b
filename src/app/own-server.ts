import { readFileSync } from 'node:fs';
import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { text } from 'node:stream/consumers';
import type { Config } from '../config/options.ts';
import { quote } from '../util/quote.ts';
import { CommandFailed } from './command-line.ts';

/** A response of the server. */
interface ServerResponse {
  readonly status: number;
  readonly body: string;
}

interface OwnCallOptions {
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** The server of a configuration, as commands call it. */
export class OwnServer {
  readonly #url: URL;
  /** Null: it is called by its URL's host and port. */
  readonly #socketPath: string | null;
  /** PEM file; undefined: it serves without TLS. */
  readonly #certificate: string | undefined;

  /**
   * @param url what the command line says of its address; null: nothing, so that it is the configured one
   * @throws CommandFailed
   */
  constructor(url: string | null, { http }: Config) {
    this.#url = url === null ? configuredUrl(http) : givenUrl(url);
    this.#socketPath = url === null && http.host.startsWith('/') ? http.host : null;
    this.#certificate = http.tls?.cert;
  }

  /** Its address, for messages. */
  get origin(): string {
    return this.#url.origin;
  }

  /** @throws Error of the system, if no response comes */
  async call(
    method: 'GET' | 'POST',
    path: string,
    { headers = {}, signal }: OwnCallOptions = {},
  ): Promise<ServerResponse> {
    const { promise, resolve, reject } = Promise.withResolvers<ServerResponse>();
    const isTls = this.#url.protocol === 'https:';
    const options = {
      method,
      headers: { ...headers, 'content-length': 0 },
      signal,
      ...(this.#socketPath !== null && { socketPath: this.#socketPath }),
      // The certificate is the server's own, so it is known without an authority, under whatever name.
      ...(isTls &&
        this.#certificate !== undefined && {
          ca: readFileSync(this.#certificate),
          checkServerIdentity: () => undefined,
        }),
    };
    const send = isTls ? httpsRequest : httpRequest;
    const call = send(new URL(path, this.#url), options, (response) => {
      text(response).then((body) => resolve({ status: response.statusCode ?? 0, body }), reject);
    });
    call.on('error', reject);
    call.end();
    return promise;
  }
}

function givenUrl(text: string): URL {
  const url = URL.parse(text);
  if (url !== null && /^https?:$/.test(url.protocol)) return url;
  throw new CommandFailed(`--url ${quote(text)} is no address. Allowed: as in http://127.0.0.1:3444.`);
}

function configuredUrl({ host: given, port, tls }: Config['http']): URL {
  const local: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' };
  const host = local[given] ?? given;
  const named = host.startsWith('/') ? 'localhost' : host.includes(':') ? `[${host}]` : host;
  return new URL(`http${tls === undefined ? '' : 's'}://${named}:${port}`);
}
