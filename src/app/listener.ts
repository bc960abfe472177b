import type { AddressInfo } from 'node:net';
import type { Config } from '../config/options.ts';
import { ConfigError } from '../config/problem.ts';
import { HTTP_DEFAULTS, type HttpOptions } from '../http/options.ts';
import type { Service } from '../util/service.ts';
import { networksOf } from './networks.ts';
import type { ListenerGroup } from './tls.ts';
import { isSocketPath, listenOnSocket } from './unix-socket.ts';
import type { SourceOf } from './users.ts';

/** @throws ConfigError */
export function httpOptions(
  { http, log, shutdown }: Config,
  tls: HttpOptions['tls'],
  sourceOf: SourceOf,
): HttpOptions {
  const { host, port, bodyLimit, maxSockets, allowedOrigins, metricsWithoutLogin } = http;
  const trustedProxies = networksOf(http.trustedProxies, ['http', 'trustedProxies'], sourceOf);
  const drainMs = shutdown.deadline * 1000;
  return {
    ...HTTP_DEFAULTS,
    host,
    port,
    bodyLimit,
    maxSockets,
    allowedOrigins,
    metricsWithoutLogin,
    trustedProxies,
    logsAccess: log.access,
    tls,
    drainMs,
  };
}

/** A listener whose address cannot be had is a fault of the configuration that names it. */
export function listening(
  server: Service,
  group: ListenerGroup,
  config: Config,
  sourceOf: SourceOf,
): Service {
  const { host } = config[group];
  const start = (): Promise<void> =>
    isSocketPath(host) ? listenOnSocket(host, () => server.start()) : server.start();
  return {
    start: () =>
      start().catch((fault: NodeJS.ErrnoException) => {
        throw refusal(fault.code ?? fault.message, group, config, sourceOf);
      }),
    stop: () => server.stop(),
  };
}

/** `http://127.0.0.1:3444`, as clients write it. */
export function urlOf(scheme: string, { address, family, port }: AddressInfo): string {
  const host = family === 'IPv6' ? `[${address}]` : address;
  return `${scheme}://${host}:${port}`;
}

function refusal(reason: string, group: ListenerGroup, config: Config, sourceOf: SourceOf): ConfigError {
  const { host, port } = config[group];
  if (isSocketPath(host)) return socketRefusal(reason, [group, 'host'], host, sourceOf);
  const option = reason === 'EADDRINUSE' || reason === 'EACCES' ? 'port' : 'host';
  const path = [group, option];
  const problem = `cannot listen on ${host}, port ${port} (${reason})`;
  const remedy =
    reason === 'EADDRINUSE' ? 'End the program that uses it, or choose another port' : 'Choose another';
  return new ConfigError([{ source: sourceOf(path), path: path.join('.'), problem, remedy }]);
}

const SOCKET_REMEDIES: Readonly<Record<string, string>> = {
  EADDRINUSE: 'A server listens there: end it, or choose another path',
  EEXIST: 'There is a file that is no socket: choose another path',
  EACCES: 'Name a folder that exists and that this user may write to',
};

function socketRefusal(
  reason: string,
  path: readonly string[],
  host: string,
  sourceOf: SourceOf,
): ConfigError {
  const remedy = SOCKET_REMEDIES[reason] ?? 'Choose another path';
  const problem = `cannot listen on ${host} (${reason})`;
  return new ConfigError([{ source: sourceOf(path), path: path.join('.'), problem, remedy }]);
}
