import { isIP } from 'node:net';
import type { ConnectionOptions } from 'node:tls';

/** What connections over TLS have in common. */
export interface Tls {
  /** Holds a server's name only where the settings give one, which all servers have then. */
  readonly options: ConnectionOptions;
  /** The hosts of the URL. */
  readonly hosts: readonly string[];
}

/**
 * The options for a connection to one host, whose name its certificate must have. Clusters and Sentinels announce
 * addresses that certificates need not have: those of such a server must have the first name in the URL.
 */
export function tlsTo(host: string, { options, hosts }: Tls): ConnectionOptions {
  if (options.servername !== undefined) return options;
  const isAnnounced = isIP(host) !== 0 && !hosts.includes(host);
  const name = isAnnounced ? hosts.find(isName) : host;
  return name !== undefined && isName(name) ? { ...options, servername: name } : options;
}

function isName(host: string): boolean {
  return isIP(host) === 0;
}
