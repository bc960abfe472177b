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

interface ServerCallOptions {
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** Calls the server of a configuration from commands. */
export class ConfiguredServer {
  readonly #url: URL;
  /** Path of a Unix socket; null: use the URL's host and port. */
  readonly #socketPath: string | null;
  /** Path of the configured PEM certificate; undefined if the server has no TLS. */
  readonly #certificate: string | undefined;
  /** Whether the command line gives the address, which may be that of a proxy with another certificate. */
  readonly #isUrlGiven: boolean;

  /**
   * @param url address from the command line; null: use the configured address
   * @throws CommandFailed if the URL is invalid
   */
  constructor(url: string | null, { http }: Config) {
    this.#url = url === null ? configuredUrl(http) : givenUrl(url);
    this.#socketPath = url === null && http.host.startsWith('/') ? http.host : null;
    this.#certificate = http.tls?.cert;
    this.#isUrlGiven = url !== null;
  }

  /** The address, for messages. */
  get origin(): string {
    return this.#socketPath === null ? this.#url.origin : `unix:${this.#socketPath}`;
  }

  /** @throws the system's error if there is no response */
  async call(
    method: 'GET' | 'POST',
    path: string,
    { headers = {}, signal }: ServerCallOptions = {},
  ): Promise<ServerResponse> {
    const { promise, resolve, reject } = Promise.withResolvers<ServerResponse>();
    const isTls = this.#url.protocol === 'https:';
    const options = {
      method,
      headers: { ...headers, 'content-length': 0 },
      signal,
      ...(this.#socketPath !== null && { socketPath: this.#socketPath }),
      // The server's own certificate is known, so it needs neither an authority nor a matching name.
      ...(isTls && this.#certificate !== undefined && trustOf(this.#certificate, this.#isUrlGiven)),
    };
    const send = isTls ? httpsRequest : httpRequest;
    const call = send(new URL(path, this.#url), options, (response) => {
      text(response).then((body) => resolve({ status: response.statusCode ?? 0, body }), reject);
    });
    call.on('error', (error: NodeJS.ErrnoException) => {
      const isUnexpectedCertificate = isTls && !this.#isUrlGiven && UNKNOWN_CERTIFICATE.has(error.code ?? '');
      const problem = `its certificate is not the one in ${this.#certificate}; if that was renewed, send SIGHUP to the server`;
      reject(
        isUnexpectedCertificate && this.#certificate !== undefined
          ? new Error(problem, { cause: error })
          : error,
      );
    });
    call.end();
    return promise;
  }
}

/** Node's error codes for a certificate without a trusted issuer. */
const UNKNOWN_CERTIFICATE = new Set([
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
]);

/**
 * Trusts the server's own certificate for any host name and issuer, but no other certificate of the same issuer,
 * because a password is sent to the server.
 * @param trustDefaults also trusts the certificates that Node trusts by default
 */
function trustOf(file: string, trustDefaults: boolean): ConnectionOptions {
  const own = readCertificate(file);
  const { fingerprint256 } = new X509Certificate(own);
  return {
    ca: trustDefaults ? [...getCACertificates('default'), own] : [own],
    // Otherwise only the root of a chain could be trusted.
    allowPartialTrustChain: true,
    checkServerIdentity: (host, peer) =>
      peer.fingerprint256 === fingerprint256 ? undefined : checkServerIdentity(host, peer),
  };
}

/** The first certificate of a file. Wraps system errors, which would look like connection errors. */
function readCertificate(file: string): string {
  let reason = 'it has none';
  try {
    const [first] = certificatesIn(readFileSync(file, 'utf8'));
    if (first !== undefined) return first;
  } catch (error) {
    reason = (error as NodeJS.ErrnoException).code ?? messageOf(error);
  }
  throw new Error(`the certificate ${file} cannot be read (${reason})`);
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
