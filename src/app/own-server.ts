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

/**
 * Where the server of a configuration listens.
 * @param url what the command line says instead; null: nothing
 * @throws CommandFailed
 */
export function ownAddress(url: string | null, { http }: Config): URL {
  if (url !== null) {
    if (URL.canParse(url)) return new URL(url);
    throw new CommandFailed(`--url ${quote(url)} is no address. Allowed: as in http://127.0.0.1:3444.`);
  }
  const local: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' };
  const host = local[http.host] ?? http.host;
  const named = host.startsWith('/') ? 'localhost' : host.includes(':') ? `[${host}]` : host;
  return new URL(`http${http.tls === undefined ? '' : 's'}://${named}:${http.port}`);
}

/**
 * Calls the server of a configuration.
 * @throws Error of the system, if no response comes
 */
export async function callOwnServer(
  method: 'GET' | 'POST',
  address: URL,
  { http }: Config,
  { headers = {}, signal }: OwnCallOptions = {},
): Promise<ServerResponse> {
  const { promise, resolve, reject } = Promise.withResolvers<ServerResponse>();
  const isTls = address.protocol === 'https:';
  const options = {
    method,
    headers: { ...headers, 'content-length': 0 },
    signal,
    ...(http.host.startsWith('/') && { socketPath: http.host }),
    // The certificate is the server's own, so it is known without an authority, under whatever name.
    ...(isTls &&
      http.tls !== undefined && { ca: readFileSync(http.tls.cert), checkServerIdentity: () => undefined }),
  };
  const call = (isTls ? httpsRequest : httpRequest)(address, options, (response) => {
    text(response).then((body) => resolve({ status: response.statusCode ?? 0, body }), reject);
  });
  call.on('error', reject);
  call.end();
  return promise;
}
