import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { text } from 'node:stream/consumers';
import { type ConnectionOptions, checkServerIdentity, getCACertificates } from 'node:tls';
import type { Config } from '../config/options.ts';
import { messageOf } from '../util/message-of.ts';
import { quote } from '../util/quote.ts';
import { certificatesIn } from './checks.ts';
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
  /** Whether the command line names its address: there may be a proxy with another certificate. */
  readonly #isNamed: boolean;

  /**
   * @param url what the command line says of its address; null: nothing, so that it is the configured one
   * @throws CommandFailed
   */
  constructor(url: string | null, { http }: Config) {
    this.#url = url === null ? configuredUrl(http) : givenUrl(url);
    this.#socketPath = url === null && http.host.startsWith('/') ? http.host : null;
    this.#certificate = http.tls?.cert;
    this.#isNamed = url !== null;
  }

  /** Its address, for messages. */
  get origin(): string {
    return this.#socketPath === null ? this.#url.origin : `unix:${this.#socketPath}`;
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
      ...(isTls && this.#certificate !== undefined && trustIn(this.#certificate, this.#isNamed)),
    };
    const send = isTls ? httpsRequest : httpRequest;
    const call = send(new URL(path, this.#url), options, (response) => {
      text(response).then((body) => resolve({ status: response.statusCode ?? 0, body }), reject);
    });
    call.on('error', (error: NodeJS.ErrnoException) => {
      const isOther = isTls && !this.#isNamed && UNKNOWN_CERTIFICATE.has(error.code ?? '');
      const problem = `its certificate is not the one in ${this.#certificate}; if that was renewed, send SIGHUP to the server`;
      reject(isOther && this.#certificate !== undefined ? new Error(problem, { cause: error }) : error);
    });
    call.end();
    return promise;
  }
}

/** Codes of Node for a certificate that nobody vouches for. */
const UNKNOWN_CERTIFICATE = new Set([
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
]);

/**
 * Trusts the server's own certificate, whatever name it has and whichever authority signed it, and no other of the same
 * authority: a password is sent to the server.
 * @param others also trusts those that every client would
 */
function trustIn(file: string, others: boolean): ConnectionOptions {
  const own = readCertificate(file);
  const { fingerprint256 } = new X509Certificate(own);
  return {
    ca: others ? [...getCACertificates('default'), own] : [own],
    // Without it, only the root of a chain could be trusted.
    allowPartialTrustChain: true,
    checkServerIdentity: (host, peer) =>
      peer.fingerprint256 === fingerprint256 ? undefined : checkServerIdentity(host, peer),
  };
}

/** The first certificate of a file. An error of the system would be taken for one of the connection. */
function readCertificate(file: string): string {
  let why = 'it has none';
  try {
    const [first] = certificatesIn(readFileSync(file, 'utf8'));
    if (first !== undefined) return first;
  } catch (error) {
    why = (error as NodeJS.ErrnoException).code ?? messageOf(error);
  }
  throw new Error(`the certificate ${file} cannot be read (${why})`);
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
